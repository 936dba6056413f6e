"""Bad moments of a worker: an answer that comes late, a prune in between, a server that turns read-only."""

import asyncio
from typing import Any

import psycopg
import pytest
from prometheus_client import CollectorRegistry

from harvest_core import DatabaseUnavailableError, Harvest, Worker, current_task
from harvest_core.metrics import KernelMetrics
from harvest_core.store.postgres import database
from harvest_core.store.postgres.tasks import Released
from harvest_core.worker.running import Running


def app_of(dsn: str, **worker: Any) -> Harvest:
    """Return an app without policies."""
    return Harvest({"harvest": {"dsn": dsn}, "worker": {"poll_interval": "50ms", **worker}})


async def test_trouble_backs_off_whoever_wakes_the_worker(harvest_database: str) -> None:
    """A server that turned read-only for longer than the lease is asked a few times a second, not a thousand."""
    app = app_of(harvest_database, worker_ttl="300ms")
    build = app.build()
    name = psycopg.conninfo.conninfo_to_dict(harvest_database)["dbname"]

    def errors() -> float:
        return build.registry.get_sample_value("harvest_database_errors_total") or 0.0

    async with Worker(build) as worker:
        loop = asyncio.create_task(worker.run())
        with psycopg.connect(harvest_database, autocommit=True) as connection:
            quoted = psycopg.sql.Identifier(str(name)).as_string()
            connection.execute(f"alter database {quoted} set default_transaction_read_only = on".encode())
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'harvest'"
            )
            while errors() < 3:
                await asyncio.sleep(0.02)
            before = errors()
            await asyncio.sleep(1.0)
            assert errors() - before <= 10
            connection.execute("set default_transaction_read_only = off")
            connection.execute(f"alter database {quoted} set default_transaction_read_only = off".encode())
        worker.stop()
        worker.stop()
        await loop


async def test_claims_that_arrive_after_a_prune_are_given_back(harvest_database: str) -> None:
    """What the answer of a claim brings to a worker that was taken for dead meanwhile is not started by it (K12)."""
    app = app_of(harvest_database)
    ran_by: list[tuple[str, int]] = []

    @app.activity
    async def work() -> None:
        ran_by.append((current_task().worker.id, current_task().attempt))

    async with app.client() as client, app.worker() as worker:
        old, poller = worker.identity.id, worker._poller
        poll = poller.poll

        async def pruned_meanwhile(*arguments: Any, **options: Any) -> Any:
            found = await poll(*arguments, **options)
            poller.poll = poll  # type: ignore[method-assign]
            worker._was_pruned()
            return found

        poller.poll = pruned_meanwhile  # type: ignore[method-assign]
        await client.enqueue(work)
        await worker.run_once()
    assert [attempt for _, attempt in ran_by] == [1]
    assert ran_by[0][0] != old


async def test_a_follow_up_that_comes_while_a_claim_is_under_way_is_run(harvest_database: str) -> None:
    """run_once ends when nothing ran and nothing waited at the same moment, not at two moments (K14)."""
    app = app_of(harvest_database)
    began, ran = asyncio.Event(), []

    @app.activity
    async def first() -> None:
        await began.wait()
        await client.enqueue(second)

    @app.activity
    async def tiny() -> None: ...

    @app.activity
    async def second() -> None:
        ran.append(1)

    async with app.client() as client, app.worker() as worker:
        poller = worker._poller
        poll, polls = poller.poll, []

        async def late(*arguments: Any, **options: Any) -> Any:
            found = await poll(*arguments, **options)
            polls.append(found)
            if len(polls) == 2:  # asked after `tiny`, while `first` runs, enqueues and ends
                began.set()
                while not worker._running.idle:
                    await asyncio.sleep(0.01)
            return found

        poller.poll = late  # type: ignore[method-assign]
        await client.enqueue(first)
        await client.enqueue(tiny)
        await worker.run_once()
    assert ran == [1]


class Outcomes:
    """Takes outcomes as the finisher does."""

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.backlog, self.ids = 0, frozenset[int]()

    def add(self, claim: Any, outcome: Any) -> None:
        self.taken.append((claim.id, outcome))


async def test_a_run_that_is_stopped_before_its_first_step_frees_its_slot(harvest_database: str) -> None:
    """A cancelled coroutine that never began comes to no `finally`; its claim goes back all the same (K12)."""
    app = app_of(harvest_database, concurrency=1)

    @app.activity
    async def work() -> None: ...

    async with app.client() as client, app.worker() as worker:
        await client.enqueue(work)
        (claim,) = (await worker._poller.poll(worker.identity, 1, {}, suspect=False)).result.claims
        outcomes: Any = Outcomes()
        dispatcher: Any = None  # never reached
        metrics = KernelMetrics(CollectorRegistry())
        running = Running(client.database, dispatcher, outcomes, metrics, 1, asyncio.Event(), lambda _: None)
        running.start(claim, worker.identity, {})
        running.stop()
        await asyncio.wait_for(running.all_ended(), 5)
        assert running.free == 1
        assert outcomes.taken == [(claim.id, Released())]


@pytest.mark.matrix
async def test_a_server_with_dates_of_its_own_style(harvest_database: str) -> None:
    """What a database sets for its sessions does not reach Harvest's: dates are read in one style."""
    name = psycopg.conninfo.conninfo_to_dict(harvest_database)["dbname"]
    with psycopg.connect(harvest_database, autocommit=True) as connection:
        quoted = psycopg.sql.Identifier(str(name)).as_string()
        connection.execute(f"alter database {quoted} set datestyle = 'SQL, DMY'".encode())
    app = app_of(harvest_database)

    @app.activity
    async def work() -> int:
        return 7

    async with app.client() as client, app.worker() as worker:
        task = await client.enqueue(work)
        await worker.run_once()
        assert await task.result(timeout=5) == 7


async def test_a_statement_whose_answer_never_comes_is_cut(
    harvest_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silent server behind a living connection: the statement fails, and the next one runs (oban#493)."""
    monkeypatch.setattr(database, "_SILENCE", 0.2)
    app = app_of(harvest_database)
    async with app.client() as client:
        with pytest.raises(DatabaseUnavailableError):
            await asyncio.wait_for(client.database.fetch("select pg_sleep(20)"), 10)
        assert await client.database.fetch("select 1") == [(1,)]


async def test_the_last_word_of_an_earlier_beat_does_not_prune_the_present_row(harvest_database: str) -> None:
    """A beat that was on its way when the worker returned under a fresh id concerns the old id alone (K12)."""
    app = app_of(harvest_database)
    async with app.worker() as worker:
        earlier: Any = worker._membership._heartbeat
        await worker._membership.join()
        earlier._pruned()
        await asyncio.sleep(0.01)
        assert worker._lost is False
        present: Any = worker._membership._heartbeat
        present._pruned()
        await asyncio.sleep(0.01)
        assert worker._lost is True
