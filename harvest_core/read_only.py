"""JSON values that no hook can change under another one: still dicts and lists, but every change raises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn


def read_only(value: Any) -> Any:
    """Return a JSON value in read-only form, all the way down."""
    if isinstance(value, Mapping):
        return _Object({key: read_only(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return _Array(read_only(item) for item in value)
    return value


def _refuse(_self: object, *_: object, **__: object) -> NoReturn:
    msg = "facts and ticks are read-only: every policy judges by the same ones"
    raise TypeError(msg)


class _Object(dict[str, Any]):
    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # a copy, or a passage to another process, is an ordinary value again

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse


class _Array(list[Any]):
    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)

    __setitem__ = __delitem__ = __iadd__ = __imul__ = append = clear = extend = insert = _refuse
    pop = remove = reverse = sort = _refuse
