"""Lengths of time as users write them: `"500ms"`, `"5s"`, `"10m"`, `"2h"`, `"1d"`, a timedelta or seconds."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import NewType

Duration = NewType("Duration", float)
"""Seconds, finite and not negative. Configuration classes use it as a field's type."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PATTERN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
FORMS = 'a length of time such as "500ms", "5s", "10m", "2h" or "1d"'


def seconds(value: object) -> Duration:
    """Return value in seconds.

    Args:
        value: text of a number and a unit (ms, s, m, h, d), a timedelta, or a number of seconds.

    Raises:
        ValueError: it is none of these, negative, or not finite.
    """
    if isinstance(value, timedelta):
        result = value.total_seconds()
    elif isinstance(value, str) and (match := _PATTERN.fullmatch(value.strip())):
        result = float(match[1]) * _UNITS[match[2]]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        result = float(value)
    else:
        msg = f"{value!r} is not {FORMS}"
        raise ValueError(msg)
    if not math.isfinite(result) or result < 0:
        msg = f"{value!r} is negative or not finite; expected {FORMS}"
        raise ValueError(msg)
    return Duration(result)
