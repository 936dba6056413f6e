"""Schedules on a real database: ticks once, catch-up, overlap, pauses, and what code declares (K13)."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from datetime import timedelta
from functools import partial

import pytest
from prometheus_client import CollectorRegistry

from harvest_core import BuildError, ScheduleError, ScheduleNotFoundError
from harvest_core.errors import EnqueueError, LocalActivityError, PayloadError, UnknownActivityError
from harvest_core.metrics import KernelMetrics
from harvest_core.plugin import Plugin, Skip, hookimpl
from harvest_core.store.postgres import tasks
from harvest_core.worker import worker as worker_module
from harvest_core.worker.schedules import Schedules

TICKS = "harvest_schedule_ticks_total"


class Hand:
    """Schedules of one database, whose time a test moves, and a scheduler that looks when told."""

    def __init__(self, kernel, app):
        self.kernel, self.app = kernel, app
        self.registry = CollectorRegistry()
        self.scheduler = self.another(kernel.database, self.registry)

    def another(self, database, registry=None):
        return Schedules(database, KernelMetrics(registry or CollectorRegistry()), notify=True)

    async def put(self, name="tick", activity="work", *args, **options):
        """Write a schedule as a client does, and have its next tick worked out: half an hour ahead, one every hour."""
        minute = await self.kernel.one("select extract(minute from now() + interval '30 minutes')::integer")
        options = ({"cron": f"{minute} * * * *"} if "every" not in options else {}) | options
        async with self.app.client() as client:
            await client.put_schedule(name, activity, *args, **options)
        await self.scheduler.look()

    async def pass_time(self, hours):
        """Set what is planned back, as if so many hours had passed in which nobody looked."""
        await self.kernel.sql(
            "update schedules set next_at = next_at - make_interval(hours => %(h)s), "
            "counts_from = counts_from - make_interval(hours => %(h)s)",
            {"h": hours},
        )

    async def hours_pass(self, hours):
        """Let hours pass and look."""
        await self.pass_time(hours)
        await self.scheduler.look()

    async def ticks(self, outcome):
        return self.registry.get_sample_value(TICKS, {"outcome": outcome}) or 0

    async def count(self):
        return await self.kernel.one("select count(*) from tasks")


@pytest.fixture
def app(kernel):
    app = kernel.app(plugins=["flags"])

    @app.activity
    async def work(*args, **kwargs):
        pass

    @app.activity
    async def other():
        pass

    @app.local_activity
    def inline():
        pass

    return app


@pytest.fixture
def hand(kernel, app):
    return Hand(kernel, app)


@pytest.mark.matrix
async def test_a_tick_becomes_a_task_of_its_nominal_time(hand, kernel):
    """K13: the task is what an enqueue would have made, due at the tick's time, and carries no flags."""
    await hand.put("tick", "work", 1, kwargs={"a": "é"}, priority=4, queue="mail")
    planned = await kernel.one("select next_at from schedules")
    assert await hand.count() == 0
    await hand.hours_pass(1)
    rows = await kernel.sql(
        "select t.scheduled_at, t.state::text, t.args, t.kwargs, t.priority, r.queue, r.name, r.traits, t.max_attempts "
        "from tasks t join routes r on r.id = t.route_id"
    )
    assert rows == [(planned - timedelta(hours=1), "pending", [1], {"a": "é"}, 4, "mail", "work", {}, 5)]
    assert await kernel.sql("select last_at = next_at - interval '1 hour', error from schedules") == [(True, None)]


async def test_flags_only_where_the_schedule_says_so(hand, kernel):
    """K13: a schedule's flags are stamped as an enqueue's are."""
    await hand.put("tick", "work", flags=["vip"])
    await hand.hours_pass(1)
    assert await kernel.one("select r.traits from tasks t join routes r on r.id = t.route_id") == {"flags": ["vip"]}


@pytest.mark.parametrize(("catch_up", "made", "missed"), [("none", 0, 5), ("one", 1, 4), ("all", 5, 0)])
async def test_catch_up(hand, kernel, catch_up, made, missed):
    """K13: five ticks were missed while nobody looked; each policy makes of them what it says, in order."""
    await hand.put(catch_up=catch_up, overlap="allow")
    planned = await kernel.one("select next_at from schedules")
    await hand.hours_pass(5)
    times = [row[0] for row in await kernel.sql("select scheduled_at from tasks order by id")]
    assert times == [planned - timedelta(hours=back) for back in range(made, 0, -1)]
    assert (await hand.ticks("enqueued"), await hand.ticks("missed")) == (made, missed)
    assert await kernel.one("select next_at from schedules") == planned


async def test_no_more_than_a_thousand_are_made_up_for(hand, caplog):
    """K13: two hours of a tick a second: the newest thousand come, the others are told."""
    caplog.set_level(logging.WARNING, "harvest")
    await hand.put(every="1s", catch_up="all", overlap="allow")
    await hand.hours_pass(2)
    assert 1000 <= await hand.count() < 1030
    assert 6199 <= await hand.ticks("missed") <= 6201
    text = "ticks were missed and are not made up for (catch_up is 'all')"
    assert any(text in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(("overlap", "waiting", "running"), [("skip", 1, 1), ("buffer_one", 1, 2), ("allow", 4, 7)])
async def test_overlap(hand, kernel, overlap, waiting, running):
    """K13: what waits, as under a hold, lets in no more than the policy allows; so does what runs; one waits."""
    await hand.put(overlap=overlap)
    for _ in range(4):
        await hand.hours_pass(1)
    assert await hand.count() == waiting
    claimer = await kernel.claimer("work")
    await tasks.promote(kernel.database)
    claims = await claimer.take(1)
    for _ in range(3):
        await hand.hours_pass(1)
    assert await hand.count() == running
    assert await hand.ticks("enqueued") + await hand.ticks("overlap") == 7
    await tasks.promote(kernel.database)
    beside = await claimer.take(20)
    assert len(beside) == (6 if overlap == "allow" else 0)
    await claimer.finish([*claims, *beside])
    await claimer.finish(await claimer.take(20))
    await hand.hours_pass(1)
    assert await hand.count() == 1


async def test_of_two_ticks_the_second_waits_also_where_the_schedule_names_no_lane(hand, kernel):
    """K13: written by a version that gave it none, or with `lane=None`, it runs no two tasks at once either."""
    await hand.put(overlap="buffer_one", lane=None)
    assert await kernel.one("select options ? 'lane' from schedules") is False
    claimer = await kernel.claimer("work")
    claims = []
    for _ in range(2):
        await hand.hours_pass(1)
        await tasks.promote(kernel.database)
        claims += await claimer.take(5)
    assert (await hand.count(), len(claims)) == (2, 1)
    await claimer.finish(claims)
    assert len(await claimer.take(5)) == 1


async def test_a_task_that_waits_for_its_next_attempt_is_unfinished(hand, kernel):
    """K13: a retry is on its way, so a skipping schedule leaves its tick out."""
    await hand.put()
    await hand.hours_pass(1)
    await kernel.sql("update tasks set state = 'scheduled', attempt = 1, scheduled_at = now() + interval '1 hour'")
    await hand.hours_pass(1)
    assert (await hand.count(), await hand.ticks("overlap")) == (1, 1)


async def test_a_held_activity_keeps_one_tick(kernel):
    """K13: while a policy holds the activity, a tick a second leaves one task, which runs after the hold."""
    held, ran = [True], []

    class Holding(Plugin):
        slug = "holding"

        @hookimpl
        def build_skip_list(self, tick):
            return [Skip("work", ["held"], hold=True)] if held[0] else []

    app = kernel.app(plugins=[Holding])

    @app.activity
    async def work():
        ran.append(1)

    app.schedule("tick", work, every="1s")
    build = app.build()
    async with kernel.running(build):

        async def left_out():
            return (build.registry.get_sample_value(TICKS, {"outcome": "overlap"}) or 0) >= 2

        await kernel.until(left_out, "two ticks left out")
        assert (await kernel.states(), ran) == ({"pending": 1}, [])
        held[0] = False
        await kernel.until(lambda: asyncio.sleep(0, ran), "the held tick's run")


async def test_many_schedulers_tick_once(hand, kernel):
    """K13: eight schedulers look at once, again and again; every tick of every schedule comes once."""
    for number in range(30):
        await hand.put(f"tick{number}", overlap="allow", catch_up="all")
    others = [hand.another(await kernel.another_database()) for _ in range(8)]
    for _ in range(5):
        await hand.pass_time(2)
        while await kernel.one("select count(*) from schedules where next_at <= now()"):
            await asyncio.gather(*(one.look() for one in others))
    rows = await kernel.sql("select last_task_id is not null from schedules")
    assert (await hand.count(), rows) == (30 * 5 * 2, [(True,)] * 30)


FROZEN = """
import asyncio, os, signal, sys
from prometheus_client import CollectorRegistry
from harvest_core.metrics import KernelMetrics
from harvest_core.store.postgres import schedules
from harvest_core.store.postgres.database import Database
from harvest_core.worker.schedules import Schedules

read, write = schedules.due_schedules, schedules.fire

async def read_and_freeze(*args):
    found = await read(*args)
    print("read", [one.name for one in found[0]], flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    return found

async def write_and_tell(*args, **kwargs):
    done = await write(*args, **kwargs)
    print("wrote", done, flush=True)
    return done

async def main():
    schedules.due_schedules, schedules.fire = read_and_freeze, write_and_tell
    database = Database(sys.argv[1])
    await database.open()
    await Schedules(database, KernelMetrics(CollectorRegistry()), notify=True).look()
    await database.close()

asyncio.run(main())
"""


@pytest.mark.matrix
@pytest.mark.parametrize("meanwhile", ["fired", "written anew", "paused"])
async def test_a_scheduler_frozen_between_reading_and_writing_changes_nothing(hand, kernel, meanwhile):
    """K13: one is stopped after it has read what is due; others act; thawed, it makes no second and no stale tick."""
    await hand.put(overlap="allow")
    await hand.pass_time(1)
    frozen = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FROZEN, kernel.dsn, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert await frozen.stdout.readline() == b"read ['tick']\n"
        # Not before it has stopped: a SIGCONT that came first would be lost.
        await asyncio.to_thread(os.waitid, os.P_PID, frozen.pid, os.WSTOPPED | os.WNOWAIT)
        if meanwhile == "fired":
            await hand.scheduler.look()
            await hand.pass_time(1)  # the same nominal time is planned again: not by it
        elif meanwhile == "paused":
            await kernel.sql("select pause_schedule('tick')")
        else:
            await kernel.sql("select delete_schedule('tick')")
            await hand.put(overlap="allow")
        before = await kernel.sql("select * from schedules")
        frozen.send_signal(signal.SIGCONT)
        assert await frozen.stdout.readline() == b"wrote {}\n"
        assert await kernel.sql("select * from schedules") == before
        assert await hand.count() == (1 if meanwhile == "fired" else 0)
    finally:
        frozen.kill()
        await frozen.wait()


async def test_a_pause_holds_and_its_ticks_do_not_count(hand, kernel, app):
    """K13: paused, nothing ticks; resumed, it goes on with the next tick whatever catch-up says."""
    await hand.put(catch_up="all", overlap="allow")
    async with app.client() as client:
        await client.pause_schedule("tick")
        await client.pause_schedule("tick")
        await hand.hours_pass(3)
        assert [one.state for one in await client.schedules()] == ["paused"]
        assert await client.resume_schedule("tick") is True
        assert await client.resume_schedule("tick") is False
        await hand.scheduler.look()
        assert await hand.count() == 0
        assert await kernel.sql("select next_at > now() from schedules") == [(True,)]


async def test_a_schedule_that_cannot_be_enqueued_keeps_back_no_other(hand, kernel, caplog):
    """A row that SQL made wrong is told, in its row and in the log, moves on, and the others tick."""
    caplog.set_level(logging.WARNING, "harvest")
    for name in ("bad", "good", "unreadable"):
        await hand.put(name)
    await kernel.sql("update schedules set options = options || '{\"max_attempts\": 0}' where name = 'bad'")
    await kernel.sql("update schedules set cron = 'x', version = default where name = 'unreadable'")
    await hand.hours_pass(1)
    rows = await kernel.sql("select name, error, next_at > now() from schedules order by name")
    assert rows == [
        ("bad", "harvest: task 1 (work) cannot be enqueued", True),
        ("good", None, True),
        ("unreadable", None, False),
    ]
    assert (await hand.count(), await hand.ticks("failed")) == (1, 1)
    told = [record.getMessage() for record in caplog.records]
    assert "schedule 'bad': its tick cannot be enqueued: harvest: task 1 (work) cannot be enqueued" in told
    assert "schedule 'unreadable' is left to other workers: cron or timezone Wrong number of fields" in told


# ---------------------------------------------------------------------------------------------------- in code


def declaring(kernel, *schedules, **harvest):
    """Return an app that declares schedules, given as name and options."""
    app = kernel.app(harvest=harvest)

    @app.activity
    async def work(*args):
        pass

    for name, options in schedules:
        app.schedule(name, work, **{"cron": "0 3 * * *"} | options)
    return app


async def test_a_declared_schedule_is_written_where_it_changed(kernel):
    """K13: an unchanged one is left alone, another time counts from now, and nothing un-pauses (prefect#13935)."""
    versions = []
    for options in ({}, {}, {"priority": 5}, {"timezone": "Europe/Berlin"}):
        async with declaring(kernel, ("nightly", options)).worker():
            pass
        row = (await kernel.sql("select version, counts_from, paused_at, declared from schedules"))[0]
        versions.append(row)
        await kernel.sql("select pause_schedule('nightly') where (select paused_at from schedules) is null")
    first, again, changed, moved = versions
    assert first[0] < again[0] < changed[0] < moved[0]  # the pause gave the second its version
    assert first[1] == again[1] == changed[1] < moved[1]
    assert first[2] is None
    assert again[2] == changed[2] == moved[2] is not None
    assert all(row[3] for row in versions)


async def test_an_unchanged_one_is_not_written(kernel):
    """A start of a worker writes no row of a schedule that is as its code says."""
    async with declaring(kernel, ("nightly", {})).worker() as worker:
        await worker._schedules.look()
        before = await kernel.sql("select version, xmin::text from schedules")
        async with declaring(kernel, ("nightly", {})).worker():
            assert [row[0] for row in await kernel.sql("select version from schedules")] == [before[0][0]]


async def test_what_no_live_worker_declares_does_not_tick(kernel, hand):
    """K13: taken out of the code, it ticks while a worker of the old version lives, then no more; it can come back."""
    old = declaring(kernel, ("hourly", {"cron": "0 * * * *"}), ("nightly", {}))
    new = declaring(kernel, ("nightly", {}))
    async with new.worker():
        async with old.worker() as worker:
            await worker._schedules.look()
            await hand.pass_time(1)
            await worker._schedules.look()
            await kernel.until(hand.count, "the tick, which the other worker may have in hand")
        await kernel.sql("delete from tasks")
        await hand.hours_pass(1)
        assert await hand.count() == 0
        async with new.client() as client:
            states = {one.name: one.state for one in await client.schedules()}
            assert states == {"hourly": "undeclared", "nightly": "active"}
            with pytest.raises(ScheduleError) as caught:
                await client.delete_schedule("nightly")
            assert str(caught.value) == (
                "schedule 'nightly' is declared in the code of live workers: take it out there, or pause it"
            )
            with pytest.raises(ScheduleError) as caught:
                await client.put_schedule("nightly", "work", every="1h")
            assert str(caught.value) == (
                "schedule 'nightly' is declared in code: change it there, or choose another name"
            )
        async with old.worker() as worker:
            await worker._schedules.look()
            await kernel.until(hand.count, "the tick that is caught up with")  # as after any downtime
        async with new.client() as client:
            await client.delete_schedule("hourly")
            assert [one.name for one in await client.schedules()] == ["nightly"]


async def test_a_new_schedule_is_heard_of(kernel, app, monkeypatch):
    """A worker that would not look for an hour hears of a schedule put by a client, and runs its ticks."""
    monkeypatch.setattr(worker_module, "Schedules", partial(Schedules, longest=3600.0))
    build = app.build()
    async with kernel.running(build), app.client() as client:
        listening = partial(build.registry.get_sample_value, "harvest_listening")
        await kernel.until(lambda: asyncio.sleep(0, listening()), "the listener")
        await client.put_schedule("tick", "work", every="1s")

        async def ran():
            return await kernel.one("select count(*) from finished where state = 'completed'")

        await kernel.until(ran, "a tick's run")


async def test_run_once_runs_what_is_due(kernel, app):
    """K14: `run_once` enqueues the ticks that are due when it begins, and runs them."""
    app.schedule("tick", "work", every="1h")
    async with app.worker() as worker:
        await worker.run_once()
        await Hand(kernel, app).pass_time(1)
        await worker.run_once()
    assert await kernel.states() == {"completed": 1}


async def test_every_fault_of_a_declaration_is_told_at_once(app):
    """B1: what is wrong with schedules is told by `build`, in words to act on."""
    app.schedule("a", "work", cron="0 0 31 2 *")
    app.schedule("a", "wrok", every="1h")
    app.schedule("b", "inline", every="1h")
    app.schedule("c", "work", every="1h", priorty=5)
    app.schedule("d", "work", every="1h", key="x")
    app.schedule("e", "other", 1, every="1h", timezone="Mars/Base")
    app.schedule("f", print, every="1h")
    with pytest.raises(BuildError) as caught:
        app.build()
    assert [str(problem) for problem in caught.value.problems] == [
        "schedule.name  schedule 'a': is declared twice (give one of them another name)",
        "schedule.cron  schedule 'a': cron is '0 0 31 2 *': bad day-of-month; expected five fields (minute hour day "
        "month weekday), such as '0 3 * * *', or six with seconds in front, on days that exist",
        "schedule.enqueue  schedule 'a': this app has no activity 'wrok' (did you mean 'work'?); pass elsewhere=True "
        "where another app has it",
        "schedule.enqueue  schedule 'b': 'inline' is a local activity: it runs inline in a workflow and is never "
        "enqueued",
        "schedule.enqueue  schedule 'c': enqueue of 'work': no option 'priorty' (did you mean 'priority'?); the "
        "activity's own keywords go through kwargs=",
        "schedule.enqueue  schedule 'd': key is no option of a schedule: ticks have times of their own, and overlap "
        "keeps them apart",
        "schedule.timezone  schedule 'e': timezone says nothing beside every, which counts from 1970-01-01 UTC; take "
        "it out, or use cron",
        "schedule.enqueue  schedule 'e': arguments of 'other': too many positional arguments",
        "schedule.enqueue  schedule 'f': <built-in function print> is no activity: decorate the function with "
        "@app.activity, or pass a name",
    ]


# ---------------------------------------------------------------------------------------------------- by a client


async def test_put_says_whether_it_changed_anything(app, kernel):
    """The same schedule put twice is written once; another priority is a change."""
    async with app.client() as client:
        assert await client.put_schedule("tick", "work", every="1h") is True
        assert await client.put_schedule("tick", "work", every="1h") is False
        assert await client.put_schedule("tick", "work", every="1h", priority=1) is True


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"cron": "nonsense"}, ScheduleError),
        ({"cron": "0 3 * * *", "timezone": "Nowhere"}, ScheduleError),
        ({"every": "1h", "delay": 5}, EnqueueError),
        ({"every": "1h", "kwargs": {"a": object()}}, PayloadError),
        ({"every": "1h", "activity": "wrok"}, UnknownActivityError),
        ({"every": "1h", "activity": "inline"}, LocalActivityError),
    ],
)
async def test_a_wrong_call_writes_nothing(app, kernel, options, kind):
    """Bad input: the error comes at the call."""
    name = options.pop("activity", "work")
    async with app.client() as client:
        with pytest.raises(kind):
            await client.put_schedule("tick", name, **options)
    assert await kernel.one("select count(*) from schedules") == 0


async def test_the_error_names_the_schedule(app):
    """Bad input: a time zone that does not exist is told at the call."""
    async with app.client() as client:
        with pytest.raises(ScheduleError) as caught:
            await client.put_schedule("tick", "work", cron="0 3 * * *", timezone="Europe/Berln")
    assert str(caught.value) == (
        "schedule 'tick': timezone is 'Europe/Berln', which is no time zone; did you mean 'Europe/Berlin'?"
    )


async def test_an_unknown_name_is_told_with_the_nearest(app):
    """Each call that names a schedule says which there are."""
    async with app.client() as client:
        await client.put_schedule("nightly", "work", every="1h")
        for call in (client.pause_schedule, client.resume_schedule, client.trigger_schedule, client.delete_schedule):
            with pytest.raises(ScheduleNotFoundError) as caught:
                await call("nightli")
            assert str(caught.value) == "no schedule 'nightli': did you mean 'nightly'?"


async def test_trigger_keeps_to_the_overlap_policy(app, hand, kernel):
    """By hand one task at a time, too; paused or not; it counts as an earlier task for the next tick."""
    await hand.put()
    async with app.client() as client:
        await client.pause_schedule("tick")
        task = await client.trigger_schedule("tick")
        assert (await client.status(task)).state == "pending"
        assert await client.trigger_schedule("tick") is None
        await client.resume_schedule("tick")
    await hand.scheduler.look()
    await hand.hours_pass(1)
    assert (await hand.count(), await hand.ticks("overlap")) == (1, 1)


async def test_another_app_may_have_the_activity(app, kernel, hand):
    """An activity that this app does not have is scheduled where the call says so."""
    await hand.put("tick", "theirs", elsewhere=True)
    await hand.hours_pass(1)
    assert await kernel.one("select r.name from tasks t join routes r on r.id = t.route_id") == "theirs"
