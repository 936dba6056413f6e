"""Keys with a policy and a period: what an enqueue does where another task has its key (K3)."""

import asyncio

import psycopg
import pytest

from harvest_core import Call, KeyTakenError
from harvest_core.store.postgres import tasks
from harvest_core.store.postgres.tasks import Finished, Released, Retried

KEEPERS = {"retried": Retried(0.0, "broke"), "given back": Released(), "rescued": None}


async def replace(kernel, **options):
    return (await kernel.enqueue(**{"key": "k", "on_conflict": "replace"} | options))[0]


async def take(kernel, count=1):
    return await (await kernel.claimer("work", "else")).take(count)


async def all_tasks(kernel):
    return await kernel.sql("select id, state::text, args, priority from tasks order by id")


async def keys(kernel):
    return await kernel.sql("select name, key, task_id, expires_at is not null from keys order by name, key")


@pytest.mark.matrix
@pytest.mark.parametrize("state", ["scheduled", "pending", "blocked", "retried"])
async def test_a_task_that_has_not_started_becomes_the_new_one(kernel, state):
    """One task under the old id, with everything the second call says and the first one's traces gone (K3)."""
    if state == "blocked":
        await kernel.enqueue(lane="a")
    options = {"scheduled": {"delay": 60.0}, "blocked": {"lane": "a"}}.get(state, {})
    (first,) = await kernel.enqueue(key="k", args="[1]", **options)
    await tasks.promote(kernel.database)
    if state == "retried":
        (claim,) = await take(kernel)
        await tasks.write_outcomes(kernel.database, [(claim, Retried(60.0, "broke"))])
    other = [row for row in await all_tasks(kernel) if row[0] != first]
    assert await replace(kernel, args="[2]", priority=7) == first
    assert await all_tasks(kernel) == [*other, (first, "pending", [2], 7)]
    assert await kernel.one("select attempt = 0 and error is null and lane is null from tasks where id = %s", [first])
    if state == "blocked":
        assert await kernel.sql("select distinct lane from lane_news") == [("a",)]


@pytest.mark.matrix
@pytest.mark.parametrize("keeper", list(KEEPERS))
async def test_a_running_task_finishes_its_attempt_and_gets_no_further(kernel, keeper):
    """Retried, given back or rescued, it stays retired and the new one runs (graphile_worker_rs#524)."""
    (first,) = await kernel.enqueue(key="k", args="[1]")
    (claim,) = await take(kernel)
    second = await replace(kernel, args="[2]")
    assert second != first
    if outcome := KEEPERS[keeper]:
        await tasks.write_outcomes(kernel.database, [(claim, outcome)])
    else:
        await kernel.sql("update workers set beaten_at = now() - interval '1 day'")
        await tasks.rescue(kernel.database)
    assert await kernel.sql("select id, state::text, error from finished") == [
        (first, "cancelled", f"replaced by task {second}")
    ]
    assert await all_tasks(kernel) == [(second, "pending", [2], 0)]
    assert await kernel.one("select count(*) from replaced") == 0
    assert await kernel.enqueue(key="k") == [second]


@pytest.mark.matrix
async def test_a_running_task_that_completes_frees_nothing_of_its_successor(kernel):
    """The first one's end leaves the key with the second, which frees it at its own (K3)."""
    await kernel.enqueue(key="k")
    (claim,) = await take(kernel)
    second = await replace(kernel)
    await tasks.write_outcomes(kernel.database, [(claim, Finished("completed", "1"))])
    assert await keys(kernel) == [("work", "k", second, False)]
    (claim,) = await take(kernel)
    await tasks.write_outcomes(kernel.database, [(claim, Finished("completed", "1"))])
    assert await keys(kernel) == []


@pytest.mark.matrix
async def test_a_key_for_a_period(kernel):
    """It is taken after the end too, until it expires; replace then makes a new task, raise refuses (K3)."""
    (first,) = await kernel.enqueue(key="k", key_period=3600.0)
    await tasks.write_outcomes(kernel.database, [((await take(kernel))[0], Finished("completed", "1"))])
    assert await kernel.enqueue(key="k") == [first]
    with pytest.raises(psycopg.errors.UniqueViolation):
        await kernel.enqueue(key="k", on_conflict="raise")
    second = await replace(kernel)
    assert second != first
    assert await keys(kernel) == [("work", "k", second, False)]
    await tasks.write_outcomes(kernel.database, [((await take(kernel))[0], Finished("completed", "1"))])
    (third,) = await kernel.enqueue(key="k", key_period=3600.0)
    await tasks.write_outcomes(kernel.database, [((await take(kernel))[0], Finished("completed", "1"))])
    await kernel.sql("update keys set expires_at = now() - interval '1 second'")
    (fourth,) = await kernel.enqueue(key="k")
    assert fourth != third


@pytest.mark.matrix
async def test_a_period_that_expires_while_the_task_lives(kernel):
    """An unfinished task keeps its key, and frees it at its end (K3)."""
    (first,) = await kernel.enqueue(key="k", key_period=3600.0)
    await kernel.sql("update keys set expires_at = now() - interval '1 second'")
    assert await kernel.enqueue(key="k") == [first]
    await tasks.remove_leftovers(kernel.database)
    assert await kernel.enqueue(key="k") == [first]
    await tasks.write_outcomes(kernel.database, [((await take(kernel))[0], Finished("completed", "1"))])
    assert await keys(kernel) == []


@pytest.mark.matrix
async def test_the_period_of_the_replacing_call_counts(kernel):
    """A replace says anew for how long the key is taken (K3)."""
    await kernel.enqueue(key="k", key_period=3600.0)
    first = await replace(kernel)
    assert await keys(kernel) == [("work", "k", first, False)]
    await replace(kernel, key_period=60.0)
    assert await kernel.one("select expires_at between now() and now() + interval '60 s' from keys")


@pytest.mark.matrix
@pytest.mark.parametrize("start", ["nothing", "pending", "running"])
async def test_several_of_one_key_in_a_batch(kernel, start):
    """The last one of a batch wins; there is one unfinished task that waits (K3)."""
    async with kernel.app().client() as client:
        old = None
        if start != "nothing":
            (old,) = await kernel.enqueue(key="k", args="[0]")
        if start == "running":
            await take(kernel)
        made = await client.enqueue_many(
            [Call("work", (n,), key="k", on_conflict="replace", elsewhere=True) for n in (1, 2, 3)]
        )
    assert len({task.id for task in made}) == 1
    waiting = [row for row in await all_tasks(kernel) if row[1] == "pending"]
    assert [(row[0], row[2]) for row in waiting] == [(made[0].id, [3])]
    assert [task.created for task in made] == [False, False, start != "pending"]
    assert (made[0].id == old) == (start == "pending")


async def test_raise_says_which_task_has_the_key(kernel):
    """The whole call fails, in words, and writes nothing (K3, O1)."""
    async with kernel.app().client() as client:
        task = await client.enqueue("work", key="k", elsewhere=True)
        with pytest.raises(KeyTakenError) as caught:
            await client.enqueue_many(
                [
                    Call("work", elsewhere=True),
                    Call("work", key="k", on_conflict="raise", elsewhere=True),
                ]
            )
    assert str(caught.value) == f"task 2 (work): its key is taken by task {task.id}; nothing was written"
    assert len(await all_tasks(kernel)) == 1


@pytest.mark.matrix
async def test_an_open_replace_never_holds_up_a_workers_finish(kernel):
    """The client's transaction stays open, the worker's outcome is written all the same, and nothing is lost (K3)."""
    (first,) = await kernel.enqueue(key="k")
    (claim,) = await take(kernel)
    client = await kernel.connection(autocommit=False)
    await client.execute("select enqueue('work', key => 'k', on_conflict => 'replace')")
    async with asyncio.timeout(5):
        assert await tasks.write_outcomes(kernel.database, [(claim, Finished("completed", "1"))]) == {first}
    await client.commit()
    ((second, state, _, _),) = await all_tasks(kernel)
    assert (state, await keys(kernel)) == ("pending", [("work", "k", second, False)])
    await tasks.remove_leftovers(kernel.database)
    assert await kernel.one("select count(*) from replaced") == 0
    assert await kernel.enqueue(key="k") == [second]


@pytest.mark.matrix
@pytest.mark.parametrize("state", ["pending", "running", "ended meanwhile"])
async def test_a_replace_that_rolls_back_leaves_everything(kernel, state):
    """Nothing of it stays, and the key is free once its task has ended (K3)."""
    (first,) = await kernel.enqueue(key="k", args="[1]")
    claims = [] if state == "pending" else await take(kernel)
    before = await all_tasks(kernel)
    client = await kernel.connection(autocommit=False)
    await client.execute("select enqueue('work', key => 'k', on_conflict => 'replace')")
    if state == "ended meanwhile":
        await tasks.write_outcomes(kernel.database, [(claims[0], Finished("completed", "1"))])
    await client.rollback()
    if state != "ended meanwhile":
        assert await all_tasks(kernel) == before
        assert await kernel.enqueue(key="k") == [first]
        return
    assert await keys(kernel) == [("work", "k", first, False)]
    assert await tasks.remove_leftovers(kernel.database) == 1
    assert await keys(kernel) == []
    assert await kernel.enqueue(key="k") != [first]


@pytest.mark.matrix
@pytest.mark.parametrize("state", ["pending", "running", "finished"])
async def test_two_replaces_at_once(kernel, state):
    """Twenty race: one task waits, with the arguments of one of them, and it has the key (K3)."""
    await kernel.enqueue(key="k", key_period=3600.0)
    if state != "pending":
        claims = await take(kernel)
        if state == "finished":
            await tasks.write_outcomes(kernel.database, [(claims[0], Finished("completed", "1"))])
    connections = [await kernel.connection() for _ in range(20)]
    await asyncio.gather(
        *(
            connection.execute("select enqueue('work', args => %s, key => 'k', on_conflict => 'replace')", [f"[{n}]"])
            for n, connection in enumerate(connections)
        )
    )
    waiting = [row for row in await all_tasks(kernel) if row[1] == "pending"]
    assert len(waiting) == 1
    assert [row[2] for row in await keys(kernel)] == [waiting[0][0]]


@pytest.mark.matrix
async def test_the_task_ends_while_a_replace_waits_for_it(kernel):
    """A replace that met a task at its end enqueues a new one: the call is not swallowed (K3)."""
    (first,) = await kernel.enqueue(key="k")
    blocker = await kernel.connection(autocommit=False)
    await blocker.execute("select * from cancel(array[%s])", [first])
    client = await kernel.connection()
    waiting = asyncio.ensure_future(client.execute("select enqueue('work', key => 'k', on_conflict => 'replace')"))
    await kernel.until(lambda: kernel.one("select exists (select from pg_locks where not granted)"))
    await blocker.commit()
    ((second,),) = await (await waiting).fetchall()
    assert second != first
    assert [row[:2] for row in await all_tasks(kernel)] == [(second, "pending")]
    assert await keys(kernel) == [("work", "k", second, False)]


@pytest.mark.matrix
async def test_replace_in_an_old_snapshot(kernel):
    """In repeatable read it replaces what it sees, or is refused by PostgreSQL where that changed (K3)."""
    (first,) = await kernel.enqueue(key="k")
    await kernel.enqueue(key="other")
    client = await kernel.connection(autocommit=False)
    await client.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
    await client.execute("select count(*) from harvest.tasks")
    cursor = await client.execute("select enqueue('work', args => '[2]', key => 'k', on_conflict => 'replace')")
    assert await cursor.fetchone() == (first,)
    await client.commit()
    await client.execute("select count(*) from harvest.tasks")
    await take(kernel, 5)
    with pytest.raises(psycopg.errors.SerializationFailure):
        await client.execute("select enqueue('work', args => '[3]', key => 'k', on_conflict => 'replace')")


async def test_replace_of_a_prefetched_task(kernel):
    """What a worker only holds has not started: it becomes the new one, and that worker cannot start it (K3, K15)."""
    (first,) = await kernel.enqueue(key="k")
    claims = await take(kernel)
    await kernel.sql("update tasks set prefetched_until = now() + interval '1 hour', attempt = 0, claimed_at = null")
    assert await replace(kernel, args="[2]") == first
    assert await tasks.start_claims(kernel.database, claims) == []
    assert await all_tasks(kernel) == [(first, "pending", [2], 0)]


@pytest.mark.matrix
@pytest.mark.parametrize("by", ["enqueue", "retry by hand"])
async def test_who_waits_for_an_open_replace_leaves_its_new_task_the_key(kernel, by):
    """The old task ended meanwhile; what waits judges the key anew, and does not free it under its owner (K3)."""
    (failed,) = await kernel.enqueue(key="k")
    claims = await take(kernel)
    await tasks.write_outcomes(kernel.database, [(claims[0], Finished("failed", error="x"))])
    await kernel.enqueue(key="k")
    claims = await take(kernel)
    first, second = await kernel.connection(autocommit=False), await kernel.connection()
    await first.execute("select enqueue('work', key => 'k', on_conflict => 'replace')")
    await tasks.write_outcomes(kernel.database, [(claims[0], Finished("completed", "1"))])
    text = "select enqueue('work', key => 'k')" if by == "enqueue" else f"select retry_finished(array[{failed}])"
    waiting = asyncio.ensure_future(second.execute(text))
    await kernel.until(lambda: kernel.one("select exists (select from pg_locks where not granted)"))
    await first.commit()
    found = await (await waiting).fetchall()
    ((owner, state, _, _),) = await all_tasks(kernel)
    assert (state, await keys(kernel)) == ("pending", [("work", "k", owner, False)])
    assert found == ([(owner,)] if by == "enqueue" else [])


@pytest.mark.matrix
@pytest.mark.parametrize("keeper", ["retried", "given back", "prefetched"])
async def test_what_was_given_back_while_a_replace_was_open_does_not_start_again(kernel, keeper):
    """Its attempt ended before the replace committed, so the next claim or start of it ends it (K3, K15)."""
    (first,) = await kernel.enqueue(key="k")
    (claim,) = await take(kernel)
    client = await kernel.connection(autocommit=False)
    cursor = await client.execute("select enqueue('work', key => 'k', on_conflict => 'replace')")
    ((second,),) = await cursor.fetchall()
    outcome = Retried(0.0, "broke") if keeper == "retried" else Released()
    await tasks.write_outcomes(kernel.database, [(claim, outcome)])
    worker = await kernel.claimer("work")
    if keeper == "prefetched":
        held = await worker.take()
        await kernel.sql(
            "update tasks set prefetched_until = now() + interval '1 hour', attempt = 0 where id = %s", [first]
        )
    await client.commit()
    if keeper == "prefetched":
        assert await tasks.start_claims(kernel.database, held) == []
    await tasks.promote(kernel.database)
    assert [claim.id for claim in await worker.take(5)] == [second]
    ended = await kernel.sql("select id, state::text, error from finished")
    assert ended == [(first, "cancelled", f"replaced by task {second}")]
    assert await kernel.one("select count(*) from replaced") == 0


@pytest.mark.matrix
@pytest.mark.parametrize("by", ["replace", "enqueue after the period"])
async def test_an_open_retry_by_hand_keeps_the_key_that_its_task_still_had(kernel, by):
    """Others cannot see its task yet, and must not take its key over, nor clean it up once its period is over (K3)."""
    (first,) = await kernel.enqueue(key="k", key_period=3600.0)
    (claim,) = await take(kernel)
    await tasks.write_outcomes(kernel.database, [(claim, Finished("failed", error="x"))])
    if by != "replace":
        await kernel.sql("update keys set expires_at = now() + interval '300 ms'")
    retrying, client = await kernel.connection(autocommit=False), await kernel.connection()
    await retrying.execute("select retry_finished(array[%s]::bigint[])", [first])
    if by != "replace":
        await kernel.sql("select pg_sleep(0.4)")
        await tasks.remove_leftovers(kernel.database)
    policy = "replace" if by == "replace" else "ignore"
    waiting = asyncio.ensure_future(client.execute("select enqueue('work', key => 'k', on_conflict => %s)", [policy]))
    await kernel.until(lambda: kernel.one("select exists (select from pg_locks where not granted)"))
    await retrying.commit()
    assert await (await waiting).fetchall() == [(first,)]
    assert [row[:2] for row in await all_tasks(kernel)] == [(first, "pending")]
    assert [row[2] for row in await keys(kernel)] == [first]


@pytest.mark.matrix
async def test_a_task_that_failed_while_a_replace_was_open_can_be_retried_by_hand(kernel):
    """It has its key again, so the mark that the replace left does not end it once more (K3)."""
    (first,) = await kernel.enqueue(key="k")
    (claim,) = await take(kernel)
    client = await kernel.connection(autocommit=False)
    await client.execute("select enqueue('work', key => 'k', on_conflict => 'replace')")
    await tasks.write_outcomes(kernel.database, [(claim, Finished("failed", error="x"))])
    await client.commit()
    worker = await kernel.claimer("work")
    await worker.finish(await worker.take())
    assert await kernel.sql("select retry_finished(array[%s]::bigint[])", [first]) == [(first,)]
    assert [claim.id for claim in await worker.take()] == [first]


@pytest.mark.matrix
async def test_a_batch_of_replaces_and_a_retry_by_hand_cannot_deadlock(kernel):
    """Both hold the keys in the order of the keys, though the tasks were enqueued the other way round (K3)."""
    ids = [(await kernel.enqueue(key=key, key_period=3600.0))[0] for key in ("k2", "k1")]
    claims = await take(kernel, 2)
    await tasks.write_outcomes(kernel.database, [(claim, Finished("failed", error="x")) for claim in claims])
    blocker = await kernel.connection(autocommit=False)
    await blocker.execute("select from keys where key = 'k1' for update")
    retrying, replacing = await kernel.connection(), await kernel.connection()
    back = asyncio.ensure_future(retrying.execute("select retry_finished(%s::bigint[])", [ids]))
    await kernel.until(lambda: kernel.one("select count(distinct pid) = 1 from pg_locks where not granted"))
    batch = (
        "select task_id from enqueue_many(array_fill('work'::text, array[2]), array_fill('[]'::jsonb, array[2]), "
        "array_fill('{}'::jsonb, array[2]), null, null, null, null, array['k1', 'k2'], null, null, null, null, "
        "conflicts => array['replace', 'replace'])"
    )
    replaced = asyncio.ensure_future(replacing.execute(batch))
    await kernel.until(lambda: kernel.one("select count(distinct pid) = 2 from pg_locks where not granted"))
    await blocker.commit()
    assert sorted(await (await back).fetchall()) == [(ids[0],), (ids[1],)]
    assert await (await replaced).fetchall() == [(ids[1],), (ids[0],)]
    assert [row[:2] for row in await all_tasks(kernel)] == [(ids[0], "pending"), (ids[1], "pending")]
