"""Forms of lists, tuples, sets and mappings, made of the forms of what they hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from harvest_core.typed.form import Form, Key, NoFormError, RefusedError, unexpected

_LIST = frozenset(["list"])
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]*)")


def items(words: str, classes: tuple[type[Any], ...], make: Callable[[list[Any]], Any], item: Form) -> Form:
    """Return the form of a collection of any length, stored as a list.

    Args:
        words: the collection in a message.
        classes: what is taken for one.
        make: makes it of the structured items.
        item: the form of each item.
    """

    def out(value: Any) -> list[Any]:
        if not isinstance(value, classes):
            raise unexpected(value, words)
        return _each(item.out, value)

    def into(value: Any) -> Any:
        if not isinstance(value, list):
            raise unexpected(value, "a list")
        found = _each(item.into, value)
        try:
            return make(found)
        except TypeError:
            raise unexpected(value, f"{words}, whose items can be hashed") from None

    return Form(words, _LIST, out, into, lambda value: isinstance(value, classes))


def positions(words: str, cls: type[Any], make: Callable[[list[Any]], Any], forms: Sequence[Form]) -> Form:
    """Return the form of a tuple with one form for each position, stored as a list."""

    def sized(value: Any, kind: type[Any]) -> None:
        if not isinstance(value, kind):
            raise unexpected(value, words if kind is cls else "a list")
        if len(value) != len(forms):
            msg = f"expected {len(forms)} items, found {len(value)}"
            raise RefusedError(msg)

    def out(value: Any) -> list[Any]:
        sized(value, cls)
        return [_at(index, form.out, item) for index, (form, item) in enumerate(zip(forms, value, strict=True))]

    def into(value: Any) -> Any:
        sized(value, list)
        return make([_at(index, form.into, item) for index, (form, item) in enumerate(zip(forms, value, strict=True))])

    return Form(words, _LIST, out, into, lambda value: isinstance(value, cls))


def mapping(classes: tuple[type[Any], ...], key: Form, item: Form) -> Form:
    """Return the form of a mapping, stored as an object; keys that are whole numbers are written as text.

    Raises:
        NoFormError: keys of that form cannot be told apart as text.
    """
    if key.kinds not in (frozenset(["text"]), frozenset(["whole number"])):
        msg = f"with keys of {key.words}, which an object cannot hold; its keys are text, whole numbers or written so"
        raise NoFormError(msg)
    whole = "whole number" in key.kinds

    def key_in(text: str) -> Any:
        if whole and not (_WHOLE.fullmatch(text) and len(text) < 1000):
            msg = "expected a key that is a whole number"
            raise RefusedError(msg)
        return key.into(int(text) if whole else text)

    def out(value: Any) -> dict[str, Any]:
        if not isinstance(value, classes):
            raise unexpected(value, "a mapping")
        return {str(_at(Key(name), key.out, name)): _at(Key(name), item.out, value[name]) for name in value}

    def into(value: Any) -> Any:
        if not isinstance(value, dict):
            raise unexpected(value, "an object")
        return {_at(Key(name), key_in, name): _at(Key(name), item.into, found) for name, found in value.items()}

    return Form("a mapping", frozenset(["object"]), out, into, lambda value: isinstance(value, classes))


def _each(function: Callable[[Any], Any], values: Any) -> list[Any]:
    done: list[Any] = []
    try:
        for value in values:
            done.append(function(value))  # noqa: PERF401 - the count of what is done is the place of a fault
    except RefusedError as error:
        raise error.at(len(done)) from None
    return done


def _at(step: Any, function: Callable[[Any], Any], value: Any) -> Any:
    try:
        return function(value)
    except RefusedError as error:
        raise error.at(step) from None
