"""Limits over several workers on a real PostgreSQL: never exceeded, never leaked."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from harvest_core import Call, Harvest

PROGRAM = """
import asyncio, json, os

from harvest_core import Harvest

app = Harvest(json.loads(os.environ["TEST_CONFIG"]))


@app.activity
async def send_mail(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def main() -> None:
    async with app.worker() as worker:
        print("ready", flush=True)
        await worker.run()


asyncio.run(main())
"""


def config_of(dsn: str, limits: dict, **worker) -> dict:
    return {
        "harvest": {"dsn": dsn, "plugins": ["limits"]},
        "worker": {"poll_interval": "50ms", "concurrency": 20} | worker,
        "plugins": {"limits": limits},
    }


def app_of(dsn: str, limits: dict, **worker) -> Harvest:
    app = Harvest(config_of(dsn, limits, **worker))

    @app.activity
    async def send_mail(seconds: float) -> None:
        await asyncio.sleep(seconds)

    return app


@contextmanager
def process_of(folder: Path, config: dict):
    """Run a worker in a process of its own, and kill it, and only it, at the end."""
    program = folder / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    environ = os.environ | {"TEST_CONFIG": json.dumps(config)}
    process = subprocess.Popen([sys.executable, str(program)], env=environ, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait(10)


async def rows(dsn: str, text: str, *values):
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        cursor = await connection.execute(text, values)
        return await cursor.fetchall() if cursor.description else []


async def until(dsn: str, text: str, expected: int, running: asyncio.Task | None = None) -> None:
    """Wait until a query counts so many."""
    async with asyncio.timeout(60):
        while (await rows(dsn, text))[0][0] != expected:
            assert running is None or not running.done()
            await asyncio.sleep(0.02)


FINISHED = "select count(*) from harvest.finished"
RUNNING = "select count(*) from harvest.tasks where state = 'running'"


async def ended(dsn: str):
    """Return start, end, lane and worker of every finished task."""
    return await rows(dsn, "select claimed_at, finished_at, args, worker_id from harvest.finished order by claimed_at")


def most_at_once(spans) -> int:
    """Return how many spans overlap at most; one that ends when another starts does not."""
    changes = sorted([(start, 1) for start, *_ in spans] + [(end, 0) for _, end, *_ in spans])
    count = most = 0
    for _, begins in changes:
        count += 1 if begins else -1
        most = max(most, count)
    return most


def most_starts(spans, seconds: float) -> int:
    """Return how many starts a window of so many seconds holds at most, wherever it begins."""
    starts = [start for start, *_ in spans]
    return max(sum(0 <= (other - start).total_seconds() < seconds for other in starts) for start in starts)


@contextmanager
def running(worker):
    """Run a worker in the background and stop it."""
    task = asyncio.ensure_future(worker.run())
    try:
        yield task
    finally:
        task.cancel()


async def test_two_processes_never_exceed_a_limit(harvest_database: str, tmp_path: Path) -> None:
    """Two racing workers with free slots keep concurrency and rate exactly, at every moment (pgqueuer#761)."""
    limits = {"activities": {"send_mail": {"concurrency": 3, "rate": "40/s"}}}
    async with app_of(harvest_database, limits).client() as client:
        await client.enqueue_many([Call("send_mail", (0.02,)) for _ in range(160)])
        config = config_of(harvest_database, limits)
        with process_of(tmp_path, config), process_of(tmp_path, config):
            await until(harvest_database, FINISHED, 160)
    spans = await ended(harvest_database)
    assert most_at_once(spans) == 3
    assert 20 <= most_starts(spans, 1.0) <= 40
    assert len({worker for *_, worker in spans}) == 2


async def test_the_tasks_of_a_killed_worker_count_until_they_are_rescued(harvest_database: str, tmp_path: Path) -> None:
    """Nothing starts in their place; they are rescued though the limit is full; nothing leaks (pgqueuer#630)."""
    limits = {"activities": {"send_mail": {"concurrency": 2}}}
    app = app_of(harvest_database, limits, worker_ttl="1s")
    async with app.client() as client:
        await client.enqueue_many([Call("send_mail", (300.0,)) for _ in range(2)])
        with process_of(tmp_path, config_of(harvest_database, limits, worker_ttl="1h")) as process:
            await until(harvest_database, RUNNING, 2)
            process.kill()
        await rows(harvest_database, "update harvest.tasks set args = '[0.02]'")
        await client.enqueue_many([Call("send_mail", (0.02,)) for _ in range(8)])
        async with app.worker() as worker:
            await asyncio.wait_for(worker.run_once(), 20)
            assert (await rows(harvest_database, FINISHED))[0][0] == 0
            await rows(harvest_database, "update harvest.workers set beaten_at = beaten_at - interval '2 hours'")
            with running(worker):
                await until(harvest_database, FINISHED, 10)
    assert await rows(harvest_database, "select count(*) from harvest.tasks") == [(0,)]
    assert most_at_once(await ended(harvest_database)) == 2


async def test_run_once_waits_for_no_window(harvest_database: str) -> None:
    """With a spent rate run_once returns, and the rest stays pending with its attempts unused (K14)."""
    app = app_of(harvest_database, {"activities": {"send_mail": {"rate": "2/h"}}})
    async with app.client() as client, app.worker() as worker:
        tasks = [await client.enqueue("send_mail", 0.0) for _ in range(5)]
        for _ in range(2):
            await asyncio.wait_for(worker.run_once(), 20)
        found = Counter([((status := await task.status()).state, status.attempt) for task in tasks])
        assert found == {("completed", 1): 2, ("pending", 0): 3}


async def test_a_running_worker_goes_on_when_the_window_has_passed(harvest_database: str) -> None:
    """Nothing has to happen for the next start: the poll interval finds the window open."""
    app = app_of(harvest_database, {"activities": {"send_mail": {"rate": "2/s"}}}, poll_interval="100ms")
    async with app.client() as client, app.worker() as worker:
        await client.enqueue_many([Call("send_mail", (0.0,)) for _ in range(7)])
        with running(worker) as task:
            await until(harvest_database, FINISHED, 7, task)
    spans = await ended(harvest_database)
    assert most_starts(spans, 1.0) == 2
    late = [(later - start).total_seconds() - 1.0 for (start, *_), (later, *_) in zip(spans, spans[2:], strict=False)]
    assert min(late) > 0
    assert sorted(late)[len(late) // 2] < 0.1 + 0.4, "a poll interval, and what a busy machine takes"


async def test_shared_limits_count_across_workers_with_other_activities(harvest_database: str) -> None:
    """Two activities share a limit, also where no worker knows both."""
    limits = {"shared": {"api": {"activities": ["send_mail", "call"], "concurrency": 2}}}
    mails, calls = app_of(harvest_database, limits), Harvest(config_of(harvest_database, limits))

    @calls.activity
    async def call(seconds: float) -> None:
        await asyncio.sleep(seconds)

    async with mails.client() as client, calls.client() as caller, mails.worker() as one, calls.worker() as other:
        await client.enqueue_many([Call("send_mail", (0.02,)) for _ in range(30)])
        await caller.enqueue_many([Call("call", (0.02,)) for _ in range(30)])
        with running(one), running(other):
            await until(harvest_database, FINISHED, 60)
    assert most_at_once(await ended(harvest_database)) == 2


@pytest.mark.parametrize(("limits", "width"), [({}, 1), ({"lanes": {"customer": {"concurrency": 2}}}, 2)])
async def test_each_lane_for_itself(harvest_database: str, limits: dict, width: int) -> None:
    """Of each lane one task runs at a time, or as many as its limit says; lanes do not wait for each other."""
    app = app_of(harvest_database, limits)
    async with app.client() as client, app.worker() as one, app.worker() as other:
        lanes = {0.021: "customer/7", 0.022: "customer/8"}
        for seconds, lane in lanes.items():
            for _ in range(8):
                await client.enqueue("send_mail", seconds, lane=lane)
        with running(one), running(other):
            await until(harvest_database, FINISHED, 16)
    spans = await ended(harvest_database)
    for seconds in lanes:
        assert most_at_once([span for span in spans if span[2] == [seconds]]) == width
    assert most_at_once(spans) > width
