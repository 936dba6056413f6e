"""Cancel and retry by hand: what an operator or an application does to tasks that are there already (K13, O2)."""

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from harvest_core import HarvestError, TaskFailedError, current_task
from harvest_core.store.postgres import control, tasks
from harvest_core.store.postgres.control import Cancelled, Selection
from harvest_core.store.postgres.tasks import Finished, Released, Retried


async def cancel(kernel, *ids, reason="no longer wanted", **selection):
    return await control.cancel(kernel.database, Selection(list(ids) or None, **selection), reason)


async def retry(kernel, *ids, states=("failed",), since=None, **selection):
    return await control.retry(kernel.database, Selection(list(ids) or None, **selection), states, since)


async def end(kernel, claims, state="failed", error="it broke"):
    await tasks.write_outcomes(kernel.database, [(claim, Finished(state, error=error)) for claim in claims])


async def ended(kernel, task_id):
    return (await kernel.sql("select state::text, error from finished where id = %s", [task_id]))[0]


# ------------------------------------------------------------------------------------------------ cancel: waiting


@pytest.mark.matrix
async def test_what_does_not_run_ends_at_once_and_keeps_the_reason(kernel):
    """Scheduled, pending, blocked and suspect tasks are cancelled where they stand; their keys are free (K13)."""
    (scheduled,) = await kernel.enqueue(delay=60.0, key="k")
    (pending,) = await kernel.enqueue()
    _, blocked = await kernel.enqueue(count=2, lane="a")
    await tasks.promote(kernel.database)
    (suspect,) = await kernel.enqueue()
    await kernel.sql("update tasks set state = 'suspect', crashes = 1 where id = %s", [suspect])
    ids = [scheduled, pending, blocked, suspect]
    assert await cancel(kernel, *ids) == Cancelled(4, 0)
    for task_id in ids:
        assert await ended(kernel, task_id) == ("cancelled", "no longer wanted")
    (again,) = await kernel.enqueue(key="k")
    assert again != scheduled
    assert await cancel(kernel, *ids) == Cancelled(0, 0)


@pytest.mark.parametrize("by", ["client", "SQL"])
async def test_a_cancel_after_a_week_without_workers(kernel, by):
    """Nobody has made today's partition of what is finished: the cancel does (K13)."""
    (task,) = await kernel.enqueue()
    parts = await kernel.sql("select inhrelid::regclass::text from pg_inherits where inhparent = 'finished'::regclass")
    for (part,) in parts:
        await kernel.sql(f"drop table {part}")
    if by == "client":
        assert await cancel(kernel, task) == Cancelled(1, 0)
    else:
        assert await kernel.sql("select * from cancel(of_name => 'work')") == [(1, 0)]
    assert (await ended(kernel, task))[0] == "cancelled"


@pytest.mark.matrix
async def test_a_hundred_thousand_in_one_statement(kernel):
    """A bulk cancel by queue and name meets just these, and ends them in one statement (K13)."""
    await kernel.rows(await kernel.route(), 100_000)
    await kernel.rows(await kernel.route(queue="other"), 1)
    await kernel.rows(await kernel.route(name="else"), 1)
    assert await cancel(kernel, queue="default", activity="work") == Cancelled(100_000, 0)
    assert await kernel.states() == {"cancelled": 100_000, "pending": 2}


@pytest.mark.matrix
async def test_all_at_once_is_refused(kernel):
    """A bulk action without a filter is a slip, and changes nothing (O2)."""
    await kernel.enqueue()
    with pytest.raises(HarvestError) as caught:
        await cancel(kernel)
    assert str(caught.value) == "cancel of all tasks at once is refused; give ids, a queue or a name"
    with pytest.raises(HarvestError) as caught:
        await retry(kernel)
    assert str(caught.value) == "retry of all tasks at once is refused; give ids, a queue or a name"
    assert await kernel.states() == {"pending": 1}


async def test_a_task_that_starts_or_is_given_back_meanwhile_is_not_missed(kernel):
    """A cancel that waits for a task's row judges the task as it is then, not as it was (K13)."""
    (task_id,) = await kernel.enqueue()
    worker = await kernel.claimer("work")
    (claim,) = await worker.take()
    blocker = await kernel.connection(autocommit=False)
    await blocker.execute(
        "update tasks set state = 'scheduled', token = null, worker_id = null, scheduled_at = now() + interval '1 hour'"
    )
    waiting = asyncio.ensure_future(cancel(kernel, task_id))
    await kernel.until(lambda: _waits(kernel), "the cancel's wait")
    await blocker.commit()
    assert await waiting == Cancelled(1, 0)
    assert (await ended(kernel, claim.id))[0] == "cancelled"


async def _waits(kernel):
    return await kernel.one("select exists (select from pg_locks where not granted)")


# ------------------------------------------------------------------------------------------------ cancel: running


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Finished("completed", "1"), "completed"),
        (Finished("cancelled"), "cancelled"),
        (Retried(0.0, "broke meanwhile"), "cancelled"),
        (Released(), "cancelled"),
    ],
    ids=["completes anyway", "stops", "fails", "is given back at shutdown"],
)
async def test_a_running_task_is_asked_and_ends(kernel, outcome, state):
    """However its attempt ends, a task that was asked to stop gets no other; one that completes is completed (K13)."""
    (task_id,) = await kernel.enqueue()
    worker = await kernel.claimer("work")
    (claim,) = await worker.take()
    assert await cancel(kernel, task_id) == Cancelled(0, 1)
    assert await tasks.asked_to_stop(kernel.database, worker.identity.id) == {task_id}
    assert await cancel(kernel, task_id, reason="again") == Cancelled(0, 0)
    assert await tasks.write_outcomes(kernel.database, [(claim, outcome)]) == {task_id}
    # What has completed keeps no error, the reason of the cancel included.
    assert await ended(kernel, task_id) == (state, None if state == "completed" else "no longer wanted")


@pytest.mark.matrix
async def test_a_worker_that_dies_with_a_cancelled_task(kernel):
    """Rescue ends it as cancelled: no crash is counted and nobody runs it again (K12, K13)."""
    (task_id,) = await kernel.enqueue()
    worker = await kernel.claimer("work")
    await worker.take()
    await cancel(kernel, task_id)
    await kernel.sql("update workers set beaten_at = now() - interval '1 day'")
    assert (await tasks.rescue(kernel.database)).orphaned == 1
    assert await ended(kernel, task_id) == ("cancelled", "no longer wanted")


async def test_a_prefetched_task_ends_at_once(kernel):
    """What a worker holds without having started it does not run (K13, K15)."""
    (task_id,) = await kernel.enqueue()
    await (await kernel.claimer("work")).take()
    await kernel.sql("update tasks set prefetched_until = now() + interval '1 minute', attempt = 0, claimed_at = null")
    assert await cancel(kernel, task_id) == Cancelled(1, 0)


@pytest.mark.parametrize("notify", [True, False], ids=["told", "found"])
async def test_an_async_activity_is_cancelled(kernel, notify):
    """Told by a notification, or found within a second or so without any (K11, K13)."""
    app, started, stopped = kernel.app(harvest={"notify": notify}), asyncio.Event(), asyncio.Event()

    @app.activity
    async def forever():
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with app.client() as client, kernel.running(app):
        task = await client.enqueue(forever)
        await started.wait()
        begun = time.monotonic()
        assert await task.cancel("enough") == Cancelled(0, 1)
        with pytest.raises(TaskFailedError) as caught:
            await task.result(timeout=10)
        assert str(caught.value) == f"task {task.id} (forever) cancelled at attempt 1: enough"
        assert time.monotonic() - begun < 3.0
        assert stopped.is_set()


@pytest.mark.parametrize("ending", ["completes", "raises"])
async def test_a_plain_function_is_told_and_keeps_its_slot(kernel, ending):
    """It may complete all the same; until it returns nothing else runs in its slot, and its task is running (K13)."""
    app, started, told, go = kernel.app(concurrency=1), threading.Event(), threading.Event(), threading.Event()

    @app.activity
    def stubborn():
        task = current_task()
        started.set()
        while not task.cancelled:
            time.sleep(0.005)
        told.set()
        go.wait(10)
        if ending == "raises":
            raise ValueError("interrupted")
        return "done"

    @app.activity
    async def other():
        return 1

    async with app.client() as client, kernel.running(app) as worker:
        task = await client.enqueue(stubborn)
        second = await client.enqueue(other)
        await asyncio.to_thread(started.wait, 10)
        await task.cancel("enough")
        assert await asyncio.to_thread(told.wait, 10)
        assert worker._running.free == 0
        assert (await task.status()).state == "running"
        assert (await second.status()).state == "pending"
        go.set()
        assert await second.result(timeout=10) == 1
        await kernel.until(lambda: _finished(task))
        assert (await task.status()).state == {"completes": "completed", "raises": "cancelled"}[ending]


async def _finished(task):
    return (await task.status()).finished


async def test_an_async_activity_that_completes_anyway(kernel):
    """One that catches the cancellation and returns is completed, with its result (K13)."""
    app, started = kernel.app(), asyncio.Event()

    @app.activity
    async def nearly_done():
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "saved"

    async with app.client() as client, kernel.running(app):
        task = await client.enqueue(nearly_done)
        await started.wait()
        await task.cancel()
        assert await task.result(timeout=10) == "saved"


async def test_a_claim_that_is_cancelled_before_its_first_step(kernel):
    """It ends as cancelled though its function never ran (K13)."""
    app, ran = kernel.app(), []

    @app.activity
    async def work():
        ran.append(1)

    async with app.worker() as worker:
        (task_id,) = await kernel.enqueue()
        start = worker._running.start

        def start_and_cancel(claim, *rest):
            start(claim, *rest)
            worker._running.cancel([claim.id])

        worker._running.start = start_and_cancel
        kernel_poll = worker._poll

        async def poll_then_cancel():
            found = await kernel_poll()
            await cancel(kernel, task_id)
            return found

        worker._poll = poll_then_cancel
        await worker.run_once()
        await kernel.until(lambda: _gone(kernel))
    assert ran == []
    assert (await ended(kernel, task_id))[0] == "cancelled"


async def _gone(kernel):
    return await kernel.one("select count(*) = 0 from tasks")


async def test_a_cancelled_task_and_a_shutdown_at_once(kernel):
    """What was asked to stop and is then given back by the shutdown does not come back (K12, K13)."""
    app, started = kernel.app(shutdown_grace="0s"), threading.Event()

    @app.activity
    def deaf():
        started.set()
        threading.Event().wait(2)

    async with app.client() as client, kernel.running(app):
        task = await client.enqueue(deaf)
        await asyncio.to_thread(started.wait, 10)
        await task.cancel("enough")
        await kernel.until(lambda: _told(kernel))
    assert await ended(kernel, task.id) == ("cancelled", "enough")


async def _told(kernel):
    return await kernel.one("select count(*) = 1 from tasks where cancelled_at is not null")


# ------------------------------------------------------------------------------------------------ retry by hand


@pytest.mark.matrix
async def test_a_failed_a_cancelled_and_a_quarantined_task_go_back(kernel):
    """With all attempts, under their ids; the error stays to be read until the next end (K13, sidekiq#4594)."""
    failed, cancelled, crashed, done = await kernel.enqueue(count=4, max_attempts=3)
    worker = await kernel.claimer("work")
    first, second, _, fourth = await worker.take(4)
    await end(kernel, [first])
    await end(kernel, [second], "cancelled", "no")
    await kernel.sql("update workers set beaten_at = now() - interval '1 day'")
    await worker.finish([fourth])
    assert (await tasks.rescue(kernel.database, max_crashes=1)).quarantined == 1
    assert (await ended(kernel, crashed))[1].startswith("quarantined: 1 workers died while they ran it")
    assert await retry(kernel, failed, cancelled, crashed, done) == [failed, crashed]
    assert await retry(kernel, failed, cancelled, crashed, done, states=["cancelled"]) == [cancelled]
    rows = await kernel.sql("select id, state::text, attempt, max_attempts, crashes, error from tasks order by id")
    assert rows[:2] == [(failed, "pending", 0, 3, 0, "it broke"), (cancelled, "pending", 0, 3, 0, "no")]
    assert rows[2][:5] == (crashed, "pending", 0, 3, 0)
    claims = await (await kernel.claimer("work")).take(5)
    assert [claim.attempt for claim in claims] == [1, 1, 1]
    await end(kernel, [claims[0]], "failed", "broke again")
    assert (await ended(kernel, failed))[1] == "broke again"
    assert await kernel.one("select count(*) from finished where id = %s", [failed]) == 1


@pytest.mark.matrix
async def test_a_key_that_another_task_has_by_now(kernel):
    """The failed task stays as it is; a key that is free goes back with its task (K3, K13)."""
    (first,) = await kernel.enqueue(key="k")
    (free,) = await kernel.enqueue(key="free")
    await end(kernel, await (await kernel.claimer("work")).take(2))
    (second,) = await kernel.enqueue(key="k")
    assert await retry(kernel, first, free) == [free]
    assert (await ended(kernel, first))[0] == "failed"
    assert (await kernel.enqueue(key="free"), await kernel.enqueue(key="k")) == ([free], [second])


@pytest.mark.matrix
async def test_a_key_for_a_period_stays_taken(kernel):
    """A key in its period is another task's though that has ended; the task's own goes back with its period (K3)."""
    (first,) = await kernel.enqueue(key="k")
    worker = await kernel.claimer("work")
    await end(kernel, await worker.take())
    (second,) = await kernel.enqueue(key="k", key_period=3600.0)
    await end(kernel, await worker.take())
    assert await retry(kernel, first) == []
    assert await retry(kernel, second) == [second]
    await end(kernel, await worker.take())
    assert await kernel.enqueue(key="k") == [second]


@pytest.mark.matrix
async def test_a_lane_and_a_route_that_has_gone(kernel):
    """The task enters its lane as any other, and its route is made anew (K13)."""
    lane_ids = await kernel.enqueue(count=2, lane="a", traits='{"flags": ["vip"]}')
    await tasks.promote(kernel.database)
    worker = await kernel.claimer("work")
    for _ in lane_ids:
        await end(kernel, await worker.take())
    await tasks.remove_idle_routes(kernel.database)
    assert await kernel.one("select count(*) from routes") == 0
    assert await retry(kernel, *lane_ids) == lane_ids
    await tasks.promote(kernel.database)
    (claim,) = await worker.take(5)
    assert claim.route.traits == {"flags": ["vip"]}
    await worker.finish([claim])
    assert len(await worker.take(5)) == 1


@pytest.mark.matrix
async def test_twice_at_once(kernel):
    """Two operators retry the same tasks: each goes back once (K13)."""
    ids = await kernel.enqueue(count=50, key=None)
    await end(kernel, await (await kernel.claimer("work")).take(50))
    found = await asyncio.gather(*(retry(kernel, *ids) for _ in range(4)))
    assert sorted(task_id for part in found for task_id in part) == ids
    assert await kernel.states() == {"pending": 50}


@pytest.mark.matrix
async def test_in_bulk_across_days(kernel):
    """By name, queue and time of the end, over the boundary of two partitions (K13)."""
    ids = await kernel.enqueue(count=3)
    (other,) = await kernel.enqueue(name="else", queue="mail")
    await end(kernel, await (await kernel.claimer("work", "else", queues=["default", "mail"])).take(4))
    tomorrow = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    await kernel.sql("update finished set finished_at = %s where id = %s", [tomorrow, ids[2]])
    assert await retry(kernel, queue="mail") == [other]
    assert await retry(kernel, activity="work", since=tomorrow + timedelta(microseconds=1)) == []
    assert await retry(kernel, activity="work", since=tomorrow) == [ids[2]]
    assert await retry(kernel, since=tomorrow - timedelta(days=2)) == ids[:2]


async def test_a_worker_runs_what_was_put_back(kernel):
    """A sleeping worker hears of it and runs it (K11, K13)."""
    app, broken = kernel.app(poll_interval="1h"), [True]

    @app.activity(max_attempts=1)
    async def flaky():
        if broken.pop() if broken else False:
            raise ValueError("not yet")
        return "now"

    async with app.client() as client, kernel.running(app):
        task = await client.enqueue(flaky)
        with pytest.raises(TaskFailedError):
            await task.result(timeout=10)
        await kernel.until(lambda: kernel.one("select bool_or(asleep) from workers"))
        assert await task.retry() is True
        assert await task.result(timeout=10) == "now"
        assert await task.retry() is False


@pytest.mark.matrix
async def test_what_a_retry_from_sql_takes_by_itself(kernel):
    """Named by ids failed and cancelled tasks, by anything else failed ones alone (K13)."""
    failed, cancelled, done = await kernel.enqueue(count=3)
    first, second, third = await (worker := await kernel.claimer("work")).take(3)
    await end(kernel, [first])
    await end(kernel, [second], "cancelled", "no")
    await worker.finish([third])
    assert await kernel.sql("select retry_finished(of_name => 'work')") == [(failed,)]
    assert await kernel.sql("select retry_finished(of_name => 'work')") == []
    assert await kernel.sql(f"select retry_finished(array[{failed}, {cancelled}, {done}])") == [(cancelled,)]


async def test_what_a_retry_cannot_be_asked(kernel):
    """A state that cannot be put back and a time without a zone are refused, in words (O1)."""
    async with kernel.app().client() as client:
        with pytest.raises(HarvestError) as caught:
            await client.retry(1, states=["completed"])
        assert str(caught.value) == "retry of 'completed' tasks: only failed and cancelled tasks can be put back"
        with pytest.raises(HarvestError) as caught:
            await client.retry(since=datetime(2026, 1, 1))
        assert str(caught.value) == (
            "retry since datetime.datetime(2026, 1, 1, 0, 0): expected a datetime with a time zone"
        )


@pytest.mark.parametrize("what", ["release", "retry", "start", "replace"])
async def test_a_cancel_of_several_deadlocks_with_no_one(kernel, what):
    """Whoever takes several tasks takes them in the order of their ids, as a cancel does, even where it ends some."""
    (first,), (second,) = [await kernel.enqueue(key=key) for key in ("z", "y")]
    worker = await kernel.claimer("work")
    claims = [] if what == "replace" else await worker.take(2, prefetch=30.0 if what == "start" else None)
    if what in ("release", "retry"):
        await kernel.sql("select * from cancel(array[%s])", [first])
    if what == "start":
        await kernel.sql("update tasks set close_by = now(), schedule_to_close = 1 where id = %s", [first])
    cancel = await kernel.connection(autocommit=False)
    await cancel.execute("select from tasks where id = %s for update", [first])
    both = {
        "release": lambda: tasks.write_outcomes(kernel.database, [(claim, Released()) for claim in claims]),
        "retry": lambda: tasks.write_outcomes(kernel.database, [(claim, Retried(1.0, "no")) for claim in claims]),
        "start": lambda: tasks.start_claims(kernel.database, claims[::-1]),
        "replace": lambda: kernel.sql(
            "select enqueue_many(array['work', 'work'], array['[]', '[]']::jsonb[], array['{}', '{}']::jsonb[], "
            "array[null, null], null, null, null, array['y', 'z'], null, null, null, null, "
            "conflicts => array['replace', 'replace'])"
        ),
    }[what]
    taking = asyncio.create_task(both())
    watcher = await kernel.connection()
    waits = "select count(*) = 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"

    async def waiting():
        return (await (await watcher.execute(waits)).fetchone())[0]

    await kernel.until(waiting)
    await cancel.execute("select from tasks where id = %s for update", [second])
    await cancel.commit()
    await taking
