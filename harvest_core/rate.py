"""Rates as users write them: `"10/m"` is at most ten starts in any minute."""

from __future__ import annotations

import re

_PERIODS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PATTERN = re.compile(r"([1-9][0-9]{0,8})/([smhd])")


def starts_and_period(rate: object) -> tuple[int, float]:
    """Return how many tasks may start in how many seconds by a rate such as `"10/m"`.

    Raises:
        ValueError: it has another form.
    """
    if isinstance(rate, str) and (match := _PATTERN.fullmatch(rate)):
        return int(match[1]), _PERIODS[match[2]]
    msg = f'{rate!r} is no rate; expected a whole number above 0 and a period, such as "10/m" (s, m, h or d)'
    raise ValueError(msg)
