"""One odd row, value, hook or source stops nobody else: each stands for itself, visibly."""

import asyncio
import threading
from typing import Any

import psycopg
import pytest

from harvest_core import Harvest, HookError, Worker, policies
from harvest_core.plugin import Clause, Plugin, Refresh, Tick, hookimpl


def app_of(dsn: str, *plugins: Any, **tables: Any) -> Harvest:
    """Return an app whose activity `work` returns its argument."""
    app = Harvest(
        {
            "harvest": {"dsn": dsn, "plugins": list(plugins)},
            "worker": {"concurrency": 4, "poll_interval": "20ms", "worker_ttl": "600ms"},
            "plugins": tables,
        }
    )

    @app.activity
    async def work(value: Any = None) -> Any:
        return value

    return app


@pytest.mark.parametrize(
    "sql",
    [
        "{schema}.enqueue('work', args => '[1e5000]')",
        "{schema}.enqueue('work', kwargs => '{{\"value\": 1e5000}}')",
        "{schema}.enqueue('work', traits => '{{\"x\": 1e5000}}')",
        "{schema}.enqueue('work', args => (repeat('[', 3000) || repeat(']', 3000))::jsonb)",
    ],
)
@pytest.mark.matrix
async def test_arguments_that_python_cannot_read_fail_their_task_alone(harvest_database: str, sql: str) -> None:
    """Endless numbers and deep nesting are JSON to PostgreSQL: that task fails, others run (graphile_worker_rs)."""
    app = app_of(harvest_database)
    async with app.client() as client, app.worker() as worker:
        ((bad,),) = await client.database.fetch(f"select {sql.replace('{{', '{').replace('}}', '}')}")
        good = await client.enqueue("work", 7)
        await worker.run_once()
        assert await good.result(timeout=5) == 7
        status = await client.status(bad)
    assert status.state == "failed"
    assert (status.error or "").startswith("the task holds unreadable JSON: ")


@pytest.mark.matrix
async def test_the_lowest_priority_is_a_priority(harvest_database: str) -> None:
    """Every priority the client takes can be claimed beside other routes (K2)."""
    app = app_of(harvest_database)
    async with app.client() as client, app.worker() as worker:
        tasks = [await client.enqueue("work", rank, priority=rank) for rank in (-(2**31), 0, 2**31 - 1)]
        await client.database.fetch("select {schema}.enqueue('work', args => '[3]', traits => '{\"x\": 1}')")
        await worker.run_once()
        assert [await task.result(timeout=5) for task in tasks] == [-(2**31), 0, 2**31 - 1]


async def test_text_beyond_latin_1_whatever_the_client_is_set_to(
    harvest_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PGCLIENTENCODING does not reach Harvest's connections: every text can be written."""
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    app = app_of(harvest_database)
    async with app.client() as client, app.worker() as worker:
        task = await client.enqueue("work", "日本")
        await worker.run_once()
        assert await task.result(timeout=5) == "日本"


async def test_a_clause_that_appears_later_is_tried_before_it_claims(harvest_database: str) -> None:
    """What was not tried on the database never stands in a claim: no late `a) OR (b` widens it (K4)."""

    class Late(Plugin):
        slug = "late"
        broken = False

        @hookimpl
        def filter_clause(self, tick: Tick) -> Any:
            return [Clause("true) or (true", {}, lambda route: ())] if self.broken else None

    late = Late()
    app = app_of(harvest_database, "flags", late, flags={"forbidden": ["gpu"]})
    async with app.client() as client, app.worker() as worker:
        task = await client.enqueue("work", flags={"gpu"})
        late.broken = True
        with pytest.raises(HookError) as caught:
            await worker.run_once()
        assert (await task.status()).attempt == 0
    assert str(caught.value) == (
        "plugin 'late', hook filter_clause: the clause 'true) or (true' cannot be used: syntax error at or near \")\""
    )


async def test_no_hook_can_change_what_another_one_judges_by(harvest_database: str) -> None:
    """Facts are read-only all the way down: a plugin that clears another's set raises, and nothing is claimed (K4)."""

    class Clears(Plugin):
        slug = "clears"

        @hookimpl
        def build_skip_list(self, tick: Tick) -> Any:
            facts: Any = tick.worker.facts
            facts["flags"]["forbidden"].clear()

    app = app_of(harvest_database, Clears(), "flags", flags={"forbidden": ["gpu"]})
    async with app.client() as client, app.worker() as worker:
        task = await client.enqueue("work", flags={"gpu"})
        with pytest.raises(HookError, match="raised TypeError: facts and ticks are read-only"):
            await worker.run_once()
        assert (await task.status()).attempt == 0


class Reads(Plugin):
    """Runs what the test sets in a refresh of its own."""

    slug = "reads"

    def refreshes(self) -> Any:
        return [Refresh(self.read, every=0.01, settings=frozenset({"anything"}))]

    def read(self, settings: Any) -> None:
        self.work(settings)

    work: Any = staticmethod(lambda settings: None)


async def test_a_source_that_leaves_by_system_exit_is_read_again(harvest_database: str) -> None:
    """Whatever a refresh raises, the next one runs (C3)."""
    reads, again, count = Reads(), threading.Event(), 0

    def leave(settings: Any) -> None:
        nonlocal count
        count += 1
        if count == 3:
            again.set()
        raise SystemExit

    reads.work = leave
    app = app_of(harvest_database, reads)
    build = app.build()
    async with Worker(build):
        assert await asyncio.to_thread(again.wait, 5)
    assert (build.registry.get_sample_value("harvest_refresh_errors_total", {"plugin": "reads"}) or 0) >= 3


async def test_a_hook_that_raises_a_base_exception_is_named(harvest_database: str) -> None:
    """SystemExit out of a hook closes the gate like any other fault (K4)."""

    class Leaves(Plugin):
        slug = "leaves"

        @hookimpl
        def build_skip_list(self, tick: Tick) -> Any:
            raise SystemExit(3)

    app = app_of(harvest_database, Leaves())
    async with app.worker() as worker:
        with pytest.raises(HookError, match="plugin 'leaves', hook build_skip_list: raised SystemExit: 3"):
            await worker.run_once()


async def test_a_late_hook_is_named(harvest_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook that takes longer than its limit holds up the worker: nothing is claimed, and it is named (K4)."""

    class Slow(Plugin):
        slug = "slow"

        @hookimpl
        def build_skip_list(self, tick: Tick) -> Any:
            threading.Event().wait(0.02)

    monkeypatch.setattr(policies, "LATE", 0.01)
    app = app_of(harvest_database, Slow())
    async with app.worker() as worker:
        with pytest.raises(HookError, match=r"plugin 'slow', hook build_skip_list: took 0\.0 s, more than 0\.01 s"):
            await worker.run_once()


async def test_big_results_do_not_hold_up_the_loop(harvest_database: str) -> None:
    """Ten results near the limit are written in moderate batches, in a form that costs no escaping."""
    app = app_of(harvest_database)

    @app.activity
    async def big() -> list[str]:
        return ["x" * 40] * 40_000

    async with app.client() as client, app.worker() as worker:
        tasks = [await client.enqueue(big) for _ in range(10)]
        await asyncio.wait_for(worker.run_once(), 10)
        assert len(await tasks[-1].result(timeout=5)) == 40_000


async def test_depth_is_also_told_without_held_tasks(harvest_database: str) -> None:
    """C9, O5: four gauges by queue; the twins leave out what a hold defers, so that a hold is no incident."""
    app = app_of(harvest_database, "cost_hold", cost_hold={"defer_threshold": 400.0, "activities": ["work"]})

    @app.activity
    async def other() -> None: ...

    app.plugin("cost_hold").signal.set(520.0)
    build = app.build()

    def gauge(name: str, queue: str) -> float | None:
        return build.registry.get_sample_value(name, {"queue": queue})

    async with app.client() as client:
        for _ in range(3):
            await client.enqueue("work")
        await client.enqueue(other, queue="elsewhere")
        async with Worker(build, sample_depths=True) as worker:
            await worker.run_once()
            for _ in range(700):  # a round of maintenance after a poll that judged the hold; it tells nobody of itself
                if gauge("harvest_queue_depth_without_held", "default") == 0:
                    break
                await asyncio.sleep(0.02)

    assert gauge("harvest_queue_depth", "default") == 3
    assert gauge("harvest_queue_depth_without_held", "default") == 0
    assert gauge("harvest_queue_depth_without_held", "elsewhere") == 1
    assert (gauge("harvest_queue_oldest_pending_age_seconds", "default") or 0) > 0
    assert gauge("harvest_queue_oldest_pending_age_without_held_seconds", "default") == 0


@pytest.mark.parametrize(
    "sql",
    [
        "insert into lanes (lane, used) values ('a', '{used}')",
        "insert into budgets (name, used) values ('limits:a', '{used}')",
    ],
)
@pytest.mark.parametrize("used", ["[1]", '{"x": 1}', '{"1": "y"}', '{"1": -1}', '{"1": {}}', "3", '{"1": 1e30}'])
async def test_no_memory_of_starts_can_be_written_that_stops_others(kernel: Any, sql: str, used: str) -> None:
    """What every lane and every claim reads can be nothing that they cannot read."""
    with pytest.raises(psycopg.errors.CheckViolation):
        await kernel.sql(sql.replace("{used}", used))
    await kernel.sql(sql.replace("{used}", '{"170000000000": 1, "170000000001": 999999999}'))


@pytest.mark.parametrize("limit", ["null, null, 1", "1, -1, 1", "1, 1, 0", "1, 1, 'nan'", "1, 1, 'infinity'"])
async def test_no_lane_limit_can_be_written_that_stops_other_lanes(kernel: Any, limit: str) -> None:
    """A limit that no lane could be judged by is refused where it is written."""
    with pytest.raises(psycopg.errors.CheckViolation):
        await kernel.sql(f"insert into lane_limits (name, concurrency, starts, period) values ('a', {limit})")


@pytest.mark.parametrize("moment", ["-infinity", "infinity", "0044-03-15 BC", "99999-01-01"])
@pytest.mark.parametrize("column", ["next_at", "counts_from"])
async def test_no_schedule_can_be_written_that_stops_the_others(kernel: Any, column: str, moment: str) -> None:
    """PostgreSQL has times that no worker can read: one such row would keep all schedules from being looked at."""
    with pytest.raises(psycopg.errors.CheckViolation):
        await kernel.sql(
            f"insert into schedules (name, activity, args, kwargs, traits, options, cron, timezone, catch_up, overlap, "
            f"declared, {column}) values ('a', 'work', '[]', '{{}}', '{{}}', '{{}}', '* * * * *', 'UTC', 'one', "
            f"'skip', false, '{moment}')"
        )
