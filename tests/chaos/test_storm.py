"""A storm of kills, of worker processes and of their sessions: nothing is lost, nothing finishes twice."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

APP = """
import asyncio, os, sys
from harvest_core import Call, Harvest

app = Harvest({"harvest": {"dsn": os.environ["TEST_DSN"]},
               "worker": {"concurrency": 20, "worker_ttl": "2s", "poll_interval": "50ms"}})


@app.activity(max_attempts=1000)
async def step(number: int) -> int:
    await asyncio.sleep(0.02)
    return number


async def main() -> None:
    if sys.argv[1] == "enqueue":
        async with app.client() as client:
            await client.enqueue_many([Call(step, (number,)) for number in range(20_000)])
        return
    async with app.worker() as worker:
        await worker.run()


asyncio.run(main())
"""


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(3))
def test_a_storm_of_kills_loses_nothing(tmp_path: Path, harvest_database: str, seed: int) -> None:
    """Three workers, a kill every half second for half a minute; then all 20,000 finish, each once (K1, K12)."""
    chance, script = random.Random(seed), tmp_path / "app.py"
    script.write_text(APP)
    environ = {**os.environ, "TEST_DSN": harvest_database}
    subprocess.run([sys.executable, str(script), "enqueue"], env=environ, check=True, timeout=120)

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(script), "work"], env=environ, stderr=subprocess.DEVNULL)

    fleet = [start() for _ in range(3)]
    try:
        with psycopg.connect(harvest_database, autocommit=True) as connection:
            for _ in range(60):
                time.sleep(0.5)
                if chance.random() < 0.4:
                    victim = chance.randrange(3)
                    fleet[victim].send_signal(signal.SIGKILL)
                    fleet[victim].wait(10)
                    fleet[victim] = start()
                else:
                    connection.execute(
                        "select pg_terminate_backend(pid) from pg_stat_activity "
                        "where application_name = 'harvest' and random() < 0.3"
                    )
            end = time.monotonic() + 120
            while connection.execute("select count(*) from harvest.tasks").fetchone() != (0,):
                assert time.monotonic() < end, "not drained in time"
                time.sleep(0.2)
            rows = connection.execute(
                "select count(*), count(distinct args), count(*) filter (where state = 'completed') "
                "from harvest.finished"
            ).fetchone()
            assert rows == (20_000, 20_000, 20_000)
    finally:
        for process in fleet:
            process.kill()
            process.wait(10)
