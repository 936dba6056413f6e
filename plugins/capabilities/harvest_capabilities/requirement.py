"""A parsed requirement and its verdict on a worker's labels. Reads no text: that is the grammar's work."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum

import attrs

from harvest_capabilities.version import compare

REASON = "unsatisfied_requirement"


class Operator(StrEnum):
    """Every operator of the grammar, as its canonical text spells it (`==` is read as `=`)."""

    EQUAL = "="
    NOT_EQUAL = "!="
    AT_LEAST = ">="
    AT_MOST = "<="
    ABOVE = ">"
    BELOW = "<"
    IN = "in"
    NOT_IN = "not in"
    EXISTS = "exists"
    NOT_EXISTS = "not exists"


SETS = frozenset({Operator.IN, Operator.NOT_IN})
"""Operators that take a set of values in brackets."""

PRESENCE = frozenset({Operator.EXISTS, Operator.NOT_EXISTS})
"""Operators that take no value."""

ORDERINGS = frozenset({Operator.AT_LEAST, Operator.AT_MOST, Operator.ABOVE, Operator.BELOW})
"""Operators that compare versions; their value is one."""


@attrs.frozen
class Term:
    """One condition on one label.

    Args:
        key: the label's key; case matters.
        operator: how the label is judged.
        values: none for `exists` and `not exists`, one or more for `in` and `not in`, else exactly one.
    """

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels meet this term. An absent label meets `not exists` alone (CAP3, CAP6)."""
        label = labels.get(self.key)
        if label is None:
            return self.operator is Operator.NOT_EXISTS
        return _VERDICTS[self.operator](label, self.values)

    def __str__(self) -> str:
        """Return the canonical text, which parses to an equal term."""
        if self.operator in PRESENCE:
            return f"{self.key} {self.operator}"
        written = [_quoted(value) for value in self.values]
        if self.operator in SETS:
            return f"{self.key} {self.operator} [{', '.join(written)}]"
        return f"{self.key}{self.operator}{written[0]}"


@attrs.frozen
class Requirement:
    """What an activity asks of a worker: every term must hold (CAP1).

    Args:
        terms: its terms in written order; at least one.
    """

    terms: tuple[Term, ...]

    def unsatisfied(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """Return the reasons why labels do not meet this requirement; empty where they do.

        Returns:
            `unsatisfied_requirement:` and the canonical text of each term that fails (CAP5), each once.
        """
        return tuple(dict.fromkeys(f"{REASON}:{term}" for term in self.terms if not term.holds(labels)))

    def asks_for(self, keys: Collection[str]) -> bool:
        """Return whether a term asks for a label of one of these keys, which `not exists` does not."""
        return any(term.key in keys and term.operator is not Operator.NOT_EXISTS for term in self.terms)

    def __str__(self) -> str:
        """Return the canonical text, which parses to an equal requirement."""
        return ", ".join(map(str, self.terms))


def _ordered(accept: Callable[[int], bool]) -> Callable[[str, tuple[str, ...]], bool]:
    def verdict(label: str, values: tuple[str, ...]) -> bool:
        order = compare(label, values[0])
        return order is not None and accept(order)

    return verdict


_VERDICTS: Mapping[Operator, Callable[[str, tuple[str, ...]], bool]] = {
    Operator.EQUAL: lambda label, values: label == values[0],
    Operator.NOT_EQUAL: lambda label, values: label != values[0],
    Operator.AT_LEAST: _ordered(lambda order: order >= 0),
    Operator.AT_MOST: _ordered(lambda order: order <= 0),
    Operator.ABOVE: _ordered(lambda order: order > 0),
    Operator.BELOW: _ordered(lambda order: order < 0),
    Operator.IN: lambda label, values: label in values,
    Operator.NOT_IN: lambda label, values: label not in values,
    Operator.EXISTS: lambda _label, _values: True,
    Operator.NOT_EXISTS: lambda _label, _values: False,
}

_NEEDS_QUOTES = re.compile(r"""^[=!<>]|[\s,\[\]'"]""")


def _quoted(value: str) -> str:
    if not _NEEDS_QUOTES.search(value):
        return value
    quote = "'" if '"' in value else '"'
    return f"{quote}{value}{quote}"
