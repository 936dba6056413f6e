"""The fleet's table: a worker's registration, beat, sleep mark and end, and what others can read of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch
from typing import Any

import attrs
import psycopg
from psycopg.types.json import Jsonb

from harvest_core.model import Activity, Json, LaneLimit, Peer, Retry, Worker
from harvest_core.store.postgres.database import BEGIN, Database

BEAT = (
    "update {schema}.workers set beaten_at = now(), live = %(live)s, live_at = now() - make_interval(secs => %(age)s) "
    "where id = %(id)s and beaten_at > now() - make_interval(secs => ttl) returning 1"
)
"""One beat. `age`: seconds since the live facts were observed. No row: the worker was pruned, or so late that others
may have taken its tasks already."""

_DEFAULTS = (
    "queue",
    "priority",
    "max_attempts",
    "retry_initial",
    "retry_factor",
    "retry_maximum",
    "retry_jitter",
    "start_to_close",
    "heartbeat",
    "schedule_to_start",
    "schedule_to_close",
)
_PUBLISH = (
    f"insert into {{schema}}.activities as a (name, {', '.join(_DEFAULTS)}) "  # noqa: S608 - constant names
    f"values (%(name)s, {', '.join(f'%({column})s' for column in _DEFAULTS)}) on conflict (name) do update set "
    f"{', '.join(f'{column} = excluded.{column}' for column in _DEFAULTS)} where a.* is distinct from excluded.*"
)
_PUBLISH_LANES = """
with wanted as (
    select * from unnest(%(names)s::text[], %(concurrencies)s::integer[], %(starts)s::integer[], %(periods)s::float8[])
        w(name, concurrency, starts, period)
), gone as (
    delete from {schema}.lane_limits l where l.name not in (select w.name from wanted w)
)
insert into {schema}.lane_limits as l select w.* from wanted w
on conflict (name) do update
    set concurrency = excluded.concurrency, starts = excluded.starts, period = excluded.period
    where l.* is distinct from excluded.*
returning 1
"""


@attrs.frozen
class WorkerRow:
    """A live worker as its row tells.

    Args:
        worker: what policies judge by.
        plugins: slugs of its enabled plugins.
        live: the facts its plugins observed last.
        live_age: seconds since they were observed.
        beat_age: seconds since its last beat.
        concurrency: its slots.
        running: how many tasks it runs now.
        draining: it claims nothing any more.
        host: name of its host.
        pid: its process.
    """

    worker: Worker
    plugins: tuple[str, ...]
    live: Mapping[str, Json]
    live_age: float
    beat_age: float
    concurrency: int
    running: int
    draining: bool
    host: str
    pid: int

    @property
    def peer(self) -> Peer:
        """The worker as others judge by it: one that drains has no free slot."""
        return Peer(self.worker, 0 if self.draining else max(0, self.concurrency - self.running))


@singledispatch
async def register(
    database: Database,
    worker: Worker,
    *,
    plugins: Sequence[str],
    live: Mapping[str, Json],
    concurrency: int,
    ttl: float,
    host: str,
    pid: int,
) -> None:
    """Write a worker's row."""
    await database.fetch(
        "insert into {schema}.workers "
        "(id, name, queues, activities, concurrency, plugins, facts, live, ttl, host, pid) values "
        "(%(id)s, %(name)s, %(queues)s, %(activities)s, %(concurrency)s, %(plugins)s, %(facts)s, %(live)s, "
        "%(ttl)s, %(host)s, %(pid)s) returning 1",
        {
            "id": worker.id,
            "name": worker.name,
            "queues": list(worker.queues),
            "activities": sorted(worker.activities),
            "concurrency": concurrency,
            "plugins": list(plugins),
            "facts": Jsonb(worker.facts),
            "live": Jsonb(live),
            "ttl": ttl,
            "host": host,
            "pid": pid,
        },
    )


@singledispatch
async def publish_activities(database: Database, activities: Iterable[Activity]) -> None:
    """Publish the defaults of activities for enqueues from plain SQL; unchanged ones are not written."""
    async with database.connection() as connection, connection.transaction():
        for activity in sorted(activities, key=lambda activity: activity.name):
            await connection.execute(
                database.text(_PUBLISH),
                {
                    "name": activity.name,
                    "queue": activity.queue,
                    "priority": activity.priority,
                    "max_attempts": activity.retry.max_attempts,
                    "retry_initial": activity.retry.initial,
                    "retry_factor": activity.retry.factor,
                    "retry_maximum": activity.retry.maximum,
                    "retry_jitter": activity.retry.jitter,
                    "start_to_close": activity.start_to_close,
                    "heartbeat": activity.heartbeat,
                    "schedule_to_start": activity.schedule_to_start,
                    "schedule_to_close": activity.schedule_to_close,
                },
            )


async def published_retry(database: Database, name: str) -> Retry:
    """Return how an activity of another app is tried again, as it was published; the defaults where it was not."""
    text = "select retry_initial, retry_factor, retry_maximum, retry_jitter from {schema}.activities where name = %s"
    rows = await database.fetch(text, [name])
    return Retry(0, *rows[0]) if rows else Retry()  # how many attempts there are stands in the task


async def publish_lane_limits(database: Database, limits: Sequence[LaneLimit]) -> None:
    """Make these the limits of lanes, in place of all others."""
    values = {
        "names": [limit.name for limit in limits],
        "concurrencies": [limit.concurrency for limit in limits],
        "starts": [limit.starts for limit in limits],
        "periods": [limit.period for limit in limits],
    }
    await database.fetch(_PUBLISH_LANES, values)


@singledispatch
async def mark(database: Database, worker_id: str, *, asleep: bool | None = None, draining: bool | None = None) -> None:
    """Mark a worker asleep (an enqueue should wake it) or draining; None leaves a mark as it is."""
    await database.fetch(
        "update {schema}.workers set asleep = coalesce(%(asleep)s, asleep), "
        "draining = coalesce(%(draining)s, draining) where id = %(id)s returning 1",
        {"id": worker_id, "asleep": asleep, "draining": draining},
    )


@singledispatch
async def remove(database: Database, worker_id: str) -> None:
    """Remove a worker's row; a claim it still holds is rescued by others."""
    await database.fetch("delete from {schema}.workers where id = %s returning 1", [worker_id])


class Beats:
    """Writes the beats of one worker, from the thread that calls and on a connection of its own.

    Args:
        database: names the server and the schema.
        worker_id: whose row.
    """

    def __init__(self, database: Database, worker_id: str) -> None:
        self._database, self._worker_id, self._text = database, worker_id, database.text(BEAT)
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None

    def write(self, live: Mapping[str, Json], age: float) -> bool:
        """Write a beat with live facts of so many seconds ago; False where the row is gone."""
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._database.dsn, autocommit=True, prepare_threshold=None)
        if self._database.pooler:
            self._connection.execute(BEGIN)
        values = {"id": self._worker_id, "live": Jsonb(live), "age": age}
        beaten = self._connection.execute(self._text, values).fetchone()
        self._connection.commit()
        return beaten is not None

    def close(self) -> None:
        """Close the connection; a further beat makes another one."""
        if self._connection is not None:
            self._connection.close()


@singledispatch
def beats(database: Database, worker_id: str) -> Beats:
    """Return what writes a worker's beats."""
    return Beats(database, worker_id)


async def live_workers(database: Database) -> list[WorkerRow]:
    """Return the workers that have beaten within their ttl, oldest first."""
    rows = await database.fetch(
        "select w.id::text, w.name, w.queues, w.activities, w.facts, w.plugins, w.live, "
        "extract(epoch from now() - w.live_at)::float8, extract(epoch from now() - w.beaten_at)::float8, "
        "w.concurrency, (select count(*) from {schema}.tasks t where t.state = 'running' and t.worker_id = w.id), "
        "w.draining, w.host, w.pid "
        "from {schema}.workers w where w.beaten_at > now() - make_interval(secs => w.ttl) order by w.started_at, w.id"
    )
    return [_row(*row) for row in rows]


def _row(
    worker_id: str, name: str, queues: list[str], activities: list[str], facts: Any, plugins: list[str], *rest: Any
) -> WorkerRow:
    return WorkerRow(Worker(worker_id, name, tuple(queues), frozenset(activities), facts), tuple(plugins), *rest)
