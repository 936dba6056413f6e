"""Forms of attrs classes, dataclasses and typed dicts: cattrs reads and writes the fields, each by its own form."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, NotRequired, Required, TypeVar, get_args, get_origin, get_type_hints, is_typeddict

import attrs
import cattrs
from cattrs.errors import BaseValidationError, ForbiddenExtraKeysError
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from harvest_core.structure import note_step
from harvest_core.typed.form import Form, NoFormError, RefusedError, article, unexpected

_RESERVED = frozenset({"attrs", "cl", "converter", "typevar_map"})
"""Names of cattrs' own arguments, beside which it takes what it does with each field."""

_CONVERTER = cattrs.Converter(forbid_extra_keys=True)


def is_class(hint: Any) -> bool:
    """Tell whether a hint is an attrs class, a dataclass or a typed dict, a generic one with its arguments too."""
    cls = get_origin(hint) or hint
    return isinstance(cls, type) and (attrs.has(cls) or dataclasses.is_dataclass(cls) or is_typeddict(cls))


def fill(form: Form, hint: Any, form_of: Callable[[Any], Form]) -> None:
    """Give a class's form its two functions; what its fields hold may be the class itself.

    Raises:
        NameError, NoFormError: a field's hint cannot be resolved or has no form.
    """
    cls = get_origin(hint) or hint
    fields = {name: form_of(found) for name, found in _field_hints(hint)}
    if is_typeddict(cls):
        _fill_keyed(form, cls, fields)
        return
    if taken := _RESERVED & fields.keys():
        msg = f"in which {cls.__name__} has a field {min(taken)!r}, a name that cattrs keeps for itself; rename it"
        raise NoFormError(msg)
    ways: Mapping[str, Any] = {
        name: override(unstruct_hook=_field_out(name, field), struct_hook=_field_in(field))
        for name, field in fields.items()
    }
    write: Any = make_dict_unstructure_fn(hint, _CONVERTER, **ways)
    read: Any = make_dict_structure_fn(hint, _CONVERTER, **ways)

    def out(value: Any) -> Any:
        if type(value) is not cls:  # a subclass would come back as its base
            raise unexpected(value, form.words)
        return write(value)

    def into(value: Any) -> Any:
        if not isinstance(value, dict):
            raise unexpected(value, "an object")
        try:
            return read(value, hint)
        except BaseValidationError as error:
            raise _refusal(error, cls) from None
        except Exception as error:  # noqa: BLE001 - a class's own checks may raise anything
            raise _refused_by(cls, error) from None

    form.out, form.into = out, into


def _fill_keyed(form: Form, cls: Any, fields: Mapping[str, Form]) -> None:
    """Fill the form of a typed dict. By hand: where annotations are text, cattrs and Python miss `NotRequired`."""
    required = frozenset(
        name for name, hint in get_type_hints(cls, include_extras=True).items() if _needed(cls, name, hint)
    )

    def each(value: Any, way: Callable[[Form], Callable[[Any], Any]], words: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise unexpected(value, words)
        if missing := required - value.keys():
            raise _missing_key(cls, min(missing))
        if extra := value.keys() - fields.keys():
            raise _unknown_key(cls, min(extra, key=repr))
        return {name: _field(name, way(fields[name]), item) for name, item in value.items()}

    form.out = lambda value: each(value, lambda field: field.out, form.words)
    form.into = lambda value: each(value, lambda field: field.into, "an object")


def _needed(cls: Any, name: str, hint: Any) -> bool:
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    marks = {Required: True, NotRequired: False}
    return marks.get(get_origin(hint), name in cls.__required_keys__)


def empty(hint: Any) -> Form:
    """Return a class's form that `fill` will fill."""
    cls = get_origin(hint) or hint
    kind: type = dict if is_typeddict(cls) else cls
    return Form(article(cls.__name__), frozenset(["object"]), _unfilled, _unfilled, lambda value: type(value) is kind)


def _field_hints(hint: Any) -> Iterator[tuple[str, Any]]:
    cls = get_origin(hint) or hint
    hints = get_type_hints(cls)
    given = _arguments(hint)
    if is_typeddict(cls):
        names = dict.fromkeys(hints)
    elif attrs.has(cls):
        names = {field.name: field.type for field in attrs.fields(cls) if field.init}
    else:
        names = {field.name: None for field in dataclasses.fields(cls) if field.init}
    for name, typed in names.items():
        yield name, _substituted(hints.get(name, Any if typed is None else typed), given)


def _arguments(hint: Any) -> dict[Any, Any]:
    """Return what each type variable of a generic class and of its bases stands for."""
    cls = get_origin(hint) or hint
    given = dict(zip(getattr(cls, "__parameters__", ()), get_args(hint), strict=False))
    for base in getattr(cls, "__orig_bases__", ()):
        inner = {name: _substituted(value, given) for name, value in _arguments(base).items()} if get_args(base) else {}
        given = {**inner, **given}
    return given


def _substituted(hint: Any, given: Mapping[Any, Any]) -> Any:
    if isinstance(hint, TypeVar):
        return given.get(hint, hint)
    names = getattr(hint, "__parameters__", ())
    return hint[tuple(given.get(name, name) for name in names)] if names and not isinstance(hint, type) else hint


def _field(name: str, function: Callable[[Any], Any], value: Any) -> Any:
    try:
        return function(value)
    except RefusedError as error:
        raise error.at(name) from None


def _field_out(name: str, field: Form) -> Callable[[Any], Any]:
    return lambda value: _field(name, field.out, value)


def _field_in(field: Form) -> Callable[[Any, Any], Any]:
    return lambda value, _: field.into(value)


def _refusal(error: BaseValidationError, cls: type) -> RefusedError:
    """Return the first fault that cattrs collected."""
    inner = error.exceptions[0]
    name = note_step(inner)
    if isinstance(inner, RefusedError):
        return inner.at(*name)
    if isinstance(inner, ForbiddenExtraKeysError):
        return _unknown_key(cls, min(inner.extra_fields, key=repr))
    if isinstance(inner, KeyError):
        return _missing_key(cls, (*name, "?")[0])
    return _refused_by(cls, inner)


def _missing_key(cls: type, key: Any) -> RefusedError:
    return RefusedError(f"{cls.__name__} needs the key {key!r}")


def _unknown_key(cls: type, key: Any) -> RefusedError:
    return RefusedError(f"{cls.__name__} has no such key", detail=repr(key))


def _refused_by(cls: type, error: Exception) -> RefusedError:
    """Return the refusal that a class's own validator or converter spoke."""
    return RefusedError(f"{cls.__name__} refuses it with {type(error).__name__}", detail=str(error))


def _unfilled(_: Any) -> Any:
    raise NotImplementedError
