"""From a plan to the text and values of its claim. Pure: no connection, no policy's name.

The text is constant for a set of clauses, so that it stays prepared; without clauses it is the golden text. Values
never enter the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from string import Formatter
from typing import Any

import attrs

from harvest_core.claim.planner import Plan
from harvest_core.model import Attributed, Budget, Skip

_CLAIM = files(__package__).joinpath("claim.sql").read_text(encoding="utf-8")
_ENTRIES = files(__package__).joinpath("entries.sql").read_text(encoding="utf-8")
_ORDER = "order by e.lane, e.priority desc, e.due, e.head"
_ARRAYS = "".join(
    f",\n               array_agg(e.{column} {_ORDER}) as {name}"
    for column, name in (("after", "afters"), ("before", "befores"), ("cap_group", "cap_groups"))
)
_FURTHER = ", pool => %(pool)s::text, prefetch => %(prefetch)s::double precision, mosts => %(mosts)s::integer[]"
_CAPS = (
    ",\n        afters => s.afters, befores => s.befores, groups => s.cap_groups, group_names => %(capped)s::text[], "
    "cap_groups => %(cap_groups)s::integer[],\n        cap_counters => %(cap_counters)s::integer[], "
    "cap_untils => (select array_agg(now() - make_interval(secs => u.age) order by u.n)\n"
    "            from unnest(%(cap_ages)s::double precision[]) with ordinality u(age, n)),\n        "
    "counts => %(counts)s::integer[], budgets => %(budgets)s::text[], concurrencies => %(concurrencies)s::integer[],\n"
    "        budget_starts => %(budget_starts)s::integer[], periods => %(periods)s::double precision[]"
)
_UNGUARDED = " and (e.kind <> 'activity' or e.name <> all(%(guarded)s::text[]))"


@attrs.frozen
class Statement:
    """SQL text with `%(name)s` for each value, and the values."""

    text: str
    values: Mapping[str, Any]


def claim_statement(plan: Plan, schema: str) -> Statement:
    """Return the claim of a plan.

    Args:
        plan: what may be claimed.
        schema: the schema's name, quoted as an identifier.
    """
    queues = plan.queues if plan.turns is None else tuple(turn.queue for turn in plan.turns)
    lanes = [1] * len(queues) if plan.turns is None else list(range(1, len(queues) + 1))
    values: dict[str, Any] = {
        "queues": list(queues),
        "lanes": lanes,
        "tiers": [0] if plan.turns is None else [turn.tier for turn in plan.turns],
        "starts": [0] if plan.turns is None else [turn.start for turn in plan.turns],
        "steps": [0] if plan.turns is None else [turn.step for turn in plan.turns],
        "activities": list(plan.activities),
        "workflows": list(plan.workflows),
        "worker": plan.worker,
        "free": plan.free,
    }
    for attributed in plan.clauses:
        values.update(clause_values(attributed))
    if plan.closed:
        values["closed"] = list(plan.closed)
    mosts = None if plan.turns is None else [turn.most for turn in plan.turns]
    further = plan.pool != "pending" or plan.prefetch is not None or any(most is not None for most in mosts or ())
    if further or plan.partial:
        values |= {"pool": plan.pool, "prefetch": plan.prefetch, "mosts": mosts}
    if plan.partial:
        values |= _cap_values(plan.partial)
    texts = tuple(clause_text(attributed) for attributed in plan.clauses)
    text = _text(schema, texts, plan.pool, guarded=bool(plan.closed), further=further, capped=bool(plan.partial))
    return Statement(text, values)


def verdict_statement(clauses: Sequence[Attributed], schema: str, routes: Sequence[int] | None = None) -> Statement:
    """Return a query that gives, for each route, its identity and each clause's verdict as a column `verdict_<n>`.

    Args:
        clauses: the clauses of one worker's claim.
        schema: the schema's name, quoted as an identifier.
        routes: ids of the routes to judge; None for all.
    """
    columns = "".join(f",\n    ({clause_text(clause)}\n    ) as verdict_{n}" for n, clause in enumerate(clauses))
    where = "" if routes is None else " where r.id = any(%(routes)s::bigint[])"
    values: dict[str, Any] = {} if routes is None else {"routes": list(routes)}
    for clause in clauses:
        values.update(clause_values(clause))
    text = f"select r.id, r.queue, r.kind, r.name, r.traits{columns}\nfrom {schema}.routes r{where}"
    return Statement(text, values)


def clause_text(attributed: Attributed) -> str:
    """Return a clause's text with `{name}` replaced by `%(<slug>__name)s` and every literal percent sign doubled."""
    parts = []
    for literal, name, _, _ in Formatter().parse(attributed.clause.sql):
        parts.append(literal.replace("%", "%%"))
        if name is not None:
            parts.append(f"%({attributed.plugin}__{name})s")
    return "".join(parts)


def clause_values(attributed: Attributed) -> dict[str, Any]:
    """Return a clause's values under their bound names."""
    return {f"{attributed.plugin}__{name}": value for name, value in attributed.clause.values.items()}


def _cap_values(skips: Sequence[Skip]) -> dict[str, Any]:
    """Return the arrays of ages, caps and counters, which the schema's function `claim` describes."""
    spans = [(name, oldest, youngest) for name in _names(skips) for oldest, youngest in _spans(name, skips)]
    capped: dict[str, int] = {}
    caps: list[tuple[int, int, float | None]] = []
    counters: list[Budget | int] = []
    for skip in skips:
        if skip.unless_older is not None:
            continue
        group = capped.setdefault(skip.activity, len(capped) + 1)
        shared = isinstance(skip.at_most, Budget) and skip.at_most in counters
        if not shared:
            counters.append(skip.at_most)
        caps.append((group, counters.index(skip.at_most) + 1 if shared else len(counters), skip.unless_younger))
    budgets = [counter if isinstance(counter, Budget) else None for counter in counters]
    return {
        "aged": [name for name, _, _ in spans],
        "oldest": [oldest for _, oldest, _ in spans],
        "youngest": [youngest for _, _, youngest in spans],
        "guarded": _names(skips),
        "capped": list(capped),
        "cap_groups": [group for group, _, _ in caps],
        "cap_counters": [counter for _, counter, _ in caps],
        "cap_ages": [age for _, _, age in caps],
        "counts": [0 if isinstance(counter, Budget) else counter for counter in counters],
        "budgets": [budget and budget.name for budget in budgets],
        "concurrencies": [budget and budget.concurrency for budget in budgets],
        "budget_starts": [budget and budget.starts for budget in budgets],
        "periods": [budget and budget.period for budget in budgets],
    }


def _names(skips: Sequence[Skip]) -> list[str]:
    return sorted({skip.activity for skip in skips})


def _spans(name: str, skips: Sequence[Skip]) -> list[tuple[float | None, float]]:
    """Return the spans of age, oldest first, over each of which the skips say one thing of an activity's tasks.

    Each is `(oldest, youngest)` in seconds, the oldest excluded, None for no bound; none where ages do not matter.
    """
    own = [skip for skip in skips if skip.activity == name]
    least = max((skip.unless_older for skip in own if skip.unless_older is not None), default=None)
    bounds = {skip.unless_younger for skip in own if skip.unless_younger is not None}
    if least is None and not bounds:
        return []
    youngest = sorted({least or 0.0, *(bound for bound in bounds if bound > (least or 0.0))}, reverse=True)
    return list(zip([None, *youngest[:-1]], youngest, strict=True))


@lru_cache(maxsize=64)
def _text(schema: str, clauses: tuple[str, ...], pool: str, *, guarded: bool, further: bool, capped: bool) -> str:
    # A line break ends a comment in the clause; the parentheses keep an OR inside it.
    segments = "".join(f"\n    and (\n{clause}\n    )" for clause in clauses)
    if guarded:
        # AND has no order of evaluation; CASE has: a clause is not tried on a route on which one raised.
        segments = f"\n    and case when r.id = any(%(closed)s::bigint[]) then false else true{segments} end"
    parts = {
        "entries": _ENTRIES if capped else "",
        "source": "entries" if capped else "eligible",
        "arrays": _ARRAYS if capped else "",
        "arguments": (_FURTHER if further or capped else "") + (_CAPS if capped else ""),
        "unguarded": _UNGUARDED if capped else "",
    }
    text = _CLAIM
    for name, part in parts.items():
        text = text.replace(f"{{{name}}}", part)
    return text.replace("{schema}", schema).replace("{pool}", pool).replace("{clauses}", segments)
