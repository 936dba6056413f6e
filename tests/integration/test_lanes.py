"""Lanes: at most so many tasks of one key run at once, exact across processes and for batches (K13)."""

import asyncio

import pytest

from harvest_core.model import LaneLimit
from harvest_core.store.postgres import tasks, workers
from harvest_core.store.postgres.tasks import Finished, Released, Retried


async def promote(kernel):
    return await tasks.promote(kernel.database)


async def lane_states(kernel):
    rows = await kernel.sql("select state::text, id from tasks order by id")
    return [state for state, _ in rows]


@pytest.mark.matrix
async def test_a_batch_takes_one_of_a_lane(kernel):
    """One claim of many takes one task of a lane; the next enters when that one ends (graphile/worker#621)."""
    first, *rest = await kernel.enqueue(count=4, lane="customer/7")
    worker = await kernel.claimer("work")
    await promote(kernel)
    assert await lane_states(kernel) == ["pending", "blocked", "blocked", "blocked"]
    (claim,) = await worker.take(10)
    assert claim.id == first
    assert await worker.take(10) == []
    await worker.finish([claim])
    (claim,) = await worker.take(10)
    assert claim.id == rest[0]


@pytest.mark.matrix
async def test_a_future_task_and_a_retry_do_not_block_their_lane(kernel):
    """Only what is due or runs blocks: a task due in an hour or a retry does not (procrastinate#1599)."""
    await kernel.enqueue(lane="a", delay=3600.0)
    await kernel.enqueue(count=2, lane="a")
    worker = await kernel.claimer("work")
    await promote(kernel)
    (claim,) = await worker.take(5)
    await tasks.write_outcomes(kernel.database, [(claim, Retried(3600.0, "later"))])
    (other,) = await worker.take(5)
    assert other.id != claim.id
    assert await kernel.states() == {"scheduled": 2, "running": 1}


async def test_fifty_claimers_at_once_and_one_success(kernel):
    """Fifty claimers from their own connections: one gets a task of the lane (procrastinate#103, pgqueuer#761)."""
    await kernel.enqueue(count=50, lane="a")
    await promote(kernel)
    claimers = [await kernel.claimer("work", database=await kernel.another_database(1)) for _ in range(20)]
    got = await asyncio.gather(*(claimer.take(5) for claimer in claimers))
    assert sum(map(len, got)) == 1


async def test_a_better_task_takes_the_place_of_a_waiting_one(kernel):
    """Within a lane K2 holds: a later task of higher priority goes first while the earlier one is not claimed (K2)."""
    await kernel.enqueue(lane="a")
    await promote(kernel)
    (high,) = await kernel.enqueue(lane="a", priority=5)
    await promote(kernel)
    assert await lane_states(kernel) == ["blocked", "pending"]
    worker = await kernel.claimer("work")
    (claim,) = await worker.take(5)
    assert claim.id == high


@pytest.mark.matrix
async def test_a_lane_of_n_and_its_rate(kernel):
    """A limit by the name before the slash lets n run at once, and so many start in a period."""
    await workers.publish_lane_limits(
        kernel.database, [LaneLimit("wide", concurrency=2), LaneLimit("slow", None, starts=3, period=3600.0)]
    )
    await kernel.enqueue(count=5, lane="wide/1")
    await kernel.enqueue(count=5, lane="slow/1")
    await kernel.enqueue(count=5, lane="slow/2")
    await promote(kernel)
    worker = await kernel.claimer("work")
    claims = await worker.take(50)
    assert len(claims) == 2 + 3 + 3
    await worker.finish(claims)
    found = await promote(kernel)
    assert len(await worker.take(50)) == 2
    assert 3500.0 < found.next_due <= 3700.0


async def test_a_lane_opens_again_when_its_window_has_passed(kernel):
    """The starts of a lane leave the window one by one; nothing else has to happen for the next one to enter."""
    await workers.publish_lane_limits(kernel.database, [LaneLimit("slow", None, starts=2, period=0.4)])
    await kernel.enqueue(count=5, lane="slow/1")
    worker = await kernel.claimer("work")
    starts = []

    async def drained():
        await promote(kernel)
        claims = await worker.take(5)
        if claims:
            starts.append(
                (await kernel.one("select claimed_at from tasks where state = 'running' limit 1"), len(claims))
            )
            await worker.finish(claims)
        return sum(count for _, count in starts) == 5

    await kernel.until(drained)
    for begun, _ in starts:
        window = [count for at, count in starts if 0 <= (at - begun).total_seconds() < 0.4]
        assert sum(window) <= 2


async def test_a_rate_opens_while_long_tasks_run(kernel):
    """A lane with a rate alone opens when its window has passed, though nothing of it has ended."""
    await workers.publish_lane_limits(kernel.database, [LaneLimit("slow", None, starts=2, period=0.3)])
    await kernel.enqueue(count=5, lane="slow/1")
    worker = await kernel.claimer("work")
    claims = []

    async def all_started():
        await promote(kernel)
        claims.extend(await worker.take(5))
        return len(claims) == 5

    await kernel.until(all_started)
    assert await kernel.states() == {"running": 5}


async def test_an_open_enqueue_blocks_no_lane(kernel):
    """A client whose transaction stays open holds up neither the lane's other tasks nor their end."""
    await kernel.enqueue(count=2, lane="a")
    await promote(kernel)
    client = await kernel.connection(autocommit=False)
    await client.execute("select enqueue('work', lane => 'a')")
    worker = await kernel.claimer("work")
    (claim,) = await worker.take(5)
    await asyncio.wait_for(worker.finish([claim]), 5)
    (claim,) = await worker.take(5)
    await client.commit()
    await promote(kernel)
    assert await worker.take(5) == []
    await worker.finish([claim])
    assert len(await worker.take(5)) == 1


@pytest.mark.matrix
@pytest.mark.parametrize("limits", [[], [LaneLimit("a", None, starts=1, period=0.2)]])
async def test_a_transaction_that_is_rolled_back_shuts_no_lane(kernel, limits):
    """The next task is locked by another as its lane opens, and nobody tells when it lets go: it comes all the same."""
    await workers.publish_lane_limits(kernel.database, limits)
    _, second = await kernel.enqueue(count=2, lane="a")
    await promote(kernel)
    worker = await kernel.claimer("work")
    claims = await worker.take(1)
    holder = await kernel.connection(autocommit=False)
    await holder.execute("select from tasks where id = %s for update", [second])
    await worker.finish(claims)
    await holder.rollback()

    async def came():
        await promote(kernel)
        return [claim.id for claim in await worker.take(1)] == [second]

    await kernel.until(came)


@pytest.mark.parametrize("ending", ["finish", "fail", "cancel", "rescue", "quarantine"])
async def test_every_way_to_end_lets_the_next_come(kernel, ending):
    """However a lane's task ends, the next of the lane becomes pending: no lane stays shut."""
    await kernel.enqueue(count=2, lane="a")
    await promote(kernel)
    worker = await kernel.claimer("work", ttl=10.0)
    if ending == "cancel":
        await kernel.sql("select cancel(array[min(id)]) from tasks")
        await promote(kernel)
    else:
        (claim,) = await worker.take(5)
        if ending in ("finish", "fail"):
            await tasks.write_outcomes(
                kernel.database, [(claim, Finished({"finish": "completed"}.get(ending, "failed")))]
            )
        else:
            await kernel.sql("update workers set beaten_at = now() - interval '1 hour'")
            await tasks.rescue(kernel.database, max_crashes=3 if ending == "rescue" else 1)
    after = await lane_states(kernel)
    assert after == (["suspect", "blocked"] if ending == "rescue" else ["pending"])


async def test_a_million_blocked_siblings_cost_a_claim_nothing(kernel):
    """A lane shows the claim its head alone: rows read by a claim do not grow with what is blocked."""
    await kernel.enqueue(count=2000, lane="a")
    while (await promote(kernel)).count:
        pass
    worker = await kernel.claimer("work")
    await worker.take(1)
    (before,) = await kernel.sql("select count(*) from tasks where state in ('pending', 'running')")
    assert before == (1,)


@pytest.mark.matrix
@pytest.mark.parametrize("how", ["given back", "its worker died"])
async def test_a_start_that_came_to_nothing_counts_for_the_rate(kernel, how):
    """Given back or orphaned, it has started once: the lane opens again when its window has passed (K1)."""
    await workers.publish_lane_limits(kernel.database, [LaneLimit("slow", 2, starts=2, period=60.0)])
    ids = await kernel.enqueue(count=3, lane="slow")
    worker = await kernel.claimer("work")
    await promote(kernel)
    (claim,) = await worker.take(1)
    if how == "given back":
        await tasks.write_outcomes(kernel.database, [(claim, Released())])
        state = "pending"
    else:
        await kernel.sql("update workers set beaten_at = now() - interval '2 hours'")
        await tasks.rescue(kernel.database)
        worker, state = await kernel.claimer("work"), "suspect"
    assert sorted(await lane_states(kernel)) == sorted([state, "blocked", "blocked"])
    pool = {"pool": "suspect"} if state == "suspect" else {}
    (again,) = await worker.take(5, **pool)
    assert again.id == ids[0]
    await tasks.write_outcomes(kernel.database, [(again, Released())])
    await promote(kernel)
    assert await lane_states(kernel) == ["blocked"] * 3
    assert await worker.take(5) == []


async def test_what_was_only_prefetched_keeps_its_place_in_the_lane(kernel):
    """It has not started, so that giving it back changes neither its place nor the rate (K15)."""
    await workers.publish_lane_limits(kernel.database, [LaneLimit("slow", 1, starts=1, period=60.0)])
    await kernel.enqueue(count=2, lane="slow")
    worker = await kernel.claimer("work")
    await promote(kernel)
    claims = await worker.take(1)
    await kernel.sql(
        "update tasks set prefetched_until = now() + interval '1 hour', attempt = 0 where state = 'running'"
    )
    await tasks.write_outcomes(kernel.database, [(claims[0], Released())])
    assert await lane_states(kernel) == ["pending", "blocked"]
