"""Every fault and warning of the configured limits."""

from __future__ import annotations

from collections.abc import Iterator

from harvest_core.plugin import BuildView, Problem, near_match, starts_and_period
from harvest_limits.config import Limit, LimitsConfig

_MOST = 2**31 - 1


def problems(config: LimitsConfig, build: BuildView) -> Iterator[Problem]:
    """Yield each fault of config in that build, with its key and remedy."""
    for name, limit in config.activities.items():
        where = f"plugins.limits.activities.{name}"
        yield from _limit(limit, where)
        yield from _activity(name, where, build)
    for name, shared in config.shared.items():
        where = f"plugins.limits.shared.{name}"
        yield from _limit(shared, where)
        if not shared.activities:
            message = "it names no activities, so it limits nothing"
            yield Problem("limits.no-activities", where, message, 'list them: activities = ["a", "b"]')
        for activity in dict.fromkeys(shared.activities):
            yield from _activity(activity, f"{where}.activities", build)
    for name, lane in config.lanes.items():
        where = f"plugins.limits.lanes.{name}"
        yield from _limit(lane, where)
        if not name.strip() or "/" in name:
            message = f"{name!r} is no name of lanes; expected what stands before the first slash of a lane"
            yield Problem("limits.lane-name", where, message, '"customer" limits customer/7, customer/8 and so on')


def _limit(limit: Limit, where: str) -> Iterator[Problem]:
    if limit.concurrency is None and limit.rate is None:
        hint = 'set concurrency = 10, rate = "100/m", or both'
        yield Problem("limits.no-limit", where, "it has neither concurrency nor rate, so it limits nothing", hint)
    if limit.concurrency is not None and not 1 <= limit.concurrency <= _MOST:
        message = f"{limit.concurrency} is no limit; expected a whole number from 1 to {_MOST}"
        hint = "to stop a queue for a while, pause it"
        yield Problem("limits.concurrency", f"{where}.concurrency", message, hint)
    if limit.rate is not None:
        try:
            starts_and_period(limit.rate)
        except ValueError as error:
            yield Problem("limits.rate", f"{where}.rate", str(error))


def _activity(name: str, where: str, build: BuildView) -> Iterator[Problem]:
    activity = build.activities.get(name)
    if activity is None:
        message = f"{name!r} is no activity of this app, so nothing of it is limited here"
        yield Problem("limits.unknown-activity", where, message, near_match(name, build.activities), warning=True)
    elif activity.local:
        message = f"{name!r} is a local activity and runs inline, where nothing can limit it"
        yield Problem("limits.local-activity", where, message, "make it an activity")
