"""`app.testing()`: tasks run inline, by the rules of production, without a database (rule P2)."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from harvest_core import (
    Call,
    EnqueueError,
    Harvest,
    HarvestError,
    KeyTakenError,
    NonRetryableError,
    PayloadError,
    Retry,
    TaskFailedError,
    TaskNotFoundError,
    UnknownActivityError,
    current_task,
)
from harvest_core.testing import Inline

app = Harvest({"harvest": {"plugins": ["flags"], "dsn": "postgresql://nobody@127.0.0.1:1/nowhere"}})
kept = app.sync_client()  # as applications keep one for the life of the process
seen: list[object] = []


@app.middleware
async def noted(task, call_next):
    seen.append(("before", task.name))
    return await call_next()


@app.activity(queue="mail")
async def send(address: str) -> str:
    seen.append(address)
    return f"sent to {address}"


@app.activity
def double(number: UUID) -> UUID:
    current_task().heartbeat_sync({"thread": threading.current_thread().name})
    return UUID(int=number.int * 2)


@app.activity(retry=Retry(initial=3600.0), max_attempts=3)
async def flaky(until: int) -> int:
    if current_task().attempt < until:
        raise ValueError(f"attempt {current_task().attempt}")
    return current_task().attempt


@app.activity
async def refuse() -> None:
    raise NonRetryableError("never")


@app.activity
async def welcome(address: str) -> None:
    async with app.client() as client:
        await client.enqueue(send, address)


@app.activity
def welcome_sync(address: str) -> str:
    return kept.enqueue(send, address).result()


@app.activity
async def forever() -> None:
    kept.enqueue(forever)


@app.activity
async def cancel_me() -> None:
    async with app.client() as client:
        await client.cancel(current_task().id, reason="enough")
    await asyncio.Event().wait()


@app.activity
async def wrong() -> int:
    return "no number"  # type: ignore[return-value]


@app.activity
async def replace_me() -> None:
    kept.enqueue(replace_me, key="one", on_conflict="replace", delay=5)
    raise ValueError("tried")


@pytest.fixture
def tests():
    seen.clear()
    with app.testing() as tests:
        assert isinstance(tests, Inline)
        yield tests


@pytest.fixture
async def client(tests):
    async with app.client() as client:
        yield client


async def test_a_task_runs_when_it_is_due(tests, client):
    """P2: a delayed task is recorded with all its options, and runs once the clock has been moved."""
    task = await client.enqueue(send, "ada@example.org", flags={"vip"}, delay="5m", priority=3, lane="mail/1")
    (found,) = tests.tasks
    assert (found.name, found.queue, found.args, found.kwargs) == ("send", "mail", ["ada@example.org"], {})
    assert (found.priority, found.lane, found.traits, found.state) == (3, "mail/1", {"flags": ["vip"]}, "scheduled")
    assert await tests.run() == []
    tests.advance("5m")
    assert await tests.run() == [found]
    assert (found.state, found.result, tests.finished) == ("completed", "sent to ada@example.org", [found])
    assert await task.result() == "sent to ada@example.org"
    assert seen == [("before", "send"), "ada@example.org"]
    assert (await task.status()).state == "completed"


async def test_payloads_pass_through_json_and_types(tests, client):
    """P2, celery#4008: arguments and results are what they are in production, not the caller's own objects."""
    number = UUID(int=21)
    task = await client.enqueue(double, number)
    assert (await task.status()).args == [str(number)]
    await tests.run()
    assert tests.finished[0].result == await task.result() == UUID(int=42)
    with pytest.raises(PayloadError):
        await client.enqueue(double, "no uuid")
    await client.enqueue(wrong)
    await tests.run(raising=False)
    assert tests.finished[1].state == "failed"
    assert "PayloadError" in tests.finished[1].error


async def test_errors_of_an_enqueue_are_those_of_production(tests, client):
    """P2: nothing can be enqueued in a test that could not be in production."""
    with pytest.raises(UnknownActivityError, match="did you mean 'send'"):
        await client.enqueue("sent")
    with pytest.raises(EnqueueError, match="did you mean 'priority'"):
        await client.enqueue(send, "a", priorty=1)
    with pytest.raises(EnqueueError):
        await client.enqueue(send)
    with pytest.raises(HarvestError, match="the client is not open"):
        await app.client().enqueue(send, "a")
    with pytest.raises(TaskNotFoundError):
        await client.status(7)
    assert tests.tasks == []


async def test_attempts_follow_at_once_up_to_the_last(tests, client):
    """P2: retries go by the activity's policy, without its waits; the last error is kept."""
    good, bad, never = [await client.enqueue(flaky, 3), await client.enqueue(flaky, 9), await client.enqueue(refuse)]
    await tests.run(raising=False)
    assert await good.result() == 3
    assert [(task.state, task.attempt, task.error) for task in tests.tasks[1:]] == [
        ("failed", 3, "ValueError: attempt 3"),
        ("failed", 1, "NonRetryableError: never"),
    ]
    with pytest.raises(TaskFailedError, match="attempt 3: ValueError: attempt 3"):
        await bad.result()
    assert await never.retry() is True
    assert tests.tasks[2].state == "pending"


async def test_a_failure_is_not_passed_over(tests, client):
    """P2: a test whose task fails fails itself, with the activity's traceback, after all else has run."""
    await client.enqueue(refuse)
    await client.enqueue(flaky, 9)
    await client.enqueue(send, "ada@example.org")
    text = (
        "task 1 (refuse) failed at attempt 1: NonRetryableError: never, and 1 more failed; "
        "where that is the test, call run(raising=False)"
    )
    with pytest.raises(TaskFailedError, match=f"^{re.escape(text)}") as caught:
        await tests.run()
    assert 'raise NonRetryableError("never")' in caught.value.__notes__[0]
    assert [task.state for task in tests.tasks] == ["failed", "failed", "completed"]


async def test_order_is_the_kernels(tests, client):
    """K2: priority first, then the time due, then the id."""
    await client.enqueue(send, "third", scheduled_at=tests.now - timedelta(hours=1))
    await client.enqueue_many([Call(send, ("fourth",)), Call(send, ("fifth",))])
    await client.enqueue(send, "first", priority=2)
    await client.enqueue(send, "second", scheduled_at=tests.now - timedelta(hours=2))
    assert [task.args[0] for task in await tests.run()] == ["first", "second", "third", "fourth", "fifth"]


async def test_follow_up_tasks_and_tasks_of_others(tests, client):
    """P2: what an activity enqueues runs too; another app's tasks are recorded and left."""
    await client.enqueue(welcome, "ada@example.org")
    await client.enqueue("theirs", 1, elsewhere=True)
    assert [task.name for task in await tests.run()] == ["welcome", "send"]
    assert [task.state for task in tests.tasks_of("theirs")] == ["pending"]
    assert tests.tasks_of(send)[0].args == ["ada@example.org"]


async def test_one_that_enqueues_itself_for_ever_is_stopped(tests, client):
    """P2: no run is endless."""
    await client.enqueue(forever)
    text = "20 attempts have run and 'forever' is due again: does it enqueue itself for ever? Else give most="
    with pytest.raises(HarvestError, match=f"^{re.escape(text)}$"):
        await tests.run(most=20)


async def test_waiting_for_a_result_runs_what_is_due(tests, client):
    """P2: code that waits for a result gets it; where it cannot come, the wait ends at once and says why."""
    assert await (await client.enqueue(send, "ada@example.org")).result() == "sent to ada@example.org"
    late = await client.enqueue(send, "bob@example.org", scheduled_at=datetime(9000 - 1, 1, 1, tzinfo=UTC))
    text = (
        "task 2 (send) is scheduled, due at 8999-01-01 00:00:00 UTC, and everything due has run: "
        "tests.advance() moves the clock, and neither a paused queue nor another app's activity runs"
    )
    with pytest.raises(TimeoutError, match=f"^{re.escape(text)}$"):
        await late.result(timeout=30)


async def test_keys(client, tests):
    """K9: a duplicate is the existing task, which may be replaced, and a period outlasts the task."""
    first = await client.enqueue(send, "a", key="k", delay=60)
    again = await client.enqueue(send, "b", key="k")
    assert (again.id, again.created) == (first.id, False)
    text = "task 2 (send): its key is taken by task 1; nothing was written"
    with pytest.raises(KeyTakenError, match=f"^{re.escape(text)}$"):
        await client.enqueue_many([Call(send, ("x",)), Call(send, ("c",), key="k", on_conflict="raise")])
    replaced = await client.enqueue(send, "d", key="k", on_conflict="replace", key_period=60)
    assert (replaced.id, replaced.created, len(tests.tasks)) == (first.id, False, 1)
    assert [task.args for task in await tests.run()] == [["d"]]
    assert (await client.enqueue(send, "e", key="k")).created
    await tests.run()
    await client.enqueue(send, "f", key="p", key_period="1m")
    await tests.run()
    assert not (await client.enqueue(send, "g", key="p")).created
    tests.advance(61)
    assert (await client.enqueue(send, "h", key="p")).created


async def test_replacing_a_running_task(client, tests):
    """K9: a running task finishes its attempt, and the new one takes its place."""
    await client.enqueue(replace_me, key="one")
    await tests.run()
    assert [(task.state, task.error) for task in tests.tasks] == [
        ("cancelled", "replaced by task 2"),
        ("scheduled", None),
    ]


async def test_cancel_and_pause(client, tests):
    """P2: a cancelled task does not run, a running one is stopped, and a paused queue waits."""
    task = await client.enqueue(send, "ada@example.org")
    await client.enqueue(cancel_me)
    done = await task.cancel("not wanted")
    assert (done.ended, done.asked) == (1, 0)
    await tests.run()
    assert [(task.state, task.error) for task in tests.tasks] == [("cancelled", "not wanted"), ("cancelled", "enough")]
    await client.pause_queue("mail")
    await client.enqueue(send, "bob@example.org")
    assert await tests.run() == []
    assert await client.resume_queue("mail")
    assert len(await tests.run()) == 1
    with pytest.raises(HarvestError, match="cancel of all tasks at once is refused"):
        await client.cancel()


def test_without_an_event_loop(tests):
    """P2: a blocking test; plain functions run in its own thread, a client kept from before is inside too."""
    before = threading.active_count()
    assert kept.enqueue(double, UUID(int=1), connection=sqlite3.connect(":memory:")).result() == UUID(int=2)
    assert tests.tasks[0].details == {"thread": threading.current_thread().name}
    with app.sync_client() as client:
        task = client.enqueue(welcome_sync, "ada@example.org")
    assert [task.name for task in tests.run_sync()] == ["welcome_sync"]
    assert task.result() == "sent to ada@example.org"
    kept.enqueue(refuse)
    with pytest.raises(TaskFailedError):
        tests.run_sync()
    assert threading.active_count() == before


def test_a_blocking_client_is_the_tests_too(tests):
    """P2: what is asked of it by id or of a queue is done in memory, as for the async client."""
    kept.pause_queue("mail")
    task = kept.enqueue(send, "ada@example.org")
    assert tests.run_sync() == []
    assert kept.resume_queue("mail") is True
    assert kept.result(task.id) == "sent to ada@example.org"


async def test_by_id_a_cancelled_task_goes_back_and_in_bulk_it_does_not(tests, client):
    """K13: as in production."""
    task = await client.enqueue(send, "ada@example.org")
    await task.cancel()
    assert await client.retry(activity=send) == []
    assert await client.retry(task.id) == [task.id]


async def test_a_completed_task_has_no_error(tests, client):
    """K8: an attempt before it failed."""
    await client.enqueue(flaky, 2)
    await tests.run()
    assert [(task.state, task.attempt, task.error, task.traceback) for task in tests.tasks] == [
        ("completed", 2, None, None)
    ]


async def test_a_connection_of_any_driver_is_taken(client, tests):
    """K10: application code that lends its connection runs on SQLite too."""
    await client.enqueue(send, "ada@example.org", connection=sqlite3.connect(":memory:"))
    assert len(await tests.run()) == 1


async def test_what_needs_a_database_says_so(client):
    """P2: nothing is pretended of what a test without a database cannot show."""
    text = (
        "schedules, settings, claimers and the list of queues need a database, and app.testing() has none; "
        "test them with a real one"
    )
    calls = (client.settings(), client.schedules(), client.put_schedule("s", send, "a", every="5m"), client.queues())
    for call in (*calls, client.claimer().__aenter__()):
        with pytest.raises(HarvestError, match=f"^{re.escape(text)}$"):
            await call
    text = "app.testing() is open, in which neither a worker nor another one of it opens; tests.run() runs tasks"
    for refused in (app.worker, app.sync_worker, app.testing().__enter__):
        with pytest.raises(HarvestError, match=f"^{re.escape(text)}$"):
            refused()


def test_a_clock_of_its_own_and_a_test_that_ends():
    """P2: a test may stop the clock; after it the app's clients are the real ones."""
    start = datetime(2030, 1, 1, tzinfo=UTC)
    with app.testing(clock=lambda: start) as tests:
        kept.enqueue(send, "ada@example.org", scheduled_at=start + timedelta(hours=1))
        tests.advance("1h")
        assert tests.run_sync()[0].finished_at == tests.now == start + timedelta(hours=1)
    assert type(app.client()).__module__ == "harvest_core.client"
    with app.testing() as tests:
        assert tests.tasks == []


def test_production_imports_nothing_of_it():
    """P2: an app, its clients and its workers load no test code."""
    code = "import sys, harvest_core.app; sys.exit('harvest_core.inline' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
