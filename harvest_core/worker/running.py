"""The slots of a worker: starts claims, hands their outcomes on, and can tell them all to stop."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from harvest_core.metrics import KernelMetrics
from harvest_core.model import Json, Worker
from harvest_core.store.postgres import tasks
from harvest_core.store.postgres.database import Database
from harvest_core.store.postgres.tasks import Claim
from harvest_core.worker.context import CurrentTask
from harvest_core.worker.dispatcher import Dispatcher
from harvest_core.worker.finisher import Finisher

_log = logging.getLogger("harvest")


class Running:
    """What runs now.

    Args:
        database: where heartbeats of activities go.
        dispatcher: runs one claim.
        finisher: takes the outcomes.
        metrics: counts the ends.
        concurrency: how many slots there are.
        changed: set whenever a slot comes free; others set it too, to end a wait here.
        due_in: called with the seconds until a task that failed here is due again.
    """

    def __init__(
        self,
        database: Database,
        dispatcher: Dispatcher,
        finisher: Finisher,
        metrics: KernelMetrics,
        concurrency: int,
        changed: asyncio.Event,
        due_in: Callable[[float], None],
    ) -> None:
        self._database, self._dispatcher, self._finisher = database, dispatcher, finisher
        self._concurrency, self._due_in = concurrency, due_in
        # By task and token: a thread left over from an attempt may outlast the start of the next one.
        self._tasks: dict[tuple[int, int], tuple[asyncio.Task[None], CurrentTask]] = {}
        self._suspects: set[int] = set()
        self._changed = changed
        self._ended_as = functools.cache(metrics.finished.labels)  # finding it takes longer than counting
        metrics.slots.labels("busy").set_function(lambda: len(self._tasks))
        metrics.slots.labels("free").set_function(lambda: self.free)

    @property
    def free(self) -> int:
        """How many slots are free."""
        return self._concurrency - len(self._tasks)

    @property
    def idle(self) -> bool:
        """Whether nothing runs and every outcome is written."""
        return not self._tasks and not self._finisher.backlog

    @property
    def known(self) -> frozenset[int]:
        """The tasks that run here or whose outcome is not written yet."""
        return frozenset(task for task, _ in self._tasks) | self._finisher.ids

    def start(self, claim: Claim, worker: Worker, live: Mapping[str, Json]) -> None:
        """Run a claim in a slot.

        Args:
            claim: the claim.
            worker: whose it is.
            live: the live facts it was judged by.
        """
        current = CurrentTask(claim, worker, live, self._beat, asyncio.get_running_loop())
        task = asyncio.create_task(self._run(claim, current))
        self._tasks[claim.id, claim.token] = (task, current)
        if claim.suspect:
            self._suspects.add(claim.token)
        task.add_done_callback(lambda _: self._ended(claim, current))

    @property
    def busy(self) -> Mapping[str, int]:
        """How many tasks of each queue run here."""
        return Counter(current.queue for _, current in self._tasks.values())

    @property
    def suspect(self) -> bool:
        """Whether a suspect runs here: no second one may."""
        return bool(self._suspects)

    def cancel(self, ids: Collection[int]) -> None:
        """Cancel these tasks where they run here; one that completes all the same is completed."""
        for task, current in self._tasks.values():
            if current.id in ids and not current.asked_to_stop and current.thread is None:
                current.cancelled = current.asked_to_stop = True
                task.cancel()

    def stop(self) -> None:
        """Cancel everything that runs; what ends by it is given back."""
        for task, current in self._tasks.values():
            current.cancelled = current.stopped = True
            task.cancel()

    async def change(self) -> None:
        """Wait for a slot to come free or an outcome to be written, where either can happen."""
        self._changed.clear()
        if not self.idle:
            await self._changed.wait()

    async def all_ended(self) -> None:
        """Wait until nothing runs."""
        while self._tasks:
            self._changed.clear()
            await self._changed.wait()

    async def _beat(self, claim: Claim, details: str | None) -> bool:
        return await tasks.heartbeat(self._database, claim, details)

    async def _run(self, claim: Claim, current: CurrentTask) -> None:
        current.began = True
        try:
            outcome = await self._dispatcher.run(claim, current)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not leave the task claimed
            _log.exception("task %s: its attempt could not be judged", claim.id)
            outcome = tasks.Finished("failed", error=f"harvest: {type(error).__name__}: {error}")
        name = outcome.state if isinstance(outcome, tasks.Finished) else type(outcome).__name__.lower()
        self._ended_as(name).inc()
        self._finisher.add(claim, outcome)
        if isinstance(outcome, tasks.Retried):
            self._due_in(outcome.wait)
        if current.thread is not None:
            with suppress(Exception):  # its outcome is decided; the slot alone waits for the thread
                await asyncio.shield(current.thread)

    def _ended(self, claim: Claim, current: CurrentTask) -> None:
        # A callback and not a `finally`: a run that is cancelled before its first step comes to none.
        if not current.began:
            self._finisher.add(claim, tasks.Released())
        self._tasks.pop((claim.id, claim.token), None)
        self._suspects.discard(claim.token)
        self._changed.set()
