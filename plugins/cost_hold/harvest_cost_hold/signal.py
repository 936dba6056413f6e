"""The signal as this process knows it: its last accepted value, how old that is, and what went wrong since.

Refuses to judge: whether a value is high is the plugin's matter.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from numbers import Real
from typing import TypeGuard

import attrs

from harvest_core.plugin import Setting


@attrs.frozen
class Reading:
    """All that is known of the signal at one moment.

    Args:
        value: the last accepted number, or the verdict itself as a bool; None before the first.
        age: seconds since it arrived or was last confirmed; 0 where there is none.
        trouble: what went wrong since then, in words; empty where nothing did. Holds no text of foreign errors,
            which may carry secrets and would travel to the whole fleet.
        ignored: values that were not accepted, so far.
        failed: reads that raised, so far.
    """

    value: float | bool | None = None
    age: float = 0.0
    trouble: str = ""
    ignored: int = 0
    failed: int = 0


class Signal:
    """A value that any thread may set; `app.plugin("cost_hold").signal` (rule C3).

    Args:
        clock: monotonic seconds.
        settable: False where another source was configured, so that `set` changes nothing.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, settable: bool = True) -> None:
        self._clock, self._settable = clock, settable
        # Reentrant: a process's signal handler may call set() while its own thread is in here.
        self._lock = threading.RLock()
        self._last = Reading()
        self._arrived = 0.0
        self._version: int | None = None

    def set(self, value: float) -> None:
        """Take value as the signal, from any thread.

        NaN, infinities, and any value while another source is configured are ignored and counted.

        Raises:
            TypeError: value is no number; a bool is none.
        """
        if not _is_number(value):
            msg = (
                f"signal.set() takes a number, not {_shown(value)}; a verdict is given by a source that returns a bool"
            )
            raise TypeError(msg)
        with self._lock:
            if self._settable:
                self._take(_finite(value), value)
            else:
                self._last = attrs.evolve(self._last, ignored=self._last.ignored + 1)

    def receive(self, setting: Setting | None) -> None:
        """Take the runtime setting as it was just read; a new version means that it arrived now.

        Where the setting is the only source, an unchanged one is confirmed by being read.

        Raises:
            ValueError: a new version holds no finite number; it was ignored and counted, once.
        """
        if setting is None:
            return
        number = _finite(setting.value)
        with self._lock:
            changed, self._version = setting.version != self._version, setting.version
            # Only the two settings modes come here, so a signal that cannot be set has the setting as its only source.
            if changed or (number is not None and not self._settable):
                self._take(number, setting.value)
        if changed and number is None:
            msg = (
                f"the runtime setting cost_signal is {_shown(setting.value)}, not a finite number, and is ignored; "
                "set it with `harvest config set cost_signal 520`"
            )
            raise ValueError(msg)

    def read(self, source: Callable[[], object]) -> None:
        """Call source and take what it returns: a number, or a bool as the verdict itself.

        Raises:
            ValueError: it returned neither, or no finite number; that was ignored and counted.
            Exception: whatever source raised; that was counted.
        """
        try:
            value = source()
        except BaseException as error:
            with self._lock:
                trouble = f"last read failed: {type(error).__name__}"
                self._last = attrs.evolve(self._last, trouble=trouble, failed=self._last.failed + 1)
            raise
        accepted = value if isinstance(value, bool) else _finite(value)
        with self._lock:
            self._take(accepted, value)
        if accepted is None:
            msg = f"the signal source returned {_shown(value)}, neither a finite number nor a bool; it is ignored"
            raise ValueError(msg)

    def reading(self) -> Reading:
        """Return what is known now; never waits for a source."""
        with self._lock:
            if self._last.value is None:
                return self._last
            return attrs.evolve(self._last, age=self._clock() - self._arrived)

    def _take(self, accepted: float | bool | None, value: object) -> None:  # noqa: FBT001 - a verdict is a value
        if accepted is None:
            trouble = f"last value ignored: {_shown(value)}"
            self._last = attrs.evolve(self._last, trouble=trouble, ignored=self._last.ignored + 1)
        else:
            self._last = attrs.evolve(self._last, value=accepted, trouble="")
            self._arrived = self._clock()


def _is_number(value: object) -> TypeGuard[Real | Decimal]:
    return isinstance(value, Real | Decimal) and not isinstance(value, bool)


def _finite(value: object) -> float | None:
    try:
        number = float(value) if _is_number(value) else math.nan
    except (OverflowError, ValueError):  # an int beyond every float; a signalling NaN
        return None
    return number if math.isfinite(number) else None


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, float) else f"a value of type {type(value).__name__}"
