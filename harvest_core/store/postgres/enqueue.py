"""Write new tasks through the schema's own functions, on a pool's connection or on the caller's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from typing import Any

import attrs
import psycopg
from psycopg import sql
from psycopg.errors import InvalidSchemaName, UndefinedFunction
from psycopg.rows import tuple_row

from harvest_core.errors import KeyTakenError, SchemaError
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
_NOT_HERE = (InvalidSchemaName, UndefinedFunction)


async def enqueue_many(
    database: Database,
    tasks: Sequence[NewTask],
    *,
    notify: bool,
) -> list[tuple[int, bool]]:
    """Write tasks in one statement and return, in order, each one's id and whether it is new.

    Args:
        database: lends a connection.
        tasks: what to write.
        notify: wake sleeping workers of these queues when the transaction commits.
    """
    with _taken_keys():
        rows = await database.fetch(_ENQUEUE, _values(tasks, notify=notify))
    return [(task_id, created) for task_id, created in rows]


async def enqueue_many_on_async(
    connection: psycopg.AsyncConnection[Any], schema: str, tasks: Sequence[NewTask], *, notify: bool
) -> list[tuple[int, bool]]:
    """Write tasks in the transaction of a caller's connection; else as `enqueue_many`.

    Raises:
        SchemaError: it leads to a database without this schema.
    """
    cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
    try:
        with _taken_keys():
            await cursor.execute(_text(schema), _values(tasks, notify=notify))
        return [(int(task_id), bool(created)) for task_id, created in await cursor.fetchall()]
    except _NOT_HERE as error:
        raise _not_here(connection, schema, error) from None


def enqueue_many_on(
    connection: psycopg.Connection[Any], schema: str, tasks: Sequence[NewTask], *, notify: bool
) -> list[tuple[int, bool]]:
    """Do the same on a blocking connection, in this thread."""
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)  # whatever cursors the caller's connection makes
    try:
        with _taken_keys():
            cursor.execute(_text(schema), _values(tasks, notify=notify))
        return [(int(task_id), bool(created)) for task_id, created in cursor.fetchall()]
    except _NOT_HERE as error:
        raise _not_here(connection, schema, error) from None


def _values(tasks: Sequence[NewTask], *, notify: bool) -> dict[str, Any]:
    values: dict[str, Any] = {name: [getattr(task, name) for task in tasks] for name in _COLUMNS}
    return {**values, "notify": notify}


@contextmanager
def _taken_keys() -> Iterator[None]:
    try:
        yield
    except psycopg.errors.UniqueViolation as error:
        if (text := error.diag.message_primary or "").startswith("harvest: "):
            msg = f"{text.removeprefix('harvest: ')}; nothing was written"
            raise KeyTakenError(msg) from None
        raise


@cache
def _text(schema: str) -> bytes:
    return _ENQUEUE.replace("{schema}", sql.Identifier(schema).as_string()).encode()


def _not_here(connection: psycopg.BaseConnection[Any], schema: str, error: Exception) -> SchemaError:
    reason = str(error).partition("\n")[0]
    msg = (
        f"the given connection leads to the database {connection.info.dbname!r}, where the schema {schema!r} is not at "
        f"this version ({reason}); give a connection to the app's database, or run harvest db migrate on this one"
    )
    return SchemaError(msg)
