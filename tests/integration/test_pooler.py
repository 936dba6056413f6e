"""Through a real PgBouncer in transaction mode: all of it works, and nothing outlives a transaction."""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter

import psycopg
import pytest

from harvest_core import Harvest, current_task
from harvest_core.errors import DatabaseUnavailableError
from harvest_core.store.postgres import database as module
from harvest_core.store.postgres import migrate
from harvest_core.store.postgres.database import Database
from harvest_core.testing.pooler import PROGRAM, pgbouncer

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="needs Debian's package pgbouncer")

HOSTILE = {
    "default_transaction_isolation": "serializable",
    "timezone": "Asia/Tokyo",
    "datestyle": "SQL, DMY",
    "statement_timeout": "1h",
}
"""Defaults of a database under which nothing may change for us."""


@pytest.fixture
def pooled(harvest_database, tmp_path):
    """Give the DSN of a fresh database with hostile defaults, through a pooler with two connections for all."""
    with psycopg.connect(harvest_database, autocommit=True) as connection:
        name = connection.info.dbname
        for key, value in HOSTILE.items():
            connection.execute(f"alter database {name} set {key} = '{value}'")
    folder = tmp_path / "pgbouncer"
    folder.mkdir()
    with pgbouncer(folder, harvest_database, default_pool_size="2") as dsn:
        yield dsn


def app_on(dsn, **worker):
    """Return an app that knows of the pooler."""
    times = {"poll_interval": "50ms", "shutdown_grace": "5s"}
    return Harvest({"harvest": {"dsn": dsn, "pooler": True, "plugins": ["flags"]}, "worker": times | worker})


@pytest.mark.matrix
async def test_a_worker_and_two_clients_do_all_they_do(pooled, caplog):
    """Enqueue, claim, retry, time-out, pause and settings, with clauses probed and time in UTC (K1, K8, K11)."""
    caplog.set_level(logging.WARNING, "harvest")
    app = app_on(pooled, worker_ttl="300ms")

    @app.activity(max_attempts=2)
    async def flaky(number):
        if current_task().attempt == 1:
            raise ValueError(number)
        return number

    @app.activity(start_to_close="200ms", max_attempts=1)
    async def slow():
        await asyncio.sleep(60)

    @app.activity(queue="side")
    def plain(number):
        return number

    other = app_on(pooled, queues=["side"])
    async with app.client() as client, other.client() as second, app.worker() as worker:
        loop = asyncio.ensure_future(worker.run())
        first = [await client.enqueue(flaky, number, flags={"vip"}) for number in range(5)]
        late = await second.enqueue("slow", elsewhere=True)
        assert [(await second.status(task.id)).enqueued_at.utcoffset().total_seconds() for task in first] == [0.0] * 5
        await client.database.fetch("update {schema}.tasks set scheduled_at = now() returning 1")
        while (await client.database.fetch("select count(*) from {schema}.tasks where attempt = 0"))[0][0]:
            await asyncio.sleep(0.01)
        await client.database.fetch(
            "update {schema}.tasks set scheduled_at = now() where state = 'scheduled' returning 1"
        )
        with pytest.raises(Exception, match="TimeoutError"):
            await late.result(timeout=20)
        assert [await task.result(timeout=20) for task in first] == list(range(5))
        await client.pause_queue("side")
        assert await second.resume_queue("side")
        assert await client.set_setting("a", 1) == 1
        assert (await second.settings())["a"].value == 1
        assert (await client.database.fetch("select bool_or(asleep) from {schema}.workers")) == [(False,)]
        beats, found = set(), "select beaten_at from {schema}.workers"
        async with asyncio.timeout(20):
            while len(beats) < 8:  # more than after which psycopg would prepare
                beats.add((await client.database.fetch(found))[0][0])
                await asyncio.sleep(0.05)
        worker.stop()
        await loop
    assert [record.message for record in caplog.records if not record.message.startswith("task ")] == []
    with psycopg.connect(pooled, autocommit=True) as connection:
        for key, value in HOSTILE.items():
            assert connection.execute(f"show {key}").fetchone() == (value,), "no setting stays behind"
        assert connection.execute("select count(*) from pg_prepared_statements").fetchone() == (0,)


async def test_every_statement_runs_under_our_settings(pooled):
    """Isolation, limits and formats are those of a connection without a pooler; a refused statement ends its own."""
    database = Database(pooled, pooler=True)
    await database.open()
    names = ("transaction_isolation", "statement_timeout", "idle_in_transaction_session_timeout", "timezone", "jit")
    rows = await database.fetch(f"select {', '.join(f'current_setting({name!r})' for name in names)}")
    assert rows == [("read committed", "30s", "1min", "UTC", "off")]
    with pytest.raises(psycopg.errors.DivisionByZero):
        await database.fetch("select 1/0")
    assert await database.fetch("select 1") == [(1,)]
    await database.close()


async def test_a_slow_statement_is_cut(pooled, monkeypatch):
    """The server ends it after the time of its transaction, and the next one runs."""
    monkeypatch.setattr(module, "BEGIN", module.BEGIN.replace("30s", "100ms"))
    database = Database(pooled, size=1, pooler=True)
    await database.open()
    with pytest.raises(psycopg.errors.QueryCanceled):
        await database.fetch("select pg_sleep(60)")
    assert await database.fetch("select 1") == [(1,)]
    await database.close()


async def test_several_processes_migrate_through_it(pooled):
    """Five begin together under serializable by default: one migrates, the others wait for it."""
    databases = [Database(pooled, "fresh", size=1, pooler=True) for _ in range(5)]
    await asyncio.gather(*(one.open() for one in databases))
    await asyncio.gather(*(migrate.require_newest(one) for one in databases))
    assert await migrate.version(databases[0]) == migrate.NEWEST
    for one in databases:
        await one.close()


async def test_without_the_key_the_error_names_it(harvest_database, tmp_path):
    """PgBouncer refuses our settings, or was told to drop them: either way a sentence says which key to set."""
    advice = (
        "; where a pooler such as PgBouncer stands before it, set pooler = true under [harvest] (HARVEST_POOLER=true)"
    )
    for settings, reason in (
        (
            {},
            'connection failed: connection to server at "127.0.0.1", port {port} failed: FATAL: unsupported startup '
            "parameter: options",
        ),
        ({"ignore_startup_parameters": "options"}, "a pooler or proxy dropped the settings of the session"),
    ):
        folder = tmp_path / f"pgbouncer{len(settings)}"
        folder.mkdir()
        with pgbouncer(folder, harvest_database, **settings) as dsn:
            parts = psycopg.conninfo.conninfo_to_dict(dsn)
            where = f"127.0.0.1:{parts['port']}/{parts['dbname']}"
            app = Harvest({"harvest": {"dsn": dsn}})
            for opened in (app.client(), app.worker()):
                with pytest.raises(DatabaseUnavailableError) as caught:
                    async with opened:
                        pass
                reason = reason.format(port=parts["port"])
                assert str(caught.value) == f"the database at {where} cannot be used: {reason}{advice}"


async def test_a_prepared_statement_that_is_gone_names_the_key(harvest_database):
    """A pooler that passes settings on still gives the next statement a connection that never prepared it."""
    database = Database(harvest_database, size=1)
    await database.open()
    for _ in range(3):
        await database.fetch("select 1")
    async with database.connection() as connection:
        await connection.execute("do $$ begin execute 'deallocate all'; end $$")
    with pytest.raises(DatabaseUnavailableError) as caught:
        await database.fetch("select 1")
    assert str(caught.value).endswith(
        'prepared statement "_pg3_0" does not exist; where a pooler such as PgBouncer stands before it, '
        "set pooler = true under [harvest] (HARVEST_POOLER=true)"
    )
    await database.close()


APP = textwrap.dedent("""
    import asyncio, os
    from harvest_core import Harvest

    app = Harvest({"harvest": {"dsn": os.environ["TEST_DSN"], "pooler": True},
                   "worker": {"worker_ttl": "1s", "poll_interval": "50ms"}})
    log = os.open(os.environ["TEST_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    @app.activity
    async def step(number):
        os.write(log, f"{number}\\n".encode())
        await asyncio.sleep(0.002)
        return number

    async def main():
        async with app.worker() as worker:
            print("ready", flush=True)
            await worker.run()

    asyncio.run(main())
""")


def test_a_killed_worker_is_rescued_through_it(pooled, tmp_path):
    """Kill -9 in the middle of 500 tasks: the other worker finishes all, each once (K1, K12)."""
    (tmp_path / "app.py").write_text(APP)
    log, count = tmp_path / "log", 500
    log.touch()
    processes = [
        subprocess.Popen(
            [sys.executable, "app.py"],
            cwd=tmp_path,
            env={**os.environ, "TEST_DSN": pooled, "TEST_LOG": str(log)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        assert [process.stdout.readline() for process in processes] == ["ready\n"] * 2
        with psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as connection:
            connection.execute(
                "select harvest.enqueue('step', jsonb_build_array(i)) from generate_series(1, %s) i", [count]
            )
            while len(log.read_text().splitlines()) < count // 4:
                asyncio.run(asyncio.sleep(0.01))
            processes[0].send_signal(signal.SIGKILL)
            done = "select args->>0, count(*) from harvest.finished where state = 'completed' group by 1"
            asyncio.run(_until(lambda: len(connection.execute(done).fetchall()) == count))
            assert {times for _, times in connection.execute(done).fetchall()} == {1}
    finally:
        for process in processes:
            process.kill()
            process.wait(10)
            process.stdout.close()
    starts = Counter(json.loads(line) for line in log.read_text().splitlines())
    assert sum(times - 1 for times in starts.values()) <= 20, "only what ran at the kill started again"


async def _until(condition):
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.02)
