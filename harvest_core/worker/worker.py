"""`Worker`: a process's life in the fleet, from registration to the last outcome written."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Any

import psycopg

from harvest_core.build import Build
from harvest_core.connect import connected
from harvest_core.errors import BuildError, DatabaseUnavailableError, HookError
from harvest_core.metrics import DepthCollector, KernelMetrics
from harvest_core.model import Json, Tick
from harvest_core.model import Worker as Identity
from harvest_core.probe import probe
from harvest_core.store.postgres import settings, tasks, workers
from harvest_core.store.postgres.tasks import Claim
from harvest_core.worker.context import CurrentTask
from harvest_core.worker.dispatcher import Dispatcher
from harvest_core.worker.finisher import Finisher
from harvest_core.worker.heartbeat import Heartbeat
from harvest_core.worker.listener import listen
from harvest_core.worker.maintenance import Maintenance
from harvest_core.worker.poll import Poll, Poller
from harvest_core.worker.refresh import Refreshes

_log = logging.getLogger("harvest")
_RECONCILE_EVERY = 15.0
_AFTER_GRACE = 0.9
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
        self._stack = AsyncExitStack()
        self._background: list[asyncio.Future[Any]] = []
        self._exit_by: float | None = None
        self._metrics = KernelMetrics(build.registry)
        # By task and token: a thread left over from an attempt may outlast the start of the next one.
        self._running: dict[tuple[int, int], tuple[asyncio.Task[None], CurrentTask]] = {}
        self._wake, self._freed = asyncio.Event(), asyncio.Event()
        self._stopping, self._now = asyncio.Event(), asyncio.Event()
        self._asleep, self._lost = False, False
        self._troubles = self._contended = 0
        self._reconcile_at = clock() + _RECONCILE_EVERY

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
        self._stop_running()
        await self._bounded(self._all_ended())
        await self._bounded(self._finisher.drained())
        self._heartbeat.stop(timeout=0.1)
        await self._bounded(workers.remove(self._database, self.identity.id))
        await self._stack.aclose()

    def stop(self) -> None:
        """Stop claiming, let running tasks finish within the grace; called again: stop now (rule K12)."""
        if self._stopping.is_set():
            self._now.set()
        self._stopping.set()
        self._wake.set()
        self._freed.set()

    async def run(self) -> None:
        """Claim and run tasks until `stop`."""
        while not self._stopping.is_set():
            await self._or_stopped(self._look_for_work())
        await self._drain()

    async def run_once(self) -> None:
        """Run what this worker may take now, follow-up tasks included, and return (rule K14).

        Raises:
            HookError, DatabaseUnavailableError: what `run` would wait out.
        """
        while not self._stopping.is_set():
            await self._free_slot()
            if self._stopping.is_set():
                break
            poll = await self._poll()
            if poll.full:
                continue
            if self._running or self._finisher.backlog:
                await self._any_ended()
            elif not poll.result.waiting:
                break
            elif not poll.result.claims:
                await self._sleep(0.02)  # another claim holds the last rows for a moment
        if self._stopping.is_set():
            await self._drain()

    # ------------------------------------------------------------------------------------------------ opening

    async def _open(self) -> None:
        self._database = await self._stack.enter_async_context(connected(self._build))
        policies = self._build.policies
        self._refreshes = Refreshes(
            [(slug, refresh) for slug, plugin in policies.plugins.items() for refresh in plugin.refreshes()],
            lambda: settings.read_settings(self._database),
            lambda slug: self._metrics.refresh_errors.labels(slug).inc(),
            self._wake.set,
        )
        await self._refreshes.first()
        await self._refreshes.before_claim()
        await self._introduce()
        self._poller = Poller(
            self._database,
            policies,
            self._refreshes,
            lambda live: self._heartbeat.observe(live),
            self._metrics,
            self._settings.poll_interval,
            self._clock,
        )
        if problems := await probe(self._database, policies, Tick(self.identity, live=policies.live())):
            raise BuildError(problems)
        threads = ThreadPoolExecutor(self._settings.concurrency, thread_name_prefix="harvest-activity")
        self._stack.callback(threads.shutdown, wait=False, cancel_futures=True)
        self._dispatcher = Dispatcher(self._build.activities, self._build.middleware, threads)
        self._finisher = Finisher(self._database, self._claim_lost, self._freed.set, self._sleep)
        interval = min(5.0, self._settings.worker_ttl / 3)
        maintenance = Maintenance(
            self._database, self._metrics, interval, lambda: self._poller.held, sample=self._sample
        )
        if self._sample:
            DepthCollector(self._build.registry, lambda: maintenance.depths)
        self._stack.push_async_callback(self._end_background)
        self._in_background(self._finisher.run())
        self._in_background(maintenance.run())
        self._in_background(self._refreshes.run())
        self._in_background(self._watch())
        if self._build.config.harvest.notify:
            self._in_background(listen(self._database, self._heard, self._metrics.listening.set, self._sleep))

    async def _introduce(self) -> None:
        """Register under a fresh id, publish what others judge by, and begin to beat."""
        policies = self._build.policies
        name = self._settings.name or f"{socket.gethostname()}:{os.getpid()}"
        self.identity = Identity(
            id=str(uuid.uuid4()),
            name=name,
            queues=tuple(self._settings.queues),
            activities=frozenset(self._build.runnable),
            facts=policies.facts(self._build.view),
        )
        live = policies.live()
        await workers.register(
            self._database,
            self.identity,
            plugins=tuple(policies.plugins),
            live=live,
            concurrency=self._settings.concurrency,
            ttl=self._settings.worker_ttl,
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        await workers.publish_activities(self._database, self._build.runnable.values())
        self._asleep, self._lost = False, False
        loop = asyncio.get_running_loop()

        def pruned() -> None:
            with suppress(RuntimeError):  # the loop has ended, and with it all that could be lost
                loop.call_soon_threadsafe(self._was_pruned)

        self._heartbeat = Heartbeat(self._database, self.identity.id, self._settings.beat_interval, pruned, self._clock)
        self._heartbeat.observe(live)
        self._heartbeat.start()

    def _in_background(self, work: Any) -> None:
        self._background.append(asyncio.ensure_future(work))

    async def _end_background(self) -> None:
        for task in self._background:
            task.cancel()
        if self._background:
            await asyncio.wait(self._background, timeout=0.2)

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
        else:
            self._troubles = 0
            return poll
        self._troubles += 1
        await self._woken(min(self._settings.poll_interval * 2 ** min(self._troubles, 10), 5.0))
        return None

    async def _poll(self) -> Poll:
        if self._lost or self._overdue():
            await self._return_to_fleet()
        await self._reconcile()
        self._wake.clear()
        poll = await self._poller.poll(self.identity, self._settings.concurrency - len(self._running))
        if not poll.result.registered:
            self._was_pruned()
        for claim in poll.result.claims:
            if self._stopping.is_set():  # it was on its way
                self._finisher.add(claim, tasks.Released())
            else:
                self._start(claim, poll.live)
        return poll

    async def _reconcile(self) -> None:
        """Give back claims in this worker's name that it never heard of; between claims, so that none is on its way."""
        if self._clock() < self._reconcile_at:
            return
        known = {task for task, _ in self._running} | self._finisher.ids
        if unknown := await tasks.release_unknown(self._database, self.identity.id, known):
            self._metrics.rescued.labels("lost_answer").inc(unknown)
            _log.warning("gave back %s claims whose answer was lost", unknown)
        self._reconcile_at = self._clock() + _RECONCILE_EVERY

    async def _pause_after(self, poll: Poll) -> None:
        """Wait until another look for work pays: at once after a full claim, else for news or the poll interval."""
        self._contended = self._contended + 1 if poll.result.waiting and not poll.result.claims else 0
        if poll.full:
            if self._asleep:
                await self._mark(asleep=False)
        elif poll.result.waiting:  # other claims hold rows, as a rule for a moment
            await self._woken(min(0.01 * 2 ** min(self._contended, 10), self._settings.poll_interval))
        elif not self._asleep and self._build.config.harvest.notify:
            await self._mark(asleep=True)  # and look once more, for what came before the mark
        else:
            await self._woken(self._poller.until_due())

    async def _mark(self, *, asleep: bool) -> None:
        try:
            await workers.mark(self._database, self.identity.id, asleep=asleep)
        except (DatabaseUnavailableError, psycopg.Error) as error:
            _log.warning("the sleep mark was not written: %s", error)
            await self._woken(min(self._settings.poll_interval, 1.0))
        else:
            self._asleep = asleep

    async def _woken(self, limit: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), limit)

    async def _free_slot(self) -> None:
        """Wait for a free slot, and for outcomes to be written where many are not."""
        while len(self._running) >= self._settings.concurrency or self._finisher.backlog > 10_000:
            if self._stopping.is_set():
                return
            await self._any_ended()

    async def _any_ended(self) -> None:
        self._freed.clear()
        if self._running or self._finisher.backlog:
            await self._freed.wait()

    def _heard(self, payload: str) -> None:
        kind, _, key = payload.partition(":")
        if payload == "" or kind == "setting":
            self._refreshes.setting_changed(key)
        if payload == "" or payload in self.identity.queues:
            self._look_again()

    def _look_again(self) -> None:
        """Poll soon, for tasks that have become due too."""
        self._poller.look_for_due()
        self._wake.set()

    # ------------------------------------------------------------------------------------------------ running

    def _start(self, claim: Claim, live: Mapping[str, Json]) -> None:
        current = CurrentTask(
            claim,
            self.identity,
            live,
            lambda claim, details: tasks.heartbeat(self._database, claim, details),
            asyncio.get_running_loop(),
        )
        self._running[claim.id, claim.token] = (asyncio.create_task(self._run(claim, current)), current)

    async def _run(self, claim: Claim, current: CurrentTask) -> None:
        try:
            try:
                outcome = await self._dispatcher.run(claim, current)
            except Exception as error:  # noqa: BLE001 - a fault of ours must not leave the task claimed
                _log.exception("task %s: its attempt could not be judged", claim.id)
                outcome = tasks.Finished("failed", error=f"harvest: {type(error).__name__}: {error}")
            name = outcome.state if isinstance(outcome, tasks.Finished) else type(outcome).__name__.lower()
            self._metrics.finished.labels(name).inc()
            self._finisher.add(claim, outcome)
            if isinstance(outcome, tasks.Retried):
                asyncio.get_running_loop().call_later(outcome.wait, self._look_again)
            if current.thread is not None:
                with suppress(Exception):  # its outcome is decided; the slot alone waits for the thread
                    await asyncio.shield(current.thread)
        finally:
            self._running.pop((claim.id, claim.token), None)
            self._freed.set()

    def _claim_lost(self, claim: Claim) -> None:
        self._metrics.lost_claims.inc()
        _log.warning("task %s: the outcome of attempt %s came after its claim was lost", claim.id, claim.attempt)

    def _stop_running(self) -> None:
        for task, current in self._running.values():
            current.cancelled = current.stopped = True
            task.cancel()

    # ------------------------------------------------------------------------------------------------ the lease

    def _overdue(self) -> bool:
        return self._clock() - self._heartbeat.last > self._settings.worker_ttl

    def _was_pruned(self) -> None:
        if not self._lost:
            self._lost = True
            _log.error("worker %s was taken for dead; it cancels its tasks and registers anew", self.identity.name)
            self._stop_running()
            self._wake.set()

    async def _watch(self) -> None:
        """Cancel this worker's own tasks once others may take them (rule K12)."""
        while True:
            await self._sleep(min(1.0, self._settings.worker_ttl / 10))
            if self._overdue():
                self._was_pruned()

    async def _return_to_fleet(self) -> None:
        self._was_pruned()
        self._heartbeat.stop(timeout=0.0)
        await self._introduce()

    # ------------------------------------------------------------------------------------------------ stopping

    async def _drain(self) -> None:
        """Let running tasks finish within the grace; give the rest back."""
        mark = asyncio.ensure_future(workers.mark(self._database, self.identity.id, draining=True))
        ended, now = asyncio.ensure_future(self._all_ended()), asyncio.ensure_future(self._now.wait())
        await asyncio.wait([ended, now], timeout=self._settings.shutdown_grace, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        now.cancel()
        self._stop_running()
        await self._bounded(mark)
        await self._bounded(self._all_ended())
        await self._bounded(self._finisher.drained())

    async def _all_ended(self) -> None:
        while self._running:
            self._freed.clear()
            await self._freed.wait()

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
