"""Lengths of time as users write them."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvest_core.duration import seconds


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("500ms", 0.5),
        ("5s", 5.0),
        ("1.5s", 1.5),
        ("10m", 600.0),
        ("2h", 7200.0),
        ("1d", 86400.0),
        (" 5s ", 5.0),
        (0, 0.0),
        (2.5, 2.5),
        (timedelta(minutes=1), 60.0),
    ],
)
def test_reads_every_form(written, expected):
    """Text with a unit, numbers of seconds and timedeltas are lengths of time."""
    assert seconds(written) == expected


@pytest.mark.parametrize("written", ["5", "s", "5 s", "-5s", "5S", "1h30m", "", True, None, [5], b"5s"])
def test_refuses_what_is_none(written):
    """A number in text without a unit, a bool and anything else are refused."""
    with pytest.raises(ValueError, match="is not a length of time") as caught:
        seconds(written)
    assert str(caught.value) == (f'{written!r} is not a length of time such as "500ms", "5s", "10m", "2h" or "1d"')


@pytest.mark.parametrize("written", [-1, float("inf"), float("nan"), timedelta(seconds=-1)])
def test_refuses_negative_and_endless(written):
    """A length of time is finite and not negative."""
    with pytest.raises(ValueError, match="is negative or not finite; expected a length of time such as"):
        seconds(written)


@given(st.integers(0, 10**9), st.sampled_from(["ms", "s", "m", "h", "d"]))
def test_units_scale(number, unit):
    """Text is its number times its unit."""
    unit_seconds = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}[unit]
    assert seconds(f"{number}{unit}") == pytest.approx(number * unit_seconds)
