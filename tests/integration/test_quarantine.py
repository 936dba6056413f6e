"""A task that kills its worker: tried alone, so often, then put aside; the others survive (K12, sidekiq#4594)."""

import asyncio
import os
import subprocess
import sys
from collections import Counter

import pytest

from harvest_core.plugin import Plugin, Skip, hookimpl
from harvest_core.store.postgres import control, tasks, workers

APP = """
import asyncio, os, sys
from harvest_core import Harvest

app = Harvest({"harvest": {"dsn": os.environ["TEST_DSN"]},
               "worker": {"concurrency": 5, "worker_ttl": "500ms", "poll_interval": "50ms", "max_crashes": 3}})


@app.activity
async def deadly():
    os.write(1, b"deadly\\n")
    os._exit(9)


@app.activity
async def harmless(number):
    await asyncio.sleep(0.05)
    return number


async def main():
    async with app.worker() as worker:
        await worker.run()


asyncio.run(main())
"""


async def test_a_task_that_kills_its_worker(kernel, tmp_path):
    """Real processes die of it max_crashes times; then it is failed, quarantined, and the others are complete."""
    (tmp_path / "app.py").write_text(APP)
    (deadly,) = await kernel.enqueue("deadly", max_attempts=100)
    for number in range(30):
        await kernel.enqueue("harmless", args=f"[{number}]")
    environ, deaths = {**os.environ, "TEST_DSN": kernel.dsn}, 0
    process = None

    async def over():
        nonlocal process, deaths
        if process is None or process.poll() is not None:
            deaths += process is not None
            process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
                [sys.executable, str(tmp_path / "app.py")], env=environ, stdout=subprocess.DEVNULL
            )
        return await kernel.one("select count(*) = 0 from tasks")

    try:
        for _ in range(3):  # each worker has to start, to die and to be found dead
            try:
                await kernel.until(over)
                break
            except AssertionError:
                continue
    finally:
        process.kill()
        process.wait(10)
    assert deaths == 3
    assert await kernel.states() == {"failed": 1, "completed": 30}
    assert await kernel.sql("select error, attempt from finished where id = %s", [deadly]) == [
        ("quarantined: 3 workers died while they ran it; find out why before it is retried by hand", 3)
    ]


async def crash(kernel, count=1):
    """Let a worker die with so many tasks; return their ids."""
    claims = await (await kernel.claimer("work", ttl=1.0)).take(count)
    await kernel.sql("update workers set beaten_at = now() - interval '1 hour'")
    await tasks.rescue(kernel.database)
    return [claim.id for claim in claims]


@pytest.mark.matrix
async def test_what_ran_when_a_worker_died_is_suspect(kernel):
    """No usual claim takes it; it keeps its place and its attempt, and is counted (K12, K2)."""
    await kernel.enqueue(count=3)
    first, second = await crash(kernel, 2)
    assert await kernel.states() == {"suspect": 2, "pending": 1}
    worker = await kernel.claimer("work")
    assert [claim.id for claim in await worker.take(5)] not in ([first], [second])
    (claim,) = await worker.take(1, pool="suspect")
    assert (claim.id, claim.attempt) == (first, 2)
    await worker.finish([claim])
    assert await kernel.states() == {"suspect": 1, "running": 1, "completed": 1}


@pytest.mark.matrix
@pytest.mark.parametrize("leave", ["gave back", "row gone"])
async def test_a_graceful_leave_is_no_crash(kernel, leave):
    """A worker that takes its leave makes nothing suspect, whatever it still holds (K12)."""
    await kernel.enqueue()
    worker = await kernel.claimer("work")
    (claim,) = await worker.take()
    if leave == "gave back":
        await tasks.write_outcomes(kernel.database, [(claim, tasks.Released())])
    await workers.remove(kernel.database, worker.identity.id)
    await tasks.rescue(kernel.database)
    assert await kernel.sql("select state::text, crashes from tasks") == [("pending", 0)]


@pytest.mark.matrix
async def test_a_suspect_that_is_given_back_stays_one(kernel):
    """Neither a shutdown nor a leave makes a suspect a task like others (K12)."""
    await kernel.enqueue()
    await crash(kernel)
    worker = await kernel.claimer("work")
    (claim,) = await worker.take(pool="suspect")
    await tasks.write_outcomes(kernel.database, [(claim, tasks.Released())])
    assert await kernel.sql("select state::text, crashes, attempt from tasks") == [("suspect", 1, 1)]


async def test_a_suspect_of_a_paused_queue_or_an_unknown_name_waits(kernel):
    """Suspects are subject to what every claim is subject to (K4, K7, K13)."""
    await kernel.enqueue()
    await crash(kernel)
    assert await (await kernel.claimer("else")).take(pool="suspect") == []
    await control.pause_queue(kernel.database, "default")
    assert await (await kernel.claimer("work")).take(pool="suspect") == []
    await control.resume_queue(kernel.database, "default")
    assert len(await (await kernel.claimer("work")).take(pool="suspect")) == 1


class Held(Plugin):
    """Skips one activity for as long as it is told to."""

    slug = "held"
    closed = True

    @hookimpl
    def build_skip_list(self, tick):
        return [Skip("work", ("held",), hold=True)] if self.closed else []


@pytest.mark.parametrize("flood", [0, 200])
async def test_one_at_a_time_and_not_starved(kernel, flood):
    """A worker with free slots runs one suspect at a time, beside a flood of other tasks too (K12)."""
    await kernel.enqueue(count=4)
    suspects = set(await crash(kernel, 4))
    await kernel.rows(await kernel.route(name="filler"), flood, priority=9)
    app, at_once, order = kernel.app(concurrency=3), Counter(), []

    @app.activity
    async def work():
        at_once["now"] += 1
        at_once["most"] = max(at_once["most"], at_once["now"])
        await asyncio.sleep(0.02)
        at_once["now"] -= 1

    @app.activity
    async def filler():
        order.append(1)

    async with app.worker() as worker:
        await worker.run_once()
    assert at_once["most"] == 1
    assert await kernel.states() == {"completed": 4 + flood}
    last = await kernel.one(
        "select count(*) from finished where id <> all(%s) and finished_at > (select max(finished_at) from finished "
        "where id = any(%s))",
        [list(suspects), list(suspects)],
    )
    assert (last > 0) == (flood > 0)


async def test_a_policy_holds_a_suspect_too(kernel):
    """What a plugin skips is skipped for suspects as well (K6)."""
    await kernel.enqueue()
    await crash(kernel)
    app = kernel.app(plugins=[Held])

    @app.activity
    async def work():
        return 1

    async with app.worker() as worker:
        await worker.run_once()
        assert await kernel.states() == {"suspect": 1}
        worker._build.policies.plugins["held"].closed = False
        await worker.run_once()
    assert await kernel.states() == {"completed": 1}
