"""Connections to one PostgreSQL and one schema of it, with limits that notice a dead peer; knows no tasks."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.json import set_json_loads
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from harvest_core.errors import DatabaseUnavailableError, MissingRightError
from harvest_core.structure import redacted

_LIMITS = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
    "application_name": "harvest",
}
_SESSION = (
    "-c statement_timeout=30s -c idle_in_transaction_session_timeout=60s -c timezone=UTC -c datestyle=ISO -c jit=off "
    r"-c default_transaction_isolation=read\ committed"
)
LOCAL = (
    "set transaction isolation level read committed; set local statement_timeout = '30s'; "
    "set local idle_in_transaction_session_timeout = '60s'; set local timezone = 'UTC'; set local datestyle = 'ISO'; "
    "set local jit = off"
)
"""What stands at the head of each transaction behind a pooler: it gives every one another session, whose settings are
not ours."""
BEGIN = f"begin; {LOCAL}"

_POOLED = "where a pooler such as PgBouncer stands before it, set pooler = true under [harvest] (HARVEST_POOLER=true)"
_AWAY = ("08", "57P", "53300")
"""SQLSTATEs of a server that goes, comes, or takes no more connections."""

_SILENCE = 35.0

Values = Mapping[str, Any] | Sequence[Any] | None


class Database:
    """A pool of connections in autocommit, and texts with the schema's name set in.

    Args:
        dsn: a URI or key=value string that psycopg takes; its own settings win over the defaults here.
        schema: name of the schema.
        size: most connections of the pool.
        pooler: a pooler stands in between, so nothing may outlive a transaction: no settings, no prepared statements.
    """

    def __init__(self, dsn: str, schema: str = "harvest", size: int = 4, *, pooler: bool = False) -> None:
        try:
            given = conninfo_to_dict(dsn)
            if not pooler:
                given["options"] = f"{_SESSION} {given.get('options') or ''}".strip()
            self.dsn = make_conninfo("", **{**_LIMITS, **given, "client_encoding": "utf8"})
        except psycopg.ProgrammingError as error:
            msg = f"the DSN {redacted(dsn)} cannot be read: {redacted(str(error))}; write postgresql://user@host/name"
            raise DatabaseUnavailableError(msg) from None
        self.pooler = pooler
        self.schema = schema
        self.quoted = sql.Identifier(schema).as_string()
        self._texts: dict[str, bytes] = {}
        self._pool: AsyncConnectionPool[psycopg.AsyncConnection[tuple[Any, ...]]] = AsyncConnectionPool(
            self.dsn,
            min_size=1,
            max_size=size,
            open=False,
            timeout=15,
            configure=_read_json_with_care,
            kwargs={"autocommit": True, "prepare_threshold": None if pooler else 1},
        )

    async def open(self) -> None:
        """Connect once, so that a database that is away is told at once, then fill the pool.

        Raises:
            DatabaseUnavailableError: no connection, or a pooler that it was not told of; the message says why, without
                the password.
        """
        async with self.connection_of_its_own() as connection:
            if not self.pooler and not await _has_our_settings(connection):
                raise unavailable(self.dsn, "a pooler or proxy dropped the settings of the session", _POOLED)
        await self._pool.open()

    async def close(self) -> None:
        """Close every connection."""
        await self._pool.close(timeout=0.2)

    @asynccontextmanager
    async def connection_of_its_own(self) -> AsyncIterator[psycopg.AsyncConnection[tuple[Any, ...]]]:
        """Give a connection outside the pool, in autocommit, closed at the end."""
        connecting = asyncio.ensure_future(
            psycopg.AsyncConnection.connect(self.dsn, autocommit=True, prepare_threshold=None)
        )
        try:
            connection = await asyncio.shield(connecting)
        except psycopg.OperationalError as error:
            if "startup parameter" in str(error) and not self.pooler:  # PgBouncer's words
                raise unavailable(self.dsn, error, _POOLED) from None
            raise unavailable(self.dsn, error) from None
        except asyncio.CancelledError:
            # Cut off half-way its socket would stay open, and the server would wait a minute for the password.
            with suppress(psycopg.Error):
                await (await connecting).close()
            raise
        await _read_json_with_care(connection)
        try:
            yield connection
        except psycopg.errors.InsufficientPrivilege as error:
            raise _denied(connection, error) from error
        finally:
            await connection.close()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[psycopg.AsyncConnection[tuple[Any, ...]]]:
        """Give a connection of the pool: in autocommit, or behind a pooler in a transaction.

        Raises:
            DatabaseUnavailableError: the database is away.
            MissingRightError: the role may not do what was asked.
        """
        try:
            async with self._pool.connection() as connection:
                # The server ends a statement after 30 s. One whose answer does not come even then has a silent peer.
                cut = asyncio.get_running_loop().call_later(_SILENCE, _cut, connection)
                try:
                    if self.pooler:
                        await connection.execute(BEGIN)
                    yield connection
                    if self.pooler:
                        await connection.commit()
                except psycopg.errors.InsufficientPrivilege as error:
                    raise _denied(connection, error) from error
                finally:
                    cut.cancel()
        except (psycopg.errors.InvalidSqlStatementName, psycopg.errors.DuplicatePreparedStatement) as error:
            raise unavailable(self.dsn, error, _POOLED) from error
        except (psycopg.OperationalError, PoolTimeout) as error:
            if getattr(error, "sqlstate", None) and not error.sqlstate.startswith(_AWAY):  # type: ignore[union-attr]
                raise  # the server answered: it is there
            raise unavailable(self.dsn, error) from error

    async def fetch(self, text: str, values: Values = None) -> list[tuple[Any, ...]]:
        """Run one statement on a connection of the pool and return its rows.

        Args:
            text: SQL in which `{schema}` stands for the schema.
            values: its parameters.
        """
        async with self.connection() as connection:
            cursor = await connection.execute(self.text(text), values)
            return await cursor.fetchall()

    def text(self, text: str) -> bytes:
        """Return a statement's text with the schema's quoted name set in."""
        found = self._texts.get(text)
        if found is None:
            found = self._texts[text] = text.replace("{schema}", self.quoted).encode()
        return found


def unavailable(
    dsn: str, error: Exception | str, advice: str = "check that it runs and that the DSN (HARVEST_DSN) is right"
) -> DatabaseUnavailableError:
    """Return the error to raise when a database is away or of no use as it is."""
    parts = conninfo_to_dict(dsn)
    # A password with a slash in it is read as host or path: what is no plain name is not shown.
    host, name = (str(parts.get(key) or "") for key in ("host", "dbname"))
    plain = re.fullmatch(r"[\w./-]*", host) and re.fullmatch(r"[\w-]*", name)
    where = f"{host or 'localhost'}:{parts.get('port', 5432)}/{name}" if plain else "the configured address"
    reason = _one_line(redacted(str(error))) if plain else type(error).__name__
    return DatabaseUnavailableError(f"the database at {where} cannot be used: {reason}; {advice}")


def _one_line(text: str) -> str:
    """Return libpq's lines as one, without its question whether the server runs: the advice says it better."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    told = "; ".join(line for line in lines if line and not line.startswith("Is the server running"))
    return told.replace(":; - ", ": ").replace("; - ", "; ")  # the list of all addresses that were tried


def _denied(connection: psycopg.AsyncConnection[Any], error: psycopg.Error) -> MissingRightError:
    return MissingRightError(connection.info.user, (error.diag.message_primary or "permission denied").strip())


async def _has_our_settings(connection: psycopg.AsyncConnection[Any]) -> bool:
    """Return whether the settings of the DSN arrived; what drops them keeps no session for us either."""
    cursor = await connection.execute("select source = 'client' from pg_settings where name = 'statement_timeout'")
    row = await cursor.fetchone()
    return row is not None and row[0]


class UnreadableJson(str):
    """Stands for JSON that PostgreSQL holds and Python cannot read: numbers too long, nesting too deep."""

    __slots__ = ()


async def _read_json_with_care(connection: psycopg.AsyncConnection[Any]) -> None:
    set_json_loads(loads_with_care, connection)


def loads_with_care(text: str | bytes) -> Any:
    """Return what JSON says: one value that cannot be read must not take the other rows of its answer with it."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        return UnreadableJson(f"unreadable JSON: {error}")


def many_with_care(texts: Sequence[str]) -> list[Any]:
    """Return what each of these JSON texts says, in one go where all of them can be read."""
    try:
        found: list[Any] = json.loads(f"[{','.join(texts)}]")
    except (ValueError, RecursionError):
        return [loads_with_care(text) for text in texts]
    return found


def _cut(connection: psycopg.AsyncConnection[Any]) -> None:
    """End a connection under a statement that is waiting for its answer, which then fails."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)
