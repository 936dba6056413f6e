"""A worker's place in the fleet: its row, its beat, its sleep mark, and its return under a fresh id (rules K1, K12)."""

from __future__ import annotations

import asyncio
import os
import socket
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from harvest_core.build import Build
from harvest_core.model import Json, Worker
from harvest_core.store.postgres import workers
from harvest_core.store.postgres.database import Database
from harvest_core.worker.heartbeat import Heartbeat
from harvest_core.worker.schedules import declare_schedules


class Membership:
    """One worker's membership; `join` first.

    Args:
        database: where the fleet's table is.
        build: what it publishes.
        pruned: called when the fleet may have taken the worker for dead.
        clock: monotonic seconds.
        names: the activities it takes; None for those the build can run.
    """

    worker: Worker
    """The worker as the fleet knows it at present."""

    def __init__(
        self,
        database: Database,
        build: Build,
        pruned: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        names: Collection[str] | None = None,
    ) -> None:
        self._database, self._build, self._pruned, self._clock = database, build, pruned, clock
        self._settings, self._names = build.config.worker, build.runnable if names is None else names
        self._heartbeat: Heartbeat | None = None
        self.asleep = False
        """Whether enqueues are asked to wake it."""

    async def join(self) -> None:
        """Register under a fresh id, publish what others judge by, and begin to beat; an earlier row is left behind."""
        if self._heartbeat is not None:
            self._heartbeat.stop(timeout=0.0)
        policies = self._build.policies
        live = policies.live()
        self.worker = Worker(
            id=str(uuid.uuid4()),
            name=self._settings.name or f"{socket.gethostname()}:{os.getpid()}",
            queues=tuple(self._settings.queues),
            activities=frozenset(self._names),
            facts=policies.facts(self._build.view),
        )
        await workers.register(
            self._database,
            self.worker,
            plugins=tuple(policies.plugins),
            live=live,
            concurrency=self._settings.concurrency,
            ttl=self._settings.worker_ttl,
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        await workers.publish_activities(self._database, self._build.runnable.values())
        if (limits := policies.lanes()) is not None:
            await workers.publish_lane_limits(self._database, limits)
        await declare_schedules(self._database, self._build, self.worker.id)
        self.asleep = False
        loop, joined_as = asyncio.get_running_loop(), self.worker.id

        def pruned() -> None:
            with suppress(RuntimeError):  # the loop has ended, and with it all that could be lost
                loop.call_soon_threadsafe(self._was_pruned, joined_as)

        interval = self._settings.beat_interval
        self._heartbeat = Heartbeat(self._database, self.worker.id, interval, pruned, self._clock)
        self._heartbeat.observe(live)
        self._heartbeat.start()

    def _was_pruned(self, worker_id: str) -> None:
        if worker_id == self.worker.id:  # the last word of an earlier beat says nothing of the present row
            self._pruned()

    def observe(self, live: Mapping[str, Json]) -> None:
        """Take the live facts of a tick, to be stored with the beat."""
        if self._heartbeat is not None:
            self._heartbeat.observe(live)

    def overdue(self) -> bool:
        """Whether the last written beat is so old that others may have taken the worker for dead."""
        return self._heartbeat is not None and self._clock() - self._heartbeat.last > self._settings.worker_ttl

    async def mark_asleep(self, asleep: bool) -> None:  # noqa: FBT001 - it is the mark itself
        """Ask enqueues to wake it, or no longer."""
        await workers.mark(self._database, self.worker.id, asleep=asleep)
        self.asleep = asleep

    async def mark_draining(self) -> None:
        """Tell the fleet that it claims nothing any more."""
        await workers.mark(self._database, self.worker.id, draining=True)

    def stop_beating(self) -> None:
        """Stop the beat."""
        if self._heartbeat is not None:
            self._heartbeat.stop(timeout=0.1)

    async def leave(self) -> None:
        """Remove its row, if it has joined; what still stands in its name is rescued by others."""
        if (worker := getattr(self, "worker", None)) is not None:
            await workers.remove(self._database, worker.id)
