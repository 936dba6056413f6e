"""From a build to an open database: the configured one, or an embedded PostgreSQL beside the configuration."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from harvest_core.build import Build
from harvest_core.config import Config
from harvest_core.store.backend import SQLITE, file_of
from harvest_core.store.postgres import embedded, migrate
from harvest_core.store.postgres.database import Database
from harvest_core.store.sqlite import SqliteDatabase

_log = logging.getLogger("harvest")


@asynccontextmanager
async def connected(build: Build, *, size: int = 4) -> AsyncIterator[Database]:
    """Give the build's database, its schema at this version.

    Args:
        build: names the backend and where it is.
        size: most connections in the pool.

    Raises:
        DatabaseUnavailableError, SchemaError: each says what to do.
    """
    if build.backend is SQLITE:
        async with opened_file(build.config) as file:
            yield file
        return
    async with opened(build.config, size=size) as database:
        await migrate.require_newest(database)
        yield database


@asynccontextmanager
async def opened_file(config: Config) -> AsyncIterator[SqliteDatabase]:
    """Give the configured SQLite file, made where there is none."""
    database = SqliteDatabase(file_of(config.harvest.dsn or "", config.directory))
    await database.open()
    try:
        yield database
    finally:
        await database.close()


@asynccontextmanager
async def opened(config: Config, *, size: int = 4) -> AsyncIterator[Database]:
    """Give the configured database as it is, whatever its schema."""
    async with served(config) as dsn:
        database = Database(dsn, config.harvest.schema, size, pooler=config.harvest.pooler)
        await database.open()
        try:
            yield database
        finally:
            await database.close()


@asynccontextmanager
async def served(config: Config) -> AsyncIterator[str]:
    """Give the configured database's DSN, password included; the embedded server runs at least for so long."""
    if config.harvest.dsn is not None:
        yield config.harvest.dsn
        return
    _log.info("%s", embedded.NOTICE)
    if os.environ.get("HARVEST_DSN"):
        _log.warning("HARVEST_DSN is set and not heeded: this app is configured in code, where harvest.dsn is absent")
    server = await asyncio.to_thread(embedded.start, config.directory / ".harvest" / "postgres18")
    try:
        yield server.dsn
    finally:
        await asyncio.to_thread(server.close)
