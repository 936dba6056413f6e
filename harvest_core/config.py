"""Configuration: a TOML file or a mapping of its shape, environment and command line into frozen values (rule B4).

Refuses to raise on a fault: `load` gives the best configuration it can make and every problem it found.
"""

from __future__ import annotations

import os
import pathlib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import attrs

from harvest_core.duration import Duration
from harvest_core.errors import Problem, near_match
from harvest_core.plugin import Plugin
from harvest_core.structure import (
    Allowed,
    Fault,
    RefusedError,
    dotted,
    redacted,
    refused,
    structure,
    structure_table,
    unknown_key,
)

__all__ = ["Config", "HarvestTable", "WorkerTable", "describe", "load", "redacted", "structure_table"]


def _named(words: str, pattern: str) -> Allowed:
    return Allowed(words, lambda text: re.fullmatch(pattern, text) is not None)


_NotBlank = Annotated[
    str, Allowed("text that is not blank, without NUL", lambda text: bool(text.strip()) and "\x00" not in text)
]
_App = Annotated[str, _named("a module and its attribute, such as 'app:app'", r"[\w.]+:[\w.]+")]
_Schema = Annotated[
    str,
    _named(
        "a lower case name of at most 40 letters, digits and underscores that does not start with 'pg_'",
        r"(?!pg_)[a-z_][a-z0-9_]{0,39}",
    ),
]
_PluginName = Annotated[
    Any,
    Allowed(
        "the name of a plugin or a plugin object",
        lambda item: (
            (isinstance(item, str) and bool(item.strip()))
            or isinstance(item, Plugin)
            or (isinstance(item, type) and issubclass(item, Plugin))
        ),
    ),
]
_Queues = Annotated[
    tuple[_NotBlank, ...],
    Allowed("a list of at least one queue, none of them twice", lambda names: 0 < len(names) == len(set(names))),
]
_Concurrency = Annotated[int, Allowed("a whole number from 1 to 10000", lambda number: 1 <= number <= 10_000)]
_PollInterval = Annotated[Duration, Allowed('a length of time from "10ms" to "1h"', lambda span: 0.01 <= span <= 3600)]
_Grace = Annotated[Duration, Allowed('a length of time up to "1d"', lambda span: span <= 86_400)]
_Retention = Annotated[
    Duration, Allowed('a length of time from "1h" to "36500d"', lambda span: 3600 <= span <= 36500 * 86_400)
]
_Crashes = Annotated[int, Allowed("a whole number from 1 to 1000", lambda number: 1 <= number <= 1000)]
_Prefetch = Annotated[int, Allowed("a whole number from 0 to 10000", lambda number: 0 <= number <= 10_000)]
_Lease = Annotated[Duration, Allowed('a length of time from "100ms" to "1d"', lambda span: 0.1 <= span <= 86_400)]


def _safe(dsn: str | None) -> str:
    return repr(dsn and redacted(dsn))


@attrs.frozen
class HarvestTable:
    """The table `[harvest]`.

    Args:
        app: where commands find the app, as `module:attribute`.
        dsn: address of the database, a server or a SQLite file; None for the embedded one. Shown without its password.
        schema: the database schema that holds everything.
        plugins: the enabled plugins: names of entry points, or plugin objects where the configuration is a mapping.
        order_owner: the plugin that orders queues where two of the enabled ones could.
        notify: False where LISTEN/NOTIFY cannot be used (K11).
        retention: how long finished tasks are kept at least; they go by whole days, UTC (K13).
        pooler: True where a pooler stands before the database that gives each transaction another connection.
    """

    app: _App | None = None
    dsn: _NotBlank | None = attrs.field(default=None, repr=_safe)
    schema: _Schema = "harvest"
    plugins: tuple[_PluginName, ...] = ()
    order_owner: _NotBlank | None = None
    notify: bool = True
    retention: _Retention = attrs.field(default=Duration(7 * 86_400.0))
    pooler: bool = False

    @property
    def listens(self) -> bool:
        """Whether a worker hears of what it should do: neither a pooler nor SQLite keeps what could listen."""
        return self.notify and not self.pooler and not (self.dsn or "").startswith("sqlite:")


@attrs.frozen
class WorkerTable:
    """The table `[worker]`; lengths of time in seconds.

    Args:
        queues: the queues it polls, in order.
        concurrency: tasks it runs at once.
        poll_interval: longest time between two looks for work (K11).
        shutdown_grace: time that running tasks get to finish (K12).
        worker_ttl: silence after which others take over its tasks (K12).
        beat_interval: time between two signs of life; a third of worker_ttl unless given, and never more.
        name: a label for people; None for one made from host and process.
        max_crashes: deaths of workers that ran it after which a task fails as quarantined (K12).
        prefetch: tasks it claims beyond its free slots, to start them without another claim (K15); 0 for none.
        prefetch_ttl: time after which a prefetched task that has not started is given back.
    """

    queues: _Queues = ("default",)
    concurrency: _Concurrency = 20
    poll_interval: _PollInterval = attrs.field(default=Duration(0.5))
    shutdown_grace: _Grace = attrs.field(default=Duration(30.0))
    worker_ttl: _Lease = attrs.field(default=Duration(30.0))
    beat_interval: _PollInterval = attrs.field(
        default=attrs.Factory(lambda self: Duration(self.worker_ttl / 3), takes_self=True)
    )
    name: _NotBlank | None = None
    max_crashes: _Crashes = 3
    prefetch: _Prefetch = 0
    prefetch_ttl: _Lease = attrs.field(default=Duration(30.0))

    def __attrs_post_init__(self) -> None:
        if self.beat_interval * 3 > self.worker_ttl * (1 + 1e-9):  # floats round a third
            message = f"{self.beat_interval:g} s is more than a third of worker_ttl, {self.worker_ttl:g} s"
            hint = "a worker that beats more rarely loses tasks while it lives; leave the key out for a third"
            raise RefusedError(Fault(("beat_interval",), "config.out-of-range", message, hint))


@attrs.frozen
class Config:
    """Everything configured, with where each key came from.

    Args:
        harvest: the kernel's table.
        worker: the worker's table.
        plugins: raw tables by slug, those of plugins that are not enabled included.
        configured: the enabled plugins' tables as their config classes, by slug.
        origin: name of the source for messages: the file's, or `configuration` for a mapping.
        directory: folder of the file; the working directory where there is none.
        origins: for each key in force, dotted: the file's name, `configuration`, `environment HARVEST_…`,
            `command line` or `default`.
    """

    harvest: HarvestTable = HarvestTable()
    worker: WorkerTable = attrs.field(factory=WorkerTable)
    plugins: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict, repr=False)
    configured: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    origin: str = "configuration"
    directory: pathlib.Path = attrs.field(factory=pathlib.Path.cwd)
    origins: Mapping[str, str] = attrs.field(factory=dict, repr=False)


_Path = tuple[str, ...]
_Classes = Mapping[_Path, type[Any]]
_KERNEL: _Classes = {("harvest",): HarvestTable, ("worker",): WorkerTable}


def load(
    source: os.PathLike[str] | str | Mapping[str, Any] | None,
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Sequence[tuple[str, Any]] = (),
    plugin_classes: Callable[[Sequence[Any]], Mapping[str, type[Any]]] | None = None,
) -> tuple[Config, list[Problem]]:
    """Return the configuration, defaults standing in for what is bad, and every problem found.

    Args:
        source: a TOML file; or a mapping of its shape, over which the environment has no say; or None for neither.
        environ: variables; `HARVEST_DSN` is harvest.dsn, `HARVEST_WORKER_QUEUES` worker.queues and
            `HARVEST_PLUGINS_FLAGS_FORBIDDEN` plugins.flags.forbidden. Text is read as TOML where that suits the key,
            else as it is, else as names between commas.
        overrides: the command line's, as dotted key and value. Text is read likewise; a table adds to the table there
            is; anything else replaces.
        plugin_classes: given the enabled plugins, as in `[harvest] plugins`, returns the config class of each it can
            find, by slug. Without it plugins' tables stay raw, and variables for them are not read.
    """
    layers, problems = _read(source)
    variables = {} if environ is None or isinstance(source, Mapping) else environ
    changes, more = _changes(overrides)
    problems += more

    first = layers.merged(variables, changes, _KERNEL)
    enabled = (structure(HarvestTable, first.at(("harvest",), {}))[0] or HarvestTable()).plugins
    found = plugin_classes(enabled) if plugin_classes else {}
    classes: dict[_Path, type[Any]] = dict(_KERNEL) | {("plugins", slug): cls for slug, cls in found.items()}
    layers = layers.merged(variables, changes, classes)

    values: dict[_Path, Any] = {}
    faults: list[Fault] = []
    for path, cls in classes.items():
        values[path], bad = structure(cls, layers.at(path, {}))
        faults += [attrs.evolve(fault, path=path + fault.path) for fault in bad]
    slugs = [_slug(plugin) for plugin in enabled]
    faults += _misplaced(layers.table, slugs)
    problems += [fault.located(f"{layers.origin_of(fault.path)}: {dotted(fault.path)}") for fault in faults]
    if not any(fault.path[:2] == ("harvest", "plugins") for fault in faults):
        problems += _unused(layers, slugs)
    problems += _unknown_variables(variables, classes, [slug for slug in slugs if slug not in found])

    tables = layers.at(("plugins",), {})
    config = Config(
        harvest=values["harvest",],
        worker=values["worker",],
        plugins={slug: table for slug, table in _items(tables) if isinstance(table, Mapping)},
        configured={path[1]: value for path, value in values.items() if path[0] == "plugins" and value is not None},
        origin=layers.origin,
        directory=layers.directory,
    )
    return attrs.evolve(config, origins=_origins(config, layers, faults)), problems


def describe(config: Config) -> list[tuple[str, Any, str]]:
    """Return each key in force, its value in plain JSON types without a DSN's password, and its origin."""
    return [
        (dotted(path), _plain(value), config.origins.get(dotted(path), "default")) for path, value in _leaves(config)
    ]


@attrs.frozen
class _Layers:
    """The raw tables merged so far, and which source set what over the first one."""

    table: Mapping[str, Any] = attrs.field(factory=dict)
    origin: str = "configuration"
    directory: pathlib.Path = attrs.field(factory=pathlib.Path.cwd)
    changed: tuple[tuple[_Path, str], ...] = ()

    def merged(self, environ: Mapping[str, str], changes: Sequence[tuple[_Path, Any]], classes: _Classes) -> _Layers:
        settings = [
            (path, environ[name], f"environment {name}")
            for name, path in _variables(classes).items()
            if name in environ
        ]
        layers = self
        for path, value, origin in [*settings, *((path, value, "command line") for path, value in changes)]:
            read = _reading(value, path, classes) if isinstance(value, str) else value
            layers = attrs.evolve(
                layers, table=_put(layers.table, path, read), changed=(*layers.changed, (path, origin))
            )
        return layers

    def at(self, path: _Path, otherwise: Any = None) -> Any:
        value: Any = self.table
        for part in path:
            if not isinstance(value, Mapping) or part not in value:
                return otherwise
            value = value[part]
        return value

    def origin_of(self, path: tuple[Any, ...]) -> str:
        for changed, origin in reversed(self.changed):
            if path[: len(changed)] == changed:
                return origin
        return self.origin


def _read(source: os.PathLike[str] | str | Mapping[str, Any] | None) -> tuple[_Layers, list[Problem]]:
    if source is None or isinstance(source, Mapping):
        return _Layers(table=source or {}), []
    path = pathlib.Path(source)
    layers = _Layers(origin=path.name, directory=path.absolute().parent)
    try:
        return attrs.evolve(layers, table=tomllib.loads(path.read_text(encoding="utf-8"))), []
    except FileNotFoundError:
        hint = "create it, or name another one with --config"
        problem = Problem("config.missing-file", str(path), "no such file", hint)
    except OSError as error:
        problem = Problem("config.unreadable-file", str(path), f"cannot be read: {error.strerror}")
    except (ValueError, RecursionError) as error:
        problem = Problem("config.syntax", path.name, f"not TOML: {error}")
    return layers, [problem]


def _changes(overrides: Sequence[tuple[str, Any]]) -> tuple[list[tuple[_Path, Any]], list[Problem]]:
    changes: list[tuple[_Path, Any]] = []
    problems = []
    for key, value in overrides:
        path = _parsed_key(key)
        if path:
            changes += _flat(path, value)
        else:
            hint = "write a dotted key such as worker.concurrency"
            problems.append(Problem("config.syntax", f"command line: {redacted(key)}", "not a key", hint))
    return changes, problems


def _parsed_key(key: str) -> _Path:
    try:
        node: Any = tomllib.loads(f"{key} = 0")
    except (ValueError, RecursionError):
        return ()
    path: _Path = ()
    while isinstance(node, dict) and len(node) == 1:
        ((part, node),) = node.items()
        path += (part,)
    return path if node == 0 else ()


def _flat(path: _Path, value: Any) -> Iterator[tuple[_Path, Any]]:
    """Yield value by key where it is a table that is not empty, so that each key merges and is judged alone."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flat((*path, key), item)
    else:
        yield path, value


def _put(table: Any, path: _Path, value: Any) -> Any:
    if not path:
        return value
    known = table if isinstance(table, Mapping) else {}
    return {**known, path[0]: _put(known.get(path[0]), path[1:], value)}


def _reading(text: str, path: _Path, classes: _Classes) -> Any:
    """Return the first reading of text that the key takes, or for a fault's message the first of all."""
    readings: list[Any] = [text]
    if not text.lstrip().startswith(("[", "{")):  # a bracket means TOML, if faulty, and not a name that begins so
        readings.append([name.strip() for name in text.split(",") if name.strip()])
    try:
        document = tomllib.loads(f"value = {text}")
        if document.keys() == {"value"}:
            readings.insert(0, document["value"])
    except (ValueError, RecursionError):
        pass
    for table, cls in classes.items():
        if path[: len(table)] == table and path != table:
            suited = (it for it in readings if not structure(cls, _put({}, path[len(table) :], it))[1])
            return next(suited, readings[0])
    return readings[0]


def _variables(classes: _Classes) -> dict[str, _Path]:
    known: dict[str, _Path] = {}
    for path, cls in classes.items():
        for field in attrs.fields(cls) if attrs.has(cls) else ():
            parts = (*(() if path == ("harvest",) else path), field.name)
            known["_".join(("HARVEST", *parts)).upper()] = (*path, field.name)
    return known


def _misplaced(table: Mapping[str, Any], slugs: Sequence[str]) -> Iterator[Fault]:
    for key in table:
        if key in ("harvest", "worker", "plugins"):
            continue
        fault = unknown_key((key,), ["harvest", "worker", "plugins"])
        yield attrs.evolve(fault, hint=f"did you mean 'plugins.{key}'?") if key in slugs else fault
    plugins = table.get("plugins", {})
    if not isinstance(plugins, Mapping):
        hint = "the enabled plugins are named by the key plugins in [harvest]" if isinstance(plugins, list) else ""
        yield refused(plugins, "wrong-type", "a table", path=("plugins",), hint=hint).fault
    for slug, item in _items(plugins):
        if slug not in slugs and not isinstance(item, Mapping):
            yield refused(item, "wrong-type", "a table", path=("plugins", slug)).fault


def _unused(layers: _Layers, slugs: Sequence[str]) -> Iterator[Problem]:
    for slug, item in _items(layers.at(("plugins",))):
        if slug not in slugs and isinstance(item, Mapping):
            where = f"{layers.origin_of(('plugins', slug))}: {dotted(('plugins', slug))}"
            hint = near_match(str(slug), slugs) or f"enable it: add {slug!r} to plugins in [harvest]"
            message = "no enabled plugin reads this table; it has no effect"
            yield Problem("config.unused-table", where, message, hint, warning=True)


def _unknown_variables(environ: Mapping[str, str], classes: _Classes, unresolved: Sequence[str]) -> Iterator[Problem]:
    known = [name.removeprefix("HARVEST_") for name in _variables(classes)]
    # Variables of a plugin that is enabled but was not found: its absence is the problem, and told elsewhere.
    excused = tuple(f"HARVEST_PLUGINS_{slug}_".upper() for slug in unresolved)
    for name in sorted(environ):
        if name.startswith("HARVEST_") and name.removeprefix("HARVEST_") not in known and not name.startswith(excused):
            # Compared without the prefix, which all share. Others may own a variable that is near to none of ours:
            # for a service of that name Kubernetes sets HARVEST_SERVICE_HOST and more.
            near = near_match(name.removeprefix("HARVEST_"), known).replace("'", "'HARVEST_", 1)
            message = "no such setting; it has no effect"
            yield Problem("config.unknown-variable", f"environment {name}", message, near, warning=not near)


def _origins(config: Config, layers: _Layers, faults: Sequence[Fault]) -> dict[str, str]:
    origins = {dotted(path): layers.origin_of(path) for path, _ in _leaves(config) if layers.at(path) is not None}
    # A default stands in for all of a key in which anything is bad.
    bad = {fault.path[: 3 if fault.path[0] == "plugins" else 2] for fault in faults}
    return {
        dotted(path): "default" if any(path[: len(key)] == key for key in bad) else origins.get(dotted(path), "default")
        for path, _ in _leaves(config)
    }


def _leaves(config: Config) -> Iterator[tuple[_Path, Any]]:
    tables: dict[_Path, Any] = {("harvest",): config.harvest, ("worker",): config.worker}
    tables |= {("plugins", slug): value for slug, value in config.configured.items()}
    for path, table in tables.items():
        for field in attrs.fields(type(table)):
            yield from _flat((*path, field.name), getattr(table, field.name))
    for slug in map(_slug, config.harvest.plugins):
        if slug in config.plugins and slug not in config.configured:
            yield from _flat(("plugins", slug), config.plugins[slug])


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return _slug(value) or redacted(getattr(value, "__qualname__", None) or repr(value))


def _slug(plugin: Any) -> str:
    return plugin if isinstance(plugin, str) else str(getattr(plugin, "slug", ""))


def _items(table: Any) -> Iterator[tuple[Any, Any]]:
    yield from table.items() if isinstance(table, Mapping) else ()
