"""Turn one table of raw values into a frozen attrs value, strictly, reporting every bad key by its path (rule B4).

Refuses to convert: `"8"` is not 8, `"false"` is not false, 2.9 is not 2, `"abc"` is not a list, true is not 1.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar, get_args, get_origin

import attrs
import cattrs
from cattrs.cols import is_any_set, is_mapping, is_sequence, list_structure_factory, mapping_structure_factory
from cattrs.errors import BaseValidationError, ForbiddenExtraKeysError
from cattrs.gen import make_dict_structure_fn

from harvest_core.duration import FORMS, Duration, seconds
from harvest_core.errors import Problem, near_match

T = TypeVar("T")
Path = tuple[Any, ...]
_Hook = Callable[[Any, Any], Any]


@attrs.frozen
class Allowed:
    """What a field takes, put into its type: `Annotated[int, Allowed("a whole number above 0", lambda n: n > 0)]`.

    Args:
        words: completes "expected …" in a message.
        test: True for a structured value that is in range.
    """

    words: str
    test: Callable[[Any], bool]


@attrs.frozen
class Fault:
    """One bad key: `path` leads to it from the table that was structured, as keys and list positions."""

    path: Path
    code: str
    message: str
    hint: str = ""

    def located(self, where: str) -> Problem:
        """Return the fault as a problem of the value named by where."""
        return Problem(self.code, redacted(where), redacted(self.message), redacted(self.hint))


def structure_table(cls: type[T], table: Mapping[str, Any], where: str) -> tuple[T | None, list[Problem]]:
    """Return a cls made from table, defaults standing in for bad keys, and a problem for every bad key.

    Args:
        cls: attrs class; its fields are the allowed keys and their annotations the allowed types.
        table: the raw values.
        where: the table's name for messages, e.g. `harvest.toml: plugins.weights`.

    Returns:
        None in place of a value where cls cannot be made from its defaults either.
    """
    value, faults = structure(cls, table)
    return value, [fault.located(where + dotted(fault.path, follows=where)) for fault in faults]


def structure(cls: type[T], table: Mapping[str, Any]) -> tuple[T | None, list[Fault]]:
    """Do what `structure_table` does, giving faults by path."""
    try:
        attrs.resolve_types(cls)  # type: ignore[type-var]  # it raises where cls is no attrs class
        _CONVERTER.get_structure_hook(cls)
    except Exception as error:  # noqa: BLE001 - a plugin's broken class is a problem to list, not a crash
        message = f"{cls.__name__} cannot describe a table: {error}"
        return None, [Fault((), "config.unreadable-class", message, "correct the plugin's config_class")]
    if not isinstance(table, Mapping):
        return _attempt(cls, {})[0], [refused(table, "wrong-type", "a table").fault]
    value, faults = _attempt(cls, table)
    if not faults:
        return value, []
    if any(not fault.path for fault in faults):
        # attrs validators run when all is structured, stop at the first and name no key: ask key by key.
        faults = [attrs.evolve(fault, path=(key,)) for key in table for fault in _alone(cls, key, table[key])] or faults
    bad = {fault.path[0] for fault in faults if fault.path} & table.keys()
    if not bad:
        return _attempt(cls, {})[0], faults
    value, more = structure(cls, {key: item for key, item in table.items() if key not in bad})
    return value, faults + [fault for fault in more if fault not in faults]


class RefusedError(ValueError):
    """A value is refused: raised by structure hooks, and by a class that judges two keys together and blames one."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault

    def __str__(self) -> str:
        return self.fault.message


def refused(value: object, kind: str, words: str, *, path: Path = (), hint: str = "") -> RefusedError:
    """Return the error `expected <words>, found <value>` of the code `config.<kind>`."""
    return RefusedError(Fault(path, f"config.{kind}", f"expected {words}, found {_shown(value)}", hint))


def unknown_key(path: Path, known: Sequence[str]) -> Fault:
    """Return the fault of a key that nothing reads, with the nearest known one or all of them."""
    allowed = f"known keys: {', '.join(known)}" if known else "this table takes no keys"
    return Fault(path, "config.unknown-key", "no such key", near_match(str(path[-1]), known) or allowed)


def dotted(path: Path, *, follows: str = "") -> str:
    """Return path as TOML writes it, `worker.queues[1]`; with a leading dot where it follows a name."""
    text = ""
    for part in path:
        if isinstance(part, int) and not isinstance(part, bool):
            text += f"[{part}]"
        else:
            key = part if re.fullmatch(r"[\w-]+", str(part)) else f'"{part}"'
            text += f".{key}" if text or follows else str(key)
    return text


def note_step(error: BaseException) -> Path:
    """Return the step, a key or position, that cattrs noted on an error, as a path; empty where it noted none."""
    for note in getattr(error, "__notes__", ()):
        for attribute in ("name", "index"):
            # str has a method `index`; cattrs' notes shadow it with the position or key.
            step = getattr(note, attribute, None)
            if step is not None and not callable(step):
                return (step,)
    return ()


def redacted(text: str) -> str:
    """Return text with the password of every DSN in it replaced by `***`; when in doubt, more than the password."""
    text = re.sub(r"(://[^:/@]*:).*@", r"\1***@", text, flags=re.DOTALL)
    return re.sub(r"(password\s*=\s*)('(?:[^'\\]|\\.)*'?|(?:\\.|\S)+)", r"\1***", text, flags=re.IGNORECASE | re.DOTALL)


def _attempt(cls: type[T], table: Mapping[str, Any]) -> tuple[T | None, list[Fault]]:
    try:
        return _CONVERTER.structure(table, cls), []
    except Exception as error:  # noqa: BLE001 - a plugin's own validators may raise anything
        return None, list(_faults(error, ()))


def _alone(cls: type[Any], key: str, value: object) -> list[Fault]:
    return [fault for fault in _attempt(cls, {key: value})[1] if not fault.path]


def _faults(error: BaseException, path: Path) -> Iterator[Fault]:
    if isinstance(error, BaseValidationError):
        for inner in error.exceptions:
            yield from _faults(inner, path + note_step(inner))
    elif isinstance(error, ForbiddenExtraKeysError):
        known = [field.name for field in attrs.fields(error.cl) if field.init]
        for key in sorted(error.extra_fields, key=str):
            yield unknown_key((*path, key), known)
    elif isinstance(error, RefusedError):
        yield attrs.evolve(error.fault, path=path + error.fault.path)
    elif isinstance(error, KeyError):
        yield Fault(path, "config.missing-key", "this key is required")
    else:
        yield Fault(path, "config.out-of-range", str(error) or type(error).__name__)


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"{str(value).lower()} (boolean)"
    if isinstance(value, int):
        # repr refuses an int of over 4,300 digits, which TOML can write in hexadecimal.
        return f"{value} (whole number)" if value.bit_length() < 256 else "a whole number too large to show"
    if isinstance(value, float):
        return f"{value} (number)"
    if isinstance(value, str):
        return f"{_cut(repr(redacted(value)))} (text)"
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return f"{_cut(repr([redacted(item) for item in value]))} (list)"
    kinds = {Mapping: "a table", list | tuple | set | frozenset: "a list"}
    return next((name for kind, name in kinds.items() if isinstance(value, kind)), f"a {type(value).__name__}")


def _cut(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:79]}…"


def _whole(value: Any, _: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise refused(value, "wrong-type", "a whole number")
    if value.bit_length() > 63:
        raise refused(value, "out-of-range", "a whole number within 64 bits")
    return value


def _truth(value: Any, _: Any) -> bool:
    if not isinstance(value, bool):
        raise refused(value, "wrong-type", "true or false")
    return value


def _text(value: Any, _: Any) -> str:
    if not isinstance(value, str):
        raise refused(value, "wrong-type", "text")
    # PostgreSQL stores neither; refused here, so that no claim meets them.
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise refused(value, "out-of-range", "text without NUL characters, in UTF-8")
    return str(value)


def _number(value: Any, _: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise refused(value, "wrong-type", "a number")
    if not abs(value) <= sys.float_info.max:  # true of NaN too, and of an int that no float can hold
        raise refused(value, "out-of-range", "a finite number")
    return float(value)


def _duration(value: Any, _: Any) -> Duration:
    try:
        return seconds(value)
    except (ValueError, OverflowError):
        number = isinstance(value, int | float | timedelta) and not isinstance(value, bool)
        raise refused(value, "out-of-range" if number else "wrong-type", FORMS) from None


def _allowed(kind: Any, converter: cattrs.Converter) -> _Hook:
    origin = get_args(kind)[0]
    rule = next(item for item in kind.__metadata__ if isinstance(item, Allowed))
    inner = converter.get_structure_hook(origin)

    def hook(value: Any, _: Any) -> Any:
        try:
            result = inner(value, origin)
        except RefusedError as error:
            raise refused(value, error.fault.code.removeprefix("config."), rule.words) from None
        if not rule.test(result):
            raise refused(value, "wrong-type" if origin is Any else "out-of-range", rule.words)
        return result

    return hook


def _listed(kind: Any, converter: cattrs.Converter) -> _Hook:
    items = [item for item in get_args(kind) if item is not Ellipsis] or [Any]
    if len(items) > 1:
        msg = f"{kind} has items of several types"
        raise TypeError(msg)
    inner = list_structure_factory(types.GenericAlias(list, (items[0],)), converter)  # type: ignore[arg-type]
    makers: Mapping[Any, Callable[[list[Any]], Any]] = {list: list, tuple: tuple, set: set}
    make = makers.get(get_origin(kind) or kind, frozenset if is_any_set(kind) else tuple)

    def hook(value: Any, _: Any) -> Any:
        if not isinstance(value, list | tuple | set | frozenset):
            raise refused(value, "wrong-type", "a list")
        return make(inner(value, kind))

    return hook


def _tabled(kind: Any, converter: cattrs.Converter) -> _Hook:
    if attrs.has(kind):
        attrs.resolve_types(kind)
        inner: _Hook = make_dict_structure_fn(kind, converter, _cattrs_forbid_extra_keys=True)
    else:
        inner = mapping_structure_factory(kind, converter)

    def hook(value: Any, _: Any) -> Any:
        if not isinstance(value, Mapping):
            raise refused(value, "wrong-type", "a table")
        if not attrs.has(kind) and not all(isinstance(key, str) for key in value):
            raise refused(value, "wrong-type", "a table whose keys are text")
        return inner(value, kind)

    return hook


def _strict_converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True)
    converter.register_structure_hook(int, _whole)
    converter.register_structure_hook(bool, _truth)
    converter.register_structure_hook(float, _number)
    converter.register_structure_hook(str, _text)
    converter.register_structure_hook(Duration, _duration)
    factories: Sequence[tuple[Callable[[Any], bool], Callable[[Any, cattrs.Converter], _Hook]]] = (
        (lambda kind: is_sequence(kind) or is_any_set(kind), _listed),
        (lambda kind: attrs.has(kind) or is_mapping(kind), _tabled),
        (lambda kind: any(isinstance(item, Allowed) for item in getattr(kind, "__metadata__", ())), _allowed),
    )
    for predicate, factory in factories:
        converter.register_structure_hook_factory(predicate, factory)
    return converter


_CONVERTER = _strict_converter()
