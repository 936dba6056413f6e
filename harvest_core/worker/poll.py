"""One poll: promote what is due, observe, plan, claim. Holds what one poll hands to the next; starts nothing."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
import psycopg

from harvest_core.claim import turns
from harvest_core.claim.planner import Plan, plan
from harvest_core.errors import HookError
from harvest_core.metrics import KernelMetrics
from harvest_core.model import Attributed, Json, Peer, Skip, Tick, Worker
from harvest_core.policies import Policies
from harvest_core.store.postgres import probe, tasks
from harvest_core.store.postgres.database import Database
from harvest_core.store.postgres.tasks import Claim, ClaimResult
from harvest_core.worker.refresh import Refreshes

_log = logging.getLogger("harvest")
_CLOSED_FOR = 60.0
_MOST_TEXTS = 256


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
        tried: the clauses that the database has accepted.
        poll_interval: seconds between promotions while none is known to be due.
        peers: returns the other live workers as last seen.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        database: Database,
        policies: Policies,
        refreshes: Refreshes,
        observed: Callable[[Mapping[str, Json]], Any],
        metrics: KernelMetrics,
        tried: Iterable[Attributed],
        poll_interval: float,
        peers: Callable[[], tuple[Peer, ...]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database, self._policies, self._refreshes = database, policies, refreshes
        self._observed, self._metrics, self._clock = observed, metrics, clock
        self._poll_interval, self._peers, self._suspects = poll_interval, peers, False
        self._turns: dict[str, int] = {}
        self._waiting: frozenset[str] = frozenset()
        self._promote_at = 0.0
        self._closed: dict[int, str] = {}
        self._closed_until = 0.0
        self._tried = {(clause.plugin, clause.clause.sql) for clause in tried}
        self.held: frozenset[str] = frozenset()
        """Names of the activities that a hold kept from the last claim."""
        self.refusals: Mapping[str, Skip] = {}
        """The activities that the last plan skipped, be it only in part."""

    def look_for_due(self) -> None:
        """Let the next poll promote what is due: more may be due, or sooner, than was known."""
        self._promote_at = 0.0

    def until_due(self) -> float:
        """Return the seconds for which polling again would promote nothing, at most the poll interval."""
        return min(max(0.01, self._promote_at - self._clock()), self._poll_interval)

    async def poll(self, worker: Worker, free: int, busy: Mapping[str, int], *, suspect: bool) -> Poll:
        """Claim at most free tasks for a worker.

        Args:
            worker: whose claim it is.
            free: its free slots.
            busy: how many tasks of each queue it runs.
            suspect: True where one of them may be a suspect, as none runs here.

        Raises:
            HookError: a policy cannot be judged; nothing was claimed.
            DatabaseUnavailableError: the database is away; what it may have claimed is rescued.
        """
        pending = await self._promote() if self._clock() >= self._promote_at else True
        live, planned = await self._plan(worker, free, busy)
        await self._try_new_clauses(planned)
        suspects = await self._claim_suspect(planned) if suspect else ()
        if suspects and free > 1:  # what it takes of a share is no longer there for the others
            taken = Counter(busy) + Counter(claim.route.queue for claim in suspects)
            live, planned = await self._plan(worker, free - 1, taken)
            await self._try_new_clauses(planned)
        if len(suspects) == free:
            result = ClaimResult((), self._waiting, registered=True)
        elif not pending:  # an idle worker is one statement a poll
            result = ClaimResult((), frozenset(), registered=True)
            self._waiting = frozenset()
        else:
            result = await self._take(planned)
        claims = (*suspects, *result.claims)
        for queue, count in Counter(claim.route.queue for claim in claims).items():
            self._metrics.dispatched.labels(queue).inc(count)
        return Poll(attrs.evolve(result, claims=claims), live, full=len(claims) == free)

    async def prefetch(self, worker: Worker, count: int, busy: Mapping[str, int], ttl: float) -> tuple[Claim, ...]:
        """Claim at most count tasks that no policy skips or limits, for ttl seconds and without starting them.

        Raises:
            HookError, DatabaseUnavailableError: as `poll`.
        """
        _, planned = await self._plan(worker, count, busy)
        await self._try_new_clauses(planned)
        # What is limited is not: a rate counts starts, and these are claims that may start all at once.
        limited = {skip.activity for _, skip in planned.skips}
        free = tuple(name for name in planned.activities if name not in limited)
        return (await self._take(attrs.evolve(planned, prefetch=ttl, activities=free))).claims

    async def observe(self, worker: Worker) -> Mapping[str, Json]:
        """Renew and return the live facts, and renew what is held, without a claim.

        Raises:
            HookError: a policy cannot be judged.
        """
        live, _ = await self._plan(worker, 1, {})
        return live

    async def _take(self, planned: Plan) -> ClaimResult:
        result = await self._claim(planned)
        self._turns = turns.next_turns(
            self._turns, planned.turns, [(claim.route.queue, claim.turn) for claim in result.claims]
        )
        self._waiting = result.waiting
        return result

    async def _claim_suspect(self, planned: Plan) -> tuple[Claim, ...]:
        """Claim one suspect, where there are any; an empty answer means that none is for this worker now."""
        if not self._suspects:
            return ()
        result = await self._claim(attrs.evolve(planned, pool="suspect", free=1))
        self._suspects = bool(result.claims)
        return tuple(attrs.evolve(claim, suspect=True) for claim in result.claims)

    async def _plan(self, worker: Worker, free: int, busy: Mapping[str, int]) -> tuple[Mapping[str, Json], Plan]:
        await self._refreshes.before_claim()
        live = self._policies.live()
        self._observed(live)
        if not self._turns:
            self._turns = turns.first_turns(worker.queues)
        shares = {queue: busy.get(queue, 0) for queue in worker.queues}
        tick = Tick(worker, free, live, self._turns, self._waiting, shares, self._peers())
        planned = plan(self._policies, tick, closed=self._closed_routes())
        self.held = frozenset(skip.activity for _, skip in planned.skips if skip.hold)
        self.refusals = {skip.activity: skip for _, skip in planned.skips}
        return live, planned

    async def _try_new_clauses(self, planned: Plan) -> None:
        """Try a text that no claim has had yet: only what has been tried may stand in a claim.

        Raises:
            HookError: the database refuses a clause.
        """
        new = [clause for clause in planned.clauses if (clause.plugin, clause.clause.sql) not in self._tried]
        if new and len(self._tried) > _MOST_TEXTS:
            detail = "gives ever new texts; the text of a clause is constant, only its values vary"
            raise HookError(new[0].plugin, "filter_clause", detail)
        if new:
            samples = {clause.plugin: self._policies.plugins[clause.plugin].sample_traits() for clause in new}
            for clause, reason in await probe.refusals(self._database, new, samples):
                detail = f"the clause {clause.clause.sql.strip()!r} {reason}"
                raise HookError(clause.plugin, "filter_clause", detail)
            self._tried |= {(clause.plugin, clause.clause.sql) for clause in new}

    async def _claim(self, planned: Plan) -> ClaimResult:
        try:
            return await tasks.take(self._database, planned)
        except (psycopg.ProgrammingError, UnicodeError) as error:
            # As a rule a value that the driver cannot send: find whose it is.
            for clause, reason in await probe.refusals(self._database, planned.clauses, {}):
                raise HookError(clause.plugin, "filter_clause", reason) from error
            raise
        except psycopg.DataError as error:
            # A clause raised on some route. Close the routes on which one raises, and only those.
            found = dict(await probe.raising_routes(self._database, planned.clauses))
            if not found.keys() - self._closed.keys():
                raise
            _log.error("routes closed because a clause raises on them: %s (%s)", found, error)
            self._closed, self._closed_until = found, self._clock() + _CLOSED_FOR
            self._metrics.closed_routes.set(len(found))
            closed = attrs.evolve(planned, closed=tuple(sorted(found)))
            return await tasks.take(self._database, closed)

    def _closed_routes(self) -> tuple[int, ...]:
        if self._closed and self._clock() >= self._closed_until:
            self._closed = {}  # the clause or its values may be mended: try again
            self._metrics.closed_routes.set(0)
        return tuple(sorted(self._closed))

    async def _promote(self) -> bool:
        """Promote what is due, and return whether there is anything pending then."""
        found = await tasks.promote(self._database)
        while found.count == tasks.PROMOTE_BATCH:
            found = await tasks.promote(self._database)
        self._suspects = found.suspects
        wait = self._poll_interval if found.next_due is None else min(self._poll_interval, max(0.0, found.next_due))
        self._promote_at = self._clock() + wait
        return found.pending
