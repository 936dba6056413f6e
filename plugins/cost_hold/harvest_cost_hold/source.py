"""Finds what `source` names: a signal of the entry-point group `harvest.signals`, or an object given in code."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.metadata import entry_points

from harvest_core.plugin import Problem, near_match
from harvest_cost_hold.config import SETTING

GROUP = "harvest.signals"
WHERE = "plugins.cost_hold.source"


def resolve(source: object) -> Callable[[], object] | Problem:
    """Return the function that reads source, or why there is none (rule C3).

    Args:
        source: the name of an installed signal, a plain function of no arguments, or an object with `read()`.
    """
    found = _installed(source) if isinstance(source, str) else source
    if isinstance(found, Problem):
        return found
    read = getattr(found, "read", found)
    if callable(read) and not isinstance(found, type) and not inspect.iscoroutinefunction(read):
        return read
    subject = repr(source) if isinstance(source, str) else f"the {type(source).__name__} given"
    message = f"{subject} cannot be read: it is neither a function of no arguments nor an object with such a read()"
    return Problem("cost_hold.source", WHERE, message, "classes and async functions are not accepted")


def _installed(name: str) -> object:
    points = entry_points(group=GROUP)
    # By value: one distribution that is found on two path entries is still one signal.
    found = {point.value: point for point in points.select(name=name)}
    if not found:
        known = sorted(points.names)
        message = f"no signal named {name!r} is installed; installed: {', '.join(known) or 'none'}"
        return Problem("cost_hold.unknown-signal", WHERE, message, near_match(name, [*known, SETTING]))
    if len(found) > 1:
        message = f"several installed signals are named {name!r}: {', '.join(sorted(found))}"
        return Problem("cost_hold.duplicate-signal", WHERE, message, "uninstall all but one")
    (point,) = found.values()
    try:
        return point.load()
    except Exception as error:  # noqa: BLE001 - an import can raise anything; it becomes a problem like the others
        message = f"the signal {name!r} ({point.value}) cannot be imported: {type(error).__name__}: {error}"
        return Problem("cost_hold.broken-signal", WHERE, message)
