"""`Signature`: an activity's parameters and result by their type hints, read once, when the app is built."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_type_hints

import attrs

from harvest_core.errors import Problem
from harvest_core.model import Activity
from harvest_core.typed.form import Form, NoFormError, RefusedError
from harvest_core.typed.hints import Hints

_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@attrs.frozen
class Signature:
    """The forms of a function's parameters and result; a missing form is plain JSON.

    Args:
        parameters: what the function takes.
        forms: by parameter.
        result: of what it returns.
    """

    parameters: inspect.Signature
    forms: Mapping[str, Form]
    result: Form | None = None
    _plain: range = attrs.field(init=False)
    """How many arguments it takes where all are positional: such a call needs no binding, which takes its time."""

    @_plain.default
    def _(self) -> range:
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        positional = [one for one in self.parameters.parameters.values() if one.kind in kinds]
        needed = sum(one.default is inspect.Parameter.empty for one in positional)
        keyword_only = any(
            one.kind is inspect.Parameter.KEYWORD_ONLY and one.default is inspect.Parameter.empty
            for one in self.parameters.parameters.values()
        )
        return range(0) if keyword_only else range(needed, len(positional) + 1)

    def out(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the JSON of arguments.

        Raises:
            TypeError: the function takes no such arguments.
            RefusedError: one does not match its hint.
        """
        return self._each(args, kwargs, lambda form: form.out)

    def into(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of their JSON; raises as `out` does."""
        return self._each(args, kwargs, lambda form: form.into)

    def _each(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], way: Callable[[Form], Callable[[Any], Any]]
    ) -> tuple[list[Any], dict[str, Any]]:
        if kwargs or len(args) not in self._plain:
            self.parameters.bind(*args, **kwargs)
        if not self.forms:
            return list(args), dict(kwargs)
        positions = self._positions(len(args))
        return (
            [self._one(name, place, way, value) for (name, place), value in zip(positions, args, strict=True)],
            {key: self._one(*self._keyword(key), way, value) for key, value in kwargs.items()},
        )

    def _one(self, name: str, place: tuple[Any, ...], way: Callable[[Form], Callable[[Any], Any]], value: Any) -> Any:
        form = self.forms.get(name)
        if form is None:
            return value
        try:
            return way(form)(value)
        except RefusedError as error:
            raise error.at(*place) from None

    def _positions(self, count: int) -> list[tuple[str, tuple[Any, ...]]]:
        """Return the parameter that each position goes to, and its place in a message."""
        found: list[tuple[str, tuple[Any, ...]]] = []
        for name, parameter in self.parameters.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                return found + [(name, (name, index)) for index in range(count - len(found))]
            if len(found) == count:
                break
            found.append((name, (name,)))
        return found

    def _keyword(self, key: str) -> tuple[str, tuple[Any, ...]]:
        parameter = self.parameters.parameters.get(key)
        if parameter is not None and parameter.kind not in (*_VARIABLE, inspect.Parameter.POSITIONAL_ONLY):
            return key, (key,)
        rest = next(
            name for name, other in self.parameters.parameters.items() if other.kind is inspect.Parameter.VAR_KEYWORD
        )
        return rest, (key,)


def signature_of(activity: Activity, hints: Hints) -> tuple[Signature | None, list[Problem]]:
    """Return an activity's signature, None where Python knows none, and a problem for every hint without a form.

    A parameter with a default may have any hint: left out, it is never stored; passed, it is plain JSON.
    """
    function = activity.function
    try:
        parameters = _inspected(function)
    except (TypeError, ValueError):  # of some functions written in C
        return None, []
    forms: dict[str, Form] = {}
    problems: list[Problem] = []
    for name, hint in _hinted(parameters):
        if name == "return" and (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
            continue  # refused as such already
        found, message, code = _form(hint, function, hints)
        if found is not None:
            forms[name] = found
            continue
        optional = name in parameters.parameters and parameters.parameters[name].default is not inspect.Parameter.empty
        if message and not (optional and code == "no-form"):
            subject = f"parameter {name!r}" if name != "return" else "the result"
            advice = _ADVICE[code]
            problems.append(Problem(f"hint.{code}", f"activity {activity.name!r}", f"{subject} {message}", advice))
    result = forms.pop("return", None)
    return Signature(parameters, forms, result), problems


_ADVICE = {
    "unresolved": "import the name at run time and not under TYPE_CHECKING alone, or hint Any for plain JSON",
    "no-form": "",
}


def _form(hint: Any, function: Callable[..., Any], hints: Hints) -> tuple[Form | None, str, str]:
    """Return a hint's form, or what to say of it and under which code; nothing at all for plain JSON."""
    shown = hint if isinstance(hint, str) else inspect.formatannotation(hint)
    try:
        form = hints.form(_resolved(hint, function))
    except NoFormError as error:
        return None, f"has the hint {shown}, {error}", "no-form"
    except Exception as error:  # noqa: BLE001 - evaluating a hint runs code of the user's
        return None, f"has the hint {shown}, which cannot be resolved: {error}", "unresolved"
    return (None, "", "") if form.words == "JSON" else (form, "", "")


def _hinted(parameters: inspect.Signature) -> Iterator[tuple[str, Any]]:
    for name, parameter in parameters.parameters.items():
        if parameter.annotation is not inspect.Parameter.empty:
            yield name, parameter.annotation
    if parameters.return_annotation is not inspect.Signature.empty:
        yield "return", parameters.return_annotation


def _inspected(function: Callable[..., Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):  # names that do not exist become forward references
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


def _resolved(hint: Any, function: Callable[..., Any]) -> Any:
    """Return a hint with the names in it looked up where the function was written."""
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    inner = inspect.unwrap(inner)
    names = getattr(inner, "__globals__", None) or getattr(type(inner).__call__, "__globals__", {})

    def holder() -> None:
        """Hold one annotation, because `get_type_hints` gives up on all where one is bad."""

    holder.__annotations__ = {"hint": hint}
    return get_type_hints(holder, globalns=names, include_extras=True)["hint"]
