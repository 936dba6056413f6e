"""Between a schedule as it is declared and one as it is written: its call is checked and stamped as an enqueue's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import attrs

from harvest_core.build import Build
from harvest_core.enqueue import Call, new_task
from harvest_core.errors import EnqueueError, HarvestError, Problem, ScheduleError
from harvest_core.schedule import Schedule, faults
from harvest_core.store.postgres.enqueue import NewTask
from harvest_core.store.postgres.schedules import NewSchedule

_TICKS_OWN = ("scheduled_at", "delay", "key", "key_period", "on_conflict")
_OPTIONS = {field.name for field in attrs.fields(NewTask)} - {"name", "args", "kwargs", "traits", *_TICKS_OWN}


def new_schedule(build: Build, schedule: Schedule, *, declared: bool) -> NewSchedule:
    """Return a schedule as it is written; nothing is written yet.

    Args:
        build: has the activities, and the plugins that stamp.
        schedule: as the user wrote it.
        declared: True where code declares it, False where a client puts it.

    Raises:
        ScheduleError: its times cannot be read or never come, or its options do not fit.
        HarvestError: what an enqueue of its call raises.
    """
    for option, message in faults(schedule, datetime.now(UTC)):
        msg = f"schedule {schedule.name!r}: {option} {message}"
        raise ScheduleError(msg)
    task, timing = _task(build, schedule), schedule.timing
    options = {name: value for name in sorted(_OPTIONS) if (value := getattr(task, name)) is not None}
    return NewSchedule(
        name=schedule.name,
        activity=task.name,
        args=task.args,
        kwargs=task.kwargs,
        traits=task.traits,
        options=options,
        cron=timing.cron,
        every=timing.every,
        timezone=timing.timezone,
        catch_up=schedule.catch_up,
        overlap=schedule.overlap,
        declared=declared,
    )


def schedule_problems(build: Build) -> Iterator[Problem]:
    """Yield what is wrong with the schedules that an app declares."""
    now = datetime.now(UTC)
    for name, count in Counter(str(schedule.name) for schedule in build.schedules).items():
        if count > 1:
            message = "is declared twice"
            yield Problem("schedule.name", f"schedule {name!r}", message, "give one of them another name")
    for schedule in build.schedules:
        where = f"schedule {schedule.name!r}"
        for option, message in faults(schedule, now):
            yield Problem(f"schedule.{option}", where, f"{option} {message}")
        try:
            _task(build, schedule)
        except HarvestError as error:
            yield Problem("schedule.enqueue", where, str(error))


def _task(build: Build, schedule: Schedule) -> NewTask:
    for option in _TICKS_OWN:
        if option in schedule.options:
            msg = f"{option} is no option of a schedule: ticks have times of their own, and overlap keeps them apart"
            raise EnqueueError(msg)
    kwargs: Any = {} if schedule.kwargs is None else schedule.kwargs
    options = dict(schedule.options)
    if schedule.overlap == "buffer_one":
        if "lane" in build.backend.lacks:
            raise ScheduleError(build.backend.refusal('overlap="buffer_one"'))
        options.setdefault("lane", f"schedule/{schedule.name}")  # the second of two waits for the first
    return new_task(build, Call(schedule.activity, schedule.args, kwargs, **options))
