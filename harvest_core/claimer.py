"""Direct claims: tasks one by one, in batches or as a stream, for a caller that is its own executor (rule FL7).

A claimer is an anonymous worker of the fleet with a lease of its own: same claim, policies and rescue. Runs nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Any, TypeAlias

import attrs
import psycopg
from prometheus_client import CollectorRegistry

from harvest_core.activity import RegisteredActivity
from harvest_core.build import Build
from harvest_core.claimed import ClaimedTask
from harvest_core.duration import Duration, seconds
from harvest_core.errors import DatabaseUnavailableError, HarvestError, LostClaimError, PayloadError, near_match
from harvest_core.metrics import KernelMetrics
from harvest_core.model import Retry
from harvest_core.plugin import ClaimFilter
from harvest_core.store.postgres import tasks
from harvest_core.store.postgres.database import Database
from harvest_core.store.postgres.tasks import Claim, Finished, Outcome
from harvest_core.store.postgres.workers import published_retry
from harvest_core.worker.background import Background
from harvest_core.worker.maintenance import Maintenance
from harvest_core.worker.place import Place
from harvest_core.worker.poll import Poll

_log = logging.getLogger("harvest")
_Held: TypeAlias = dict[tuple[int, int], tuple[Claim, ClaimedTask]]
"""By task and token: the tasks of one claim share a token."""


class Claimer:
    """Use it as `async with client.claimer() as claimer`; leaving the block gives back what is still claimed.

    Args:
        database: where to claim.
        build: what it claims by, from `direct_build`.
        activities: what it claims; None for all that the app can run.
        sleep: waits between two looks for cancelled tasks.
    """

    def __init__(
        self,
        database: Database,
        build: Build,
        activities: Collection[RegisteredActivity[..., Any] | str] | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._database, self._build, self._sleep = database, build, sleep
        self._metrics = KernelMetrics(build.registry)
        names = None if activities is None else {one if isinstance(one, str) else one.name for one in activities}
        self._place = Place(database, build, self._metrics, pruned=self._was_pruned, sleep=sleep, names=names)
        self._stack = AsyncExitStack()
        self._claiming, self._stopping = asyncio.Lock(), asyncio.Event()
        self._held: _Held = {}
        self._ending: set[tuple[int, int]] = set()
        self._open = self._lost = self._unsure = False

    async def __aenter__(self) -> Claimer:
        membership = self._place.membership
        try:
            self._stack.push_async_callback(lambda: _told(membership.leave()))
            self._stack.callback(membership.stop_beating)
            await self._place.take()
            self._stack.push_async_callback(lambda: _told(self._give_back_unknown(())))
            self._start_duties()
        except BaseException:
            await self._stack.aclose()
            raise
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._open = False
        await self._stack.aclose()

    async def claim(self) -> ClaimedTask | None:
        """Claim one task; None where there is none for this caller now.

        Raises:
            HookError: a policy cannot be judged; nothing was claimed. So do the methods below.
            DatabaseUnavailableError: what may have been claimed is given back. So do the methods below.
        """
        claimed = await self.claim_many(1)
        return claimed[0] if claimed else None

    async def claim_many(self, most: int) -> list[ClaimedTask]:
        """Claim at most so many tasks, in one statement, and return them in the order of their turns."""
        return (await self._take(most))[0]

    async def stream(self, batch: int = 1, poll_interval: str | float | None = None) -> AsyncIterator[ClaimedTask]:
        """Yield tasks as they come, until `stop`.

        Args:
            batch: the most claimed at once; their time counts from then, so more than 1 is for short tasks.
            poll_interval: the longest time between two looks for work; the app's `worker.poll_interval` unless given.
        """
        longest = self._build.config.worker.poll_interval if poll_interval is None else seconds(poll_interval)
        contended = 0
        while not self._stopping.is_set():
            claimed, poll = await self._take(batch)
            try:
                while claimed and not self._stopping.is_set():
                    yield claimed.pop(0)
            finally:
                for one in claimed if self._open else ():
                    with suppress(LostClaimError):
                        await one.release()
            contended = contended + 1 if poll.result.waiting and not poll.result.claims else 0
            if not poll.full:
                pause = min(longest, self._place.poller.until_due()) if poll_interval is None else longest
                if contended:  # other claims hold rows, as a rule for a moment
                    pause = min(0.01 * 2 ** min(contended, 10), longest)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), pause)

    def stop(self) -> None:
        """End every stream of this claimer before its next task."""
        self._stopping.set()

    async def _take(self, most: int) -> tuple[list[ClaimedTask], Poll]:
        if not self._open:
            msg = "the claimer is not open; use it as: async with client.claimer() as claimer"
            raise HarvestError(msg)
        if most < 1:
            msg = f"{most} tasks cannot be claimed; claim at least 1"
            raise HarvestError(msg)
        async with self._claiming:
            while True:
                poll = await self._poll(most)
                claimed, unreadable = self._judged(poll)
                if unreadable:
                    await tasks.write_outcomes(self._database, unreadable)
                if poll.result.registered and (claimed or not unreadable):
                    self._held.update(claimed)
                    self._unsure = False
                    return [task for _, task in claimed.values()], poll

    async def _poll(self, most: int) -> Poll:
        if self._lost or self._place.membership.overdue():
            self._was_pruned()
            await self._place.membership.join()
            self._lost = False
        known = [claim.id for claim, _ in self._held.values()]
        if self._unsure:  # an earlier claim was cut off: its answer may have been lost
            await self._give_back_unknown(known)
        self._unsure = True
        busy = Counter(claim.route.queue for claim, _ in self._held.values())
        suspect = any(claim.suspect for claim, _ in self._held.values())
        poll = await self._place.poller.poll(self._place.membership.worker, most, busy, suspect=not suspect)
        if not poll.result.registered:
            self._was_pruned()
        return poll

    def _judged(self, poll: Poll) -> tuple[_Held, list[tuple[Claim, Outcome]]]:
        """Part what can be handed out from what cannot be read and fails, as it would on a worker."""
        claimed: _Held = {}
        unreadable: list[tuple[Claim, Outcome]] = []
        worker, payloads = self._place.membership.worker, self._build.payloads
        for claim in poll.result.claims:
            fault = claim.fault
            try:
                arguments = payloads.arguments(claim.route.name, claim.args, claim.kwargs)
            except PayloadError as error:
                fault = fault or f"PayloadError: {error}"
            if fault:
                _log.warning("task %s (%s) failed at attempt %s: %s", claim.id, claim.route.name, claim.attempt, fault)
                unreadable.append((claim, Finished("failed", error=fault)))
            else:
                task = ClaimedTask(claim, arguments, worker, poll.live, self._beat, self._end, self._retry_of, payloads)
                claimed[claim.id, claim.token] = (claim, task)
        return claimed, unreadable

    async def _beat(self, claim: Claim, details: str | None) -> bool:
        held = await tasks.heartbeat(self._database, claim, details)
        if not held:
            self._held.pop((claim.id, claim.token), None)
        return held

    async def _end(self, claim: Claim, outcome: Outcome) -> bool:
        key = (claim.id, claim.token)
        self._ending.add(key)
        try:
            written = await tasks.write_outcomes(self._database, [(claim, outcome)])
        finally:
            self._ending.discard(key)
        self._held.pop(key, None)
        return claim.id in written

    async def _retry_of(self, name: str) -> Retry:
        activity = self._build.runnable.get(name)
        return activity.retry if activity is not None else await published_retry(self._database, name)

    async def _give_back_unknown(self, known: Collection[int]) -> None:
        await tasks.release_unknown(self._database, self._place.membership.worker.id, known)

    def _was_pruned(self) -> None:
        if not self._lost:
            self._lost = True
            _log.error("a claimer was taken for dead; its claims are lost, and it registers anew")
            for _, task in self._held.values():
                task.cancelled = True

    def _start_duties(self) -> None:
        settings, harvest = self._build.config.worker, self._build.config.harvest
        maintenance = Maintenance(  # a fleet of claimers alone rescues its dead too
            self._database,
            self._metrics,
            min(5.0, settings.worker_ttl / 3),
            frozenset,
            max_crashes=settings.max_crashes,
            retention=harvest.retention,
            sample=False,
        )
        background = Background(lambda duty: self._metrics.broken_duties.labels(duty).inc())
        self._stack.push_async_callback(background.end)
        background.add("maintenance", maintenance.run)
        background.add("watch", self._watch)
        self._place.start_duties(background)

    async def _watch(self) -> None:
        """Mark what its holder should stop: what was cancelled or lost, and all once the lease has run out."""
        while True:
            await self._sleep(min(1.0, self._build.config.worker.worker_ttl / 10))
            if self._place.membership.overdue():
                self._was_pruned()
            if self._held:
                watched = dict(self._held)
                live = await tasks.live_claims(self._database, self._place.membership.worker.id)
                for key, (_, task) in watched.items():
                    if key in self._held and key not in self._ending:
                        task.cancelled = task.cancelled or live.get(key, True)


def direct_build(
    build: Build, queues: Sequence[str] | None, filters: Sequence[ClaimFilter], lease: str | float | None
) -> Build:
    """Return a build as an anonymous worker runs on it.

    Args:
        build: the app's.
        queues: what it polls; None for the app's `worker.queues`.
        filters: facts in place of those that plugins would publish.
        lease: silence after which others take over its claims; None for the app's `worker.worker_ttl`.

    Raises:
        HarvestError: one of these cannot be used.
    """
    worker = build.config.worker
    polled = tuple(worker.queues if queues is None else queues)
    if isinstance(queues, str) or not polled or len(set(polled)) < len(polled) or not all(polled):
        msg = f"queues={queues!r}: expected a list of different names"
        raise HarvestError(msg)
    try:
        ttl = worker.worker_ttl if lease is None else seconds(lease)
    except ValueError as error:
        msg = f"lease: {error}"
        raise HarvestError(msg) from None
    if not 0.1 <= ttl <= 86_400:
        msg = f'lease={lease!r}: expected a length of time from "100ms" to "1d"'
        raise HarvestError(msg)
    facts = {}
    for given in filters:
        if given.slug not in build.policies.plugins:
            hint = near_match(given.slug, build.policies.plugins) or f'add "{given.slug}" to harvest.plugins'
            msg = f"a filter for the plugin {given.slug!r}, which this app does not enable: {hint}"
            raise HarvestError(msg)
        if given.slug in facts:
            msg = f"two filters for the plugin {given.slug!r}; give one that says all"
            raise HarvestError(msg)
        facts[given.slug] = given.facts
    settings = attrs.evolve(
        worker,
        queues=polled,
        worker_ttl=ttl,
        beat_interval=Duration(ttl / 3),
        concurrency=0,  # it has no slots that others could count on
        name=f"direct:{worker.name or f'{socket.gethostname()}:{os.getpid()}'}",
    )
    return attrs.evolve(
        build,
        config=attrs.evolve(build.config, worker=settings),
        policies=build.policies.publishing(facts),
        view=attrs.evolve(build.view, queues=polled),
        schedules=(),
        registry=CollectorRegistry(),
    )


async def _told(work: Awaitable[None]) -> None:
    """Do a last duty; a database that is away leaves it to rescue."""
    try:
        await work
    except (DatabaseUnavailableError, psycopg.Error) as error:
        _log.warning("a claimer's farewell was not written: %s", error)
