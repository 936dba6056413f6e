"""Finds requirements that no labels could ever meet (CAP3). Exact: it names every such one and no other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from harvest_capabilities.requirement import ORDERINGS, Operator, Requirement, Term
from harvest_capabilities.version import compare, version


def contradiction(requirement: Requirement) -> tuple[Term, ...]:
    """Return the terms of the first key that cannot hold together; empty where some labels meet the requirement.

    Keys are independent, so a requirement can hold exactly when the terms of each key can.
    """
    keys = dict.fromkeys(term.key for term in requirement.terms)
    for key in keys:
        terms = tuple(term for term in requirement.terms if term.key == key)
        if not _can_hold(key, terms):
            return terms
    return ()


def _can_hold(key: str, terms: Sequence[Term]) -> bool:
    if any(term.operator is Operator.NOT_EXISTS for term in terms):
        return all(term.operator is Operator.NOT_EXISTS for term in terms)
    for chosen in terms:
        if chosen.operator in (Operator.EQUAL, Operator.IN):
            return any(all(term.holds({key: value}) for term in terms) for value in chosen.values)
    # What is left besides bounds excludes finitely many texts, and every version has endless spellings (1, 1.0, ...).
    bounds = [term for term in terms if term.operator in ORDERINGS]
    return not any(map(_below_zero, bounds)) and all(_overlap(*pair) for pair in combinations(bounds, 2))


def _below_zero(bound: Term) -> bool:
    least = version(bound.values[0])
    return bound.operator is Operator.BELOW and least is not None and not least.numbers


def _overlap(one: Term, other: Term) -> bool:
    """Return whether some version meets both bounds. Between two different versions there is always another."""
    order = compare(one.values[0], other.values[0])
    if order is None:
        return False
    if _is_floor(one) == _is_floor(other):
        return True
    if order == 0:
        return {one.operator, other.operator} == {Operator.AT_LEAST, Operator.AT_MOST}
    return (order < 0) == _is_floor(one)


def _is_floor(bound: Term) -> bool:
    return bound.operator in (Operator.AT_LEAST, Operator.ABOVE)
