"""The worker's part in schedules: declare its app's own, and enqueue what is due of all. There is no leader."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

import psycopg

from harvest_core.build import Build
from harvest_core.errors import DatabaseUnavailableError
from harvest_core.metrics import KernelMetrics
from harvest_core.schedule import Due, Timing, due
from harvest_core.scheduling import new_schedule
from harvest_core.store.postgres import schedules as store
from harvest_core.store.postgres.database import Database
from harvest_core.store.postgres.schedules import DueSchedule, Firing

_log = logging.getLogger("harvest")
_BATCH = 100
_TAKEN = 0.05
"""Seconds to wait for another worker that has all that is due in hand."""


async def declare_schedules(database: Database, build: Build, worker_id: str) -> None:
    """Write the app's schedules that are new or changed, and say that this worker declares them."""
    if build.schedules:
        made = [new_schedule(build, schedule, declared=True) for schedule in build.schedules]
        if changed := await store.declare(database, worker_id, made):
            _log.info("schedules written: %s", ", ".join(sorted(changed)))


class Schedules:
    """Enqueues what is due, as does every other worker; who comes second changes nothing.

    Args:
        database: where.
        metrics: counts ticks.
        notify: True to wake sleeping workers of a tick's queue.
        longest: seconds between two looks where nothing is heard.
    """

    def __init__(self, database: Database, metrics: KernelMetrics, *, notify: bool, longest: float = 5.0) -> None:
        self._database, self._ticks, self._notify, self._longest = database, metrics.schedule_ticks, notify, longest
        self._changed, self._looking = asyncio.Event(), asyncio.Lock()
        self._unreadable: dict[int, str] = {}

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            try:
                wait = await self.look()
            except (DatabaseUnavailableError, psycopg.Error) as error:
                _log.warning("no schedule was looked at: %s", error)
                wait = self._longest
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), wait)

    def look_again(self) -> None:
        """Look at once: a schedule was written, or notifications may have been missed."""
        self._changed.set()

    async def look(self) -> float:
        """Enqueue what is due, and return the seconds until another look pays."""
        async with self._looking:
            self._changed.clear()
            while True:
                found, wait = await store.due_schedules(self._database, _BATCH, list(self._unreadable))
                if not found:
                    return self._longest if wait is None else min(wait, self._longest)
                if not await self._fire(found):
                    return _TAKEN

    async def _fire(self, found: Sequence[DueSchedule]) -> bool:
        """Enqueue the ticks of schedules, and return whether any was moved on here or can be none of this worker's."""
        unreadable = len(self._unreadable)
        planned = await asyncio.to_thread(lambda: [(one, self._due(one)) for one in found])
        firings = [Firing(one.name, one.version, due.ticks, due.next_at) for one, due in planned if due is not None]
        fired = await store.fire(self._database, firings, notify=self._notify) if firings else {}
        for one, what in planned:
            if what is not None and one.name in fired:
                self._tell(one, what, *fired[one.name])
        return bool(fired) or len(self._unreadable) > unreadable

    def _due(self, one: DueSchedule) -> Due | None:
        try:
            return due(Timing(one.cron, one.every, one.timezone), one.catch_up, one.next_at, one.counts_from, one.now)
        except Exception as error:  # noqa: BLE001 - written by SQL or where there are other time zones; the others go on
            _log.error("schedule %r is left to other workers: cron or timezone %s", one.name, error)
            self._unreadable[one.version] = one.name
            return None

    def _tell(self, one: DueSchedule, what: Due, task_ids: Sequence[int], fault: str | None) -> None:
        self._ticks.labels("enqueued").inc(len(task_ids))
        self._ticks.labels("missed").inc(what.missed)
        if what.missed:
            text = "schedule %r: %s ticks were missed and are not made up for (catch_up is %r)"
            _log.warning(text, one.name, what.missed, one.catch_up)
        if fault is not None:
            self._ticks.labels("failed").inc(len(what.ticks))
            _log.error("schedule %r: its tick cannot be enqueued: %s", one.name, fault)
        elif overlapping := len(what.ticks) - len(task_ids):
            self._ticks.labels("overlap").inc(overlapping)
            _log.info("schedule %r: %s ticks left out, an earlier task is unfinished", one.name, overlapping)
