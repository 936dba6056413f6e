"""What every worker does for the fleet: rescue, partitions, retention, clean-up, depths. Survives its own faults."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

import attrs
import psycopg

from harvest_core.errors import DatabaseUnavailableError
from harvest_core.metrics import KernelMetrics, QueueDepth
from harvest_core.store.postgres import tasks
from harvest_core.store.postgres.database import Database
from harvest_core.store.postgres.inspect import RouteDepth, route_depths

_log = logging.getLogger("harvest")
_BATCH = 1000
_CAUSES = {"orphaned": "dead_worker", "timed_out": "timeout"}


class Maintenance:
    """Runs the duties of one worker.

    Args:
        database: where.
        metrics: counts what was done.
        interval: seconds between rounds of rescue.
        held: returns the names of activities that a hold defers at present.
        max_crashes: deaths of workers after which a task is quarantined.
        retention: seconds for which finished tasks are kept.
        sample: True to take depth samples each round.
        clock: monotonic seconds.
        sleep: waits between rounds.
    """

    def __init__(
        self,
        database: Database,
        metrics: KernelMetrics,
        interval: float,
        held: Callable[[], frozenset[str]],
        *,
        max_crashes: int,
        retention: float,
        sample: bool,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._database, self._metrics, self._interval, self._held = database, metrics, interval, held
        self._clock, self._sleep, self._sample = clock, sleep, sample
        self._max_crashes, self._retention = max_crashes, retention
        self._due = {self._extend: clock() + 3600.0, self._prune: 0.0, self._clean: clock() + 600.0}
        self.depths: Mapping[str, QueueDepth] = {}
        """The newest sample of depths by queue."""

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self.round()
            await self._sleep(self._interval)

    async def round(self) -> None:
        """Do each duty that is due; one that fails is told and tried again in the next round."""
        for duty in (self._rescue, self._depths, *[duty for duty, at in self._due.items() if self._clock() >= at]):
            try:
                await duty()
            except (DatabaseUnavailableError, psycopg.Error) as error:
                _log.warning("maintenance: %s failed: %s", duty.__name__.strip("_"), error)

    async def _rescue(self) -> None:
        while True:
            found = await tasks.rescue(self._database, _BATCH, max_crashes=self._max_crashes)
            counts = attrs.asdict(found)
            for cause, count in counts.items():
                self._metrics.rescued.labels(_CAUSES.get(cause, cause)).inc(count)
            if any(counts.values()):
                told = ", ".join(f"{count} {cause}" for cause, count in counts.items() if count)
                _log.warning("rescued tasks: %s", told)
            if max(counts.values()) < _BATCH:
                return

    async def _depths(self) -> None:
        if self._sample:
            self.depths = depths_by_queue(await route_depths(self._database), self._held())

    async def _extend(self) -> None:
        await tasks.extend_finished(self._database)
        self._due[self._extend] = self._clock() + 3600.0

    async def _prune(self) -> None:
        dropped = await tasks.prune_finished(self._database, self._retention)
        self._due[self._prune] = self._clock() + (60.0 if dropped is None else 3600.0)

    async def _clean(self) -> None:
        await tasks.remove_idle_routes(self._database)
        await tasks.remove_leftovers(self._database)
        self._due[self._clean] = self._clock() + 600.0


def depths_by_queue(depths: list[RouteDepth], held: frozenset[str]) -> dict[str, QueueDepth]:
    """Add the depths of routes up by queue, once with all and once without held activities."""
    found: dict[str, QueueDepth] = {}
    for depth in depths:
        before = found.get(depth.route.queue, QueueDepth(0, 0.0, 0, 0.0))
        free = not (depth.route.kind == "activity" and depth.route.name in held)
        found[depth.route.queue] = QueueDepth(
            before.pending + depth.pending,
            max(before.oldest, depth.oldest),
            before.pending_without_held + (depth.pending if free else 0),
            max(before.oldest_without_held, depth.oldest if free else 0.0),
        )
    return found
