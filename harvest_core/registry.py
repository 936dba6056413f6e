"""From plugin names to plugin classes, by entry point; only what is named is imported (rule B3)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points

import attrs

from harvest_core.errors import Problem, near_match
from harvest_core.hookspecs import HOOK_API, OLDEST_HOOK_API
from harvest_core.plugin import Plugin

GROUP = "harvest.plugins"
_SLUG = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
"""Without a double underscore: that parts the slug from a value's name where the claim binds it."""


@attrs.frozen
class Installed:
    """An entry point of the group, whether it can be imported or not.

    Args:
        name: its slug.
        distribution: the distribution that brings it, with its version.
        target: `module:attribute`.
        fault: why it cannot be used; empty where it can.
        summary: first line of its class's docstring.
    """

    name: str
    distribution: str
    target: str
    fault: str
    summary: str


def resolve(names: Sequence[str]) -> tuple[dict[str, type[Plugin]], list[Problem]]:
    """Return the classes of the named plugins, in order, and a problem for each name that has none."""
    points = list(entry_points(group=GROUP))
    found: dict[str, type[Plugin]] = {}
    problems: list[Problem] = []
    for name in names:
        if name in found:
            hint = "name it once"
            problems.append(Problem("plugin.duplicate", "harvest.plugins", f"{name!r} stands there twice", hint))
            continue
        matching = [point for point in points if point.name == name]
        if not matching:
            known = sorted({point.name for point in points})
            bring = f"install its distribution, by custom harvest-{name.replace('_', '-')}"
            hint = near_match(name, known) or f"installed: {', '.join(known) or 'none'}; {bring}"
            problems.append(Problem("plugin.unknown", "harvest.plugins", f"no plugin {name!r} is installed", hint))
        elif len({point.value for point in matching}) > 1:
            sources = " and ".join(sorted(_distribution(point) for point in matching))
            message = f"{name!r} is offered by {sources}"
            problems.append(Problem("plugin.duplicate", "harvest.plugins", message, "uninstall one of them"))
        else:
            cls, fault = _load(matching[0])
            if cls is None:
                problems.append(fault)
            else:
                found[name] = cls
    return found, problems


def class_problem(cls: type[Plugin], name: str, source: str) -> Problem | None:
    """Return what makes a class unusable as the plugin of that name, or None."""
    where = f"plugin {name!r}"
    if getattr(cls, "slug", None) != name or not _SLUG.fullmatch(name):
        hint = "slug, entry point and configuration table are one name of a-z, 0-9 and single _ between them"
        message = f"{source} has the slug {getattr(cls, 'slug', None)!r}"
        return Problem("plugin.slug", where, message, hint)
    if not OLDEST_HOOK_API <= cls.hook_api <= HOOK_API:
        newer = "upgrade harvest-core" if cls.hook_api > HOOK_API else "upgrade the plugin"
        message = f"{source} was written for hook API {cls.hook_api}, this Harvest has {HOOK_API}"
        return Problem("plugin.hook-api", where, message, newer)
    return None


def installed() -> list[Installed]:
    """Return every entry point of the group; broken ones are listed as such and break nothing."""
    rows = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        cls, fault = _load(point)
        summary = (cls.__doc__ or "").strip().partition("\n")[0] if cls else ""
        text = "" if cls else f"{fault.message} ({fault.hint})"
        rows.append(Installed(point.name, _distribution(point), point.value, text, summary))
    return rows


def _load(point: EntryPoint) -> tuple[type[Plugin] | None, Problem]:
    where, source = f"plugin {point.name!r}", f"{point.value} of {_distribution(point)}"
    try:
        cls = point.load()
    except Exception as error:  # noqa: BLE001 - whatever an import raises is that plugin's fault, told with its name
        message = f"{source} cannot be imported: {type(error).__name__}: {error}"
        return None, Problem("plugin.unimportable", where, message, "reinstall or upgrade it, or disable it")
    if not (isinstance(cls, type) and issubclass(cls, Plugin)):
        hint = "derive its class from harvest_core.plugin.Plugin"
        return None, Problem("plugin.no-plugin", where, f"{source} is not a plugin class", hint)
    fault = class_problem(cls, point.name, source)
    return (None, fault) if fault else (cls, Problem("", "", ""))


def _distribution(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown distribution"
