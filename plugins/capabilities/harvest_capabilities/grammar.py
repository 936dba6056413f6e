"""Reads the text of a requirement (CAP1, CAP3, CAP6). Whatever it cannot read whole is an error, never a guess."""

from __future__ import annotations

import re
from typing import NoReturn

import attrs

from harvest_capabilities.requirement import ORDERINGS, PRESENCE, SETS, Operator, Requirement, Term
from harvest_capabilities.version import version
from harvest_core.plugin import near_match

KEY = re.compile(r"""[^\s,\[\]'"=!<>]+""")
"""A label's key: a run without white space and the marks of the grammar."""

UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
"""Characters that the database cannot hold; requirements and labels are published there."""

_SYMBOLS = re.compile(r"[=!<>]+")
_BARE_VALUE = re.compile(r"""[^\s,\[\]'"=!<>][^\s,\[\]'"]*""")
_KEYLESS = re.compile(r"(?:not\s+)?(?:in\s*\[|exists\s*(?:,|\Z))")
"""A term without its key, which `not in [a]` would otherwise hide by asking for a label named `not`."""
_SPACE = re.compile(r"\s+")


class RequirementError(ValueError):
    """A requirement that cannot be read.

    Attributes:
        sentence: what is wrong and what to write instead.
        text: the requirement.
        position: index in text of the offending place; its length where something is missing at the end.
    """

    def __init__(self, sentence: str, text: str, position: int) -> None:
        super().__init__(sentence, text, position)
        self.sentence, self.text, self.position = sentence, text, position

    def __str__(self) -> str:
        # A line break or tab in the text would part the caret from its place.
        line = "".join(character if character.isprintable() else " " for character in self.text)
        return f"{self.sentence}\n    {line}\n    {' ' * self.position}^"


def parse(text: str) -> Requirement:
    """Return the requirement that text spells.

    Args:
        text: terms joined by commas, e.g. `gpu = true, region in [us-east-1, us-west-2]`.

    Raises:
        RequirementError: text is blank, has an empty term, key, value or set, an unbalanced quote or bracket, an
            unknown operator, trailing text, a bound that is no version, or a character that cannot be stored.
    """
    reader = _Reader(text)
    if found := UNSTORABLE.search(text):
        reader.fail(f"the character {found[0]!a} cannot be stored; leave it out", found.start())
    if not text.strip():
        reader.fail("there is no term; leave the option out to ask for nothing")
    terms = [_term(reader)]
    while reader.take(","):
        terms.append(_term(reader))
    return Requirement(tuple(terms))


@attrs.define
class _Reader:
    text: str
    position: int = 0

    def peek(self) -> str:
        """Skip white space and return the character that comes next, or an empty text at the end."""
        self.run(_SPACE)
        return self.text[self.position : self.position + 1]

    def take(self, mark: str) -> bool:
        """Move past mark if it comes next."""
        taken = self.peek() == mark
        self.position += len(mark) if taken else 0
        return taken

    def run(self, pattern: re.Pattern[str]) -> str:
        """Move past what pattern matches here and return it; empty where it does not match."""
        found = pattern.match(self.text, self.position)
        self.position = found.end() if found else self.position
        return found[0] if found else ""

    def fail(self, sentence: str, position: int | None = None) -> NoReturn:
        raise RequirementError(sentence, self.text, self.position if position is None else position)


def _term(reader: _Reader) -> Term:
    if reader.peek() in ("", ","):
        reader.fail("empty term; write one on each side of a comma")
    if _KEYLESS.match(reader.text, reader.position):
        reader.fail("empty key; the key of a label goes before 'in', 'not in', 'exists' and 'not exists'")
    key = reader.run(KEY)
    if not key:
        reader.fail("empty key; a term starts with the key of a label, without quotes")
    operator = _operator(reader, key)
    values = _values(reader, operator)
    if reader.peek() not in ("", ","):
        _fail_on_trailing(reader)
    return Term(key, operator, values)


def _operator(reader: _Reader, key: str) -> Operator:
    reader.peek()
    start = reader.position
    word = reader.run(_SYMBOLS) or reader.run(KEY)
    if word == "not":
        reader.peek()
        word = f"not {reader.run(KEY)}".rstrip()
    if word == "==":
        return Operator.EQUAL
    if word in list(Operator):
        return Operator(word)
    if not word:
        reader.fail(f"no operator after {key!r}; write '{key} exists' or '{key} = value'")
    known = [operator.value for operator in Operator]
    # Only for words: the symbol nearest to `=>` is `>`, which means something else.
    near = near_match(word.lower(), known) if KEY.match(word) else ""
    return reader.fail(f"unknown operator {word!r}; {near or 'expected one of ' + ', '.join(known)}", start)


def _values(reader: _Reader, operator: Operator) -> tuple[str, ...]:
    if operator in PRESENCE:
        return ()
    if operator in SETS:
        return _set(reader, operator)
    if reader.peek() == "[":
        reader.fail(f"{operator.value!r} takes one value; a set needs 'in' or 'not in'")
    start = reader.position
    value = _value(reader)
    if operator in ORDERINGS and version(value) is None:
        reader.fail(f"{value!r} is no version; {operator.value!r} takes numbers joined by dots, such as 12.4", start)
    return (value,)


def _set(reader: _Reader, operator: Operator) -> tuple[str, ...]:
    if reader.peek() != "[":
        reader.fail(f"{operator.value!r} takes a set in brackets, such as [a, b]")
    opening = reader.position
    reader.take("[")
    if reader.peek() == "]":
        reader.fail("empty set; write at least one value between the brackets", opening)
    values: list[str] = []
    while not values or reader.take(","):
        if not reader.peek():
            break
        values.append(_value(reader))
    if reader.take("]"):
        return tuple(values)
    if reader.peek():
        _fail_on_trailing(reader)
    return reader.fail("unbalanced bracket; this [ is never closed", opening)


def _value(reader: _Reader) -> str:
    mark = reader.peek()
    if mark == '"' or mark == "'":
        return _quoted_value(reader, mark)
    if mark == "[":
        reader.fail("unbalanced bracket; a set holds values, not sets")
    if _SYMBOLS.match(mark):
        reader.fail(f"a value that begins with {mark!r} must stand in quotes")
    return reader.run(_BARE_VALUE) or reader.fail("empty value; write the text to compare the label with")


def _quoted_value(reader: _Reader, quote: str) -> str:
    opening = reader.position
    closing = reader.text.find(quote, opening + 1)
    if closing < 0:
        _fail_on_trailing(reader)
    if closing == opening + 1:
        reader.fail("empty value; 'exists' and 'not exists' ask whether there is a label")
    reader.position = closing + 1
    return reader.text[opening + 1 : closing]


def _fail_on_trailing(reader: _Reader) -> NoReturn:
    mark, rest = reader.peek(), reader.text[reader.position + 1 :]
    if mark == "]":
        reader.fail("unbalanced bracket; this ] closes nothing")
    if mark == "[" and "]" not in rest:
        reader.fail("unbalanced bracket; this [ is never closed")
    if mark in "'\"" and mark not in rest:
        reader.fail(f"unbalanced quote; this {mark} is never closed")
    reader.fail("trailing text; a comma goes between terms and values, quotes around a value with spaces")
