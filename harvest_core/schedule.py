"""When a schedule ticks: a cron expression in a time zone, or a fixed interval. Pure; times in and out are UTC.

Local times that a change of the clocks skips or repeats go as `cronsim` has them, which is Debian's cron: where minute
and hour are both given, a skipped time ticks at the end of the gap and a repeated one ticks once, the first time; where
one of them begins with `*`, the ticks follow the hours that really pass.
"""

from __future__ import annotations

import zoneinfo
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from typing import Any

import attrs
from cronsim import CronSim, CronSimError

from harvest_core.duration import FORMS, seconds
from harvest_core.errors import near_match

CATCH_UP = ("none", "one", "all")
OVERLAP = ("skip", "allow", "buffer_one")
MOST = 1000
"""Most ticks that `catch_up="all"` makes up for."""

PUNCTUAL = timedelta(seconds=60)
"""A tick that is no older than this is not missed."""

_AT_ONCE = 10_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TEXT = 1024
_LONGEST = 366 * 86400.0


@attrs.frozen
class Schedule:
    """A schedule as it is declared.

    Args:
        name: unique in the database.
        activity: the declared activity, or its name.
        args: positional arguments of its tasks.
        kwargs: keyword arguments of its tasks.
        cron: five fields (minute, hour, day, month, weekday), or six with seconds in front.
        every: a length of time, counted from 1970-01-01 UTC, in place of cron.
        timezone: in which cron is read; UTC unless given.
        catch_up: what becomes of ticks that nobody enqueued in time: `none`, `one` for all of them, or `all`.
        overlap: what becomes of a tick while an earlier task is unfinished: `skip`, `allow`, or `buffer_one`.
        options: of the enqueue.
    """

    name: str
    activity: Any
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] | None = None
    cron: str | None = None
    every: str | float | None = None
    timezone: str | None = None
    catch_up: str = "one"
    overlap: str = "skip"
    options: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def timing(self) -> Timing:
        """When it ticks; only where it has no faults."""
        every = None if self.every is None else float(seconds(self.every))
        return Timing(self.cron, every, self.timezone or "UTC")


@attrs.frozen
class Timing:
    """A cron expression in a time zone, or an interval in seconds."""

    cron: str | None
    every: float | None
    timezone: str = "UTC"

    def after(self, moment: datetime) -> datetime | None:
        """Return the first tick after a moment; None where none comes within fifty years.

        Raises:
            ValueError: cron or time zone cannot be read here.
        """
        return next(self.ticks(moment), None)

    def ticks(self, moment: datetime) -> Iterator[datetime]:
        """Yield the ticks after a moment."""
        if self.every is not None:
            step = timedelta(seconds=self.every)
            tick = _EPOCH + ((moment - _EPOCH) // step) * step
            while True:
                tick += step
                yield tick
        try:
            found = CronSim(self.cron or "", moment.astimezone(_zone(self.timezone)))
        except CronSimError as error:
            raise ValueError(str(error)) from None
        last = moment
        for local in found:
            tick = local.astimezone(UTC)
            if tick > last:  # begun in a repeated hour, it first yields what lies before
                last = tick
                yield tick


@attrs.frozen
class Due:
    """What is to be done of a schedule now: nominal times to enqueue, how many were missed, and the next time."""

    ticks: tuple[datetime, ...]
    missed: int
    next_at: datetime | None


def due(timing: Timing, catch_up: str, next_at: datetime, counts_from: datetime, now: datetime) -> Due:
    """Return what is due by now.

    Args:
        timing: when it ticks.
        catch_up: the policy for missed ticks.
        next_at: the tick that was planned; up to `counts_from`, none was.
        counts_from: no tick up to here counts.
        now: the database's clock.
    """
    begin = counts_from if next_at <= counts_from else next_at - timedelta(microseconds=1)
    most = MOST if catch_up == "all" else 1
    count, kept = 0, deque[datetime](maxlen=most)
    if timing.every is not None and begin < now:
        step = timedelta(seconds=timing.every)
        count = max(0, (now - _EPOCH) // step - (begin - _EPOCH) // step - most)
        begin += count * step
    following = None
    for tick in timing.ticks(begin):
        if tick > now:
            following = tick
            break
        kept.append(tick)
        count += 1
        if count == _AT_ONCE + most and timing.every is None:  # the rest is for another look: none takes long
            return Due((), count - len(kept), kept[0])
    if catch_up == "none" and kept and now - kept[0] > PUNCTUAL:
        kept.clear()
    return Due(tuple(kept), count - len(kept), following)


def faults(schedule: Schedule, now: datetime) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a schedule, its call apart: the option and what to say of it."""
    name: Any = schedule.name
    if not (isinstance(name, str) and name.strip() and name.isprintable() and len(name.encode()) <= _TEXT):
        yield "name", f"is {name!r}; expected printable text that is not blank, of at most {_TEXT} bytes"
    for option, known in (("catch_up", CATCH_UP), ("overlap", OVERLAP)):
        value = getattr(schedule, option)
        if value not in known:
            hint = near_match(str(value), known)
            yield option, f"is {value!r}; {hint or 'expected ' + ', '.join(known[:-1]) + f' or {known[-1]}'}"
    if (schedule.cron is None) == (schedule.every is None):
        given = "both are" if schedule.cron is not None else "neither is"
        yield "cron", f"and every exclude each other, and {given} given; give one of them"
    elif schedule.every is not None:
        yield from _interval_faults(schedule)
    else:
        yield from _cron_faults(schedule, now)


def _interval_faults(schedule: Schedule) -> Iterator[tuple[str, str]]:
    try:
        every = seconds(schedule.every)
    except ValueError as error:
        yield "every", str(error).replace(f"is not {FORMS}", f"is not {FORMS}; it is the time between two ticks")
        return
    if not 1 <= every <= _LONGEST:
        yield "every", f"is {every:g} s; expected 1 s to 366 days"
    if schedule.timezone is not None:
        yield "timezone", "says nothing beside every, which counts from 1970-01-01 UTC; take it out, or use cron"


def _cron_faults(schedule: Schedule, now: datetime) -> Iterator[tuple[str, str]]:
    zone: Any = "UTC" if schedule.timezone is None else schedule.timezone
    try:
        _zone(zone)
    except ValueError as error:
        yield "timezone", str(error)
        zone = "UTC"
    cron: Any = schedule.cron
    shape = "expected five fields (minute hour day month weekday), such as '0 3 * * *', or six with seconds in front"
    if not isinstance(cron, str) or len(cron) > _TEXT:
        yield "cron", f"is {str(cron)[:80]!r}; {shape}"
        return
    try:
        if Timing(cron, None, zone).after(now) is None:
            yield "cron", f"is {cron!r}, which never comes; choose days that exist"
    except ValueError as error:
        reason = str(error)
        yield "cron", f"is {cron!r}: {reason[:1].lower()}{reason[1:]}; {shape}, on days that exist"


@cache
def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC  # needs no file
    try:
        return zoneinfo.ZoneInfo(name)
    except (TypeError, AttributeError, LookupError, ValueError, OSError):
        known = zoneinfo.available_timezones()
        hint = near_match(str(name), known) if known else "this machine has no time zones: install tzdata"
        msg = f"is {name!r}, which is no time zone; {hint or 'expected a name such as Europe/Berlin'}"
        raise ValueError(msg) from None
