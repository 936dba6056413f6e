"""kill -9 at the worst moment: nothing is lost, nothing finishes twice, and the next start works."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harvest_core.store.postgres import embedded

APP = """
import asyncio, json, os, sys
from harvest_core import Call, Harvest, current_task

app = Harvest({"harvest": {"dsn": os.environ["TEST_DSN"]},
               "worker": {"concurrency": 20, "worker_ttl": "1s", "poll_interval": "50ms"}})
log = os.open(os.environ["TEST_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


@app.activity
async def step(number: int) -> int:
    os.write(log, (json.dumps([number, current_task().attempt]) + "\\n").encode())
    await asyncio.sleep(0.002)
    return number


async def main() -> None:
    if sys.argv[1] == "enqueue":
        async with app.client() as client:
            await client.enqueue_many([Call(step, (number,)) for number in range(int(sys.argv[2]))])
        return
    async with app.worker() as worker:
        print("ready", flush=True)
        await worker.run()


asyncio.run(main())
"""


@contextmanager
def started(script: Path, environ: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run a worker process; end it, and only it, at the end."""
    process = subprocess.Popen(
        [sys.executable, str(script), "work"], env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait(10)


@pytest.mark.parametrize("kills", [3])
def test_killed_workers_lose_nothing_and_finish_nothing_twice(
    tmp_path: Path, harvest_database: str, kills: int
) -> None:
    """Workers are killed in the middle of 1,000 tasks; the last one finishes all, each once (K1, K12)."""
    script, log, count = tmp_path / "app.py", tmp_path / "log", 1000
    script.write_text(APP)
    environ = {**os.environ, "TEST_DSN": harvest_database, "TEST_LOG": str(log)}
    subprocess.run([sys.executable, str(script), "enqueue", str(count)], env=environ, check=True, timeout=60)

    with psycopg.connect(harvest_database, autocommit=True) as connection:
        for kill in range(kills):
            with started(script, environ) as process:
                wait_until(lambda mark=(kill + 1) * count // (kills + 2): finished_in(connection) >= mark)
                process.send_signal(signal.SIGKILL)
        with started(script, environ):
            wait_until(lambda: finished_in(connection) == count)
        rows = connection.execute("select args->0, count(*) from harvest.finished group by 1").fetchall()
        assert len(rows) == count
        assert {times for _, times in rows} == {1}
        assert connection.execute("select count(*) from harvest.tasks").fetchone() == (0,)

    starts = Counter(number for number, _ in map(json.loads, log.read_text().splitlines()))
    assert set(starts) == set(range(count))
    repeated = sum(times - 1 for times in starts.values())
    assert repeated <= kills * 20, "only what ran at a kill may have started again"


def wait_until(condition: object, limit: float = 60.0) -> None:
    """Poll a condition of the database, which sends no signal of its own."""
    import time

    end = time.monotonic() + limit
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "not reached in time"
        time.sleep(0.01)


def test_the_starter_of_the_embedded_server_is_killed_in_the_middle(tmp_path: Path) -> None:
    """The process that started the server dies by -9: the other one finishes all, each once, and a next start works."""
    count, script, log = 1000, tmp_path / "app.py", tmp_path / "log"
    script.write_text(APP.replace('"dsn": os.environ["TEST_DSN"]', ""))
    environ = {name: value for name, value in os.environ.items() if name != "HARVEST_DSN"} | {"TEST_LOG": str(log)}

    def run(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(script), *arguments]
        return subprocess.Popen(command, env=environ, cwd=tmp_path, stdout=subprocess.PIPE, text=True)

    starter = run("work")
    try:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "ready\n"
        other = run("work")
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        assert run("enqueue", str(count)).wait(60) == 0
        wait_until(lambda: log.exists() and len(log.read_text().splitlines()) > count // 4)
    finally:
        starter.kill()
        starter.wait(10)
    try:
        with embedded.start(tmp_path / ".harvest" / "postgres18") as server:
            with psycopg.connect(server.dsn, autocommit=True) as connection:
                wait_until(lambda: finished_in(connection) == count)
                rows = connection.execute("select args->0, count(*) from harvest.finished group by 1").fetchall()
            assert len(rows) == count
            assert {times for _, times in rows} == {1}
            other.kill()
            other.wait(10)
        assert run("enqueue", "1").wait(60) == 0, "the next start works"
    finally:
        other.kill()
        other.wait(10)


def finished_in(connection: psycopg.Connection[Any]) -> int:
    """Return how many tasks have completed."""
    row = connection.execute("select count(*) from harvest.finished where state = 'completed'").fetchone()
    assert row is not None
    return int(row[0])
