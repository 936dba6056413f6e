"""A place in the fleet from which to claim: joined, its policies' sources read, its clauses tried on the database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection

from harvest_core.build import Build
from harvest_core.errors import BuildError
from harvest_core.metrics import KernelMetrics
from harvest_core.model import Tick
from harvest_core.probe import probe
from harvest_core.store.postgres import settings, tasks
from harvest_core.store.postgres.database import Database
from harvest_core.worker.background import Background
from harvest_core.worker.membership import Membership
from harvest_core.worker.peers import Peers
from harvest_core.worker.poll import Poller
from harvest_core.worker.refresh import Refreshes


class Place:
    """A worker's or a direct caller's place; `take` it first.

    Args:
        database: where the fleet is.
        build: what it claims by.
        metrics: counts what is found.
        pruned: called when the fleet may have taken its holder for dead.
        wake: called when what a claim is judged by may have changed.
        clock: monotonic seconds.
        sleep: waits between tries.
        names: the activities to claim; None for those the build can run.
    """

    poller: Poller
    """Set once the place is taken."""

    def __init__(
        self,
        database: Database,
        build: Build,
        metrics: KernelMetrics,
        *,
        pruned: Callable[[], None],
        wake: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        names: Collection[str] | None = None,
    ) -> None:
        self._database, self._build, self._metrics, self._clock = database, build, metrics, clock
        self.refreshes = Refreshes(
            [(slug, refresh) for slug, plugin in build.policies.plugins.items() for refresh in plugin.refreshes()],
            lambda: settings.read_settings(database),
            lambda slug: metrics.refresh_errors.labels(slug).inc(),
            wake,
        )
        self.membership = Membership(database, build, pruned, clock, names=names)
        self.peers = Peers(database, lambda: self.membership.worker.id, sleep)

    async def take(self) -> None:
        """Join the fleet, with everything known that a first claim is judged by.

        Raises:
            BuildError: the database refuses a clause.
        """
        policies = self._build.policies
        await self.refreshes.first()
        await self.refreshes.before_claim()
        await self.membership.join()
        await tasks.extend_finished(self._database)  # a task may have to end before the first round of maintenance
        if policies.needs_peers():
            await self.peers.look()
        tick = Tick(self.membership.worker, live=policies.live())
        if problems := await probe(self._database, policies, tick):
            raise BuildError(problems)
        self.poller = Poller(
            self._database,
            policies,
            self.refreshes,
            self.membership.observe,
            self._metrics,
            policies.clauses(tick),
            self._build.config.worker.poll_interval,
            lambda: self.peers.seen,
            self._clock,
        )

    def start_duties(self, background: Background) -> None:
        """Start what keeps it informed."""
        background.add("refreshes", self.refreshes.run)
        if self._build.policies.needs_peers():
            background.add("peers", self.peers.run)
