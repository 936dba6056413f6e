"""PostgreSQL servers for one test session, and fresh databases on them, copied from a migrated template."""

from __future__ import annotations

import asyncio
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from harvest_core.store.postgres import embedded
from harvest_core.store.postgres.database import Database
from harvest_core.store.postgres.migrate import migrate

_SETTINGS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "shared_buffers": "64MB"}
"""A test's data may be lost with the machine."""


class Servers:
    """The servers of one session; each is started when it is first asked for and stopped by `close`.

    Args:
        folder: makes an empty folder of about that name.
    """

    def __init__(self, folder: Callable[[str], Path]) -> None:
        self._folder = folder
        self._started: dict[str, embedded.EmbeddedServer] = {}
        self._templates: dict[str, str] = {}

    def dsn(self, choice: str) -> str:
        """Return the DSN of a server.

        Args:
            choice: `18` or `16` for the embedded ones, a folder with `postgres` and `initdb` for that PostgreSQL, or
                the DSN of a server that runs.

        Raises:
            DatabaseUnavailableError: it cannot be started; says why.
        """
        if "=" in choice or "://" in choice:
            return choice
        if choice not in self._started:
            folder = self._folder("postgresql")
            if re.fullmatch(r"\d+", choice):
                self._started[choice] = embedded.start(folder, major=int(choice), settings=_SETTINGS)
            else:
                self._started[choice] = embedded.start(folder, binaries=Path(choice), settings=_SETTINGS)
        return self._started[choice].dsn

    @contextmanager
    def database(self, server: str) -> Iterator[str]:
        """Give the DSN of a fresh database whose schema `harvest` is migrated; it is dropped at the end.

        Args:
            server: DSN of the server; its user may create databases.
        """
        if server not in self._templates:
            self._templates[server] = self._new_template(server)
        name = f"harvest_test_{uuid.uuid4().hex[:16]}"
        _run(server, "create database {} template {}", name, self._templates[server])
        try:
            yield _on(server, name)
        finally:
            _run(server, "drop database if exists {} with (force)", name)

    def close(self) -> None:
        """Drop the templates, stop what was started and delete its data."""
        for server, template in self._templates.items():
            _run(server, "drop database if exists {} with (force)", template)
        self._templates.clear()
        for started in self._started.values():
            started.close()
            shutil.rmtree(started.directory, ignore_errors=True)
        self._started.clear()

    def _new_template(self, server: str) -> str:
        name = f"harvest_template_{uuid.uuid4().hex[:16]}"
        _run(server, "create database {}", name)
        run_async(_migrated(_on(server, name)))
        return name


def run_async(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end in a thread of its own: the caller's thread may have an event loop, running or not."""
    outcome: list[Any] = []
    fault: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(asyncio.run(work))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            fault.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if fault:
        raise fault[0]
    return outcome[0]


async def _migrated(dsn: str) -> None:
    database = Database(dsn)
    await database.open()
    try:
        await migrate(database)
    finally:
        await database.close()


def _on(server: str, name: str) -> str:
    """Return the DSN of a database of a server, a URI where the server's is one."""
    if "://" in server:
        return urlsplit(server)._replace(path=f"/{name}").geturl()
    return make_conninfo(server, dbname=name)


def _run(server: str, statement: str, *names: str) -> None:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))
