"""Run what plugins read (`Plugin.refreshes`) in threads of its own, so that no source can hold up a claim."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

import psycopg

from harvest_core.errors import DatabaseUnavailableError
from harvest_core.plugin import Refresh, Setting

_log = logging.getLogger("harvest")
ReadSettings = Callable[[], Awaitable[Mapping[str, Setting]]]


class Refreshes:
    """The refreshes of every plugin of one worker.

    Args:
        refreshes: each with its plugin's slug.
        read_settings: reads the runtime settings.
        failed: called with the slug of a plugin whose refresh raised.
        done: called after each periodic run: what a claim is judged by may have changed.
    """

    def __init__(
        self,
        refreshes: Sequence[tuple[str, Refresh]],
        read_settings: ReadSettings,
        failed: Callable[[str], None],
        done: Callable[[], None],
    ) -> None:
        self._periodic = [(slug, refresh) for slug, refresh in refreshes if refresh.every > 0]
        self._before_claim = [(slug, refresh) for slug, refresh in refreshes if refresh.every <= 0]
        self._read_settings, self._failed, self._done = read_settings, failed, done
        self._changed = {id(refresh): asyncio.Event() for _, refresh in self._periodic}
        self._settings: Mapping[str, Setting] = {}
        self._under_way: dict[int, asyncio.Future[None]] = {}
        self._troubles: dict[int, str] = {}

    async def first(self, patience: float = 2.0) -> None:
        """Run every periodic refresh once, waiting for them at most patience seconds, so that a first claim knows."""
        runs = [asyncio.ensure_future(self._run(slug, refresh)) for slug, refresh in self._periodic]
        if runs:
            await asyncio.wait(runs, timeout=patience)

    async def run(self) -> None:
        """Run the periodic refreshes until cancelled."""
        async with asyncio.TaskGroup() as group:
            for slug, refresh in self._periodic:
                group.create_task(self._repeat(slug, refresh))

    def setting_changed(self, key: str) -> None:
        """Start the refreshes that read a setting; an empty key starts all that read any."""
        for _, refresh in self._periodic:
            if key in refresh.settings or (not key and refresh.settings):
                self._changed[id(refresh)].set()

    async def before_claim(self) -> None:
        """Run what is to be read before each claim, waiting no longer than each one's patience."""
        for slug, refresh in self._before_claim:
            await asyncio.wait([self._start(slug, refresh)], timeout=refresh.patience)

    async def _repeat(self, slug: str, refresh: Refresh) -> None:
        changed = self._changed[id(refresh)]
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), refresh.every)
            changed.clear()
            await self._run(slug, refresh)

    async def _run(self, slug: str, refresh: Refresh) -> None:
        if refresh.settings:
            try:
                self._settings = await self._read_settings()
            except (DatabaseUnavailableError, psycopg.Error) as error:
                _log.warning("plugin %s: settings cannot be read: %s", slug, error)
                return
        await asyncio.shield(self._start(slug, refresh))
        self._done()

    def _start(self, slug: str, refresh: Refresh) -> asyncio.Future[None]:
        """Start a run in a thread, or return the one under way."""
        running = self._under_way.get(id(refresh))
        if running is not None and not running.done():
            return running
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._under_way[id(refresh)] = future
        settings = self._settings

        def work() -> None:
            trouble = ""
            try:
                refresh.run(settings)
            except BaseException as error:  # noqa: BLE001 - whatever a plugin raises is counted and told
                trouble = f"{type(error).__name__}: {error}"
                self._failed(slug)
            if trouble != self._troubles.get(id(refresh), ""):  # told once, not before every claim
                self._troubles[id(refresh)] = trouble
                _log.warning("plugin %s: a refresh %s", slug, f"failed: {trouble}" if trouble else "works again")
            with suppress(RuntimeError):  # the loop has ended; nobody waits any more
                loop.call_soon_threadsafe(_settle, future)

        # A daemon thread: a source that hangs must not keep the process from ending.
        threading.Thread(target=work, name=f"harvest-refresh-{slug}", daemon=True).start()
        return future


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
