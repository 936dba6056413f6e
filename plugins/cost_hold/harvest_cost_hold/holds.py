"""Which activities are held now, and what their holds leave behind (rules C1, C3, C9).

The one place with memory: a hold that has begun lasts to the resume threshold, and its length and end are remembered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import attrs

from harvest_cost_hold.config import CostHoldConfig
from harvest_cost_hold.signal import Reading, Signal

RELEASE_LASTS = 10
"""A release is over after so many times the length of its hold, so that a short one slows no older backlog for long."""


@attrs.frozen
class Hold:
    """One activity's holds so far; times are seconds of the process's clock.

    Args:
        why: why it is held, or why not, in the words of explain.
        high: whether the last number was high; below the threshold it stays so down to the resume threshold.
        since: when the present hold began; None while it is not held.
        began: as since, of the present or last hold; but one that begins during a release continues the hold before.
        ended: when the last one ended.
        count: holds begun.
        past: seconds of the holds that ended.
    """

    why: str = ""
    high: bool = False
    since: float | None = None
    began: float = 0.0
    ended: float = 0.0
    count: int = 0
    past: float = 0.0

    def seconds(self, now: float) -> float:
        """Return for how long the activity was held, the present hold included."""
        return self.past + (0.0 if self.since is None else now - self.since)

    def released(self, now: float) -> float | None:
        """Return the seconds since the hold's end while its backlog is released; None otherwise."""
        since_end = now - self.ended
        return since_end if self.since is None and since_end < RELEASE_LASTS * (self.ended - self.began) else None


@attrs.frozen
class Holds:
    """The holds of one process.

    Args:
        config: what is held, and above which value.
        signal: judged anew at each look.
        clock: monotonic seconds.
    """

    config: CostHoldConfig
    signal: Signal
    clock: Callable[[], float]
    _known: dict[str, Hold] = attrs.field(factory=dict, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def look(self) -> tuple[Reading, Mapping[str, Hold], float]:
        """Return the signal's reading, each activity's hold by it, and the seconds at which it was taken.

        Any thread may look: the worker's before each claim, and those of scrapes.
        """
        with self._lock:
            reading, now = self.signal.reading(), self.clock()
            for name in self.config.names:
                threshold = self.config.thresholds.get(name, self.config.defer_threshold)
                self._known[name] = _moved(self._known.get(name, Hold()), self.config, threshold, reading, now)
            return reading, dict(self._known), now


def _moved(hold: Hold, config: CostHoldConfig, threshold: float | None, reading: Reading, now: float) -> Hold:
    """Return the hold after a reading: begun, ended, or as it was."""
    held, why = _judge(config, threshold, reading, was_high=hold.high)
    hold = attrs.evolve(hold, why=f"{why} ({reading.trouble})" if reading.trouble else why)
    if isinstance(reading.value, float) and not _is_stale(config, reading):
        # Silence and verdicts are no numbers: they hold, and what they leave behind is no high value.
        hold = attrs.evolve(hold, high=held)
    if held and hold.since is None:
        began = now if hold.released(now) is None else hold.began
        return attrs.evolve(hold, since=now, began=began, count=hold.count + 1)
    if not held and hold.since is not None:
        return attrs.evolve(hold, since=None, ended=now, past=hold.seconds(now))
    return hold


def _judge(config: CostHoldConfig, threshold: float | None, reading: Reading, *, was_high: bool) -> tuple[bool, str]:
    """Return whether the signal is high for a threshold and why, in the words of explain."""
    value = reading.value
    if threshold is None and not config.gives_verdicts:
        return False, "no defer_threshold"
    if value is None:
        # A source that is read fails closed; code that never called set() has said nothing.
        return config.is_read, "signal has no value yet"
    if _is_stale(config, reading):
        return True, f"signal stale for more than {int(reading.age) // 10 * 10} s"
    if isinstance(value, bool):
        return value, f"signal says {'high' if value else 'low'}"
    if threshold is None:
        return False, "no defer_threshold"
    resume = config.resume_at(threshold)
    if was_high and resume < value <= threshold:
        return True, f"signal {value} > {float(resume)}, the resume threshold"
    high = value > threshold
    return high, f"signal {value} {'>' if high else '<='} {float(threshold)}"


def _is_stale(config: CostHoldConfig, reading: Reading) -> bool:
    return config.is_read and reading.age > config.stale_after
