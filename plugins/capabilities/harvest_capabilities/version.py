"""Compares labels that are versions, number by number, so that 12.4 comes before 12.10 (CAP6).

A version is whole numbers joined all by dots or all by dashes: `12`, `12.4`, `2026-03-01`. Nothing else is one: no
prefix (`v12`), sign, pre-release (`12.4rc1`) or mixture (`12.4-1`, which some read as before 12.4 and some as after
it). Missing numbers count as zero, so `1.0` equals `1.0.0`. Dotted and dashed versions do not compare with each other.
"""

from __future__ import annotations

import re

import attrs

_FORM = re.compile(r"[0-9]+(?:(?:\.[0-9]+)*|(?:-[0-9]+)*)")


@attrs.frozen
class Version:
    """A version in comparable form.

    Args:
        dashed: True where dashes join its numbers; a single number counts as dotted.
        numbers: each number as its count of digits and its digits, both without leading zeros: these sort as the
            numbers do, and int() refuses very long ones. No trailing zeros, so zero itself is empty.
    """

    dashed: bool
    numbers: tuple[tuple[int, str], ...]


def version(text: str) -> Version | None:
    """Return the version that text spells, or None where it spells none."""
    if not _FORM.fullmatch(text):
        return None
    digits = [part.lstrip("0") for part in re.split("[.-]", text)]
    while digits and not digits[-1]:
        digits.pop()
    return Version("-" in text, tuple((len(number), number) for number in digits))


def compare(left: str, right: str) -> int | None:
    """Return -1, 0 or 1 as left is before, equal to or after right; None where the two do not compare."""
    first, second = version(left), version(right)
    if first is None or second is None or first.dashed != second.dashed:
        return None
    return (first.numbers > second.numbers) - (first.numbers < second.numbers)
