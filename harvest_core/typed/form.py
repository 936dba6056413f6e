"""`Form`: how values of one type hint stand in JSON; and the refusal of a value that has not that form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

_MISSING: Any = object()
KINDS = ("null", "boolean", "whole number", "number", "text", "list", "object")
"""The kinds of JSON values, where a whole number is one written without a point."""


@attrs.define(eq=False)
class Form:
    """How values of one type stand in JSON.

    Args:
        words: the type in a message, e.g. `a Decimal`.
        kinds: the kinds of JSON it is stored as.
        out: gives the JSON of a value; raises `RefusedError` for any value that is not of the type.
        into: makes the value of its JSON; raises `RefusedError` for anything else.
        holds: tells, without a look inside, whether a value is of the type; a union chooses by it.
    """

    words: str
    kinds: frozenset[str]
    out: Callable[[Any], Any]
    into: Callable[[Any], Any]
    holds: Callable[[Any], bool]


@attrs.frozen
class Key:
    """A step of a path that is data of the user's and not a name of the program's: the key of a mapping."""

    key: Any


class RefusedError(Exception):
    """A value does not have the form: the path to it, what is wrong, and the value or other data it is wrong with.

    Args:
        message: says it without data.
        value: what was found, where the message says what was expected.
        detail: more words, which may hold data.
        path: names, positions and `Key`s that lead to it.
    """

    def __init__(self, message: str, value: Any = _MISSING, *, detail: str = "", path: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.message, self.value, self.detail, self.path = message, value, detail, tuple(path)

    def at(self, *steps: Any) -> RefusedError:
        """Return the same refusal, seen from further out."""
        return RefusedError(self.message, self.value, detail=self.detail, path=(*steps, *self.path))

    def text(self, *, showing: bool) -> str:
        """Return the sentence.

        Args:
            showing: False to leave every piece of data out, because the payload is a secret.
        """
        sentence = self.message
        if self.value is not _MISSING:
            sentence += f", found {_found(self.value, showing=showing)}"
        if self.detail and showing:
            sentence += f": {_cut(self.detail)}"
        return f"{_written(self.path, showing=showing)}: {sentence}" if self.path else sentence


def unexpected(value: Any, words: str) -> RefusedError:
    """Return the refusal `expected <words>, found <value>`."""
    return RefusedError(f"expected {words}", value)


class NoFormError(Exception):
    """A type hint has no form in JSON; the text completes `has the hint X, …`."""


def article(noun: str) -> str:
    """Return a noun with its article."""
    return f"{'an' if noun[0] in 'aeioAEIO' else 'a'} {noun}"


def kind_of(value: Any) -> str:
    """Return the kind of a JSON value, or the name of its class where it is none."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    kinds = ((int, "whole number"), (float, "number"), (str, "text"), (list, "list"), (dict, "object"))
    return next((kind for cls, kind in kinds if isinstance(value, cls)), type(value).__name__)


def _found(value: Any, *, showing: bool) -> str:
    kind = kind_of(value)
    if kind in ("null", "text") and not showing:
        return kind
    if value is None:
        return "None"
    if isinstance(value, int) and value.bit_length() > 255:
        return "a whole number too large to show"  # repr refuses one of over 4,300 digits
    if showing and isinstance(value, int | float | str):
        return f"{_cut(repr(value))} ({kind})"
    return article(kind)


def _written(path: Sequence[Any], *, showing: bool) -> str:
    text = ""
    for step in path:
        if isinstance(step, Key):
            text += f"[{_cut(repr(step.key))}]" if showing else "[…]"
        elif isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else str(step)
    return text


def _cut(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:79]}…"
