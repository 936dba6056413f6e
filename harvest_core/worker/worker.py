"""`Worker`: one process's work for the fleet, from the first poll to the last outcome written."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Any

import psycopg

from harvest_core.build import Build
from harvest_core.connect import connected
from harvest_core.errors import DatabaseUnavailableError, HookError
from harvest_core.metrics import DepthCollector, KernelMetrics
from harvest_core.model import Json
from harvest_core.model import Worker as Identity
from harvest_core.store.postgres import tasks
from harvest_core.store.postgres.tasks import Claim
from harvest_core.worker.background import Background
from harvest_core.worker.dispatcher import Dispatcher
from harvest_core.worker.finisher import Finisher
from harvest_core.worker.listener import listen
from harvest_core.worker.local_queue import LocalQueue
from harvest_core.worker.maintenance import Maintenance
from harvest_core.worker.place import Place
from harvest_core.worker.poll import Poll
from harvest_core.worker.running import Running
from harvest_core.worker.schedules import Schedules

_log = logging.getLogger("harvest")
_RECONCILE_EVERY = 15.0
_MOST_UNWRITTEN = 10_000
_LOOK_FOR_CANCELLED, _LOOK_FOR_CANCELLED_UNTOLD = 5.0, 1.0
"""Seconds between two looks for cancelled tasks, with and without notifications."""
_AFTER_GRACE = 1.0
"""Seconds that cancelled tasks, the last outcomes and the farewell get after the grace."""


class Worker:
    """Use it as `async with app.worker() as worker`, then `run()` or `run_once()`.

    Args:
        build: what it runs on.
        clock: monotonic seconds.
        sleep: waits between tries.
        sample_depths: True to show the depth of queues among its metrics.
    """

    def __init__(
        self,
        build: Build,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        sample_depths: bool = False,
    ) -> None:
        self._build, self._clock, self._sleep, self._sample = build, clock, sleep, sample_depths
        self._settings = build.config.worker
        self._metrics = KernelMetrics(build.registry)
        self._stack = AsyncExitStack()
        self._exit_by: float | None = None
        self._wake, self._changed = asyncio.Event(), asyncio.Event()
        self._stopping, self._now = asyncio.Event(), asyncio.Event()
        self._cancellations = asyncio.Event()
        self._prefetched = LocalQueue(self._settings.prefetch, self._settings.prefetch_ttl, clock)
        self._lost = False
        self._troubles = self._contended = 0
        self._reconcile_at = clock() + _RECONCILE_EVERY

    @property
    def identity(self) -> Identity:
        """The worker as the fleet knows it; its id changes when the fleet has taken it for dead."""
        return self._membership.worker

    async def __aenter__(self) -> Worker:
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.stop()
        await self._bounded(self._running.all_ended())
        await self._bounded(self._finisher.drained())
        await self._bounded(tasks.release_unknown(self._database, self.identity.id, self._running.known))
        await self._stack.aclose()

    def stop(self) -> None:
        """Stop claiming, let running tasks finish within the grace; called again: stop now (rule K12)."""
        if self._stopping.is_set():
            self._now.set()
        self._stopping.set()
        self._wake.set()
        self._changed.set()

    async def run(self) -> None:
        """Claim and run tasks until `stop`."""
        while not self._stopping.is_set():
            await self._or_stopped(self._look_for_work())
        await self._drain()

    async def run_once(self) -> None:
        """Run what this worker may take now, due ticks and follow-up tasks included, and return (rule K14).

        Raises:
            HookError, DatabaseUnavailableError: what `run` would wait out.
        """
        await self._schedules.look()
        while not self._stopping.is_set():
            await self._free_slot()
            if self._stopping.is_set():
                break
            idle = self._running.idle  # what ends while the poll is under way may have enqueued more
            if idle:
                self._poller.look_for_due()  # a task with a lane becomes pending by that alone
            poll = await self._poll()
            if poll.full:
                continue
            if not self._running.idle:
                await self._running.change()
            elif idle and not poll.result.waiting and not poll.result.claims:
                break
            elif poll.result.waiting and not poll.result.claims:
                await self._sleep(0.02)  # another claim holds the last rows for a moment
        if self._stopping.is_set():
            await self._drain()
        self._give_back(self._prefetched.clear())  # what is held now
        await self._finisher.drained()

    async def _open(self) -> None:
        self._database = await self._stack.enter_async_context(connected(self._build))
        place = Place(
            self._database,
            self._build,
            self._metrics,
            pruned=self._was_pruned,
            wake=self._wake.set,
            clock=self._clock,
            sleep=self._sleep,
        )
        self._membership, self._refreshes = place.membership, place.refreshes
        self._finisher = Finisher(self._database, self._claim_lost, self._changed.set, self._sleep)
        threads = ThreadPoolExecutor(self._settings.concurrency, thread_name_prefix="harvest-activity")
        self._stack.callback(threads.shutdown, wait=False, cancel_futures=True)
        dispatcher = Dispatcher(self._build.activities, self._build.middleware, threads, payloads=self._build.payloads)
        concurrency = self._settings.concurrency
        self._running = Running(
            self._database, dispatcher, self._finisher, self._metrics, concurrency, self._changed, self._look_again_in
        )
        self._stack.push_async_callback(lambda: self._bounded(self._membership.leave()))
        self._stack.callback(self._membership.stop_beating)
        await place.take()
        self._poller = place.poller
        self._start_duties(place)

    def _start_duties(self, place: Place) -> None:
        self._schedules = Schedules(self._database, self._metrics, notify=self._build.config.harvest.notify)
        interval = min(5.0, self._settings.worker_ttl / 3)
        maintenance = Maintenance(
            self._database,
            self._metrics,
            interval,
            lambda: self._poller.held,
            max_crashes=self._settings.max_crashes,
            retention=self._build.config.harvest.retention,
            sample=self._sample,
        )
        if self._sample:
            DepthCollector(self._build.registry, lambda: maintenance.depths)
        background = Background(lambda duty: self._metrics.broken_duties.labels(duty).inc())
        self._stack.push_async_callback(background.end)
        background.add("finisher", self._finisher.run)
        background.add("maintenance", maintenance.run)
        background.add("schedules", self._schedules.run)
        place.start_duties(background)
        background.add("watch", self._watch)
        background.add("cancellations", self._watch_for_cancellations)
        if self._build.config.harvest.listens:
            connected_gauge = self._metrics.listening.set
            background.add("listener", lambda: listen(self._database, self._heard, connected_gauge, self._sleep))

    # ------------------------------------------------------------------------------------------------ polling

    async def _look_for_work(self) -> None:
        poll = await self._poll_safely()
        if poll is not None:
            await self._pause_after(poll)

    async def _poll_safely(self) -> Poll | None:
        """Poll; on trouble tell it, wait longer each time, and claim nothing."""
        try:
            await self._free_slot()
            if self._stopping.is_set():
                return None
            poll = await self._poll()
        except HookError as error:
            self._metrics.hook_errors.labels(error.plugin, error.hook).inc()
            _log.error("nothing is claimed: %s", error)
        except (DatabaseUnavailableError, psycopg.Error) as error:
            self._metrics.database_errors.inc()
            self._reconcile_at = 0.0
            _log.warning("nothing is claimed: %s", error)
        except Exception:  # noqa: BLE001 - whatever it was, the worker lives and tries again
            self._metrics.broken_duties.labels("poll").inc()
            self._reconcile_at = 0.0
            _log.exception("nothing is claimed")
        else:
            self._troubles = 0
            return poll
        self._troubles += 1
        await self._woken(min(self._settings.poll_interval * 2 ** min(self._troubles, 10), 5.0))
        return None

    async def _poll(self) -> Poll:
        self._wake.clear()
        if self._lost or self._membership.overdue():
            self._was_pruned()
            await self._membership.join()
            self._lost = False
        await self._reconcile()
        if len(self._prefetched):
            await self._start_prefetched()
        if self._running.free <= 0:
            poll = Poll(tasks.ClaimResult((), frozenset(), registered=True), {}, full=True)
        else:
            poll = await self._poller.poll(
                self.identity, self._running.free, self._running.busy, suspect=not self._running.suspect
            )
            if not poll.result.registered:
                self._was_pruned()
            self._start(poll.result.claims, poll.live)
        if poll.full and 2 * self._prefetched.room >= self._settings.prefetch > 0:
            await self._prefetch()
        return poll

    def _start(self, claims: Sequence[Claim], live: Mapping[str, Json]) -> None:
        for claim in claims:
            if self._stopping.is_set() or self._lost or self._membership.overdue():  # it was on its way
                self._finisher.add(claim, tasks.Released())
            else:
                self._running.start(claim, self.identity, live)

    async def _prefetch(self) -> None:
        claims = await self._poller.prefetch(
            self.identity, self._prefetched.room, self._running.busy, self._settings.prefetch_ttl
        )
        self._prefetched.add(claims)
        if self._stopping.is_set() or self._lost:  # they were on their way
            self._give_back(self._prefetched.clear())

    async def _start_prefetched(self) -> None:
        """Start what was prefetched in the free slots, after the policies were asked again (K15)."""
        live = await self._poller.observe(self.identity)
        picked = self._prefetched.pick(self._running.free, self._poller.refusals)
        self._give_back(picked.give_back)
        if picked.start:
            try:
                begun = await tasks.start_claims(self._database, picked.start)
            except BaseException:
                self._give_back(picked.start)
                raise
            for claim in begun:
                self._metrics.dispatched.labels(claim.route.queue).inc()
            self._start(begun, live)

    def _give_back(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            self._finisher.add(claim, tasks.Released())

    async def _reconcile(self) -> None:
        """Give back claims in this worker's name that it never heard of; between claims, so that none is on its way."""
        if self._clock() < self._reconcile_at:
            return
        known = self._running.known | self._prefetched.ids
        if unknown := await tasks.release_unknown(self._database, self.identity.id, known):
            self._metrics.rescued.labels("lost_answer").inc(unknown)
            _log.warning("gave back %s claims whose answer was lost", unknown)
        self._reconcile_at = self._clock() + _RECONCILE_EVERY

    async def _pause_after(self, poll: Poll) -> None:
        """Wait until another look for work pays: at once after a full claim, else for news or the poll interval."""
        self._contended = self._contended + 1 if poll.result.waiting and not poll.result.claims else 0
        if poll.full:
            if self._membership.asleep:
                await self._mark_asleep(asleep=False)
        elif poll.result.waiting:  # other claims hold rows, as a rule for a moment
            await self._woken(min(0.01 * 2 ** min(self._contended, 10), self._settings.poll_interval))
        elif not self._membership.asleep and self._build.config.harvest.listens:
            await self._mark_asleep(asleep=True)  # and look once more, for what came before the mark
        else:
            await self._woken(self._poller.until_due())

    async def _mark_asleep(self, *, asleep: bool) -> None:
        try:
            await self._membership.mark_asleep(asleep)
        except (DatabaseUnavailableError, psycopg.Error) as error:
            _log.warning("the sleep mark was not written: %s", error)
            await self._woken(min(self._settings.poll_interval, 1.0))

    async def _woken(self, limit: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), limit)

    async def _free_slot(self) -> None:
        """Wait for a free slot, and for outcomes to be written where many are not."""
        while self._running.free <= 0 or self._finisher.backlog > _MOST_UNWRITTEN:
            if self._stopping.is_set():
                return
            await self._running.change()

    def _heard(self, payload: str) -> None:
        kind, _, key = payload.partition(":")
        if payload == "" or kind == "setting":
            self._refreshes.setting_changed(key)
        if payload == "" or (kind == "cancel" and key == self.identity.id):
            self._cancellations.set()
        if payload in ("", "schedule"):
            self._schedules.look_again()
        if payload == "" or payload in self.identity.queues:
            self._look_again()

    def _look_again(self) -> None:
        """Poll soon, for tasks that have become due too."""
        self._poller.look_for_due()
        self._wake.set()

    def _look_again_in(self, wait: float) -> None:
        asyncio.get_running_loop().call_later(wait, self._look_again)

    def _claim_lost(self, claim: Claim) -> None:
        self._metrics.lost_claims.inc()
        _log.warning("task %s: the outcome of attempt %s came after its claim was lost", claim.id, claim.attempt)

    # ------------------------------------------------------------------------------------------------ the lease

    def _was_pruned(self) -> None:
        if not self._lost:
            self._lost = True
            _log.error("worker %s was taken for dead; it cancels its tasks and registers anew", self.identity.name)
            self._running.stop()
            self._give_back(self._prefetched.clear())
            self._wake.set()

    async def _watch(self) -> None:
        """Cancel this worker's tasks once others may take them (K12); keep its facts fresh while no slot is free."""
        while True:
            await self._sleep(min(1.0, self._settings.worker_ttl / 10))
            if self._membership.overdue():
                self._was_pruned()
            if self._running.free <= 0:
                with suppress(HookError):  # the next poll counts and tells it
                    await self._poller.observe(self.identity)
            self._give_back(self._prefetched.pick(0, self._poller.refusals).give_back)

    async def _watch_for_cancellations(self) -> None:
        """Look for cancelled tasks among those that run here: when told, and now and then."""
        every = _LOOK_FOR_CANCELLED if self._build.config.harvest.listens else _LOOK_FOR_CANCELLED_UNTOLD
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._cancellations.wait(), every)
            self._cancellations.clear()
            if self._running.busy:
                self._running.cancel(await tasks.asked_to_stop(self._database, self.identity.id))

    # ------------------------------------------------------------------------------------------------ stopping

    async def _drain(self) -> None:
        """Give prefetched tasks back, let running ones finish within the grace, give the rest back."""
        self._give_back(self._prefetched.clear())
        mark = asyncio.ensure_future(self._membership.mark_draining())
        ended, now = asyncio.ensure_future(self._running.all_ended()), asyncio.ensure_future(self._now.wait())
        await asyncio.wait([ended, now], timeout=self._settings.shutdown_grace, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        now.cancel()
        self._running.stop()
        await self._bounded(mark)
        await self._bounded(self._running.all_ended())
        await self._bounded(self._finisher.drained())

    async def _bounded(self, work: Any) -> None:
        """Wait for a last duty, but not for a database that swallows packets: all duties share one span."""
        if self._exit_by is None:
            self._exit_by = self._clock() + _AFTER_GRACE
        task = asyncio.ensure_future(work)
        await asyncio.wait([task], timeout=max(0.05, self._exit_by - self._clock()))
        if not task.done():
            task.cancel()
        elif error := task.exception():
            _log.warning("while stopping: %s", error)

    async def _or_stopped(self, work: Any) -> None:
        """Do work; once stopping, wait for it a moment only: its query may never be answered."""
        task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([task], timeout=_AFTER_GRACE / 6)
            if task.done():
                task.result()
        finally:
            task.cancel()
            stopped.cancel()
            # A claim that is cut off may still be made: it has to be over before what this worker holds is given back.
            await asyncio.wait([task], timeout=_AFTER_GRACE / 6)
