"""Prefetching: tasks claimed beyond the free slots, started without another claim (K15)."""

import asyncio

import pytest

from harvest_core.plugin import Budget, Feature, Plugin, Skip, hookimpl
from harvest_core.store.postgres import control, tasks
from harvest_core.store.postgres.tasks import Released

ROWS = "select state::text, attempt, prefetched_until is not null from tasks order by id"


class Hold(Plugin):
    """Holds `held` while told to."""

    slug = "hold"
    needs = frozenset({Feature.SKIP_LIST})
    holding = False

    @hookimpl
    def build_skip_list(self):
        return [Skip("held", ("hold",), hold=True, recheck=0.05)] if self.holding else None


class Rate(Plugin):
    """Lets three of `work` start in half a second, once told to."""

    slug = "rate"
    needs = frozenset({Feature.SKIP_LIST})
    limiting = False

    @hookimpl
    def build_skip_list(self):
        share = Budget("rate:work", starts=3, period=0.5)
        return [Skip("work", ("rate",), at_most=share, recheck=0.05)] if self.limiting else None


@pytest.mark.matrix
async def test_an_attempt_counts_when_it_starts(kernel):
    """A prefetched task is claimed and counts no attempt; started it counts one; given back it is as it was (K15)."""
    await kernel.enqueue(count=3)
    worker = await kernel.claimer("work")
    first, second, third = await worker.take(3, prefetch=30.0)
    assert await kernel.sql(ROWS) == [("running", 0, True)] * 3
    (begun,) = await tasks.start_claims(kernel.database, [first])
    assert (begun.id, begun.attempt) == (first.id, 1)
    assert await tasks.start_claims(kernel.database, [first]) == []
    await tasks.write_outcomes(kernel.database, [(second, Released())])
    assert await kernel.sql(ROWS) == [("running", 1, False), ("pending", 0, False), ("running", 0, True)]
    assert third.attempt == 0


@pytest.mark.matrix
async def test_a_dead_workers_prefetched_tasks_are_no_suspects(kernel):
    """What had not started did not kill its worker: it is pending again, no attempt counted (K12, K15)."""
    await kernel.enqueue(count=2)
    worker = await kernel.claimer("work", ttl=10.0)
    first, _ = await worker.take(2, prefetch=30.0)
    await tasks.start_claims(kernel.database, [first])
    await kernel.sql("update workers set beaten_at = now() - interval '1 hour'")
    await tasks.rescue(kernel.database)
    assert await kernel.sql(ROWS) == [("suspect", 1, False), ("pending", 0, False)]


@pytest.mark.matrix
async def test_an_expired_prefetch_is_given_back_by_anyone(kernel):
    """A worker that lives and forgets its prefetched tasks loses them after the ttl, and cannot start them (K15)."""
    await kernel.enqueue()
    worker = await kernel.claimer("work")
    claims = await worker.take(1, prefetch=0.001)
    await tasks.rescue(kernel.database, slack=0.0)
    assert await kernel.sql(ROWS) == [("pending", 0, False)]
    assert await tasks.start_claims(kernel.database, claims) == []


@pytest.mark.matrix
async def test_an_overdue_prefetched_task_fails_in_place_of_starting(kernel):
    """The time to start goes on while it waits in the local queue (C6)."""
    await kernel.enqueue(schedule_to_start=60.0)
    worker = await kernel.claimer("work")
    claims = await worker.take(1, prefetch=30.0)
    await kernel.sql("update tasks set start_by = now() - interval '1 second'")
    assert await tasks.start_claims(kernel.database, claims) == []
    assert await kernel.sql("select state::text, attempt, error from finished") == [
        ("failed", 0, "TimeoutError: not started within schedule_to_start of 60 s")
    ]


@pytest.mark.matrix
async def test_a_pause_that_begins_after_the_prefetch_is_heeded(kernel):
    """What has not started when its queue is paused goes back untouched; other queues' tasks start (K13, K15)."""
    for queue in ("default", "other"):
        await kernel.enqueue(queue=queue)
    worker = await kernel.claimer("work", queues=("default", "other"))
    claims = await worker.take(2, prefetch=30.0)
    await control.pause_queue(kernel.database, "default")
    assert [claim.route.queue for claim in await tasks.start_claims(kernel.database, claims)] == ["other"]
    assert await kernel.sql(ROWS) == [("pending", 0, False), ("running", 1, False)]


@pytest.mark.matrix
async def test_a_cancelled_prefetched_task_ends_at_once(kernel):
    """It does not run yet: cancel ends it, and its worker starts it no more."""
    await kernel.enqueue()
    worker = await kernel.claimer("work")
    claims = await worker.take(1, prefetch=30.0)
    assert await kernel.sql("select * from cancel(array[%s])", [claims[0].id]) == [(1, 0)]
    assert await tasks.start_claims(kernel.database, claims) == []


async def test_a_worker_runs_everything_through_its_local_queue(kernel):
    """A worker with one slot and a local queue runs all tasks, in order, with fewer claims than tasks (K15, K2)."""
    app, ran = kernel.app(concurrency=1, prefetch=20), []

    @app.activity
    async def work(number: int):
        ran.append(number)

    async with app.client() as client, app.worker() as worker:
        polls, poll = [], worker._poller.poll

        async def counted(*arguments, **options):
            polls.append(1)
            return await poll(*arguments, **options)

        worker._poller.poll = counted
        for number in range(60):
            await client.enqueue(work, number)
        await worker.run_once()
    assert ran == list(range(60))
    assert len(polls) < 20
    assert await kernel.one("select count(*) from finished where attempt = 1 and state = 'completed'") == 60


async def test_a_hold_that_begins_after_the_prefetch_is_heeded(kernel):
    """A prefetched task is judged by the skip list again before it starts; held it goes back untouched (K15, C4)."""
    hold = Hold()
    app = kernel.app(plugins=[hold], concurrency=1, prefetch=10)
    began, go = asyncio.Event(), asyncio.Event()

    @app.activity
    async def work():
        began.set()
        await go.wait()

    @app.activity
    async def held():
        raise AssertionError("held")

    async with app.client() as client:
        await client.enqueue(work, priority=1)
        task = await client.enqueue(held)
        async with kernel.running(app):
            await began.wait()

            async def prefetched():
                return await kernel.sql(ROWS) == [("running", 1, False), ("running", 0, True)]

            await kernel.until(prefetched)
            hold.holding = True
            go.set()

            async def given_back():
                return await kernel.sql(ROWS) == [("pending", 0, False)]

            await kernel.until(given_back)
        assert (await task.status()).attempt == 0


async def test_a_rate_counts_starts_through_the_local_queue(kernel):
    """A local queue lets no window hold more starts than its budget, whether that begins early or late (K15)."""
    rate = Rate()
    app = kernel.app(plugins=[rate], concurrency=1, prefetch=10)
    began, go = asyncio.Event(), asyncio.Event()

    @app.activity
    async def first():
        began.set()
        await go.wait()

    @app.activity
    async def work():
        pass

    await kernel.enqueue("first", priority=1)
    await kernel.enqueue(count=4)
    async with kernel.running(app):
        await began.wait()

        async def prefetched():
            return await kernel.one("select count(*) from tasks where prefetched_until is not null") == 4

        await kernel.until(prefetched)
        rate.limiting = True
        await kernel.enqueue(count=4)
        go.set()

        async def done():
            return await kernel.one("select count(*) from finished") == 9

        await kernel.until(done)
    starts = [at for (at,) in await kernel.sql("select claimed_at from finished where name = 'work'")]
    for begun in starts:
        assert sum(0 <= (at - begun).total_seconds() < 0.5 for at in starts) <= 3


async def test_a_stop_gives_prefetched_tasks_back_before_the_grace(kernel):
    """A stopping worker keeps no one waiting for what it has not started (K12)."""
    app = kernel.app(concurrency=1, prefetch=10, shutdown_grace="10s")
    began, go = asyncio.Event(), asyncio.Event()

    @app.activity
    async def work():
        began.set()
        await go.wait()

    async with app.client() as client:
        for _ in range(5):
            await client.enqueue(work)
        async with app.worker() as worker:
            loop = asyncio.ensure_future(worker.run())
            await began.wait()

            async def prefetched():
                return await kernel.one("select count(*) from tasks where prefetched_until is not null") == 4

            await kernel.until(prefetched)
            worker.stop()

            async def given_back():
                return await kernel.one("select count(*) from tasks where state = 'pending' and attempt = 0") == 4

            await kernel.until(given_back)
            go.set()
            await loop
    assert await kernel.states() == {"completed": 1, "pending": 4}
