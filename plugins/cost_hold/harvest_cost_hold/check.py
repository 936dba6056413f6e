"""Every fault and warning of a cost hold's configuration (rules C4, C5, C9)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from harvest_core.plugin import BuildView, Problem, near_match
from harvest_cost_hold.config import CostHoldConfig, starts_and_period
from harvest_cost_hold.source import resolve

_FOREVER = 1e10
"""Seconds, from which the kernel takes no length of time."""


def problems(config: CostHoldConfig, build: BuildView) -> Iterator[Problem]:
    """Yield each fault of config in that build, with its key and remedy."""
    yield from _activities(config, build)
    yield from _thresholds(config)
    if config.refresh <= 0:
        message = "0 would read without pause; it must be more than 0"
        yield Problem("cost_hold.refresh", "plugins.cost_hold.refresh", message, 'the default is "5s"')
    if isinstance(config.source, str) and config.stale_after <= config.refresh:
        message = f"{config.stale_after:g} s is not more than refresh, so a value goes stale between two reads"
        hint = "the hold would come and go; raise stale_after or lower refresh"
        yield Problem("cost_hold.stale-after", "plugins.cost_hold.stale_after", message, hint, warning=True)
    if config.max_hold is not None and not 0 < config.max_hold < _FOREVER:
        message = f"{config.max_hold:g} s is no time to hold a task for; it must be more than 0 and less than 300 years"
        yield Problem("cost_hold.max-hold", "plugins.cost_hold.max_hold", message, "leave it out to hold without end")
    if not config.recheck < _FOREVER:
        message = f"{config.recheck:g} s is longer than any task waits"
        yield Problem("cost_hold.recheck", "plugins.cost_hold.recheck", message, 'the default is "5s"')
    if config.release_rate is not None:
        try:
            starts_and_period(config.release_rate)
        except ValueError as error:
            yield Problem("cost_hold.release-rate", "plugins.cost_hold.release_rate", str(error))
    if config.gives_verdicts and isinstance(found := resolve(config.source), Problem):
        yield found


def _thresholds(config: CostHoldConfig) -> Iterator[Problem]:
    where, own = "plugins.cost_hold.defer_threshold", "plugins.cost_hold.thresholds"
    defer, resume = config.defer_threshold, config.resume_threshold
    values = [(where, defer), ("plugins.cost_hold.resume_threshold", resume)]
    for key, value in [*values, *((f"{own}.{name}", value) for name, value in config.thresholds.items())]:
        if value is not None and not math.isfinite(value):
            message = f"{value} is not a finite number, so no signal could be compared with it"
            yield Problem("cost_hold.threshold", key, message)
    if resume is not None and (defer is None or resume > defer):
        message = f"{resume:g} is not at or below " + ("any defer_threshold" if defer is None else f"{defer:g}")
        hint = "a hold ends at or below resume_threshold and begins above defer_threshold"
        yield Problem("cost_hold.resume-threshold", "plugins.cost_hold.resume_threshold", message, hint)
    never = [name for name in config.names if name not in config.thresholds and defer is None]
    messages = [f"{name!r} has no threshold, so no signal is high for it" for name in never]
    if never and not config.thresholds:
        messages = ["no threshold is set, so no signal is high and nothing is held"]
    for message in messages if not config.gives_verdicts else ():
        hint = "set defer_threshold, or a source that returns a bool"
        yield Problem("cost_hold.never-high", where, message, hint, warning=True)


def _activities(config: CostHoldConfig, build: BuildView) -> Iterator[Problem]:
    for name in config.names:
        where = f"plugins.cost_hold.{'activities' if name in config.activities else 'thresholds'}"
        activity = build.activities.get(name)
        if activity is None:
            message = f"{name!r} is no registered activity, so holding it has no effect"
            hint = near_match(name, build.activities)
            yield Problem("cost_hold.unknown-activity", where, message, hint, warning=True)
        elif activity.local:
            message = f"{name!r} is a local activity and runs inline; a hold cannot defer it"
            yield Problem("cost_hold.local-activity", where, message)
        elif activity.schedule_to_start is not None:
            message = (
                f"{name!r} has a schedule_to_start of {activity.schedule_to_start:g} s, which runs on under a hold"
            )
            hint = "what a hold defers for longer fails; leave it out, or make it longer than any hold"
            yield Problem("cost_hold.schedule-to-start", where, message, hint, warning=True)
