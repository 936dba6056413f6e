"""A worker's standing duties: started together, begun anew when one breaks, ended together. None dies in silence."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

_log = logging.getLogger("harvest")
_AGAIN_AFTER = 1.0


class Background:
    """The duties of one worker.

    Args:
        broken: called with the name of a duty that broke; it is begun anew.
    """

    def __init__(self, broken: Callable[[str], None]) -> None:
        self._broken = broken
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, name: str, duty: Callable[[], Awaitable[None]]) -> None:
        """Start a duty that runs until cancelled."""
        self._tasks.append(asyncio.create_task(self._run(name, duty), name=f"harvest-{name}"))

    async def end(self) -> None:
        """Cancel every duty; wait a moment, not for a database that swallows packets."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=0.2)

    async def _run(self, name: str, duty: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await duty()
                return
            except Exception:  # noqa: BLE001 - whatever it was, the worker needs this duty
                _log.exception("the worker's %s broke and is begun anew", name)
                self._broken(name)
            await asyncio.sleep(_AGAIN_AFTER)
