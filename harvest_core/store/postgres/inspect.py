"""Read-only views of tasks and queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import singledispatch
from typing import Any

import attrs

from harvest_core.model import Budget, Json, Route
from harvest_core.store.postgres.database import Database


@attrs.frozen
class TaskStatus:
    """A task as it stands. Times are the database's; once completed it has `result`, and no `error` any more."""

    id: int
    state: str
    queue: str
    name: str
    kind: str
    traits: Mapping[str, Json]
    priority: int
    attempt: int
    max_attempts: int
    scheduled_at: datetime
    enqueued_at: datetime
    claimed_at: datetime | None
    finished_at: datetime | None
    worker_id: str | None
    key: str | None
    lane: str | None
    crashes: int
    stopping: bool
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    result: Any
    error: str | None
    traceback: str | None
    details: Any
    route_id: int | None

    @property
    def finished(self) -> bool:
        """Whether the task has ended."""
        return self.finished_at is not None


@attrs.frozen
class RouteDepth:
    """One route's pending tasks: how many, and the age of the oldest in seconds."""

    route: Route
    pending: int
    oldest: float


@attrs.frozen
class QueueStatus:
    """One queue: since when it is paused or None, its pending tasks, and the age of the oldest in seconds."""

    name: str
    paused_at: datetime | None
    pending: int
    oldest: float


@attrs.frozen
class Names:
    """The queues and the activities that something in the database names: unfinished tasks, workers, schedules."""

    queues: frozenset[str]
    activities: frozenset[str]


_STATUS = """
select t.id, t.state, r.queue, r.name, r.kind, r.traits, t.priority, t.attempt, t.max_attempts, t.scheduled_at,
       t.enqueued_at, t.claimed_at, null::timestamptz, t.worker_id::text, t.key, t.lane, t.crashes,
       t.cancelled_at is not null, t.args, t.kwargs, null::jsonb, t.error,
       t.traceback, t.details, t.route_id
from {schema}.tasks t join {schema}.routes r on r.id = t.route_id where t.id = %(id)s
union all
select f.id, f.state, f.queue, f.name, f.kind, f.traits, f.priority, f.attempt, f.max_attempts, f.scheduled_at,
       f.enqueued_at, f.claimed_at, f.finished_at, f.worker_id::text, f.key, f.lane, 0,
       false, f.args, f.kwargs, f.result, f.error,
       f.traceback, null::jsonb, null::bigint
from {schema}.finished f where f.id = %(id)s
"""

_DEPTHS = """
select r.id, r.queue, r.kind, r.name, r.traits, d.pending,
       greatest(0, extract(epoch from now() - d.oldest))::float8
from (
    select t.route_id, count(*) as pending, min(t.scheduled_at) as oldest
    from {schema}.tasks t where t.state = 'pending' group by t.route_id
) d join {schema}.routes r on r.id = d.route_id
"""


_QUEUES = """
with depths as (
    select r.queue as name, sum(d.pending)::bigint as pending, min(d.oldest) as oldest
    from (
        select t.route_id, count(*) as pending, min(t.scheduled_at) as oldest from (
            select p.route_id, p.scheduled_at from {schema}.tasks p where p.state = 'pending'
            union all  -- what is due and no worker has moved on is pending to the reader
            select s.route_id, s.scheduled_at from {schema}.tasks s
            where s.state = 'scheduled' and s.scheduled_at <= now()
        ) t group by t.route_id
    ) d join {schema}.routes r on r.id = d.route_id group by r.queue
), paused as (
    select q.name, q.paused_at from {schema}.queues q where q.paused_at is not null
)
select name, p.paused_at, coalesce(d.pending, 0), coalesce(greatest(0, extract(epoch from now() - d.oldest)), 0)::float8
from depths d full join paused p using (name) order by name
"""

_NAMES = """
select array(
    select queue from {schema}.routes union select queue from {schema}.activities
    union select unnest(queues) from {schema}.workers union select options ->> 'queue' from {schema}.schedules
), array(
    select name from {schema}.routes union select name from {schema}.activities
    union select unnest(activities) from {schema}.workers union select activity from {schema}.schedules
)
"""


@singledispatch
async def task_status(database: Database, task_id: int) -> TaskStatus | None:
    """Return a task as it stands, or None where no task of that id is known."""
    rows = await database.fetch(_STATUS, {"id": task_id})
    return TaskStatus(*rows[0]) if rows else None


async def due_for(database: Database, task_id: int) -> float:
    """Return for how many seconds a task has been due, negative where it is not yet; 0 for one that is over."""
    rows = await database.fetch(
        "select extract(epoch from now() - scheduled_at)::float8 from {schema}.tasks where id = %s", [task_id]
    )
    return float(rows[0][0]) if rows else 0.0


@singledispatch
async def route_depths(database: Database) -> list[RouteDepth]:
    """Return the depth of every route that has pending tasks. Reads every pending task's index entry."""
    rows = await database.fetch(_DEPTHS)
    return [RouteDepth(Route(*row[:5]), *row[5:]) for row in rows]


async def lane_occupants(database: Database, lane: str) -> list[int]:
    """Return the tasks that a lane is taken by."""
    rows = await database.fetch(
        "select t.id from {schema}.tasks t "
        "where t.lane = %s and t.state in ('pending', 'suspect', 'running') order by t.id limit 10",
        [lane],
    )
    return [row[0] for row in rows]


async def budget_room(database: Database, budget: Budget, activities: Sequence[str]) -> int:
    """Return how many tasks of these activities a budget lets start now."""
    text = (
        "select {schema}.budget_room(coalesce((select b.used from {schema}.budgets b where b.name = %(name)s), '{}'), "
        "%(concurrency)s::integer, %(starts)s::integer, %(period)s::float8, %(activities)s::text[])"
    )
    values = {**attrs.asdict(budget), "activities": list(activities)}
    return int((await database.fetch(text, values))[0][0])


@singledispatch
async def queue_states(database: Database) -> list[QueueStatus]:
    """Return the queues that have pending tasks or are paused, by name. Reads every pending task's index entry."""
    return [QueueStatus(*row) for row in await database.fetch(_QUEUES)]


@singledispatch
async def known_names(database: Database) -> Names:
    """Return the queues and the activities that unfinished tasks, workers, their activities or schedules name."""
    ((queues, activities),) = await database.fetch(_NAMES)
    return Names(frozenset(queues) - {None}, frozenset(activities))


async def paused_queues(database: Database) -> frozenset[str]:
    """Return the names of the paused queues."""
    rows = await database.fetch("select name from {schema}.queues where paused_at is not null")
    return frozenset(row[0] for row in rows)
