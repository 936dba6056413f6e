"""What every backend does alike (B2): one suite; a test is skipped where a backend does not state what it needs."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import time
import uuid
from collections import Counter
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import attrs
import psycopg
import pytest

from harvest_core import Call, Harvest, Retry, TaskFailedError, current_task
from harvest_core.claim.planner import plan
from harvest_core.connect import connected
from harvest_core.errors import HarvestError, KeyTakenError, NonRetryableError
from harvest_core.model import Feature, Tick, Worker
from harvest_core.policies import Policies
from harvest_core.store.backend import POSTGRESQL, SQLITE
from harvest_core.store.postgres import tasks, workers
from harvest_core.store.postgres.control import Cancelled
from harvest_core.store.postgres.tasks import Finished, Released, Retried

PATIENCE = 20.0
PROGRAM = """
import asyncio, os, sys
from harvest_core import Harvest

app = Harvest({"harvest": {"dsn": os.environ["TEST_DSN"]},
               "worker": {"concurrency": 4, "worker_ttl": "1s", "poll_interval": "20ms"}})

@app.activity
async def step(number):
    os.write(1, f"{number}\\n".encode())
    await asyncio.sleep(float(os.environ["TEST_SLEEP"]))

async def main():
    async with app.worker() as worker:
        await worker.run()

asyncio.run(main())
"""


@attrs.frozen
class World:
    """One empty database of a backend."""

    backend: object
    dsn: str

    def app(self, plugins=(), tables=None, **worker):
        times = {"poll_interval": "20ms", "shutdown_grace": "5s"}
        harvest = {"dsn": self.dsn, "plugins": list(plugins)}
        return Harvest({"harvest": harvest, "worker": times | worker, "plugins": tables or {}})

    async def hours_pass(self, hours):
        """Set what schedules plan back, as if so many hours had passed in which nobody looked."""
        if self.backend is SQLITE:
            with sqlite3.connect(self.dsn.removeprefix("sqlite:///")) as connection:
                text = "update schedules set next_at = next_at - :h, counts_from = counts_from - :h"
                connection.execute(text, {"h": hours * 3_600_000_000})
            connection.close()
        else:
            async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
                text = (
                    "update harvest.schedules set next_at = next_at - make_interval(hours => %(h)s), "
                    "counts_from = counts_from - make_interval(hours => %(h)s)"
                )
                await connection.execute(text, {"h": hours})

    def started(self, folder, sleep):
        script = folder / "program.py"
        script.write_text(PROGRAM)
        environ = os.environ | {"TEST_DSN": self.dsn, "TEST_SLEEP": str(sleep)}
        return subprocess.Popen([sys.executable, str(script)], env=environ, stdout=subprocess.PIPE, text=True)


@pytest.fixture(params=[POSTGRESQL, SQLITE], ids=lambda backend: backend.name)
def world(request, tmp_path):
    backend = request.param
    if marker := request.node.get_closest_marker("needs"):
        missing = [need for need in marker.args if need in backend.lacks or need in set(Feature) - backend.features]
        if missing:
            pytest.skip(f"{backend.name} does not state {', '.join(missing)}")
    path = f"sqlite:///{tmp_path / 'tasks.db'}"
    return World(backend, request.getfixturevalue("harvest_database") if backend is POSTGRESQL else path)


needs = pytest.mark.needs


@asynccontextmanager
async def running(app):
    async with app.worker() as worker:
        loop = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.stop()
            await asyncio.wait_for(loop, PATIENCE)


async def run_once(app):
    async with app.worker() as worker:
        await asyncio.wait_for(worker.run_once(), PATIENCE)


class Holder:
    """A registered worker that only claims."""

    def __init__(self, database, name="work", queues=("default",)):
        self.database = database
        self.identity = Worker(str(uuid.uuid4()), "holder", queues, frozenset([name]))

    async def joined(self, ttl=3600.0):
        options = {"plugins": (), "live": {}, "concurrency": 1, "host": "here", "pid": 1}
        await workers.register(self.database, self.identity, ttl=ttl, **options)
        return self

    async def take(self, count=1, **changes):
        planned = plan(Policies({}, {}, None), Tick(self.identity, count))
        return await tasks.take(self.database, attrs.evolve(planned, **changes))


async def test_results_keep_their_types(world):
    """K9, K13: what goes in comes out, by the hints of the activity, and a status tells the stored JSON."""
    app = world.app()

    @app.activity
    async def later(when: datetime, *, by: timedelta) -> datetime:
        return when + by

    moment = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    async with app.client() as client:
        task = await client.enqueue(later, moment, kwargs={"by": timedelta(hours=1)}, scheduled_at=datetime.now(UTC))
        await run_once(app)
        assert await task.result(timeout=5) == moment + timedelta(hours=1)
        status = await task.status()
        assert (status.state, status.attempt, status.kind, status.error) == ("completed", 1, "activity", None)
        assert status.enqueued_at <= status.claimed_at <= status.finished_at


async def test_priority_then_time_then_id(world):
    """K2: higher priority first, then what was due first, then what was enqueued first; all queues are one."""
    app, seen = world.app(concurrency=1, queues=["a", "b"]), []

    @app.activity
    async def work(name):
        seen.append(name)

    old = datetime.now(UTC) - timedelta(hours=1)
    async with app.client() as client:
        await client.enqueue_many(
            [
                Call(work, ("first",), queue="b"),
                Call(work, ("second",), queue="a"),
                Call(work, ("old",), queue="b", scheduled_at=old),
                Call(work, ("urgent",), queue="a", priority=1),
            ]
        )
    await run_once(app)
    assert seen == ["urgent", "old", "first", "second"]


@needs(Feature.ORDER)
async def test_weights_split_ten_thousand_dispatches(world):
    """W1, W6, B2: three to one within one percent over 10,000 dispatches."""
    weights = {"weights": {"queues": {"mail": 3, "video": 1}}}
    app, seen = world.app(["weights"], weights, concurrency=100, queues=["video", "mail"]), Counter()

    @app.activity
    async def work():
        seen[current_task().queue] += 1
        if seen.total() == 10_000:
            split.update(seen)
            worker.stop()

    split = Counter()
    async with app.client() as client:
        await client.enqueue_many([Call(work, queue=queue) for queue in ("mail", "video") for _ in range(8_000)])
    async with app.worker() as worker:
        await asyncio.wait_for(worker.run(), 120)
    assert split["mail"] == pytest.approx(7_500, abs=100)


@needs(Feature.SKIP_LIST)
async def test_a_held_activity_waits(world):
    """C1: where a backend states skip lists, a hold keeps a task untouched."""
    app = world.app(["cost_hold"], {"cost_hold": {"defer_threshold": 1.0, "activities": ["work"]}})

    @app.activity
    async def work():
        pass

    app.plugin("cost_hold").signal.set(2.0)
    async with app.client() as client:
        task = await client.enqueue(work)
        await run_once(app)
        assert (await task.status()).attempt == 0


@needs("lane")
async def test_a_lane_runs_one_at_a_time(world):
    """B2: where a backend has lanes, one of a lane is claimed at a time."""
    app = world.app()

    @app.activity
    async def work():
        pass

    async with app.client() as client, connected(app.build()) as database:
        await client.enqueue_many([Call(work, lane="customer/7") for _ in range(2)])
        holder = await Holder(database).joined()
        await tasks.promote(database)
        assert len((await holder.take(5)).claims) == 1


async def test_retries_back_off_and_end(world):
    """K8: attempts follow after their wait up to max_attempts, and an error that is not retryable ends at once."""
    app = world.app()

    @app.activity(max_attempts=3, retry=Retry(initial=0.01, jitter=0))
    async def flaky():
        if current_task().attempt < 3:
            msg = "again"
            raise ValueError(msg)
        return current_task().attempt

    @app.activity(max_attempts=2, retry=Retry(initial=0.01))
    def broken():
        msg = "broken"
        raise ValueError(msg)

    @app.activity
    async def hopeless():
        msg = "no"
        raise NonRetryableError(msg)

    async with app.client() as client, running(app):
        tried, ended, once = [await client.enqueue(one) for one in (flaky, broken, hopeless)]
        assert await tried.result(timeout=PATIENCE) == 3
        with pytest.raises(TaskFailedError, match=r"failed at attempt 2: ValueError: broken"):
            await ended.result(timeout=PATIENCE)
        with pytest.raises(TaskFailedError, match="failed at attempt 1: NonRetryableError: no"):
            await once.result(timeout=PATIENCE)
        assert "raise ValueError" in (await ended.status()).traceback


async def test_time_limits_of_an_attempt(world):
    """K8: start_to_close and heartbeat end an attempt, and heartbeat details are kept for people."""
    app = world.app()

    @app.activity(max_attempts=1, start_to_close="50ms")
    async def slow():
        await asyncio.sleep(60)

    @app.activity(max_attempts=1, heartbeat="200ms")
    async def silent():
        await current_task().heartbeat({"page": 7})
        await asyncio.sleep(60)

    async with app.client() as client, running(app):
        for activity, text in ((slow, "start_to_close of 0.05 s has passed"), (silent, "no heartbeat for 0.2 s")):
            with pytest.raises(TaskFailedError, match=text):
                await (await client.enqueue(activity)).result(timeout=PATIENCE)


async def test_a_delay_is_waited_out(world):
    """K9: a task with a delay is scheduled, run_once leaves it, and a worker runs it when it is due."""
    app = world.app()

    @app.activity
    async def work():
        return "done"

    async with app.client() as client:
        far = await client.enqueue(work, delay="1h")
        await run_once(app)
        assert (await far.status()).state == "scheduled"
        async with running(app):
            assert await (await client.enqueue(work, delay=0.2)).result(timeout=PATIENCE) == "done"


async def test_keys(world):
    """K9: a key is taken as long as its task is unfinished; ignore returns that task, raise writes nothing."""
    app = world.app()

    @app.activity
    async def work():
        pass

    async with app.client() as client:
        first = await client.enqueue(work, key="a")
        again = await client.enqueue(work, key="a")
        assert (again.id, again.created) == (first.id, False)
        with pytest.raises(KeyTakenError) as caught:
            await client.enqueue_many([Call(work), Call(work, key="a", on_conflict="raise")])
        assert str(caught.value) == f"task 2 (work): its key is taken by task {first.id}; nothing was written"
        assert [queue.pending for queue in await client.queues()] == [1]
        await run_once(app)
        fresh = await client.enqueue(work, key="a")
        assert fresh.created
        assert fresh.id > first.id


async def test_a_paused_queue_waits(world):
    """K13: no claim takes of a paused queue, which is listed as such; resumed, it goes on."""
    app = world.app()

    @app.activity
    async def work():
        pass

    async with app.client() as client:
        task = await client.enqueue(work)
        await client.pause_queue("default")
        await run_once(app)
        (queue,) = await client.queues()
        assert (queue.name, queue.pending, queue.paused_at is None) == ("default", 1, False)
        assert await client.resume_queue("default")
        assert not await client.resume_queue("default")
        await run_once(app)
        assert (await task.status()).state == "completed"


async def test_cancel_and_retry_by_hand(world):
    """K13: a waiting task ends at once, a running one is asked; both can be put back, unless their key is taken."""
    app, begun = world.app(), asyncio.Event()

    @app.activity
    async def work():
        if current_task().attempt == 1 and not begun.is_set():
            begun.set()
            await asyncio.sleep(60)
        return current_task().attempt

    async with app.client() as client:
        waiting = await client.enqueue(work, delay="1h", key="k")
        assert await waiting.cancel("not now") == Cancelled(1, 0)
        assert (await waiting.status()).error == "not now"
        async with running(app):
            task = await client.enqueue(work)
            await asyncio.wait_for(begun.wait(), PATIENCE)
            assert await task.cancel("enough") == Cancelled(0, 1)
            with pytest.raises(TaskFailedError, match="cancelled at attempt 1: enough"):
                await task.result(timeout=PATIENCE)
            assert await task.retry()
            assert await task.result(timeout=PATIENCE) == 1
            holder = await client.enqueue(work, key="k", delay="1h")
            assert not await waiting.retry()
            await holder.cancel()
            assert await client.retry(activity=work) == []  # in bulk only what has failed
            assert await client.retry(waiting.id, states=["failed"]) == []
            assert await client.retry(waiting.id) == [waiting.id]
            assert await waiting.result(timeout=PATIENCE) == 1
        for action in (client.cancel(), client.retry()):
            with pytest.raises(HarvestError, match="of all tasks at once is refused; give ids, a queue or a name"):
                await action


async def test_a_completed_task_has_no_error(world):
    """K8, K13: neither of an attempt before nor of a cancel that came too late for a plain function."""
    app, begun = world.app(), asyncio.Event()

    @app.activity(retry=Retry(initial=0.01))
    async def flaky():
        if current_task().attempt == 1:
            raise ValueError("not yet")

    @app.activity
    def stubborn():
        main.call_soon_threadsafe(begun.set)
        while not current_task().cancelled:
            time.sleep(0.01)

    main = asyncio.get_running_loop()
    async with app.client() as client, running(app):
        again, late = await client.enqueue(flaky), await client.enqueue(stubborn)
        await asyncio.wait_for(begun.wait(), PATIENCE)
        assert await late.cancel("stop it") == Cancelled(0, 1)
        for handle in (again, late):
            await handle.result(timeout=PATIENCE)
            status = await handle.status()
            assert (status.state, status.error, status.traceback) == ("completed", None, None)


async def test_run_once_follows_up(world):
    """K14: what a task enqueues in another queue runs before run_once returns."""
    app = world.app(queues=["a", "b"], concurrency=2)

    @app.activity(queue="a")
    async def first():
        async with app.client() as client:
            await client.enqueue(second)

    @app.activity(queue="b")
    async def second():
        seen.append("second")

    seen = []
    async with app.client() as client:
        await client.enqueue(first)
    await run_once(app)
    assert seen == ["second"]


async def test_settings(world):
    """K13: a setting has a value and a version that grows."""
    async with world.app().client() as client:
        first = await client.set_setting("price", 3.5)
        assert await client.set_setting("price", {"a": [1]}) > first
        assert (await client.settings())["price"].value == {"a": [1]}


async def test_a_lost_claim_changes_nothing(world):
    """K1: once a dead worker's claim is taken over, its holder can neither beat, finish, retry nor release."""
    app = world.app()

    @app.activity
    async def work():
        pass

    async with app.client() as client, connected(app.build()) as database:
        task = await client.enqueue(work)
        dead, heir = await Holder(database).joined(ttl=0.3), await Holder(database).joined()
        (lost,) = (await dead.take()).claims
        assert await tasks.heartbeat(database, lost, '"alive"')
        await asyncio.sleep(0.4)
        assert (await tasks.rescue(database)).orphaned == 1
        assert not (await dead.take()).registered
        (claim,) = (await heir.take(pool="suspect")).claims
        assert (claim.id, claim.attempt) == (task.id, 2)
        assert claim.token != lost.token
        assert not await tasks.heartbeat(database, lost, None)
        for outcome in (Finished("completed", "1"), Retried(0.0, "x"), Released()):
            assert await tasks.write_outcomes(database, [(lost, outcome)]) == set()
        assert await tasks.write_outcomes(database, [(claim, Finished("completed", "2"))]) == {claim.id}
        assert await task.result() == 2


async def test_what_is_given_back_counts_no_attempt(world):
    """K12: a released claim is where it was, its attempt restored."""
    app = world.app()

    @app.activity
    async def work():
        pass

    async with app.client() as client, connected(app.build()) as database:
        task = await client.enqueue(work)
        holder = await Holder(database).joined()
        (claim,) = (await holder.take()).claims
        assert await tasks.write_outcomes(database, [(claim, Released())]) == {task.id}
        assert await tasks.release_unknown(database, holder.identity.id, []) == 0
        await holder.take()
        assert await tasks.release_unknown(database, holder.identity.id, []) == 1
        status = await task.status()
        assert (status.state, status.attempt) == ("pending", 0)


async def test_a_task_that_kills_its_workers_is_quarantined(world):
    """K12: after max_crashes deaths a task fails, visibly, to be retried by hand."""
    app = world.app()

    @app.activity
    async def work():
        pass

    async with app.client() as client, connected(app.build()) as database:
        task = await client.enqueue(work)
        for pool in ("pending", "suspect"):
            holder = await Holder(database).joined(ttl=0.2)
            await holder.take(pool=pool)
            await asyncio.sleep(0.3)
            await tasks.rescue(database, max_crashes=2)
        status = await task.status()
        assert status.state == "failed"
        assert status.error == (
            "quarantined: 2 workers died while they ran it; find out why before it is retried by hand"
        )
        assert await task.retry()
        assert (await task.status()).crashes == 0


async def test_a_killed_worker_is_taken_over(world, tmp_path):
    """K1, K12: after kill -9 and worker_ttl, another process runs the task again."""
    app = world.app()
    async with app.client() as client:
        task = await client.enqueue("step", 1, elsewhere=True)
        killed = world.started(tmp_path, 60)
        assert await asyncio.to_thread(killed.stdout.readline) == "1\n"
        killed.kill()
        killed.communicate()
        heir = world.started(tmp_path, 0)
        try:
            assert await task.result(timeout=PATIENCE) is None
            assert (await task.status()).attempt == 2
        finally:
            heir.terminate()
            heir.communicate()


async def test_two_processes_share_a_queue(world, tmp_path):
    """K1: two processes and a client that enqueues meanwhile: every task runs, and none twice."""
    first, second = world.started(tmp_path, 0.001), world.started(tmp_path, 0.001)
    try:
        async with world.app().client() as client:
            made = []
            for batch in range(10):
                calls = [Call("step", (batch * 30 + number,), elsewhere=True) for number in range(30)]
                made += await client.enqueue_many(calls)
            for task in made:
                await task.result(timeout=PATIENCE)
    finally:
        for process in (first, second):
            process.terminate()
    lines = [process.communicate()[0].split() for process in (first, second)]
    assert Counter(map(int, lines[0] + lines[1])) == Counter(range(300))
    assert all(lines)


@pytest.mark.parametrize(("catch_up", "expected"), [("one", 1), ("all", 3), ("none", 0)])
async def test_schedules_catch_up(world, catch_up, expected):
    """K13: of three missed ticks the policy decides which are made up for."""
    app = world.app()

    @app.activity
    async def work():
        pass

    minute = (datetime.now(UTC) + timedelta(minutes=30)).minute
    async with app.client() as client:
        await client.put_schedule("tick", work, cron=f"{minute} * * * *", catch_up=catch_up, overlap="allow")
        await run_once(app)
        await world.hours_pass(3)
        await client.pause_queue("default")
        await run_once(app)
        assert sum(queue.pending for queue in await client.queues()) == expected


@pytest.mark.parametrize(("overlap", "expected"), [("skip", 1), ("allow", 2)])
async def test_schedules_overlap(world, overlap, expected):
    """K13: while a tick's task is unfinished the policy says whether the next one comes."""
    app = world.app()

    @app.activity
    async def work():
        pass

    async with app.client() as client:
        await client.put_schedule("tick", work, every="1h", overlap=overlap, priority=3)
        await client.pause_queue("default")
        for _ in range(3):
            await run_once(app)
            await world.hours_pass(1)
        assert sum(queue.pending for queue in await client.queues()) == expected
        (found,) = await client.schedules()
        assert (await client.status(found.last_task_id)).priority == 3
        held = await client.trigger_schedule("tick")
        assert (held is None) == (overlap != "allow")


async def test_schedules_are_looked_after(world):
    """K13: a schedule is written once, paused, resumed and deleted; one in code goes only with its workers."""
    app = world.app()

    @app.activity
    async def work():
        pass

    app.schedule("declared", work, cron="0 3 * * *")
    async with app.client() as client:
        assert await client.put_schedule("mine", work, every="1h")
        assert not await client.put_schedule("mine", work, every="1h")
        await client.pause_schedule("mine")
        async with running(app):
            states = {one.name: (one.state, one.declared) for one in await client.schedules()}
            assert states == {"declared": ("active", True), "mine": ("paused", False)}
            with pytest.raises(HarvestError, match="declared in the code of live workers"):
                await client.delete_schedule("declared")
            with pytest.raises(HarvestError, match="declared in code"):
                await client.put_schedule("declared", work, every="1h")
        assert await client.resume_schedule("mine")
        assert not await client.resume_schedule("mine")
        for name in ("mine", "declared"):
            await client.delete_schedule(name)
        assert await client.schedules() == []


def test_sync_twins(world):
    """K10: the blocking client and worker do the same."""
    app = world.app()

    @app.activity
    def double(number: int) -> int:
        return number * 2

    with app.sync_client() as client, app.sync_worker() as worker:
        task = client.enqueue(double, 21)
        worker.run_once()
        assert task.result(timeout=5) == 42
        assert json.loads(json.dumps(task.status().kwargs)) == {}
