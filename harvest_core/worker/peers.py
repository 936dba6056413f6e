"""What a worker knows of the others, for plugins that judge by it; read now and then, never in a claim."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from harvest_core.model import Peer
from harvest_core.store.postgres.database import Database
from harvest_core.store.postgres.workers import live_workers

_EVERY = 2.0


class Peers:
    """The other live workers as last seen.

    Args:
        database: where the fleet's table is.
        own_id: returns the id of this worker.
        sleep: waits between two looks.
    """

    def __init__(
        self,
        database: Database,
        own_id: Callable[[], str],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._database, self._own_id, self._sleep = database, own_id, sleep
        self.seen: tuple[Peer, ...] = ()
        """The newest sight."""

    async def look(self) -> None:
        """Look once."""
        rows = await live_workers(self._database)
        self.seen = tuple(row.peer for row in rows if row.worker.id != self._own_id())

    async def run(self) -> None:
        """Look again and again until cancelled."""
        while True:
            await self._sleep(_EVERY)
            await self.look()
