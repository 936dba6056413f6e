"""Write new tasks through the schema's own functions, on a pool's connection or on the caller's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cache, singledispatch
from typing import Any

import attrs
import psycopg
from psycopg import sql
from psycopg.errors import InvalidSchemaName, UndefinedFunction, UniqueViolation
from psycopg.pq import TransactionStatus
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
_SPOILT = (
    ", and the transaction has failed: roll back to a savepoint set before this enqueue, or all of it, as a commit now "
    "would without an error. SQLAlchemy: fetch the connection inside session.begin_nested(); Django: enqueue inside a "
    "nested atomic()"
)


@singledispatch
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
    with _told_in_words():
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
    with _told_in_words(connection, schema):
        await cursor.execute(_text(schema), _values(tasks, notify=notify))
        return [(int(task_id), bool(created)) for task_id, created in await cursor.fetchall()]


def enqueue_many_on(
    connection: psycopg.Connection[Any], schema: str, tasks: Sequence[NewTask], *, notify: bool
) -> list[tuple[int, bool]]:
    """Do the same on a blocking connection, in this thread."""
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)  # whatever cursors the caller's connection makes
    with _told_in_words(connection, schema):
        cursor.execute(_text(schema), _values(tasks, notify=notify))
        return [(int(task_id), bool(created)) for task_id, created in cursor.fetchall()]


def _values(tasks: Sequence[NewTask], *, notify: bool) -> dict[str, Any]:
    values: dict[str, Any] = {name: [getattr(task, name) for task in tasks] for name in _COLUMNS}
    return {**values, "notify": notify}


@cache
def _text(schema: str) -> bytes:
    return _ENQUEUE.replace("{schema}", sql.Identifier(schema).as_string()).encode()


@contextmanager
def _told_in_words(connection: psycopg.BaseConnection[Any] | None = None, schema: str = "") -> Iterator[None]:
    """Tell what the server refused; a caller's retry loop gets all else as psycopg raised it.

    Args:
        connection: the caller's, if it is his.
        schema: where the tasks were to go.
    """
    try:
        yield
    except UniqueViolation as error:
        text = error.diag.message_primary or ""
        if not text.startswith("harvest: "):
            raise
        spoilt = connection is not None and connection.info.transaction_status is TransactionStatus.INERROR
        rest = _SPOILT if spoilt else ""
        msg = f"{text.removeprefix('harvest: ')}; nothing was written{rest}"
        raise KeyTakenError(msg) from None
    except (InvalidSchemaName, UndefinedFunction) as error:
        if connection is None:
            raise
        lacks = (
            f"there is no schema {schema!r} yet"
            if isinstance(error, InvalidSchemaName)
            else f"the schema {schema!r} is not at this version ({error.diag.message_primary})"
        )
        msg = (
            f"the given connection leads to the database {connection.info.dbname!r}, where {lacks}; "
            "run harvest db migrate on it, or give a connection to the app's database"
        )
        raise SchemaError(msg) from None
