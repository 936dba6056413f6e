"""The composition root: configuration, plugins, activities and backend become one `Build`, or every problem at once.

Does no I/O beyond reading the configuration file and importing the plugins it names.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import attrs
from prometheus_client import CollectorRegistry

from harvest_core import config as configuration
from harvest_core import registry
from harvest_core.codec import codec_of
from harvest_core.errors import BuildError, HookError, Problem, near_match
from harvest_core.model import Activity, BuildView
from harvest_core.payloads import Payloads
from harvest_core.plugin import Plugin
from harvest_core.policies import Policies, implementation_problems
from harvest_core.schedule import Schedule
from harvest_core.store.backend import PAGE, POSTGRESQL, SQLITE, Backend, backend_of, file_fault

_log = logging.getLogger("harvest")


ENQUEUE_OPTIONS = (
    "queue",
    "priority",
    "delay",
    "scheduled_at",
    "key",
    "max_attempts",
    "start_to_close",
    "schedule_to_start",
    "schedule_to_close",
    "heartbeat",
    "lane",
    "key_period",
    "on_conflict",
    "elsewhere",
)
"""The kernel's own options of an enqueue; plugins add theirs."""


@attrs.frozen
class Launch:
    """What a command line lays over the configuration of the app it loads.

    Args:
        config: the file to read in place of the one the app names.
        overrides: dotted keys and values, as `--set` gives them.
        options: plugins' own options as typed: flag and value.
        nearby: the file to read where the app names no configuration at all.
    """

    config: Path | None = None
    overrides: Sequence[tuple[str, Any]] = ()
    options: Sequence[tuple[str, str]] = ()
    nearby: Path | None = None


launch: ContextVar[Launch] = ContextVar("launch", default=Launch())  # noqa: B039 - frozen
"""The launch under which an app is configured; commands set it around the app's import."""


@attrs.frozen
class Setup:
    """A configuration with its plugins made, and every problem on the way there."""

    config: configuration.Config
    plugins: Mapping[str, Plugin]
    problems: Sequence[Problem]


@attrs.frozen
class Build:
    """Everything a client or a worker runs on; checked, and without I/O so far.

    Args:
        config: the configuration in force.
        policies: the enabled plugins' hooks.
        activities: every registered activity by name, local ones included.
        middleware: what runs around every attempt, outermost first.
        enqueue_options: for each enqueue option the plugin that stamps it.
        warnings: what the checks found that need not stop anyone.
        view: what the plugins saw of this build.
        backend: where tasks are kept.
        payloads: how arguments and results are stored.
        schedules: what the app declares.
        registry: the metrics of this build.
    """

    config: configuration.Config
    policies: Policies
    activities: Mapping[str, Activity]
    middleware: Sequence[Callable[..., Any]]
    enqueue_options: Mapping[str, str]
    warnings: Sequence[Problem]
    view: BuildView
    backend: Backend
    payloads: Payloads = attrs.field(factory=Payloads)
    schedules: Sequence[Schedule] = ()
    registry: CollectorRegistry = attrs.field(factory=CollectorRegistry)

    @property
    def runnable(self) -> Mapping[str, Activity]:
        """The activities that are rows: all but the local ones."""
        return {name: activity for name, activity in self.activities.items() if not activity.local}


def configure(source: Path | Mapping[str, Any] | None, under: Launch) -> Setup:
    """Read the configuration and make the plugins it enables; collect every problem."""
    problems: list[Problem] = []
    classes: dict[str, type[Plugin]] = {}
    objects: dict[str, Plugin] = {}

    def find(enabled: Sequence[Any]) -> Mapping[str, type[Any]]:
        names = [entry for entry in enabled if isinstance(entry, str)]
        found, faults = registry.resolve(names)
        problems.extend(faults)
        for entry in enabled:
            if isinstance(entry, str):
                if entry in found:
                    classes[entry] = found[entry]
                continue
            cls = entry if isinstance(entry, type) else type(entry)
            slug = getattr(cls, "slug", cls.__name__)
            if fault := registry.class_problem(cls, slug, f"class {cls.__name__}"):
                problems.append(fault)
            elif slug in classes:
                message = f"{slug!r} stands there twice"
                problems.append(Problem("plugin.duplicate", "harvest.plugins", message, "name it once"))
            else:
                classes[slug] = cls
                if isinstance(entry, Plugin):
                    objects[slug] = entry
        return {slug: cls.config_class for slug, cls in classes.items() if slug not in objects}

    where = under.config or (under.nearby if source is None else source)
    environ = None if isinstance(where, Mapping) else dict(os.environ)
    # The plugins' options need the classes, and those the configuration: read once for the classes, then with options.
    configuration.load(where, environ=environ, overrides=under.overrides, plugin_classes=find)
    overrides, faults = _plugin_options(classes, under.options)
    problems[:] = faults
    classes.clear()
    objects.clear()
    config, found = configuration.load(
        where, environ=environ, overrides=[*under.overrides, *overrides], plugin_classes=find
    )
    problems.extend(found)

    plugins: dict[str, Plugin] = {}
    for slug, cls in classes.items():
        try:
            plugins[slug] = objects.get(slug) or cls(config.configured.get(slug) or cls.config_class())
        except Exception as error:  # noqa: BLE001 - whatever a plugin raises is told with its name
            message = f"cannot be made: {type(error).__name__}: {error}"
            problems.append(Problem("plugin.constructor", f"plugin {slug!r}", message))
    return Setup(config, plugins, tuple(problems))


def build(
    setup: Setup,
    activities: Mapping[str, Activity],
    middleware: Sequence[Callable[..., Any]],
    faults: Sequence[Problem],
    schedules: Sequence[Schedule] = (),
    check: Callable[[Build], Iterable[Problem]] = lambda _: (),
) -> Build:
    """Check that everything fits together.

    Args:
        setup: configuration and plugins.
        activities: the app's activities by name.
        middleware: the app's middleware, outermost first.
        faults: problems the app found while its activities were declared.
        schedules: the app's schedules.
        check: yields what is wrong with the build once it is made.

    Raises:
        BuildError: with every problem found.
    """
    problems = [*setup.problems, *faults]
    table = setup.config.harvest
    backend = backend_of(table.dsn)
    if backend is None:
        hint = "write postgresql://user@host/name or sqlite:///tasks.db, or leave it out for an embedded PostgreSQL"
        problems.append(Problem("backend.unknown", "harvest.dsn", "names no backend Harvest knows", hint))
    elif backend is SQLITE and (fault := file_fault(table.dsn or "")):
        problems.append(Problem("backend.no-file", "harvest.dsn", fault, "write sqlite:///tasks.db"))
    for plugin in setup.plugins.values():
        problems += implementation_problems(plugin)
    usable = {
        slug: plugin
        for slug, plugin in setup.plugins.items()
        if all(problem.warning for problem in implementation_problems(plugin))
    }
    policies = Policies.of(usable, table.order_owner)
    problems += _feature_problems(setup.plugins.values(), backend or POSTGRESQL)
    problems += _lacking_problems(activities.values(), setup.config.worker.prefetch, backend or POSTGRESQL)
    problems += _owner_problems(policies, table.order_owner)
    problems += _option_problems(setup.plugins.values(), activities.values())
    codec, found = codec_of(setup.plugins.values())
    problems += found
    payloads, found = Payloads.of({name: one for name, one in activities.items() if not one.local}, codec)
    problems += found
    view = BuildView(
        activities=dict(activities),
        queues=tuple(setup.config.worker.queues),
        plugins=frozenset(setup.plugins),
        backend=(backend or POSTGRESQL).name,
        origin=setup.config.origin,
    )
    problems += policies.problems(view)
    made = Build(
        config=setup.config,
        policies=policies,
        activities=dict(activities),
        middleware=tuple(middleware),
        enqueue_options={option: slug for slug, plugin in usable.items() for option in plugin.enqueue_options},
        warnings=tuple(problem for problem in problems if problem.warning),
        view=view,
        backend=backend or POSTGRESQL,
        payloads=payloads,
        schedules=tuple(schedules),
    )
    _raise_errors([*problems, *check(made)])
    try:
        policies.facts(view)
        policies.register_metrics(made.registry)
    except HookError as error:
        where, message = f"plugin {error.plugin!r}", f"hook {error.hook}: {error.detail}"
        _raise_errors([Problem("plugin.hook", where, message)])
    for warning in made.warnings:
        _log.warning("%s", warning)
    return made


def _raise_errors(problems: Sequence[Problem]) -> None:
    if errors := [problem for problem in problems if not problem.warning]:
        raise BuildError(errors)


def _plugin_options(
    classes: Mapping[str, type[Plugin]], options: Sequence[tuple[str, str]]
) -> tuple[list[tuple[str, Any]], list[Problem]]:
    """Turn the plugins' own options of the command line into overrides of their tables."""
    known = {option.flag: (slug, option) for slug, cls in classes.items() for option in cls.worker_options}
    collected: dict[str, Any] = {}
    problems = []
    for flag, value in options:
        if flag not in known:
            hint = near_match(flag, known) or f"enabled plugins add {', '.join(sorted(known)) or 'none'}"
            problems.append(Problem("command.unknown-option", "command line", f"no such option: {flag}", hint))
            continue
        slug, option = known[flag]
        name, separator, rest = value.partition("=")
        if option.pairs and not (separator and name):
            message = f"{flag} {value}: expected NAME=VALUE"
            problems.append(Problem("command.option-value", "command line", message))
        elif option.pairs:
            # A number stays text where the table's type is text: the configuration reads it by type.
            collected.setdefault(f"plugins.{slug}.{option.key}", {})[name] = rest
        else:
            collected.setdefault(f"plugins.{slug}.{option.key}", []).append(value)
    return list(collected.items()), problems


def _feature_problems(plugins: Sequence[Plugin] | Any, backend: Backend) -> list[Problem]:
    return [
        Problem(
            "backend.missing-feature",
            f"plugin {plugin.slug!r}",
            f"needs the feature {feature}, which the {backend.name} backend lacks",
            f"use PostgreSQL, or disable the plugin; see {PAGE}",
        )
        for plugin in plugins
        for feature in sorted(plugin.needs - backend.features)
    ]


def _lacking_problems(activities: Iterable[Activity], prefetch: int, backend: Backend) -> list[Problem]:
    found = [
        (f"activity {activity.name!r}", option)
        for activity in activities
        for option in sorted(backend.lacks)
        if getattr(activity, option, None) is not None
    ]
    if prefetch and "prefetch" in backend.lacks:
        found.append(("worker.prefetch", "prefetch"))
    hint = "take it out, or use PostgreSQL"
    return [Problem("backend.missing-feature", where, backend.refusal(option), hint) for where, option in found]


def _owner_problems(policies: Policies, chosen: str | None) -> list[Problem]:
    owners = [slug for slug, hook in policies.callers if hook == "order_queues"]
    if chosen is not None and chosen not in owners:
        hint = near_match(chosen, owners) or f"plugins that order queues: {', '.join(owners) or 'none enabled'}"
        return [Problem("order.unknown-owner", "harvest.order_owner", f"{chosen!r} orders no queues", hint)]
    if chosen is None and len(owners) > 1:
        message = f"plugins {' and '.join(owners)} both implement order_queues; one may own the order"
        hint = f'disable one, or set order_owner = "{owners[0]}" under [harvest]'
        return [Problem("order.two-owners", "harvest.plugins", message, hint)]
    return []


def _option_problems(plugins: Sequence[Plugin] | Any, activities: Sequence[Activity] | Any) -> list[Problem]:
    problems = []
    declared = {option for plugin in plugins for option in plugin.activity_options}
    for activity in activities:
        for option in sorted(set(activity.options) - declared):
            hint = near_match(option, declared) or "enable the plugin that brings it, or take the option out"
            message = f"no enabled plugin declares the option {option!r}, so nobody would enforce it"
            problems.append(Problem("activity.unknown-option", f"activity {activity.name!r}", message, hint))
    for attribute, code in (("activity_options", "activity"), ("enqueue_options", "enqueue")):
        owners = dict.fromkeys(ENQUEUE_OPTIONS if code == "enqueue" else (), "the kernel")
        for plugin in plugins:
            for option in getattr(plugin, attribute):
                if option in owners:
                    message = f"{owners[option]} and {plugin.slug} both declare the {code} option {option!r}"
                    problems.append(Problem("plugin.option-twice", "harvest.plugins", message, "disable one of them"))
                owners[option] = plugin.slug
    return problems
