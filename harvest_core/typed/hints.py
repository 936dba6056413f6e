"""From a type hint to its form: classes by attrs, dataclasses and typed dicts, containers, unions, scalars.

A hint that could not be read back exactly has no form; nothing is ever stored as its nearest likeness.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Mapping, MutableMapping, MutableSequence, MutableSet, Sequence
from collections.abc import Set as AbstractSet
from typing import (
    Annotated,
    Any,
    ForwardRef,
    Literal,
    Never,
    NewType,
    NoReturn,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from harvest_core.typed import classes, containers, scalars
from harvest_core.typed.form import Form, NoFormError, article
from harvest_core.typed.union import union

_PLAIN = scalars.plain()
_LISTS: Mapping[Any, tuple[str, tuple[type, ...], Any]] = {
    list: ("a list", (list,), list),
    MutableSequence: ("a list", (list,), list),
    Sequence: ("a list or tuple", (list, tuple), tuple),
    Collection: ("a list or tuple", (list, tuple), tuple),
    set: ("a set", (set,), set),
    MutableSet: ("a set", (set,), set),
    frozenset: ("a frozenset", (frozenset,), frozenset),
    AbstractSet: ("a set", (set, frozenset), frozenset),
}
_MAPPINGS = {dict: (dict,), MutableMapping: (dict,), Mapping: (Mapping,)}


class Hints:
    """Makes the forms of hints, each hint's once."""

    def __init__(self) -> None:
        self._forms: dict[Any, Form] = {}
        self._waiting: list[tuple[Form, Any]] = []

    def form(self, hint: Any) -> Form:
        """Return the form of a hint.

        Raises:
            NoFormError: it has none; the text completes `has the hint X, …`.
            NameError, TypeError: the hint of a field of a class in it cannot be resolved.
        """
        known = dict(self._forms)
        try:
            form = self._of(hint)
            while self._waiting:  # after the hint itself: a class may hold itself
                part, cls = self._waiting.pop()
                classes.fill(part, cls, self._of)
        except Exception:
            self._forms, self._waiting = known, []
            raise
        return form

    def _of(self, hint: Any) -> Form:
        key = (type(hint), hint) if not isinstance(hint, type) else hint
        try:
            if key not in self._forms:
                self._forms[key] = self._made(hint)
        except TypeError as error:
            if "unhashable" not in str(error):
                raise
            return self._made(hint)
        return self._forms[key]

    def _made(self, hint: Any) -> Form:
        origin = get_origin(hint)
        # A forward reference that is left over stands in a recursive alias, such as one for JSON.
        if hint in (Any, object, Never, NoReturn) or isinstance(hint, TypeVar | ForwardRef):
            return _PLAIN
        if isinstance(hint, NewType):
            return self._of(hint.__supertype__)
        if hasattr(hint, "__value__"):  # `type Name = …` of Python 3.12
            return self._of(hint.__value__)
        if origin is Annotated:
            return self._of(get_args(hint)[0])
        if origin is Literal:
            return scalars.literal(hint)
        if origin in (Union, types.UnionType):
            return self._union(get_args(hint))
        if classes.is_class(hint):
            form = classes.empty(hint)
            self._waiting.append((form, hint))
            return form
        return self._container(hint, origin or hint) or scalars.scalar(hint) or _no_form()

    def _container(self, hint: Any, cls: Any) -> Form | None:
        arguments = get_args(hint)
        if cls in _LISTS:
            words, accepted, make = _LISTS[cls]
            return containers.items(words, accepted, make, self._of(arguments[0] if arguments else Any))
        if cls in _MAPPINGS:
            key, value = arguments or (str, Any)
            return containers.mapping(_MAPPINGS[cls], self._of(str if key is Any else key), self._of(value))
        if cls is tuple and (not arguments or arguments[-1] is Ellipsis):
            return containers.items("a tuple", (tuple,), tuple, self._of(arguments[0] if arguments else Any))
        if cls is tuple:
            return containers.positions("a tuple", tuple, tuple, [self._of(argument) for argument in arguments])
        if isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields"):
            hints = get_type_hints(cls)
            forms = [self._of(hints.get(name, Any)) for name in cls._fields]
            return containers.positions(article(cls.__name__), cls, lambda values: cls(*values), forms)
        return None

    def _union(self, members: Sequence[Any]) -> Form:
        forms = [self._of(member) for member in members]
        if any(form is _PLAIN for form in forms):
            return _PLAIN
        found = [member for member in members if classes.is_class(member)]
        if len(found) < 2:
            return union(forms, {})
        tagged = {(get_origin(member) or member).__name__: self._of(member) for member in found}
        if len(tagged) < len(found):
            msg = "in which two classes have one name, by which they are told apart in JSON; rename one"
            raise NoFormError(msg)
        if any(is_typeddict(get_origin(member) or member) for member in found):
            msg = "in which a typed dict stands beside another class; a dict does not say which it is: use a dataclass"
            raise NoFormError(msg)
        return union([form for form in forms if form not in tagged.values()], tagged)


def _no_form() -> Form:
    msg = (
        "which has no form in JSON; use attrs classes, dataclasses, typed dicts, enums, lists, tuples, sets, mappings, "
        "text, numbers, bytes, dates and times, UUID, Decimal, paths and unions of these, or Any for plain JSON"
    )
    raise NoFormError(msg)
