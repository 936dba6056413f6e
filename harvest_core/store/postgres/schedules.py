"""The table of schedules: written, read, fired. Who fires names the version it read, so that no tick is made twice."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import singledispatch
from typing import Any

import attrs

from harvest_core.model import Json
from harvest_core.store.postgres.database import Database


@attrs.frozen
class NewSchedule:
    """One schedule as it is written; `args`, `kwargs` and `traits` are JSON text, `every` seconds."""

    name: str
    activity: str
    args: str
    kwargs: str
    traits: str
    options: Mapping[str, Json]
    cron: str | None
    every: float | None
    timezone: str
    catch_up: str
    overlap: str
    declared: bool


@attrs.frozen
class ScheduleStatus:
    """A schedule as it stands.

    Args:
        name: its name.
        activity: what it enqueues, with args, kwargs, traits and options.
        args: positional arguments.
        kwargs: keyword arguments.
        traits: what plugins stamped.
        options: of the enqueue, the activity's defaults included.
        cron: the expression, or None.
        every: seconds between two ticks, or None.
        timezone: in which cron is read.
        catch_up: `none`, `one` or `all`.
        overlap: `skip`, `allow` or `buffer_one`.
        declared: code declares it, not a client.
        paused_at: since when it is paused.
        undeclared_at: since when no live worker declares it any more, so that it does not tick.
        next_at: its next tick; None where there is none, or no worker has looked since it was put, changed or resumed.
        last_at: nominal time of the last tick that was enqueued.
        last_task_id: that tick's task.
        error: why the last tick could not be enqueued.
    """

    name: str
    activity: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    traits: Mapping[str, Json]
    options: Mapping[str, Json]
    cron: str | None
    every: float | None
    timezone: str
    catch_up: str
    overlap: str
    declared: bool
    paused_at: datetime | None
    undeclared_at: datetime | None
    next_at: datetime | None
    last_at: datetime | None
    last_task_id: int | None
    error: str | None

    @property
    def state(self) -> str:
        """One of `paused`, `undeclared` and `active`."""
        if self.paused_at is not None:
            return "paused"
        return "undeclared" if self.undeclared_at is not None else "active"


@attrs.frozen
class DueSchedule:
    """A schedule that is to be looked at; `now` is the database's clock at that reading."""

    name: str
    version: int
    cron: str | None
    every: float | None
    timezone: str
    catch_up: str
    next_at: datetime
    counts_from: datetime
    now: datetime


@attrs.frozen
class Firing:
    """What to do of a schedule in the version that was read."""

    name: str
    version: int
    ticks: Sequence[datetime]
    next_at: datetime | None


_READ = (
    "select s.name, s.version, s.cron, s.every, s.timezone, s.catch_up, s.next_at, s.counts_from, now() "
    "from {schema}.schedules s where s.paused_at is null and s.undeclared_at is null "
    "and s.version <> all(%(without)s::bigint[]) and s.next_at "
)
_DUE = (
    f"({_READ}<= now() order by s.next_at limit %(batch)s) "
    f"union all ({_READ}> now() order by s.next_at limit 1) order by next_at"
)
_STATUS = (
    "select s.name, s.activity, s.args, s.kwargs, s.traits, s.options, s.cron, s.every, s.timezone, s.catch_up, "
    "s.overlap, s.declared, s.paused_at, s.undeclared_at, case when s.next_at > s.counts_from then s.next_at end, "
    "s.last_at, s.last_task_id, s.error from {schema}.schedules s "
)


@singledispatch
async def put_schedules(database: Database, schedules: Sequence[NewSchedule]) -> list[str]:
    """Write schedules, all or none, and return the names of those that were new or changed."""
    entries = [
        attrs.asdict(one) | {field: json.loads(getattr(one, field)) for field in ("args", "kwargs", "traits")}
        for one in schedules
    ]
    rows = await database.fetch("select {schema}.put_schedules(%s::text::jsonb)", [json.dumps(entries)])
    return [row[0] for row in rows]


@singledispatch
async def declare(database: Database, worker_id: str, schedules: Sequence[NewSchedule]) -> list[str]:
    """Have a worker declare schedules, write those that are new or changed, and return their names."""
    names = [one.name for one in schedules]
    # First, so that nobody who looks from now on takes them for undeclared.
    await database.fetch("update {schema}.workers set schedules = %s where id = %s returning 1", [names, worker_id])
    return await put_schedules(database, schedules)


@singledispatch
async def due_schedules(
    database: Database, batch: int, without: Sequence[int]
) -> tuple[list[DueSchedule], float | None]:
    """Return the schedules that are due, the longest due first, and the seconds until the next; None where none comes.

    Args:
        database: where.
        batch: most schedules to return.
        without: versions to leave out.
    """
    rows = [DueSchedule(*row) for row in await database.fetch(_DUE, {"batch": batch, "without": list(without)})]
    if rows and rows[-1].next_at > rows[-1].now:
        later = rows.pop()
        return rows, (later.next_at - later.now).total_seconds()
    return rows, None


Fired = tuple[list[int], str | None]
"""Ids of the new tasks, and why they could not be enqueued, if so."""


@singledispatch
async def fire(database: Database, firings: Sequence[Firing], *, notify: bool) -> dict[str, Fired]:
    """Enqueue ticks and move the schedules on, in one transaction.

    Returns:
        What came of each schedule that was still in the version named and, if code declares it, has a live worker that
        does.
    """
    entries = [
        {
            "name": one.name,
            "version": one.version,
            "ticks": [tick.isoformat() for tick in one.ticks],
            "next_at": one.next_at and one.next_at.isoformat(),
        }
        for one in firings
    ]
    text = "select schedule, task_ids, fault from {schema}.fire_schedules(%s::text::jsonb, %s::boolean)"
    rows = await database.fetch(text, [json.dumps(entries), notify])
    return {name: (ids, fault) for name, ids, fault in rows}


@singledispatch
async def schedule_statuses(database: Database) -> list[ScheduleStatus]:
    """Return every schedule by name."""
    return [ScheduleStatus(*row) for row in await database.fetch(_STATUS + "order by s.name")]


@singledispatch
async def schedule_status(database: Database, name: str) -> ScheduleStatus | None:
    """Return a schedule, or None where there is none of that name."""
    rows = await database.fetch(_STATUS + "where s.name = %s", [name])
    return ScheduleStatus(*rows[0]) if rows else None


@singledispatch
async def pause_schedule(database: Database, name: str) -> bool:
    """Pause a schedule; False where there is none of that name."""
    return bool(await _called(database, "pause_schedule", name))


@singledispatch
async def resume_schedule(database: Database, name: str) -> bool:
    """Resume a schedule; False where none of that name is paused."""
    return bool(await _called(database, "resume_schedule", name))


@singledispatch
async def delete_schedule(database: Database, name: str) -> bool:
    """Remove a schedule; False where there is none, or where live workers would only declare it again."""
    return bool(await _called(database, "delete_schedule", name))


@singledispatch
async def trigger_schedule(database: Database, name: str, *, notify: bool) -> int | None:
    """Enqueue a task of a schedule now and return its id; None where its overlap policy leaves no room."""
    rows = await database.fetch("select {schema}.trigger_schedule(%s::text, %s::boolean)", [name, notify])
    found: int | None = rows[0][0]
    return found


async def _called(database: Database, function: str, name: str) -> Any:
    return (await database.fetch("select {schema}." + function + "(%s::text)", [name]))[0][0]
