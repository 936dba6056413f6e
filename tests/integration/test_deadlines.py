"""schedule_to_start and schedule_to_close: tasks that have waited or gone on for too long (C6, K7, K12)."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from harvest_core import Retry, TaskFailedError
from harvest_core.store.postgres import control, tasks, workers
from harvest_core.store.postgres.tasks import Released, Retried

NOT_STARTED = "TimeoutError: not started within schedule_to_start of 60 s"
NOT_CLOSED = "TimeoutError: schedule_to_close of 60 s has passed"


async def overdue(kernel):
    return (await tasks.rescue(kernel.database)).overdue


async def later(kernel, seconds=61):
    """Let time pass for every task and queue: what was written is that much older."""
    past = f"interval '{seconds} seconds'"
    await kernel.sql(
        f"update tasks set start_by = start_by - {past}, close_by = close_by - {past}, "
        f"scheduled_at = scheduled_at - {past}, claimed_at = claimed_at - {past}, deadline = deadline - {past}"
    )
    await kernel.sql(f"update queues set paused_at = paused_at - {past}, resumed_at = resumed_at - {past}")


async def errors(kernel):
    return await kernel.sql("select state::text, error from finished order by id")


@pytest.mark.matrix
async def test_any_worker_fails_what_has_not_started_in_time(kernel):
    """Rescue judges no names: a task that no worker knows fails as any other, and not a moment early (C6, K7, K12)."""
    await kernel.enqueue(name="nobody knows me", queue="nowhere", schedule_to_start=60.0)
    await later(kernel, 50)
    assert await overdue(kernel) == 0
    await later(kernel, 10)
    assert await overdue(kernel) == 1
    assert await errors(kernel) == [("failed", NOT_STARTED)]


@pytest.mark.matrix
async def test_a_claimed_task_found_overdue_fails_in_place_of_starting(kernel):
    """A claim that takes an overdue task before rescue finds it fails it, and takes the next one (C6)."""
    late, good = await kernel.enqueue(schedule_to_start=60.0), await kernel.enqueue()
    await later(kernel)
    worker = await kernel.claimer("work")
    assert [claim.id for claim in await worker.take(5)] == good
    assert await errors(kernel) == [("failed", NOT_STARTED)]
    assert late != good


@pytest.mark.matrix
async def test_a_paused_queue_has_a_clock_that_stands_still(kernel):
    """A pause suspends schedule_to_start; resuming changes one row of queues and no task (C6, K13)."""
    await kernel.enqueue(count=3, schedule_to_start=60.0)
    await kernel.enqueue(queue="other", schedule_to_start=60.0)
    await later(kernel, 20)
    await control.pause_queue(kernel.database, "default")
    await kernel.enqueue(schedule_to_start=60.0)  # during the pause
    await later(kernel, 1000)
    assert await overdue(kernel) == 1
    before = await kernel.sql("select id, xmin::text from tasks order by id")
    assert await control.resume_queue(kernel.database, "default") is True
    assert await control.resume_queue(kernel.database, "default") is False
    assert await kernel.sql("select id, xmin::text from tasks order by id") == before
    assert await kernel.sql("select name, round(extract(epoch from paused_for))::int from queues") == [
        ("default", 1000)
    ]
    assert await overdue(kernel) == 0
    await kernel.sql("update tasks set start_by = start_by - interval '41 s'")  # 20 s before the pause, 41 after it
    assert await overdue(kernel) == 3
    await kernel.sql("update tasks set start_by = start_by - interval '20 s'")
    assert await overdue(kernel) == 1


@pytest.mark.matrix
async def test_a_promoted_task_counts_from_when_it_was_due(kernel):
    """The time to start begins when a task is due; so it does for one of a lane, which may wait for it (C6)."""
    await kernel.enqueue(delay=3600.0, schedule_to_start=60.0)
    await kernel.enqueue(lane="a")
    await kernel.enqueue(lane="a", schedule_to_start=60.0)
    assert await kernel.one("select count(*) from tasks where start_by is not null") == 0
    assert await overdue(kernel) == 0
    await kernel.sql("update tasks set scheduled_at = scheduled_at - interval '3600 s'")
    half = "now() - interval '30 s'"
    await kernel.sql(f"update tasks set scheduled_at = {half}, enqueued_at = {half} where lane is not null")
    await tasks.promote(kernel.database)
    left = "round(extract(epoch from start_by - now()))::int"
    assert await kernel.sql(f"select state::text, {left} from tasks order by id") == [
        ("pending", 60), ("pending", None), ("blocked", 30)
    ]  # fmt: skip
    await later(kernel)
    assert await overdue(kernel) == 2
    assert await kernel.states() == {"pending": 1, "failed": 2}


@pytest.mark.matrix
@pytest.mark.parametrize("how", ["retried", "given back", "rescued"])
async def test_only_the_first_start_has_a_time(kernel, how):
    """A task that started in time and comes back is not overdue to start, however long it ran (C6, K12)."""
    await kernel.enqueue(schedule_to_start=60.0)
    worker = await kernel.claimer("work")
    (claim,) = await worker.take()
    await later(kernel)
    if how == "rescued":
        await kernel.sql("update workers set beaten_at = now() - interval '1 day'")
    else:
        outcome = Retried(0.0, "broke") if how == "retried" else Released()
        await tasks.write_outcomes(kernel.database, [(claim, outcome)])
    await tasks.promote(kernel.database)
    found = await tasks.rescue(kernel.database)
    assert (found.overdue, await errors(kernel)) == (0, [])
    pool = "suspect" if how == "rescued" else "pending"
    assert len(await (await kernel.claimer("work")).take(pool=pool)) == 1


async def test_a_hold_does_not_stop_the_clock(kernel):
    """A held task that has not started in time fails: a hold is no pause (C6)."""
    table = {"cost_hold": {"defer_threshold": 1.0, "activities": ["work"]}}
    app = kernel.app(plugins=["cost_hold"], tables=table, worker_ttl="300ms")

    @app.activity
    async def work():
        return 1

    async with app.client() as client:
        await client.set_setting("cost_signal", 100.0)
        async with kernel.running(app):
            task = await client.enqueue(work, schedule_to_start="200ms")
            with pytest.raises(TaskFailedError) as caught:
                await task.result(timeout=10)
    assert str(caught.value) == (
        f"task {task.id} (work) failed at attempt 0: TimeoutError: not started within schedule_to_start of 0.2 s"
    )


# ------------------------------------------------------------------------------------------------ schedule_to_close


@pytest.mark.matrix
async def test_no_worker_lives(kernel):
    """Whatever state it waits in, a task whose time is over ends when the first worker looks (K8)."""
    await kernel.enqueue(schedule_to_close=60.0)
    await kernel.enqueue(count=2, lane="a", schedule_to_close=60.0)
    await tasks.promote(kernel.database)
    (suspect,) = await kernel.enqueue(schedule_to_close=60.0)
    await kernel.sql("update tasks set state = 'suspect', crashes = 1 where id = %s", [suspect])
    await control.pause_queue(kernel.database, "default")  # stops the time to start alone
    await later(kernel)
    assert await overdue(kernel) == 4
    assert await errors(kernel) == [("failed", NOT_CLOSED)] * 4


@pytest.mark.matrix
async def test_over_retries(kernel):
    """A retry that would come after the end is not made; the last error stays (K8)."""
    await kernel.enqueue(schedule_to_close=60.0, max_attempts=9)
    worker = await kernel.claimer("work")
    (claim,) = await worker.take()
    assert claim.start_to_close == pytest.approx(60.0, abs=5.0)
    await tasks.write_outcomes(kernel.database, [(claim, Retried(0.0, "first"))])
    await tasks.promote(kernel.database)
    (claim,) = await worker.take()
    await tasks.write_outcomes(kernel.database, [(claim, Retried(61.0, "second"))])
    assert await errors(kernel) == [("failed", "second; schedule_to_close leaves no time for another attempt")]


@pytest.mark.matrix
async def test_a_running_attempt_whose_worker_does_not_end_it(kernel):
    """Rescue ends a running task at the end of its time: no attempt follows (K8)."""
    await kernel.enqueue(schedule_to_close=60.0, max_attempts=9)
    await (await kernel.claimer("work")).take()
    await later(kernel, 65)
    assert (await tasks.rescue(kernel.database)).timed_out == 1
    assert await errors(kernel) == [("failed", NOT_CLOSED)]


async def test_the_worker_ends_an_attempt_itself(kernel):
    """While it runs, the worker's own timeout ends it, and no attempt follows (K8)."""
    app, stopped = kernel.app(), asyncio.Event()

    @app.activity(schedule_to_close="300ms")
    async def forever():
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with app.client() as client, kernel.running(app):
        task = await client.enqueue(forever)
        with pytest.raises(TaskFailedError):
            await task.result(timeout=10)
        status = await task.status()
    assert stopped.is_set()
    assert (status.state, status.attempt) == ("failed", 1)
    assert status.error.startswith("TimeoutError: ")
    assert status.error.endswith("; schedule_to_close leaves no time for another attempt")


@pytest.mark.matrix
@pytest.mark.parametrize("lane", [None, "customer/7"])
async def test_a_time_in_the_past_counts_from_the_enqueue(kernel, lane):
    """What is enqueued as due long ago has all its time to start, in a lane as without one (K8)."""
    await kernel.enqueue(lane=lane, schedule_to_start=60.0, scheduled_at="2020-01-01T00:00:00Z")
    await tasks.promote(kernel.database)
    await tasks.rescue(kernel.database)
    assert await kernel.states() == {"pending": 1}


async def test_a_cancelled_attempt_that_runs_out_of_time_ends_as_cancelled(kernel):
    """Also its last one: what was asked to stop and did not complete is cancelled (K13)."""
    (task,) = await kernel.enqueue(start_to_close=1.0, max_attempts=1)
    await (await kernel.claimer("work")).take()
    await control.cancel(kernel.database, control.Selection([task]), "no longer wanted")
    await later(kernel)
    assert (await tasks.rescue(kernel.database)).timed_out == 1
    assert await errors(kernel) == [("cancelled", "no longer wanted")]


@pytest.mark.parametrize(("factor", "attempts"), [(1e6, 99), (1.0, 99), (2.0, 2000)])
async def test_a_steep_policy_stops_no_rescue(kernel, factor, attempts):
    """Whatever grows beyond all numbers is cut to the policy's maximum, and others are rescued with it (K8)."""
    app = kernel.app()

    @app.activity(retry=Retry(max_attempts=5000, factor=factor, maximum=30.0, jitter=0.0), start_to_close="1s")
    def work(): ...

    await workers.publish_activities(kernel.database, app.build().runnable.values())
    await kernel.enqueue()
    await kernel.enqueue("else", start_to_close=1.0)
    await (await kernel.claimer("work", "else")).take(2)
    await kernel.sql("update tasks set attempt = %s", [attempts])
    await later(kernel)
    assert (await tasks.rescue(kernel.database)).timed_out == 2
    wait = await kernel.one("select extract(epoch from max(scheduled_at) - now())::float8 from tasks")
    assert wait == pytest.approx(1.0 if factor == 1.0 else 30.0, abs=0.9)


async def test_what_becomes_a_new_task_waits_from_then(kernel):
    """A replace renews schedule_to_start too, though the task was first enqueued long ago (C6, K3)."""
    await kernel.enqueue(key="k", delay=86400.0)
    await kernel.sql("update tasks set enqueued_at = now() - interval '1 hour'")
    past = datetime.now(UTC) - timedelta(days=1)
    options = {"key": "k", "on_conflict": "replace", "lane": "a", "schedule_to_start": 60.0, "scheduled_at": past}
    await kernel.enqueue(**options)
    await tasks.promote(kernel.database)
    assert await overdue(kernel) == 0
    assert await kernel.states() == {"pending": 1}
