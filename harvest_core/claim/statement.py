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
from harvest_core.model import Attributed

_CLAIM = files(__package__).joinpath("claim.sql").read_text(encoding="utf-8")


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
    texts = tuple(clause_text(attributed) for attributed in plan.clauses)
    return Statement(_text(schema, texts, guarded=bool(plan.closed)), values)


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


@lru_cache(maxsize=64)
def _text(schema: str, clauses: tuple[str, ...], *, guarded: bool) -> str:
    # A line break ends a comment in the clause; the parentheses keep an OR inside it.
    segments = "".join(f"\n    and (\n{clause}\n    )" for clause in clauses)
    if guarded:
        # AND has no order of evaluation; CASE has: a clause is not tried on a route on which one raised.
        segments = f"\n    and case when r.id = any(%(closed)s::bigint[]) then false else true{segments} end"
    return _CLAIM.replace("{schema}", schema).replace("{clauses}", segments)
