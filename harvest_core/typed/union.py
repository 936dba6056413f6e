"""Forms of unions: a member is chosen by the value's class on the way out, and by the kind of JSON on the way in.

Two members of one kind of JSON could be taken for each other and are refused, but for classes: these carry a tag.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harvest_core.typed.form import Form, NoFormError, RefusedError, kind_of, unexpected

TAG = "$type"
"""The key under which the name of its class stands in an object, where a union holds several classes."""


def union(members: Sequence[Form], tagged: Mapping[str, Form]) -> Form:
    """Return the form of a union.

    Args:
        members: the forms of its members, but for those in tagged.
        tagged: the forms of its classes by name, where there are several.

    Raises:
        NoFormError: two members look alike in JSON.
    """
    choices = [*members, *([_tagged(tagged)] if tagged else [])]
    # A whole number is a number too: what takes any number is asked last.
    choices.sort(key=lambda form: "number" in form.kinds)
    by_kind: dict[str, Form] = {}
    for form in choices:
        for kind in sorted(form.kinds):
            if kind in by_kind:
                both = f"{by_kind[kind].words} and {form.words}"
                msg = f"in which {both} look alike in JSON; use one of them, or a class that says which it is"
                raise NoFormError(msg)
            by_kind[kind] = form
    words = " or ".join(form.words for form in choices)
    number = by_kind.get("number")

    def out(value: Any) -> Any:
        for form in choices:
            if form.holds(value):
                return form.out(value)
        raise unexpected(value, words)

    def into(value: Any) -> Any:
        kind = kind_of(value)
        form = by_kind.get(kind, number if kind == "whole number" else None)
        if form is None:
            raise unexpected(value, words)
        return form.into(value)

    return Form(words, frozenset(by_kind), out, into, lambda value: any(form.holds(value) for form in choices))


def _tagged(forms: Mapping[str, Form]) -> Form:
    words = " or ".join(form.words for form in forms.values())

    def out(value: Any) -> Any:
        for name, form in forms.items():
            if form.holds(value):
                return {TAG: name, **form.out(value)}
        raise unexpected(value, words)

    def into(value: Any) -> Any:
        name = value.get(TAG) if isinstance(value, dict) else None
        form = forms.get(name) if isinstance(name, str) else None
        if form is None:
            known = ", ".join(repr(name) for name in forms)
            msg = f"expected an object whose {TAG!r} is one of {known}"
            raise RefusedError(msg)
        return form.into({key: item for key, item in value.items() if key != TAG})

    return Form(words, frozenset(["object"]), out, into, _any_of([*forms.values()]))


def _any_of(forms: Sequence[Form]) -> Callable[[Any], bool]:
    return lambda value: any(form.holds(value) for form in forms)
