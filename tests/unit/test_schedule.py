"""When schedules tick: cron, time zones and their changes, intervals, and what is made up for (K13)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvest_core.schedule import MOST, Due, Schedule, Timing, due, faults
from harvest_core.scheduling import _OPTIONS
from harvest_core.store.postgres.migrate import FUNCTIONS

BERLIN = "Europe/Berlin"
NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def local(cron: str, start: str, count: int) -> list[str]:
    """Return the first ticks after a start, as clocks in Berlin show them."""
    ticks = Timing(cron, None, BERLIN).ticks(at(start))
    return [next(ticks).astimezone(ZoneInfo(BERLIN)).strftime("%d %H:%M %z") for _ in range(count)]


def test_clocks_go_forward():
    """At 02:00 it is 03:00 at once: a fixed time in the gap ticks at its end, once; hourly ticks follow real hours."""
    assert local("30 2 * * *", "2026-03-28T12:00+01:00", 2) == ["29 03:00 +0200", "30 02:30 +0200"]
    assert local("0,30 2 * * *", "2026-03-28T12:00+01:00", 2) == ["29 03:00 +0200", "30 02:00 +0200"]
    assert local("30 * * * *", "2026-03-29T01:00+01:00", 2) == ["29 01:30 +0100", "29 03:30 +0200"]


def test_clocks_go_back():
    """At 03:00 it is 02:00 again: a fixed time in the hour that comes twice ticks once; hourly ticks tick in both."""
    assert local("30 2 * * *", "2026-10-24T12:00+02:00", 2) == ["25 02:30 +0200", "26 02:30 +0100"]
    assert local("30 * * * *", "2026-10-25T02:00+02:00", 3) == ["25 02:30 +0200", "25 02:30 +0100", "25 03:30 +0100"]


def test_begun_in_the_hour_that_comes_again_it_never_goes_back():
    """A schedule written at 02:15 of the second hour does not tick at 02:30 of the first, which has passed."""
    assert local("30 2 * * *", "2026-10-25T02:15+01:00", 1) == ["26 02:30 +0100"]


@given(
    cron=st.sampled_from(["30 2 * * *", "*/20 * * * *", "0,30 2,3 * * *", "15 1-3 * * *", "0 */2 * * *"]),
    start=st.integers(0, 72 * 60),
    change=st.sampled_from([datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 10, 24, tzinfo=UTC)]),
)
def test_ticks_do_not_depend_on_where_one_begins(cron, start, change):
    """Whoever works out the next tick, from whichever moment, finds the same ones, each later than the one before."""
    timing = Timing(cron, None, BERLIN)
    begin, end = change + timedelta(minutes=start), change + timedelta(days=4)
    every = [tick for tick, _ in zip(timing.ticks(change), range(400), strict=False) if tick <= end]
    assert every == sorted(set(every))
    assert [tick for tick in every if tick > begin][:1] == [timing.after(begin)]


def test_an_interval_counts_from_1970():
    """Every process finds the same ticks, whenever it started."""
    assert Timing(None, 300.0).after(at("2026-06-01T12:03:10Z")) == at("2026-06-01T12:05:00Z")
    assert Timing(None, 86400.0).after(at("2026-06-01T12:00:00Z")) == at("2026-06-02T00:00:00Z")
    assert Timing(None, 1.5).after(at("1970-01-01T00:00:03Z")) == at("1970-01-01T00:00:04.5Z")


def hours(*values: int) -> tuple[datetime, ...]:
    return tuple(NOW.replace(hour=value) for value in values)


@pytest.mark.parametrize("timing", [Timing("0 * * * *", None), Timing(None, 3600.0)], ids=["cron", "every"])
@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        ("none", Due((), 3, hours(13)[0])),
        ("one", Due(hours(12), 2, hours(13)[0])),
        ("all", Due(hours(10, 11, 12), 0, hours(13)[0])),
    ],
)
def test_what_was_missed(timing, catch_up, expected):
    """K13: after a downtime the policy decides; none, the newest, or all."""
    planned = NOW.replace(hour=10)
    assert due(timing, catch_up, planned, planned - timedelta(days=1), NOW.replace(minute=20)) == expected


@pytest.mark.parametrize("catch_up", ["none", "one", "all"])
def test_a_punctual_tick_is_not_missed(catch_up):
    """A tick that is seen to within a minute is enqueued under every policy."""
    found = due(Timing("0 * * * *", None), catch_up, NOW, NOW - timedelta(days=1), NOW + timedelta(seconds=59))
    assert found == Due((NOW,), 0, hours(13)[0])


def test_what_has_not_been_planned_counts_from_its_start():
    """A schedule written or resumed at a moment has no tick up to that moment."""
    found = due(Timing("0 * * * *", None), "all", NOW, NOW, NOW + timedelta(seconds=1))
    assert found == Due((), 0, hours(13)[0])


@pytest.mark.parametrize("timing", [Timing("* * * * * *", None), Timing(None, 1.0)], ids=["cron", "every"])
def test_a_long_downtime_is_bounded(timing):
    """Of 30,000 missed ticks the newest 1000 are made up for, the others told, and no single look takes long."""
    end, planned = NOW, NOW - timedelta(seconds=29_999)
    missed, looks = 0, 0
    while True:
        found = due(timing, "all", planned, NOW - timedelta(days=9), end)
        missed, looks = missed + found.missed, looks + 1
        if found.ticks:
            break
        planned = found.next_at
    assert looks <= 4
    assert missed == 30_000 - MOST
    assert found.ticks == tuple(end - timedelta(seconds=back) for back in reversed(range(MOST)))
    assert found.next_at == end + timedelta(seconds=1)


SHAPE = "expected five fields (minute hour day month weekday), such as '0 3 * * *', or six with seconds in front"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"cron": "0 3 * *"}, [("cron", f"is '0 3 * *': wrong number of fields; {SHAPE}, on days that exist")]),
        ({"cron": "0 0 31 2 *"}, [("cron", f"is '0 0 31 2 *': bad day-of-month; {SHAPE}, on days that exist")]),
        ({"cron": "61 3 * * *"}, [("cron", f"is '61 3 * * *': bad minute; {SHAPE}, on days that exist")]),
        ({"cron": 5}, [("cron", f"is '5'; {SHAPE}")]),
        (
            {"cron": "0 3 * * *", "timezone": "Europe/Berln"},
            [("timezone", "is 'Europe/Berln', which is no time zone; did you mean 'Europe/Berlin'?")],
        ),
        (
            {"cron": "0 3 * * *", "timezone": "../passwd"},
            [("timezone", "is '../passwd', which is no time zone; expected a name such as Europe/Berlin")],
        ),
        ({}, [("cron", "and every exclude each other, and neither is given; give one of them")]),
        (
            {"cron": "0 3 * * *", "every": "5m"},
            [("cron", "and every exclude each other, and both are given; give one of them")],
        ),
        ({"every": "0.5s"}, [("every", "is 0.5 s; expected 1 s to 366 days")]),
        (
            {"every": "often"},
            [
                (
                    "every",
                    '\'often\' is not a length of time such as "500ms", "5s", "10m", "2h" or "1d"; it is the time '
                    "between two ticks",
                )
            ],
        ),
        (
            {"every": "5m", "timezone": BERLIN},
            [("timezone", "says nothing beside every, which counts from 1970-01-01 UTC; take it out, or use cron")],
        ),
        ({"every": "5m", "catch_up": "al"}, [("catch_up", "is 'al'; did you mean 'all'?")]),
        ({"every": "5m", "overlap": "queue"}, [("overlap", "is 'queue'; expected skip, allow or buffer_one")]),
        (
            {"every": "5m", "name": " "},
            [("name", "is ' '; expected printable text that is not blank, of at most 1024 bytes")],
        ),
    ],
)
def test_faults(options, expected):
    """Bad input: each fault names the option, what is wrong and what to write."""
    assert list(faults(Schedule(**{"name": "nightly", "activity": "work"} | options), NOW)) == expected


@pytest.mark.parametrize("zone", ["Europe", "", "/etc/localtime", "UTC\0", "Europe/Berlin\n", 5])
def test_no_zone_breaks_the_check(zone):
    """Bad input: whatever stands for a time zone is a fault in words, never another error."""
    (fault,) = faults(Schedule("nightly", "work", cron="0 3 * * *", timezone=zone), NOW)
    assert fault[0] == "timezone"


@given(cron=st.text(alphabet="0123456789*/,-#LW MONSU?", max_size=24))
def test_no_expression_breaks_the_check(cron):
    """Bad input: whatever stands for cron either ticks or is a fault in words."""
    found = list(faults(Schedule("nightly", "work", cron=cron), NOW))
    assert all(option == "cron" for option, _ in found)
    if not found:
        assert Timing(cron, None).after(NOW) > NOW


def test_every_option_that_is_stored_reaches_the_enqueue():
    """An option that the schema's function does not hand on would be taken and never obeyed."""
    assert [name for name in sorted(_OPTIONS) if f"s.options ->> '{name}'" not in FUNCTIONS] == []
