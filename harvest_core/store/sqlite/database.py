"""One SQLite file: opened with care, and every transaction on it run in a thread of its own; knows no tasks."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import attrs
import psycopg

from harvest_core.errors import BackendError, DatabaseUnavailableError, SchemaError
from harvest_core.store.backend import SQLITE
from harvest_core.store.postgres.database import Database

P = ParamSpec("P")
R = TypeVar("R")

VERSION = 1
"""Version of the tables."""

_APPLICATION = 0x48525653
"""Marks a file as Harvest's."""

_PATIENCE = 10.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ADVICE = {
    "SQLITE_NOTADB": "name another file in harvest.dsn",
    "SQLITE_READONLY": "make the file and its folder writable",
    "SQLITE_CANTOPEN": "make the file and its folder readable and writable",
    "SQLITE_BUSY": f"another process has held its lock for {_PATIENCE:g} s",
}


@attrs.frozen
class Transaction:
    """An open transaction, and the moment at which everything in it happens."""

    connection: sqlite3.Connection
    now: int

    def all(self, text: str, values: Mapping[str, Any] | Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Run a statement and return its rows."""
        return self.connection.execute(text, values).fetchall()

    def change(self, text: str, values: Mapping[str, Any] | Sequence[Any] = ()) -> int:
        """Run a statement and return how many rows it changed."""
        return self.connection.execute(text, values).rowcount


class SqliteDatabase(Database):
    """A file in place of a PostgreSQL. What no function of this package serves, it refuses.

    Args:
        path: the file; made at `open` where there is none.
        clock: microseconds since 1970: processes on one file share their machine's clock.
    """

    def __init__(self, path: Path, clock: Callable[[], int] = lambda: time.time_ns() // 1000) -> None:
        self.path, self._clock = path, clock
        self.created = False
        """Whether `open` made the tables."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="harvest-sqlite")
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        """Open the file, and make its tables where there are none.

        Raises:
            DatabaseUnavailableError: it cannot be opened or written; the message says why.
            SchemaError: it is of a newer version.
        """
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._open)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the file, once what runs has ended."""
        with suppress(RuntimeError):  # closed already
            await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)

    async def run(self, work: Callable[[Transaction], R], *, writes: bool) -> R:
        """Run work in the file's thread, in a transaction that writes, or where nothing is written in none."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, work, writes)

    def now(self) -> int:
        """Return the present moment."""
        return self._clock()

    @contextmanager
    def transaction(self, connection: sqlite3.Connection) -> Any:
        """Give a transaction on a connection of the calling thread; it has the file's lock from its begin."""
        with _told_in_words(self.path):
            connection.execute("begin immediate")
            try:
                yield Transaction(connection, self.now())
                connection.execute("commit")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("rollback")
                raise

    def connect(self) -> sqlite3.Connection:
        """Return a new connection for the calling thread."""
        with _told_in_words(self.path):
            connection = sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None)
            connection.row_factory = sqlite3.Row
            return connection

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[psycopg.AsyncConnection[tuple[Any, ...]]]:
        """Refuse: there is no PostgreSQL.

        Raises:
            BackendError: always.
        """
        raise BackendError(SQLITE.refusal("this"))
        yield  # makes it a generator

    connection_of_its_own = connection

    def _run(self, work: Callable[[Transaction], R], writes: bool) -> R:  # noqa: FBT001 - an executor passes no keywords
        if self._connection is None:
            msg = f"the SQLite file {self.path} is not open"
            raise DatabaseUnavailableError(msg)
        if not writes:
            with _told_in_words(self.path):
                return work(Transaction(self._connection, self.now()))
        with self.transaction(self._connection) as transaction:
            return work(transaction)

    def _open(self) -> None:
        if not self.path.parent.is_dir():
            msg = f"the SQLite file {self.path} cannot be made: there is no folder {self.path.parent}; make it first"
            raise DatabaseUnavailableError(msg)
        if self.path.is_dir():
            msg = f"harvest.dsn names {self.path}, which is a folder; name a file in it, such as tasks.db"
            raise DatabaseUnavailableError(msg)
        self._connection = self.connect()
        with self.transaction(self._connection) as at:
            ((application,),), ((version,),) = at.all("pragma application_id"), at.all("pragma user_version")
            if application != _APPLICATION and at.all("select 1 from sqlite_master limit 1"):
                msg = f"the SQLite file {self.path} is another program's; name another file in harvest.dsn"
                raise DatabaseUnavailableError(msg)
            if version > VERSION:
                msg = f"the SQLite file {self.path} is at version {version}, and this Harvest knows {VERSION}; upgrade"
                raise SchemaError(msg)
            if not version:
                text = (resources.files(__package__) / "schema.sql").read_text(encoding="utf-8")
                for statement in text.split(";\n"):
                    at.change(statement)
                at.change(f"pragma application_id = {_APPLICATION}")
                self.created = True
            at.change(f"pragma user_version = {VERSION}")  # a write each time: a file that takes none is told here
        with suppress(sqlite3.OperationalError):  # others have it open for the first time too; the next one who opens
            self._connection.execute("pragma journal_mode = wal")

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def serves(
    generic: Any, *, writes: bool = True
) -> Callable[[Callable[Concatenate[Transaction, P], R]], Callable[Concatenate[Transaction, P], R]]:
    """Register a function as the form that one of `store.postgres` has on a file.

    Args:
        generic: that function, whose parameters it has but for the first, which is the transaction.
        writes: False where it runs one statement that only reads.
    """

    def register(function: Callable[Concatenate[Transaction, P], R]) -> Callable[Concatenate[Transaction, P], R]:
        async def served(database: SqliteDatabase, *args: P.args, **kwargs: P.kwargs) -> R:
            return await database.run(lambda transaction: function(transaction, *args, **kwargs), writes=writes)

        generic.register(SqliteDatabase, served)
        return function

    return register


def moment(micros: int | None) -> Any:
    """Return a time of the file as a datetime, None for none."""
    return None if micros is None else _EPOCH + timedelta(microseconds=micros)


def micros(time: datetime) -> int:
    """Return a datetime as the file keeps it."""
    return (time - _EPOCH) // timedelta(microseconds=1)


def span(seconds: float) -> int:
    """Return seconds in microseconds."""
    return round(seconds * 1_000_000)


@contextmanager
def _told_in_words(path: Path) -> Any:
    try:
        yield
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
            raise  # a fault of ours
        name = "_".join(getattr(error, "sqlite_errorname", "").split("_")[:2])
        advice = _ADVICE.get(name, "look at the disk, and at who else uses the file")
        msg = f"the SQLite file {path} cannot be used: {error}; {advice}"
        raise DatabaseUnavailableError(msg) from error
