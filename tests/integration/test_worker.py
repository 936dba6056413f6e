"""A worker's life beside a real database: run, wake, lose, stop (K8, K10, K11, K12, K13, K14, W4)."""

import asyncio
import threading
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from harvest_core import current_task
from harvest_core.errors import HookError, LostClaimError
from harvest_core.model import Clause, Retry, Turn
from harvest_core.plugin import Plugin, hookimpl
from harvest_core.store.postgres import embedded, tasks
from harvest_core.worker.worker import Worker

SOON = Retry(initial=0.01, jitter=0)
FOR_EVER = "1h"
CUT = (
    "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
    "and application_name = 'harvest'"
)


class Gate:
    """An activity's inside: says that it began, waits until it may end."""

    def __init__(self):
        self.began, self.open = asyncio.Event(), asyncio.Event()

    async def pass_(self):
        self.began.set()
        await self.open.wait()


async def state(kernel, *wanted):
    return await kernel.until(lambda: _is(kernel, wanted), f"{wanted}")


async def _is(kernel, wanted):
    return set(found := await kernel.states()) == set(wanted) and found


def value(build, name, **labels):
    return build.registry.get_sample_value(name, labels or None)


# ------------------------------------------------------------------------------------------------ run_once


async def test_run_once_drains_follow_ups_in_other_queues(kernel):
    """Tasks that tasks enqueue, in other queues too, run before it returns; what is not polled or due stays (K14)."""
    app = kernel.app(queues=["a", "b"])
    ran = []

    @app.activity(queue="a")
    async def first(depth: int):
        ran.append(("a", depth))
        await client.enqueue(second, depth)

    @app.activity(queue="b")
    def second(depth: int):
        ran.append(("b", depth))
        asyncio.run_coroutine_threadsafe(follow(depth), loop).result()

    async def follow(depth):
        if depth:
            await client.enqueue(first, depth - 1)

    loop = asyncio.get_running_loop()
    async with app.client() as client, app.worker() as worker:
        await client.enqueue(first, 2)
        await client.enqueue(first, 9, queue="elsewhere")
        await client.enqueue(first, 9, delay="1h")
        await worker.run_once()
        assert ran == [("a", 2), ("b", 2), ("a", 1), ("b", 1), ("a", 0), ("b", 0)]
        assert await kernel.states() == {"completed": 6, "pending": 1, "scheduled": 1}
        await client.enqueue(second, 0)
        await worker.run_once()
        assert ran[-1] == ("b", 0)


async def test_run_once_obeys_pause(kernel):
    """A paused queue is not drained (K13, K14)."""
    app = kernel.app(queues=["a", "b"])

    @app.activity(queue="a")
    async def work(): ...

    async with app.client() as client, app.worker() as worker:
        await client.pause_queue("a")
        await client.enqueue(work)
        await client.enqueue(work, queue="b")
        await worker.run_once()
        assert await kernel.states() == {"pending": 1, "completed": 1}
        assert await client.resume_queue("a") is True
        await worker.run_once()
        assert await kernel.states() == {"completed": 2}


async def test_run_once_is_no_farewell(kernel):
    """A worker that drained once goes on claiming, so it is not shown as draining."""
    app = kernel.app()

    @app.activity
    async def work(): ...

    async with app.worker() as worker:
        await worker.run_once()
        assert await kernel.sql("select draining from workers") == [(False,)]


# ------------------------------------------------------------------------------------------------ failures


async def test_retries_back_off_until_the_last_attempt(kernel):
    """Each failure schedules the next attempt after its wait; the last one keeps error and traceback (K8)."""
    app = kernel.app()
    attempts = []

    @app.activity(max_attempts=3, retry=Retry(initial=0.01, factor=2, jitter=0))
    async def work():
        attempts.append(current_task().attempt)
        raise ValueError(f"no {current_task().attempt}")

    async with app.client() as client, kernel.running(app):
        task = await client.enqueue(work)
        await state(kernel, "failed")
        found = await task.status()
    assert attempts == [1, 2, 3]
    assert (found.state, found.attempt, found.error) == ("failed", 3, "ValueError: no 3")
    assert 'raise ValueError(f"no {current_task().attempt}")' in found.traceback


async def test_exotic_ends_of_activities(kernel):
    """Cancelling oneself, leaving the process, results that cannot be stored: failures, and nobody else suffers."""
    app = kernel.app(concurrency=5)

    @app.activity(max_attempts=1)
    async def cancels():
        raise asyncio.CancelledError

    @app.activity(max_attempts=1)
    async def leaves():
        raise SystemExit(1)

    @app.activity(max_attempts=1)
    def leaves_thread():
        raise SystemExit(1)

    @app.activity(max_attempts=1)
    def exhausts():
        return next(iter([]))

    @app.activity
    def unencodable():
        return object()

    @app.activity
    def nul():
        return {"a": ["\x00"]}

    @app.activity(max_attempts=1)
    def nul_error():
        raise ValueError("\x00\ud800")

    @app.activity
    async def fine():
        return 1

    async with app.client() as client, app.worker() as worker:
        made = {}
        for activity in (cancels, leaves, leaves_thread, exhausts, unencodable, nul, nul_error, fine, fine):
            made[activity.name] = await client.enqueue(activity)
        await worker.run_once()
        errors = {name: (await task.status()).error for name, task in made.items()}
    assert errors["cancels"] == "CancelledError: the activity cancelled itself"
    assert errors["leaves"] == errors["leaves_thread"] == "SystemExit: 1"
    assert errors["exhausts"].startswith("RuntimeError: exhausts raised StopIteration")
    assert errors["unencodable"].startswith("PayloadError: the result of 'unencodable': not JSON: ")
    assert errors["nul"].startswith("PayloadError: the result of 'nul': holds a NUL character")
    assert errors["nul_error"] == "ValueError: \\x00\\ud800"
    assert errors["fine"] is None
    assert await kernel.states() == {"failed": 7, "completed": 2}


async def test_a_result_that_only_the_server_refuses_fails_its_task_alone(kernel):
    """Nested deeper than PostgreSQL's stack: that task fails with its words, the batch it was in is written."""
    import sys

    app = kernel.app(concurrency=5)

    @app.activity
    async def deep():
        found = []
        for _ in range(20_000):
            found = [found]
        return found

    @app.activity
    async def fine():
        return 1

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(50_000)  # what later Pythons allow at once
    try:
        async with app.client() as client, app.worker() as worker:
            tasks_ = [await client.enqueue(activity) for activity in (fine, deep, fine)]
            await asyncio.wait_for(worker.run_once(), 15)
            found = await tasks_[1].status()
    finally:
        sys.setrecursionlimit(limit)
    assert await kernel.states() == {"failed": 1, "completed": 2}
    assert "stack depth limit exceeded" in found.error


async def test_start_to_close_of_async_and_plain_activities(kernel):
    """Time over: the attempt failed and is tried again; a thread that cannot be stopped is told and fenced (K8, K1)."""
    app = kernel.app(concurrency=4)
    may_end, told = threading.Event(), []

    @app.activity(start_to_close="50ms", max_attempts=1)
    async def slow():
        await asyncio.Event().wait()

    @app.activity(start_to_close="50ms", max_attempts=1)
    def slow_thread():
        task = current_task()
        may_end.wait(15)
        told.append(task.cancelled)
        return "late"

    async with app.client() as client, kernel.running(app):
        made = [await client.enqueue(slow), await client.enqueue(slow_thread)]
        await state(kernel, "failed")
        may_end.set()
        errors = [(await task.status()).error for task in made]
        await kernel.until(lambda: asyncio.sleep(0, told), "the thread's end")
    assert errors == ["TimeoutError: start_to_close of 0.05 s has passed"] * 2
    assert told == [True]
    assert await kernel.sql("select distinct result from finished") == [(None,)]


async def test_an_attempt_beside_a_leftover_thread_keeps_its_slot(kernel):
    """A second attempt runs while the first one's thread will not end; the end of one is not the end of the other."""
    app = kernel.app(concurrency=2)
    gates = {1: threading.Event(), 2: threading.Event()}
    began = {1: threading.Event(), 2: threading.Event()}
    ended = threading.Event()

    @app.activity(max_attempts=2, retry=SOON)
    def work():
        attempt = current_task().attempt
        began[attempt].set()
        gates[attempt].wait(15)
        if attempt == 1:
            ended.set()
        return attempt

    async with app.client() as client:
        async with app.worker() as worker:
            loop = asyncio.ensure_future(worker.run())
            task = await client.enqueue(work, start_to_close="200ms")
            assert await asyncio.to_thread(began[1].wait, 10)
            await kernel.sql("update tasks set start_to_close = null, deadline = null")  # the second one has time
            assert await asyncio.to_thread(began[2].wait, 10)
            gates[1].set()
            assert await asyncio.to_thread(ended.wait, 10)
            await asyncio.sleep(0.05)  # the loop learns of the thread's end
            worker.stop()
            asyncio.get_running_loop().call_later(0.2, gates[2].set)
            await loop
        assert await task.result(timeout=1) == 2


async def test_a_missing_heartbeat_and_details(kernel):
    """Without a heartbeat in time the attempt fails; with them it may take long, and people see the details (K8)."""
    app = kernel.app()
    gate = Gate()

    @app.activity(heartbeat="60ms", max_attempts=1)
    async def silent():
        await asyncio.Event().wait()

    @app.activity(heartbeat="10s")
    async def loud():
        await current_task().heartbeat({"done": 1})
        await gate.pass_()

    async with app.client() as client, kernel.running(app):
        first, second = await client.enqueue(silent), await client.enqueue(loud)
        await gate.began.wait()
        assert (await second.status()).details == {"done": 1}
        gate.open.set()
        await state(kernel, "failed", "completed")
        assert (await first.status()).error == "TimeoutError: no heartbeat for 0.06 s"


async def test_a_heartbeat_of_a_lost_claim_says_so(kernel):
    """An attempt whose claim was taken away learns it at its next heartbeat, and its end changes nothing (K1)."""
    app = kernel.app()
    gate, said = Gate(), []

    @app.activity
    async def work():
        await gate.pass_()
        try:
            await current_task().heartbeat()
        except LostClaimError as error:
            said.append((str(error), current_task().cancelled))
        return "late"

    build = app.build()
    async with app.client() as client, kernel.running(build):
        task = await client.enqueue(work)
        await gate.began.wait()
        await kernel.sql("update tasks set token = nextval('tokens')")
        gate.open.set()
        await kernel.until(lambda: asyncio.sleep(0, value(build, "harvest_lost_claims_total")), "the lost claim")
        assert (await task.status()).state == "running"
    assert said == [
        (f"task {task.id}: this attempt's claim was lost; another worker may have it, so stop", True),
    ]


async def test_plain_functions_run_at_the_workers_concurrency(kernel):
    """Twelve blocking calls at once in twelve threads, whatever the cores (K10)."""
    app = kernel.app(concurrency=12)
    together = threading.Barrier(12, timeout=10)

    @app.activity(max_attempts=1)
    def work():
        together.wait()
        return current_task().worker.name

    async with app.client() as client, app.worker() as worker:
        for _ in range(12):
            await client.enqueue(work)
        await worker.run_once()
    assert await kernel.states() == {"completed": 12}


async def test_middleware_and_task_of_a_run(kernel):
    """Around every attempt, outermost first, with the task's facts (design: fixed names)."""
    app = kernel.app(name="box")
    seen = []

    @app.middleware
    async def outer(task, call_next):
        seen.append((task.name, task.queue, task.attempt, task.worker.name, task.flags))
        return await call_next()

    @app.activity
    def work():
        return 1

    async with app.worker() as worker:
        await kernel.enqueue(traits='{"flags": ["b", "a"]}')
        await kernel.enqueue(traits='{"flags": "one"}')
        await kernel.enqueue(traits='{"flags": 5}')
        await worker.run_once()
    assert seen == [("work", "default", 1, "box", flags) for flags in (("b", "a"), ("one",), ())]


# ------------------------------------------------------------------------------------------------ waking


async def asleep(kernel):
    await kernel.until(lambda: kernel.one("select coalesce(bool_and(asleep), false) from workers"), "sleep")


async def test_new_work_wakes_an_idle_worker(kernel):
    """With a poll interval of an hour, a task starts at once all the same, again and again (K11)."""
    app = kernel.app(poll_interval=FOR_EVER, queues=["a", "b"])

    @app.activity(queue="a")
    async def work(): ...

    async with app.client() as client, kernel.running(app):
        for queue in ("a", "b", "a"):
            await asleep(kernel)
            task = await client.enqueue(work, queue=queue)
            await task.result(timeout=10)


async def test_many_tasks_wake_once(kernel):
    """A batch for a sleeping worker is one notification; none is sent while the worker is busy (K11)."""
    app = kernel.app(poll_interval=FOR_EVER, concurrency=1)
    gate = Gate()

    @app.activity
    async def work():
        await gate.pass_()

    listener = await kernel.connection()
    await listener.execute("listen harvest")
    async with app.client(), kernel.running(app):
        await asleep(kernel)
        await kernel.sql("select count(enqueue('work')) from generate_series(1, 50)")
        await gate.began.wait()
        await kernel.until(lambda: kernel.one("select not bool_or(asleep) from workers"), "being awake")
        await kernel.enqueue(count=50)
        await kernel.sql("select pg_notify('harvest', 'end')")
        heard = []
        async for notification in listener.notifies(timeout=5):
            if notification.payload == "end":
                break
            heard.append(notification.payload)
        assert heard == ["default"]
        gate.open.set()
        await state(kernel, "completed")


async def test_polling_alone_is_enough(kernel):
    """With notify = false nobody listens, nobody is told, and tasks run all the same (K11)."""
    app = kernel.app(harvest={"notify": False}, poll_interval="20ms")

    @app.activity
    async def work(): ...

    build = app.build()
    async with app.client() as client, kernel.running(build):
        await (await client.enqueue(work)).result(timeout=10)
        await (await client.enqueue(work, delay="50ms")).result(timeout=10)
        assert await kernel.one("select count(*) from pg_stat_activity where query ilike 'listen%'") == 0
        assert value(build, "harvest_listening") == 0
        assert await kernel.sql("select asleep from workers") == [(False,)]


async def listener_of(kernel):
    rows = await kernel.sql(
        "select pid from pg_stat_activity where query in ('LISTEN \"harvest\"', 'listen \"harvest\"')"
    )
    return rows and rows[0][0]


async def test_the_worker_listens_again(kernel):
    """Cut off, it listens again within 5 s and looks at once; a gauge tells meanwhile (K11).

    Public reports of slow days after a reconnection: procrastinate#1425, graphile/worker#541, celery#8030.
    """
    app = kernel.app(poll_interval=FOR_EVER)

    @app.activity
    async def work(): ...

    build = app.build()
    async with app.client() as client, kernel.running(build):
        pid = await kernel.until(lambda: listener_of(kernel), "the listener")
        await asleep(kernel)
        await kernel.sql("select pg_terminate_backend(%s)", [pid])
        await kernel.until(lambda: asyncio.sleep(0, value(build, "harvest_listening") == 0), "the gauge")
        missed = await client.enqueue(work)
        await missed.result(timeout=10)
        await asleep(kernel)
        await (await client.enqueue(work)).result(timeout=10)
        assert value(build, "harvest_listening") == 1


async def test_a_sleep_mark_that_was_not_written_is_written_later(kernel):
    """The connection breaks under the mark: the worker must not sleep an hour without being woken (K11)."""
    app = kernel.app(poll_interval=FOR_EVER, concurrency=1)
    gate = Gate()

    @app.activity
    async def work():
        await gate.pass_()

    blocker = await kernel.connection(autocommit=False)
    async with app.client() as client, kernel.running(app):
        await asleep(kernel)
        await client.enqueue(work)
        await kernel.until(lambda: kernel.one("select not bool_or(asleep) from workers"), "being awake")
        await blocker.execute("select 1 from workers for update")
        gate.open.set()
        pid = await kernel.until(lambda: _marking(kernel), "the mark")
        await kernel.sql("select pg_terminate_backend(%s)", [pid])
        await blocker.rollback()
        await asleep(kernel)
        await (await client.enqueue(work)).result(timeout=10)


async def _marking(kernel):
    rows = await kernel.sql(
        "select pid from pg_stat_activity where wait_event_type = 'Lock' and query like '%%asleep = coalesce%%'"
    )
    return rows and rows[0][0]


async def test_a_delay_is_kept_while_polls_are_rare(kernel):
    """Due times are met by the clock, not by the poll interval: delayed tasks and retries (design: The claim)."""
    app = kernel.app(poll_interval=FOR_EVER)

    @app.activity(max_attempts=2, retry=Retry(initial=0.1, jitter=0))
    async def work():
        if current_task().attempt == 1:
            raise ValueError("once more")

    async with app.client() as client, kernel.running(app):
        await asleep(kernel)
        task = await client.enqueue(work, delay="100ms")
        await task.result(timeout=10)


# ------------------------------------------------------------------------------------------------ leases


async def test_two_workers_of_one_name_have_two_ids(kernel):
    """The name is a label; every start has a fresh id (K1)."""
    app = kernel.app(name="box")

    @app.activity
    async def work(): ...

    async with app.worker() as first, app.worker() as second:
        assert first.identity.id != second.identity.id
        assert await kernel.sql("select name, count(*) from workers group by name") == [("box", 2)]
    assert await kernel.one("select count(*) from workers") == 0


@pytest.mark.parametrize("how", ["pruned", "aged"])
async def test_a_worker_taken_for_dead_returns_under_a_fresh_id(kernel, how):
    """Its row gone or too old: it cancels its own work, returns with another id, and works on (K12)."""
    app = kernel.app(worker_ttl="500ms")
    gates, cancelled = [], []

    @app.activity
    async def work():
        gate = Gate()
        gates.append(gate)
        try:
            await gate.pass_()
        except asyncio.CancelledError:
            cancelled.append(current_task().attempt)
            raise
        return current_task().worker.id

    async with app.client() as client, kernel.running(app) as worker:
        old = worker.identity.id
        task = await client.enqueue(work)
        await kernel.until(lambda: asyncio.sleep(0, gates), "the start")
        if how == "pruned":
            await kernel.sql("delete from workers")
        else:
            await kernel.sql("update workers set beaten_at = beaten_at - interval '1 h'")
        await kernel.until(lambda: asyncio.sleep(0, len(gates) == 2), "the second start")
        assert cancelled == [1]
        assert worker.identity.id != old
        gates[1].open.set()
        assert await task.result(timeout=10) == worker.identity.id
        assert (await task.status()).worker_id == worker.identity.id


async def test_a_worker_that_cannot_beat_cancels_its_own_work(kernel):
    """Beats blocked for longer than its ttl: by its own clock it must stop, before others double its work (K12)."""
    app = kernel.app(worker_ttl="600ms", shutdown_grace="10ms", concurrency=1)
    began, cancelled = asyncio.Event(), asyncio.Event()

    @app.activity
    async def work():
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    blocker = await kernel.connection(autocommit=False)
    async with app.client() as client, kernel.running(app) as worker:
        old = worker.identity.id
        await client.enqueue(work)
        await began.wait()
        await blocker.execute("select 1 from workers for update")
        await asyncio.wait_for(cancelled.wait(), 10)
        await blocker.rollback()
        await kernel.until(lambda: asyncio.sleep(0, worker.identity.id != old), "the fresh id")


async def test_a_dead_workers_tasks_are_run_by_another(kernel):
    """Silent for its ttl, it is dead to the fleet: a peer takes over, and its late end is void (K12, K1)."""
    ours, theirs = kernel.app(worker_ttl="1h", concurrency=1), kernel.app(worker_ttl="500ms", concurrency=1)
    gate, workers_seen = Gate(), []

    async def work():
        workers_seen.append(current_task().worker.id)
        if len(workers_seen) == 1:
            await gate.pass_()
            return "first"
        return "second"

    for app in (ours, theirs):
        app.activity(work)
    build = ours.build()
    async with ours.client() as client, kernel.running(build) as silent:
        task, old = await client.enqueue("work"), silent.identity.id
        await gate.began.wait()
        await kernel.until(lambda: kernel.one("select bool_and(beaten_at > started_at) from workers"), "the first beat")
        # Its next beat is twenty minutes away; to the others it promised one within 100 ms.
        await kernel.sql("update workers set ttl = 0.1, beaten_at = beaten_at - interval '1 s'")
        async with kernel.running(theirs):
            assert await task.result(timeout=10) == "second"
        gate.open.set()
        await kernel.until(lambda: asyncio.sleep(0, value(build, "harvest_lost_claims_total")), "the lost claim")
        found = await task.status()
    assert (found.result, found.attempt) == ("second", 2)
    assert workers_seen[0] == old != workers_seen[1]


async def test_a_long_task_is_never_taken_over_while_its_worker_lives(kernel):
    """Longer than several ttls: the beats keep it, and a peer's rescue leaves it alone (pgqueuer#430, #323)."""
    app = kernel.app(worker_ttl="300ms")
    gate, starts = Gate(), []

    @app.activity
    async def work():
        starts.append(1)
        await gate.pass_()

    async with app.client() as client, kernel.running(app), kernel.running(app):
        task = await client.enqueue(work)
        await gate.began.wait()
        first = await kernel.one("select min(beaten_at) from workers")
        await kernel.until(lambda: kernel.one("select min(beaten_at) > %s + interval '1 s' from workers", [first]))
        gate.open.set()
        await task.result(timeout=10)
    assert (starts, (await kernel.sql("select attempt from finished"))) == ([1], [(1,)])


async def test_a_blocked_loop_loses_nothing(kernel):
    """An activity that blocks the event loop for longer than the ttl: the thread's beats go on (K12)."""
    app = kernel.app(worker_ttl="300ms")

    @app.activity
    async def work():
        time.sleep(0.7)  # noqa: ASYNC251 - the fault under test

    async with app.client() as client, kernel.running(app), kernel.running(app):
        task = await client.enqueue(work)
        await task.result(timeout=10)
        assert (await task.status()).attempt == 1


# ------------------------------------------------------------------------------------------------ stopping


async def test_a_graceful_stop_finishes_what_runs_and_claims_nothing(kernel):
    """Stop: running tasks end well within the grace, waiting ones stay untouched (K12, dbos-transact-py#804)."""
    app = kernel.app(concurrency=1)
    gate = Gate()

    @app.activity
    async def work():
        await gate.pass_()
        return "done"

    async with app.client() as client:
        async with app.worker() as worker:
            loop = asyncio.ensure_future(worker.run())
            first, second = await client.enqueue(work), await client.enqueue(work)
            await gate.began.wait()
            worker.stop()
            await kernel.until(lambda: kernel.one("select draining from workers"), "the draining mark")
            gate.open.set()
            await loop
        assert await first.result(timeout=1) == "done"
        found = await second.status()
        assert (found.state, found.attempt) == ("pending", 0)
    assert await kernel.one("select count(*) from workers") == 0


@pytest.mark.parametrize("how", ["grace", "second stop", "exit"])
async def test_what_does_not_end_in_time_is_given_back(kernel, how, monkeypatch):
    """Grace over, or stopped twice: cancelled and released with the attempt restored (K12, pgqueuer#630)."""
    monkeypatch.setattr("harvest_core.worker.worker._AFTER_GRACE", 10.0)  # a slow machine writes as late as that
    app = kernel.app(shutdown_grace="50ms" if how == "grace" else "1h", concurrency=2)
    began, cancelled, may_end = asyncio.Event(), [], threading.Event()

    @app.activity
    async def work():
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(current_task().cancelled)
            raise

    @app.activity
    def thread():
        task = current_task()
        while not task.cancelled and not may_end.wait(0.01):
            pass

    async with app.client() as client:
        async with app.worker() as worker:
            loop = asyncio.ensure_future(worker.run())
            made = [await client.enqueue(work), await client.enqueue(thread)]
            await began.wait()
            await state(kernel, "running")
            if how == "exit":
                loop.cancel()
            else:
                worker.stop()
                if how == "second stop":
                    worker.stop()
                await asyncio.wait_for(loop, 5)
        may_end.set()
        for task in made:
            found = await task.status()
            assert (found.state, found.attempt, found.worker_id, found.error) == ("pending", 0, None, None)
    assert cancelled == [True]


async def test_an_activity_that_will_not_die_does_not_hold_the_exit(kernel):
    """It swallows every cancellation: the worker leaves within the grace plus 2 s, and others rescue (K12)."""
    app = kernel.app(shutdown_grace="10ms")
    began, free = asyncio.Event(), asyncio.Event()

    @app.activity
    async def stubborn():
        began.set()
        while not free.is_set():
            with suppress(asyncio.CancelledError):
                await free.wait()

    async with app.client() as client:
        async with app.worker() as worker:
            loop = asyncio.ensure_future(worker.run())
            task = await client.enqueue(stubborn)
            await began.wait()
            worker.stop()
            begun = time.monotonic()
            await loop
        assert time.monotonic() - begun < 2.01
        assert (await tasks.rescue(kernel.database)).orphaned == 1
        assert (await task.status()).state == "pending"
    free.set()


async def test_a_database_that_swallows_packets_does_not_hold_the_exit(kernel):
    """The network drops everything without a word: exit within the grace plus 2 s (K12, procrastinate#1513)."""
    async with swallowing_proxy(kernel.dsn) as (dsn, swallow):
        app = kernel.app(harvest={"dsn": dsn}, shutdown_grace="100ms", poll_interval="10ms")
        gate = Gate()

        @app.activity
        async def work():
            await gate.pass_()

        async with app.worker() as worker:
            loop = asyncio.ensure_future(worker.run())
            await kernel.enqueue()
            await gate.began.wait()
            swallow.set()
            await asyncio.sleep(0.05)  # so that a poll is on its way
            begun = time.monotonic()
            worker.stop()
            await loop
        assert time.monotonic() - begun < 2.1 + 0.25  # a loaded machine's share
        gate.open.set()


@asynccontextmanager
async def swallowing_proxy(dsn):
    """Give a DSN that leads to the server through here, and an event from which on nothing passes any more."""
    parts, swallow, writers = conninfo_to_dict(dsn), asyncio.Event(), []

    async def pump(reader, writer):
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                if not swallow.is_set():
                    writer.write(data)
                    await writer.drain()

    async def serve(reader, writer):
        host, port = parts["host"], parts.get("port", 5432)
        if host.startswith("/"):
            there = await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        else:
            there = await asyncio.open_connection(host, port)
        writers.extend([writer, there[1]])
        await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield make_conninfo("", **{**parts, "host": "127.0.0.1", "port": port}), swallow
    finally:
        server.close()
        for writer in writers:
            writer.close()


# ------------------------------------------------------------------------------------------------ database away


async def test_cut_connections_lose_nothing_and_finish_nothing_twice(kernel):
    """All of the worker's connections are cut again and again: every task ends, once (Bad input)."""
    app = kernel.app(concurrency=10)
    runs = []

    @app.activity(retry=SOON)
    async def work(number: int):
        runs.append(number)
        await asyncio.sleep(0.002)
        return number

    await kernel.sql("select count(enqueue('work', args => jsonb_build_array(i))) from generate_series(1, 400) i")
    async with kernel.running(app):
        for _ in range(6):
            count = len(runs)
            await kernel.until(lambda: asyncio.sleep(0, len(runs) > count + 20 or len(set(runs)) == 400))  # noqa: B023
            await kernel.sql(CUT)
        await kernel.until(lambda: kernel.one("select count(*) = 400 from finished"), "400 finished")
    assert await kernel.sql("select count(*), count(distinct id), count(distinct args) from finished") == [(400,) * 3]
    assert set(runs) == set(range(1, 401))


async def test_a_finish_that_fails_for_a_while_is_tried_again(kernel, caplog):
    """The server refuses every write, as after a failover: the outcome waits, the task runs once (solid_queue#748)."""
    app = kernel.app()
    gate, runs = Gate(), []

    @app.activity
    async def work():
        runs.append(1)
        await gate.pass_()
        return "kept"

    name = await kernel.one("select current_database()")
    async with kernel.running(app):
        (task,) = await kernel.enqueue()
        await gate.began.wait()
        await kernel.sql(f"alter database {name} set default_transaction_read_only = on")
        await kernel.sql(CUT)
        gate.open.set()
        await kernel.until(
            lambda: asyncio.sleep(0, "read-only transaction" in caplog.text and "not written yet" in caplog.text)
        )
        await kernel.sql(f"alter database {name} reset default_transaction_read_only")
        await kernel.sql(CUT)
        await state(kernel, "completed")
    assert await kernel.sql("select id, result, attempt from finished") == [(task, "kept", 1)]
    assert runs == [1]


async def test_a_server_that_crashes_and_returns(kernel_server, tmp_path):
    """The server is killed in the middle and started again: every task ends, once, by the same worker."""
    from harvest_core import Harvest

    server, crash = kernel_server
    app = Harvest(
        {
            "harvest": {"dsn": server.dsn},
            "worker": {"concurrency": 5, "poll_interval": "50ms", "worker_ttl": "2s", "shutdown_grace": "5s"},
        }
    )
    began = asyncio.Event()

    @app.activity(retry=SOON)
    async def work(number: int):
        began.set()
        await asyncio.sleep(0.005)
        return number

    async with app.client() as client, app.worker() as worker:
        loop = asyncio.ensure_future(worker.run())
        made = [await client.enqueue(work, number) for number in range(100)]
        await began.wait()
        await asyncio.to_thread(crash)
        async with asyncio.timeout(30):
            for number, task in enumerate(made):
                while True:
                    with suppress(Exception):
                        assert await task.result(timeout=20) == number
                        break
        worker.stop()
        await loop
    with psycopg.connect(server.dsn) as connection:
        assert connection.execute("select count(*), count(distinct id) from harvest.finished").fetchone() == (100, 100)


@pytest.fixture
def kernel_server(tmp_path):
    """Give a server of one's own, and a way to crash it and start it again."""
    import os
    import signal

    directory = tmp_path / "server"
    with embedded.start(directory, settings={"shared_buffers": "16MB"}) as server:

        def crash():
            pid = int((directory / "data" / "postmaster.pid").read_text().split()[0])
            os.kill(pid, signal.SIGQUIT)
            while Path(f"/proc/{pid}").exists() and _alive(pid):
                time.sleep(0.01)
            embedded.start(directory, settings={"shared_buffers": "16MB"}).close()

        yield server, crash


def _alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


# ------------------------------------------------------------------------------------------------ policies


class Divides(Plugin):
    """A policy whose clause raises for some routes."""

    slug = "divides"

    @hookimpl
    def filter_clause(self, tick):
        text = "coalesce(100 / (r.traits ->> 'by')::integer > {least}, true)"
        return [Clause(text, {"least": 0}, lambda route: ())]


async def test_a_clause_that_raises_closes_only_the_routes_it_raises_on(kernel):
    """Rows with odd traits are ineligible and visible as such; others go on (graphile_worker_rs seed text)."""
    app = kernel.app(plugins=[Divides])

    @app.activity
    async def work(): ...

    build = app.build()
    async with kernel.running(build):
        for traits in ("{}", '{"by": 0}', '{"by": 5}', '{"by": "odd"}', '{"by": [1]}', '{"by": null}'):
            await kernel.enqueue(traits=traits)
        await kernel.until(lambda: kernel.one("select count(*) = 3 from finished"), "three ends")
        assert value(build, "harvest_closed_routes") == 3
        await kernel.enqueue(traits='{"by": 7}')
        await kernel.enqueue(traits='{"by": "worse"}')
        await kernel.until(lambda: kernel.one("select count(*) = 4 from finished"), "four ends")
    assert await kernel.states() == {"completed": 4, "pending": 4}


class Moody(Plugin):
    """A policy whose hooks raise while `broken` names them."""

    slug = "moody"
    broken: str = ""

    @hookimpl
    def build_skip_list(self, tick):
        self._raise("build_skip_list")

    @hookimpl
    def filter_clause(self, tick):
        self._raise("filter_clause")

    @hookimpl
    def order_queues(self, tick):
        self._raise("order_queues")

    @hookimpl
    def observe(self):
        self._raise("observe")

    def _raise(self, hook):
        if type(self).broken == hook:
            raise RuntimeError("not today")


@pytest.mark.parametrize("hook", ["build_skip_list", "filter_clause", "order_queues", "observe"])
async def test_a_hook_that_raises_closes_the_gate_until_it_is_mended(kernel, hook):
    """Nothing is claimed, a counter names plugin and hook, and mended it goes on without a restart (design: Hooks)."""
    app = kernel.app(plugins=[Moody], poll_interval="10ms")

    @app.activity
    async def work(): ...

    build = app.build()
    try:
        async with kernel.running(build):
            Moody.broken = hook
            errors = "harvest_hook_errors_total"
            await kernel.until(lambda: asyncio.sleep(0, value(build, errors, plugin="moody", hook=hook)), "the counter")
            (task,) = await kernel.enqueue()
            before = value(build, errors, plugin="moody", hook=hook)
            await kernel.until(lambda: asyncio.sleep(0, value(build, errors, plugin="moody", hook=hook) > before))
            rows = await kernel.sql("select id, state::text, attempt, claimed_at from tasks")
            assert rows == [(task, "pending", 0, None)]
            Moody.broken = ""
            await state(kernel, "completed")
    finally:
        Moody.broken = ""


async def test_run_once_raises_what_a_hook_raises(kernel):
    """Draining cannot wait for mending: it says which plugin and hook, and nothing was claimed (K14)."""
    app = kernel.app(plugins=[Moody])

    @app.activity
    async def work(): ...

    try:
        async with app.worker() as worker:
            await kernel.enqueue()
            Moody.broken = "build_skip_list"
            with pytest.raises(HookError) as caught:
                await worker.run_once()
    finally:
        Moody.broken = ""
    assert str(caught.value) == "plugin 'moody', hook build_skip_list: raised RuntimeError: not today"
    assert await kernel.states() == {"pending": 1}


class Thirds(Plugin):
    slug = "thirds"

    @hookimpl
    def order_queues(self, tick):
        return [Turn("a", 0, tick.turns["a"], 3), Turn("b", 0, tick.turns["b"], 1)]


@pytest.mark.parametrize("plugins", [(), (Thirds,)], ids=["without weights", "with weights"])
async def test_dispatches_are_counted_by_queue(kernel, plugins):
    """`harvest_queue_dispatched_total` counts starts by queue, whoever owns the order (W4)."""
    app = kernel.app(plugins=list(plugins), queues=["a", "b"], concurrency=4)

    @app.activity(max_attempts=2, retry=Retry(initial=0, jitter=0))
    async def work():
        if current_task().queue == "b" and current_task().attempt == 1:
            raise ValueError("again")

    build = app.build()
    async with Worker(build) as worker:
        await kernel.enqueue(queue="a", count=6)
        await kernel.enqueue(queue="b", count=5)
        while await kernel.one("select count(*) from tasks"):
            await worker.run_once()
    assert value(build, "harvest_queue_dispatched_total", queue="a") == 6
    assert value(build, "harvest_queue_dispatched_total", queue="b") == 10
    assert value(build, "harvest_tasks_finished_total", outcome="completed") == 11
    assert value(build, "harvest_tasks_finished_total", outcome="retried") == 5


async def test_a_pause_during_a_run_holds_the_next_claim(kernel):
    """Paused and resumed while the worker runs: nothing starts in between, and resuming wakes it (K13, K11)."""
    app = kernel.app(poll_interval=FOR_EVER)
    ran = []

    @app.activity
    async def work(number: int):
        ran.append(number)

    async with app.client() as client, kernel.running(app):
        await (await client.enqueue(work, 1)).result(timeout=10)
        await client.pause_queue("default")
        await asleep(kernel)
        task = await client.enqueue(work, 2)
        await kernel.until(lambda: kernel.one("select bool_and(asleep) from workers"))
        assert (await task.status()).state == "pending"
        await client.resume_queue("default")
        await task.result(timeout=10)
    assert ran == [1, 2]


async def test_an_idle_poll_is_one_statement(kernel, monkeypatch):
    """What tells that nothing is due tells that nothing is pending; with anything pending the claim is made (K11)."""
    app = kernel.app()

    @app.activity
    async def work(): ...

    async with app.worker() as worker:
        statements, whole, here = [], worker._database.connection, asyncio.current_task()

        def counted():
            statements.extend([1] if asyncio.current_task() is here else [])  # and not what other duties ask
            return whole()

        monkeypatch.setattr(worker._database, "connection", counted)
        poller, identity = worker._poller, worker.identity
        poller.look_for_due()
        poll = await poller.poll(identity, 5, {}, suspect=True)
        assert (poll.result.claims, poll.result.registered, poll.full, len(statements)) == ((), True, False, 1)
        (task,) = await kernel.enqueue()
        poller.look_for_due()
        poll = await poller.poll(identity, 5, {}, suspect=True)
        assert ([claim.id for claim in poll.result.claims], len(statements)) == ([task], 3)
