"""What operators do to tasks and queues: cancel, retry by hand, pause, resume; one statement each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import singledispatch
from typing import Any

import attrs
import psycopg

from harvest_core.errors import HarvestError
from harvest_core.store.postgres.database import Database


@attrs.frozen
class Selection:
    """Which tasks are meant: those that meet everything given. Nothing given means nobody, not all.

    Args:
        ids: task ids, or None for any.
        queue: name of a queue, or None for any.
        activity: name of an activity, or None for any.
    """

    ids: Sequence[int] | None = None
    queue: str | None = None
    activity: str | None = None


@attrs.frozen
class Cancelled:
    """What a cancel did.

    Args:
        ended: tasks that did not run and are cancelled now.
        asked: running tasks whose attempt was asked to stop.
    """

    ended: int
    asked: int


@singledispatch
async def cancel(database: Database, selection: Selection, reason: str) -> Cancelled:
    """Cancel tasks.

    Raises:
        HarvestError: the selection is empty.
    """
    text = "select * from {schema}.cancel(%(ids)s::bigint[], %(queue)s::text, %(activity)s::text, %(reason)s::text)"
    return Cancelled(*(await _fetch(database, text, {**attrs.asdict(selection), "reason": reason}))[0])


@singledispatch
async def retry(database: Database, selection: Selection, states: Sequence[str], since: datetime | None) -> list[int]:
    """Put finished tasks back and return their ids; one whose key another task has by now stays.

    Args:
        database: where.
        selection: which tasks.
        states: `failed`, `cancelled` or both.
        since: only tasks that ended then or later.

    Raises:
        HarvestError: the selection is empty and since is not given.
    """
    text = (
        "select * from {schema}.retry_finished(%(ids)s::bigint[], %(queue)s::text, %(activity)s::text, "
        "%(states)s::text[], %(since)s::timestamptz)"
    )
    values = {**attrs.asdict(selection), "states": list(states), "since": since}
    return [row[0] for row in await _fetch(database, text, values)]


@singledispatch
async def pause_queue(database: Database, queue: str) -> None:
    """Pause a queue for every claim that starts from now on."""
    await database.fetch("select {schema}.pause_queue(%s::text)", [queue])


@singledispatch
async def resume_queue(database: Database, queue: str) -> bool:
    """Resume a queue; False where it was not paused."""
    return bool((await database.fetch("select {schema}.resume_queue(%s::text)", [queue]))[0][0])


async def _fetch(database: Database, text: str, values: dict[str, object]) -> list[tuple[Any, ...]]:
    try:
        return await database.fetch(text, values)
    except psycopg.errors.InvalidParameterValue as error:
        said, hint = (error.diag.message_primary or "").removeprefix("harvest: "), error.diag.message_hint or ""
        msg = f"{said}; {hint[:1].lower()}{hint[1:].rstrip('.')}"
        raise HarvestError(msg) from None
