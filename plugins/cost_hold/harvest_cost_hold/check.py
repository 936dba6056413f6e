"""Every fault and warning of a cost hold's configuration (rules C4, C5)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from harvest_core.plugin import BuildView, Problem, near_match
from harvest_cost_hold.config import CostHoldConfig
from harvest_cost_hold.source import resolve


def problems(config: CostHoldConfig, build: BuildView) -> Iterator[Problem]:
    """Yield each fault of config in that build, with its key and remedy."""
    yield from _activities(config, build)
    threshold = config.defer_threshold
    if threshold is not None and not math.isfinite(threshold):
        message = f"{threshold} is not a finite number, so no signal could be compared with it"
        yield Problem("cost_hold.threshold", "plugins.cost_hold.defer_threshold", message)
    if config.activities and threshold is None and not config.gives_verdicts:
        message = "no threshold is set, so no signal is high and nothing is held"
        hint = "set defer_threshold, or a source that returns a bool"
        yield Problem("cost_hold.never-high", "plugins.cost_hold.defer_threshold", message, hint, warning=True)
    if config.refresh <= 0:
        message = "0 would read without pause; it must be more than 0"
        yield Problem("cost_hold.refresh", "plugins.cost_hold.refresh", message, 'the default is "5s"')
    if isinstance(config.source, str) and config.stale_after <= config.refresh:
        message = f"{config.stale_after:g} s is not more than refresh, so a value goes stale between two reads"
        hint = "the hold would come and go; raise stale_after or lower refresh"
        yield Problem("cost_hold.stale-after", "plugins.cost_hold.stale_after", message, hint, warning=True)
    if config.gives_verdicts and isinstance(found := resolve(config.source), Problem):
        yield found


def _activities(config: CostHoldConfig, build: BuildView) -> Iterator[Problem]:
    where = "plugins.cost_hold.activities"
    for name in dict.fromkeys(config.activities):
        activity = build.activities.get(name)
        if activity is None:
            message = f"{name!r} is no registered activity, so holding it has no effect"
            hint = near_match(name, build.activities)
            yield Problem("cost_hold.unknown-activity", where, message, hint, warning=True)
        elif activity.local:
            message = f"{name!r} is a local activity and runs inline; a hold cannot defer it"
            yield Problem("cost_hold.local-activity", where, message)
