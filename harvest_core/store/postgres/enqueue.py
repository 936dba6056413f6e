"""Write new tasks through the schema's own functions, on a pool's connection or on the caller's."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import attrs
import psycopg

from harvest_core.errors import KeyTakenError
from harvest_core.store.postgres.database import Database


@attrs.frozen
class NewTask:
    """One task as it is written; None leaves a value to the activity's published default.

    `args`, `kwargs` and `traits` are JSON text; `delay`, `key_period` and all limits of time are seconds.
    """

    name: str
    args: str
    kwargs: str
    queue: str | None = None
    priority: int | None = None
    scheduled_at: datetime | None = None
    delay: float | None = None
    key: str | None = None
    traits: str = "{}"
    max_attempts: int | None = None
    start_to_close: float | None = None
    heartbeat: float | None = None
    lane: str | None = None
    key_period: float | None = None
    on_conflict: str = "ignore"
    schedule_to_start: float | None = None
    schedule_to_close: float | None = None


_ENQUEUE = (
    "select task_id, created from {schema}.enqueue_many(%(name)s::text[], %(args)b::text[]::jsonb[], "
    "%(kwargs)b::text[]::jsonb[], %(queue)s::text[], %(priority)s::integer[], %(scheduled_at)s::timestamptz[], "
    "%(delay)s::float8[], %(key)s::text[], %(traits)b::text[]::jsonb[], %(max_attempts)s::integer[], "
    "%(start_to_close)s::float8[], %(heartbeat)s::float8[], %(notify)s::boolean, %(lane)s::text[], "
    "%(key_period)s::float8[], %(on_conflict)s::text[], %(schedule_to_start)s::float8[], "
    "%(schedule_to_close)s::float8[])"
)
_COLUMNS = tuple(field.name for field in attrs.fields(NewTask))


async def enqueue_many(
    database: Database,
    tasks: Sequence[NewTask],
    *,
    notify: bool,
    connection: psycopg.AsyncConnection[Any] | None = None,
) -> list[tuple[int, bool]]:
    """Write tasks in one statement and return, in order, each one's id and whether it is new.

    Args:
        database: names the schema, and lends a connection where none is given.
        tasks: what to write.
        notify: wake sleeping workers of these queues when the transaction commits.
        connection: the caller's own, in whose transaction the tasks are written.
    """
    values: dict[str, Any] = {name: [getattr(task, name) for task in tasks] for name in _COLUMNS}
    values["notify"] = notify
    try:
        if connection is None:
            rows = await database.fetch(_ENQUEUE, values)
        else:
            cursor = connection.cursor(row_factory=psycopg.rows.tuple_row)
            rows = await (await cursor.execute(database.text(_ENQUEUE), values)).fetchall()
    except psycopg.errors.UniqueViolation as error:
        if (text := error.diag.message_primary or "").startswith("harvest: "):
            msg = f"{text.removeprefix('harvest: ')}; nothing was written"
            raise KeyTakenError(msg) from None
        raise
    return [(task_id, created) for task_id, created in rows]
