"""From a tick to a plan: what the policies say, composed by fixed rules. Knows no SQL and does no I/O.

Skip lists unite, clauses conjoin, the order has one owner: a plan can only be narrower than the plan without policies.
"""

from __future__ import annotations

import attrs

from harvest_core.errors import HookError
from harvest_core.model import Attributed, Budget, Skip, Tick, Turn
from harvest_core.policies import Policies


@attrs.frozen
class Plan:
    """One sealed decision of what a claim may take, and in which order of queues.

    Args:
        worker: id of the worker.
        free: the most tasks the claim may take.
        activities: names that may be claimed: the worker's own without the skipped ones, sorted.
        workflows: workflow names that may be claimed, sorted; no policy holds them (rule K5).
        turns: a turn for each polled queue, or None where all polled queues are one queue.
        queues: the polled queues in configured order.
        skips: the skips with their plugins' slugs.
        clauses: the clauses with their plugins' slugs.
        closed: ids of routes on which a clause raised; they are not claimed from.
        pool: `pending`, or `suspect` for tasks whose worker died while it ran them.
        prefetch: seconds for which the tasks are taken without being started; None to start them.
    """

    worker: str
    free: int
    activities: tuple[str, ...]
    workflows: tuple[str, ...]
    turns: tuple[Turn, ...] | None
    queues: tuple[str, ...]
    skips: tuple[tuple[str, Skip], ...] = ()
    clauses: tuple[Attributed, ...] = ()
    closed: tuple[int, ...] = ()
    pool: str = "pending"
    prefetch: float | None = None

    @property
    def partial(self) -> tuple[Skip, ...]:
        """The skips of claimable activities that refuse some of their tasks, not all, and what counts in their budgets.

        Others that share a budget with them count in it too, though nothing of theirs may be claimed here.
        """
        own = [skip for _, skip in self.skips if skip.activity in self.activities]
        shared = {skip.at_most.name for skip in own if isinstance(skip.at_most, Budget)}
        return tuple(
            skip
            for _, skip in self.skips
            if skip.activity in self.activities or (isinstance(skip.at_most, Budget) and skip.at_most.name in shared)
        )


def plan(policies: Policies, tick: Tick, workflows: frozenset[str] = frozenset(), closed: tuple[int, ...] = ()) -> Plan:
    """Ask every policy about this tick and compose the answers.

    Args:
        policies: the enabled policies.
        tick: the poll being planned.
        workflows: names among `tick.worker.activities` that are workflows.
        closed: ids of routes to keep closed.

    Raises:
        HookError: a hook raised or broke its law. Nothing may be claimed then: a gate that cannot be judged is closed.
    """
    turns = policies.turns(tick)
    skips = policies.skips(tick)
    clauses = policies.clauses(tick)
    skipped = {skip.activity for _, skip in skips if refuses_all(skip)}
    _check_budgets(skips)
    return Plan(
        worker=tick.worker.id,
        free=tick.free,
        activities=tuple(sorted(tick.worker.activities - workflows - skipped)),
        workflows=tuple(sorted(workflows)),
        turns=None if turns is None else tuple(turns),
        queues=tick.worker.queues,
        skips=skips,
        clauses=clauses,
        closed=closed,
    )


def refuses_all(skip: Skip) -> bool:
    """Tell whether a skip lets no task of its activity through, whatever its age."""
    return skip.at_most == 0 and skip.unless_older is None


def _check_budgets(skips: tuple[tuple[str, Skip], ...]) -> None:
    known: dict[str, Budget] = {}
    for slug, skip in skips:
        budget = skip.at_most
        if isinstance(budget, Budget) and known.setdefault(budget.name, budget) != budget:
            detail = f"two skips give the budget {budget.name!r} different limits; a budget has one"
            raise HookError(slug, "build_skip_list", detail)
