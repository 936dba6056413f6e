"""LISTEN on a connection of its own, begun anew whenever it breaks (rule K11). A wake-up only hastens the next poll."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import psycopg
from psycopg import sql

from harvest_core.errors import DatabaseUnavailableError
from harvest_core.store.postgres.database import Database
from harvest_core.structure import redacted

_log = logging.getLogger("harvest")


async def listen(
    database: Database,
    heard: Callable[[str], None],
    connected: Callable[[bool], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Listen until cancelled.

    Args:
        database: names the server and the channel, which is the schema's name.
        heard: called with each payload: a queue's name, or `setting:<key>`; also with an empty text after each
            (re)connection, when something may have been missed.
        connected: called with whether notifications arrive at present.
        sleep: waits between connections.
    """
    command = sql.SQL("listen {}").format(sql.Identifier(database.schema))
    while True:
        try:
            async with database.connection_of_its_own() as connection:
                await connection.execute(command)
                connected(True)  # noqa: FBT003 - the gauge's value
                heard("")
                # The time limit makes a peer that vanished without a word come to light, by the probe after it.
                while True:
                    async for notification in connection.notifies(timeout=5.0):
                        heard(notification.payload)
                    await asyncio.wait_for(connection.execute("select 1"), 5.0)
        except (DatabaseUnavailableError, psycopg.Error, TimeoutError) as error:
            _log.warning("notifications do not arrive; polling goes on: %s", redacted(str(error)))
        finally:
            connected(False)  # noqa: FBT003
        await sleep(1.0)
