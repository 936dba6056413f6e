"""Forms of values that are one JSON text, number or word: numbers, text, times, identifiers, enums and literals."""

from __future__ import annotations

import base64
import binascii
import decimal
import enum
import sys
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from pathlib import PurePath
from typing import Any, get_args
from uuid import UUID

from harvest_core.typed.form import KINDS, Form, NoFormError, RefusedError, article, unexpected


def plain() -> Form:
    """Return the form of a value without a hint: JSON as it is."""
    return Form("JSON", frozenset(KINDS), _same, _same, lambda _: True)


def scalar(hint: Any) -> Form | None:
    """Return the form of a hint that is one class of these, or None."""
    if hint is None or hint is type(None):
        return _exact("None", "null", lambda value: value is None)
    if isinstance(hint, type) and hint in _SCALARS:
        return _SCALARS[hint]
    if isinstance(hint, type) and issubclass(hint, PurePath):
        return _text("a path", hint, str, hint, "text that is a path")
    return _enumerated(hint) if isinstance(hint, type) and issubclass(hint, enum.Enum) else None


def literal(hint: Any) -> Form:
    """Return the form of a Literal of text, whole numbers, booleans and None.

    Raises:
        NoFormError: it holds something else.
    """
    allowed = {(type(value), value): value for value in get_args(hint)}
    if not all(cls in (str, int, bool, type(None)) for cls, _ in allowed):
        msg = "whose values are not all text, whole numbers, booleans and None"
        raise NoFormError(msg)
    words = _one_of(list(allowed.values()))

    def same(value: Any) -> Any:
        if not holds(value):
            raise unexpected(value, words)
        return value

    def holds(value: Any) -> bool:
        return isinstance(value, str | int | None) and (type(value), value) in allowed

    names = {str: "text", int: "whole number", bool: "boolean", type(None): "null"}
    return Form(words, frozenset(names[cls] for cls, _ in allowed), same, same, holds)


def _enumerated(cls: type[enum.Enum]) -> Form:
    types = {type(member.value) for member in cls}
    if not types <= {str, int} or not types:
        msg = "an enum whose values are not all text or whole numbers"
        raise NoFormError(msg)
    words = _one_of([member.value for member in cls])

    def out(value: Any) -> Any:
        if not isinstance(value, cls):
            raise unexpected(value, article(cls.__name__))
        return value.value

    def into(value: Any) -> Any:
        if type(value) not in types:
            raise unexpected(value, words)
        try:
            return cls(value)
        except ValueError:
            raise unexpected(value, words) from None

    kinds = frozenset("text" if found is str else "whole number" for found in types)
    return Form(article(cls.__name__), kinds, out, into, lambda value: isinstance(value, cls))


def _exact(words: str, kind: str, holds: Callable[[Any], bool]) -> Form:
    def same(value: Any) -> Any:
        if not holds(value):
            raise unexpected(value, words)
        return value

    return Form(words, frozenset([kind]), same, same, holds)


def _text(words: str, cls: type, write: Callable[[Any], str], read: Callable[[str], Any], written: str) -> Form:
    """Return the form of a class whose values are written as text."""

    def out(value: Any) -> str:
        if not holds(value):
            raise unexpected(value, words)
        return write(value)

    def into(value: Any) -> Any:
        if not isinstance(value, str):
            raise unexpected(value, written)
        try:
            return read(value)
        except (ValueError, ArithmeticError):
            raise unexpected(value, written) from None

    def holds(value: Any) -> bool:
        # A datetime is a date to Python; as a date it would lose its time.
        return isinstance(value, cls) and not (cls is date and isinstance(value, datetime))

    return Form(words, frozenset(["text"]), out, into, holds)


def _moment_text(value: datetime) -> str:
    if value.utcoffset() is None:
        msg = "expected a datetime with a time zone, found one without; give it one, e.g. datetime.now(UTC)"
        raise RefusedError(msg)
    return value.isoformat()


def _moment(text: str) -> datetime:
    value = datetime.fromisoformat(text)
    if value.utcoffset() is None:
        raise ValueError
    return value


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError from None


def _seconds(value: Any) -> float:
    if not isinstance(value, timedelta):
        raise unexpected(value, "a timedelta")
    seconds = value.total_seconds()
    if timedelta(seconds=seconds) != value:
        raise unexpected(value, "a timedelta that a number of seconds holds exactly, to the microsecond")
    return seconds


def _span(value: Any) -> timedelta:
    try:
        return timedelta(seconds=_number(value))
    except (OverflowError, RefusedError):
        raise unexpected(value, "a number of seconds") from None


def _number(value: Any) -> float:
    if not _is_number(value):
        raise unexpected(value, "a number")
    if not abs(value) <= sys.float_info.max:  # true of NaN too, and of an int that no float can hold
        msg = "expected a finite number"
        raise RefusedError(msg, None if isinstance(value, int) else value)
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _one_of(values: list[Any]) -> str:
    shown = ", ".join(repr(value) for value in values[:8])
    return f"one of {shown}{', …' if len(values) > 8 else ''}" if len(values) > 1 else shown


def _same(value: Any) -> Any:
    return value


_SCALARS = {
    bool: _exact("true or false", "boolean", lambda value: isinstance(value, bool)),
    int: _exact("a whole number", "whole number", lambda value: isinstance(value, int) and not isinstance(value, bool)),
    str: _exact("text", "text", lambda value: isinstance(value, str)),
    float: Form("a number", frozenset(["number"]), _number, _number, _is_number),
    bytes: _text("bytes", bytes, lambda value: base64.b64encode(value).decode(), _bytes, "text that is base64"),
    datetime: _text("a datetime", datetime, _moment_text, _moment, "text that is an ISO 8601 time with an offset"),
    date: _text("a date", date, date.isoformat, date.fromisoformat, "text that is an ISO 8601 date"),
    time: _text("a time", time, time.isoformat, time.fromisoformat, "text that is an ISO 8601 time of day"),
    timedelta: Form("a timedelta", frozenset(["number"]), _seconds, _span, lambda value: isinstance(value, timedelta)),
    UUID: _text("a UUID", UUID, str, UUID, "text that is a UUID"),
    decimal.Decimal: _text("a Decimal", decimal.Decimal, str, decimal.Decimal, "text that is a decimal number"),
}
