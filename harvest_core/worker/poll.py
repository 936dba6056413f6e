"""One poll: promote what is due, observe, plan, claim. Holds what one poll hands to the next; starts nothing."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import psycopg

from harvest_core.claim import turns
from harvest_core.claim.planner import Plan, plan
from harvest_core.claim.statement import claim_statement
from harvest_core.metrics import KernelMetrics
from harvest_core.model import Json, Tick, Worker
from harvest_core.policies import Policies
from harvest_core.store.postgres import probe, tasks
from harvest_core.store.postgres.database import Database
from harvest_core.store.postgres.tasks import ClaimResult
from harvest_core.worker.refresh import Refreshes

_log = logging.getLogger("harvest")
_CLOSED_FOR = 60.0


@attrs.frozen
class Poll:
    """What one poll found: the claims, the live facts they were judged by, and whether another look pays at once."""

    result: ClaimResult
    live: Mapping[str, Json]
    full: bool


class Poller:
    """Polls for one worker.

    Args:
        database: where to claim.
        policies: the enabled policies.
        refreshes: what is to be read before each claim.
        observed: called with the live facts of each tick.
        metrics: counts what was found.
        poll_interval: seconds between promotions while none is known to be due.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        database: Database,
        policies: Policies,
        refreshes: Refreshes,
        observed: Callable[[Mapping[str, Json]], Any],
        metrics: KernelMetrics,
        poll_interval: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database, self._policies, self._refreshes = database, policies, refreshes
        self._observed, self._metrics, self._clock = observed, metrics, clock
        self._poll_interval = poll_interval
        self._turns: dict[str, int] = {}
        self._waiting: frozenset[str] = frozenset()
        self._promote_at = 0.0
        self._closed: dict[int, str] = {}
        self._closed_until = 0.0
        self.held: frozenset[str] = frozenset()
        """Names of the activities that a hold kept from the last claim."""

    def look_for_due(self) -> None:
        """Let the next poll promote what is due: more may be due, or sooner, than was known."""
        self._promote_at = 0.0

    def until_due(self) -> float:
        """Return the seconds for which polling again would promote nothing, at most the poll interval."""
        return min(max(0.01, self._promote_at - self._clock()), self._poll_interval)

    async def poll(self, worker: Worker, free: int) -> Poll:
        """Claim at most free tasks for a worker.

        Raises:
            HookError: a policy cannot be judged; nothing was claimed.
            DatabaseUnavailableError: the database is away; what it may have claimed is rescued.
        """
        if self._clock() >= self._promote_at:
            await self._promote()
        await self._refreshes.before_claim()
        live = self._policies.live()
        self._observed(live)
        if not self._turns:
            self._turns = turns.first_turns(worker.queues)
        planned = plan(
            self._policies, Tick(worker, free, live, self._turns, self._waiting), closed=self._closed_routes()
        )
        self.held = frozenset(skip.activity for _, skip in planned.skips if skip.hold)
        result = await self._claim(planned)
        self._turns = turns.next_turns(
            self._turns, planned.turns, [(claim.route.queue, claim.turn) for claim in result.claims]
        )
        self._waiting = result.waiting
        for queue, count in Counter(claim.route.queue for claim in result.claims).items():
            self._metrics.dispatched.labels(queue).inc(count)
        return Poll(result, live, full=len(result.claims) == free)

    async def _claim(self, planned: Plan) -> ClaimResult:
        try:
            return await tasks.claim(self._database, claim_statement(planned, self._database.quoted))
        except psycopg.DataError as error:
            # A clause raised on some route. Close the routes on which one raises, and only those.
            found = dict(await probe.raising_routes(self._database, planned.clauses))
            if not found.keys() - self._closed.keys():
                raise
            _log.error("routes closed because a clause raises on them: %s (%s)", found, error)
            self._closed, self._closed_until = found, self._clock() + _CLOSED_FOR
            self._metrics.closed_routes.set(len(found))
            closed = attrs.evolve(planned, closed=tuple(sorted(found)))
            return await tasks.claim(self._database, claim_statement(closed, self._database.quoted))

    def _closed_routes(self) -> tuple[int, ...]:
        if self._closed and self._clock() >= self._closed_until:
            self._closed = {}  # the clause or its values may be mended: try again
            self._metrics.closed_routes.set(0)
        return tuple(sorted(self._closed))

    async def _promote(self) -> None:
        promoted, next_due = await tasks.promote(self._database)
        while promoted == tasks.PROMOTE_BATCH:
            promoted, next_due = await tasks.promote(self._database)
        wait = self._poll_interval if next_due is None else min(self._poll_interval, max(0.0, next_due))
        self._promote_at = self._clock() + wait
