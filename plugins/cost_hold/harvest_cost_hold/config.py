"""The table `[plugins.cost_hold]` (rules C4, C9). Its defaults hold nothing."""

from __future__ import annotations

import re
from typing import Any

import attrs

from harvest_core.plugin import Duration, Json

SETTING = "setting"
"""The one source name that is no entry point: the runtime setting `cost_signal`."""
_PERIODS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_RATE = re.compile(r"([1-9][0-9]{0,8})/([smhd])")


@attrs.frozen
class CostHoldConfig:
    """What is held, above which value, for how long, and where the value comes from.

    Args:
        defer_threshold: the signal is high above it, strictly. Any finite number: prices may be negative. None means
            that no number is high.
        activities: names of the activities to hold; empty, and no thresholds, switches the plugin off.
        refresh: seconds between reads of the runtime setting or of an installed signal.
        source: None for `signal.set()` and the runtime setting, whichever came last; `"setting"` for the runtime
            setting alone; the name of an installed signal; in code also a function or an object with `read()`.
        stale_after: seconds for which a source that cannot be read keeps its last value; then it counts as high.
        resume_threshold: a hold that has begun lasts until the signal is at or below it; None for defer_threshold.
        thresholds: activities to hold above a value of their own. Each resumes as far below it as resume_threshold
            lies below defer_threshold.
        max_hold: seconds; a task that has been due for so long runs all the same. None for never.
        release_rate: of each activity at most so many tasks start in the fleet out of what a hold deferred, such as
            `"10/m"`; None for any number.
        recheck: seconds that a prefetched task waits under a hold before it is given back.
    """

    defer_threshold: float | None = None
    activities: list[str] = attrs.field(factory=list)
    refresh: Duration = attrs.field(default=Duration(5.0))
    # Any: the strict converter would refuse the function that a mapping written in code may hold.
    source: Any = None
    stale_after: Duration = attrs.field(default=Duration(60.0))
    resume_threshold: float | None = None
    thresholds: dict[str, float] = attrs.field(factory=dict)
    max_hold: Duration | None = None
    release_rate: str | None = None
    recheck: Duration = attrs.field(default=Duration(5.0))

    @property
    def names(self) -> list[str]:
        """All activities to hold, each once."""
        return list(dict.fromkeys([*self.activities, *self.thresholds]))

    @property
    def is_read(self) -> bool:
        """True where the source is read, so that silence counts as high."""
        return self.source is not None

    @property
    def gives_verdicts(self) -> bool:
        """True where the source may answer with a bool, which needs no threshold."""
        return self.is_read and self.source != SETTING

    def resume_at(self, threshold: float) -> float:
        """Return the value at which a hold above threshold ends, resume_threshold's distance below it."""
        if self.resume_threshold is None or self.defer_threshold is None:
            return threshold
        return self.resume_threshold + (threshold - self.defer_threshold)

    def facts(self) -> dict[str, Json]:
        """Return the whole configuration as JSON; a source given in code is called `callable`."""
        source = self.source if self.source is None or isinstance(self.source, str) else "callable"
        return attrs.asdict(self, recurse=False) | {"source": source, "activities": self.names}


def starts_and_period(rate: object) -> tuple[int, float]:
    """Return how many tasks may start in how many seconds by a rate such as `"10/m"`.

    Raises:
        ValueError: it has another form.
    """
    if isinstance(rate, str) and (match := _RATE.fullmatch(rate)):
        return int(match[1]), _PERIODS[match[2]]
    msg = f'{rate!r} is no rate; expected a whole number above 0 and a period, such as "10/m" (s, m, h or d)'
    raise ValueError(msg)
