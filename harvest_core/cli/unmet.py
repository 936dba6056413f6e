"""Ids and names on a command line that met nothing, told on standard error; refuses to keep a command from its work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import click

from harvest_core.cli.output import clean
from harvest_core.errors import near_match
from harvest_core.store.postgres.database import Database
from harvest_core.store.postgres.inspect import TaskStatus, known_names, task_status

Statuses = Mapping[int, TaskStatus | None]
"""Tasks by the ids that were given; None for one that is not known."""


async def statuses(database: Database, task_ids: Iterable[int]) -> Statuses:
    """Return the tasks that these ids name."""
    return {task_id: await task_status(database, task_id) for task_id in task_ids}


def unknown(found: Statuses) -> list[int]:
    """Return the ids that name no task, each told as an error: a command that was given one ends with 1."""
    missing = [task_id for task_id, status in found.items() if status is None]
    for task_id in missing:
        _tell("error", f"task {task_id} is not known: it was never enqueued here, or its retention has passed")
    return missing


def tell_not_cancelled(found: Statuses, queue: str | None, activity: str | None) -> None:
    """Say why a cancel left tasks alone that were named by id.

    Args:
        found: as they stood before it.
        queue: the queue that the cancel was confined to.
        activity: the activity that it was confined to.
    """
    for status in filter(None, found.values()):
        reason = _elsewhere(status, queue, activity)
        if not reason and status.finished:
            reason = f"it is {status.state} already"
        elif not reason and status.stopping:
            reason = "it runs, and was asked to stop before"
        if reason:
            _tell("warning", f"task {status.id} is left as it is: {reason}")


def tell_not_put_back(
    found: Statuses,
    queue: str | None,
    activity: str | None,
    states: Sequence[str] | None,
    since: datetime | None,
) -> None:
    """Say why a retry left tasks alone that were named by id.

    Args:
        found: those that it did not put back, as they stand.
        queue: the queue that the retry was confined to.
        activity: the activity that it was confined to.
        states: the states that it was confined to.
        since: the time that it was confined to.
    """
    for status in filter(None, found.values()):
        reason = _elsewhere(status, queue, activity) or _not_retryable(status, states, since)
        _tell("warning", f"task {status.id} is not put back: {reason}")


async def tell_unknown_names(database: Database, queue: str | None, activity: str | None) -> None:
    """Warn of a queue or an activity that nothing in the database names; it may be there before its first task."""
    if queue is None and activity is None:
        return
    names = await known_names(database)
    for kind, name, known in (("queue", queue, names.queues), ("activity", activity, names.activities)):
        if name is not None and name not in known:
            near = near_match(name, sorted(known))
            said = f"no unfinished task, worker, activity or schedule in the database names the {kind} {name!r}"
            _tell("warning", f"{said}; {near}" if near else said)


def _not_retryable(status: TaskStatus, states: Sequence[str] | None, since: datetime | None) -> str:
    if status.state not in ("failed", "cancelled"):
        return f"it is {status.state}, and only failed and cancelled tasks can be put back"
    if states is not None and status.state not in states:
        return f"it is {status.state}, and --state says {states[0]}"
    if since is not None and status.finished_at is not None and status.finished_at < since:
        return "it ended before --since"
    return f"another task has its key {status.key!r}"


def _elsewhere(status: TaskStatus, queue: str | None, activity: str | None) -> str:
    if queue is not None and status.queue != queue:
        return f"it is of the queue {status.queue!r}"
    return f"it is of the activity {status.name!r}" if activity is not None and status.name != activity else ""


def _tell(kind: str, sentence: str) -> None:
    click.echo(f"{kind}: {clean(sentence)}", err=True)
