"""Routes without constraints: enqueues never wait for each other, and clean-up orphans nothing (design: Store)."""

import asyncio

import psycopg
import pytest

from harvest_core.store.postgres import tasks


async def orphans(kernel):
    return await kernel.one(
        "select count(*) from tasks t where not exists (select from routes r where r.id = t.route_id)"
    )


@pytest.mark.matrix
async def test_two_open_transactions_on_one_new_route_keep_both_tasks(kernel):
    """The second neither waits for the first nor loses its task, whichever commits first."""
    first, second = await kernel.connection(autocommit=False), await kernel.connection(autocommit=False)
    await first.execute("select enqueue('work')")
    await asyncio.wait_for(second.execute("select enqueue('work')"), 5)
    await second.commit()
    await first.commit()
    assert await kernel.states() == {"pending": 2}
    assert await orphans(kernel) == 0
    worker = await kernel.claimer("work")
    assert len(await worker.take(10)) == 2


async def test_one_rolls_back_and_the_other_keeps_its_task(kernel):
    """A route made by a transaction that rolled back carries nobody else's task."""
    first, second = await kernel.connection(autocommit=False), await kernel.connection(autocommit=False)
    await first.execute("select enqueue('work')")
    await second.execute("select enqueue('work')")
    await first.rollback()
    await second.commit()
    assert (await kernel.states(), await orphans(kernel)) == ({"pending": 1}, 0)


@pytest.mark.matrix
async def test_crossing_new_routes_do_not_deadlock(kernel):
    """A then B beside B then A, in one call each step: nobody waits."""
    first, second = await kernel.connection(autocommit=False), await kernel.connection(autocommit=False)
    for connection, name in ((first, "a"), (second, "b"), (first, "b"), (second, "a")):
        await asyncio.wait_for(connection.execute("select enqueue(%s)", [name]), 5)
    await first.commit()
    await second.commit()
    assert (await kernel.states(), await orphans(kernel)) == ({"pending": 4}, 0)


async def test_a_visible_route_is_used_again(kernel):
    """The same identity, its traits in whatever order and spelling, is one route; another is another."""
    await kernel.enqueue(traits='{"a": [1], "b": 2}', count=3)
    await kernel.enqueue(traits='{ "b":2, "a":[1] }')
    assert await kernel.one("select count(*) from routes") == 1
    await kernel.enqueue(traits='{"a": [1]}')
    await kernel.enqueue(traits='{"a": [1], "b": 2}', queue="other")
    assert await kernel.one("select count(*) from routes") == 3


async def test_large_traits_are_no_obstacle(kernel):
    """Traits longer than an index entry may be are found again all the same."""
    traits = '{"flags": [' + ", ".join(f'"{number:040}"' for number in range(500)) + "]}"
    await kernel.enqueue(traits=traits, count=2)
    assert await kernel.one("select count(*) from routes") == 1


async def test_equal_numbers_of_other_spelling_are_claimed(kernel):
    """1 and 1.0 are equal to jsonb and differ in text: two routes, and no task of either is lost or doubled."""
    connection = await kernel.connection()
    await connection.execute(
        "select * from enqueue_many(array['work', 'work'], array['[]', '[]']::jsonb[], array['{}', '{}']::jsonb[], "
        "array[null, null]::text[], array[null, null]::integer[], array[null, null]::timestamptz[], "
        "array[null, null]::float8[], array[null, null]::text[], array['{\"a\": 1}', '{\"a\": 1.0}']::jsonb[], "
        "array[null, null]::integer[], array[null, null]::float8[], array[null, null]::float8[])"
    )
    await kernel.enqueue(traits='{"a": 1}')
    await kernel.enqueue(traits='{"a": 1.0}')
    assert await kernel.states() == {"pending": 4}


# ------------------------------------------------------------------------------------------------ clean-up


@pytest.mark.matrix
async def test_clean_up_removes_idle_routes_only(kernel):
    """A route goes when no task of it is scheduled, pending or running."""
    for name, state in (("a", "scheduled"), ("b", "pending")):
        await kernel.rows(await kernel.route(name=name), 1, state=state)
    await kernel.enqueue("c")
    worker = await kernel.claimer("c")
    (running,) = await worker.take()
    await kernel.route(name="idle")
    assert await tasks.remove_idle_routes(kernel.database) == 1
    assert sorted(row[0] for row in await kernel.sql("select name from routes")) == ["a", "b", "c"]
    await worker.finish([running])
    assert await tasks.remove_idle_routes(kernel.database) == 1
    assert await kernel.one("select count(*) from finished where name = 'c'") == 1


@pytest.mark.matrix
async def test_clean_up_beside_an_uncommitted_enqueue_orphans_nothing(kernel):
    """While an enqueue is open, clean-up gives up soon and changes nothing; afterwards the route is in use."""
    await kernel.route(name="work")
    caller = await kernel.connection(autocommit=False)
    await caller.execute("select enqueue('work')")
    assert await asyncio.wait_for(tasks.remove_idle_routes(kernel.database), 5) is None
    await caller.commit()
    assert await tasks.remove_idle_routes(kernel.database) == 0
    assert (await kernel.states(), await orphans(kernel)) == ({"pending": 1}, 0)


async def test_clean_up_and_enqueues_race(kernel):
    """Clean-up over and over beside enqueues that come and go: nothing is orphaned, nothing fails."""
    done = asyncio.Event()

    async def enqueue(number):
        connection = await kernel.connection(autocommit=False)
        for turn in range(40):
            await connection.execute("select enqueue(%s)", [f"name{(number + turn) % 3}"])
            await (connection.rollback() if turn % 5 == 4 else connection.commit())
            await connection.execute(
                "delete from tasks where id = (select id from tasks limit 1 for update skip locked)"
            )
            await connection.commit()

    async def clean():
        removed = 0
        while not done.is_set():
            removed += await tasks.remove_idle_routes(kernel.database) or 0
        return removed

    cleaning = asyncio.ensure_future(clean())
    await asyncio.gather(*(enqueue(number) for number in range(3)))
    done.set()
    assert await cleaning > 0
    assert await orphans(kernel) == 0


@pytest.mark.matrix
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_an_old_snapshot_gets_an_error_and_no_orphan(kernel, level):
    """A caller that still sees a removed route is told to try again; nothing points at what is gone."""
    await kernel.route(name="work")
    old = await kernel.connection(autocommit=False)
    await old.execute(f"set transaction isolation level {level}")
    await old.execute("select 1")
    assert await tasks.remove_idle_routes(kernel.database) == 1
    with pytest.raises(psycopg.errors.SerializationFailure):
        await old.execute("select enqueue('work')")
    await old.rollback()
    await old.execute("select enqueue('work')")
    await old.commit()
    assert (await kernel.states(), await orphans(kernel)) == ({"pending": 1}, 0)


async def test_a_stricter_default_isolation_changes_nothing(kernel):
    """Where the database's default is REPEATABLE READ, the kernel's own connections still read what is committed."""
    name = await kernel.one("select current_database()")
    await kernel.sql(f"alter database {name} set default_transaction_isolation = 'repeatable read'")
    database = await kernel.another_database()
    assert await database.fetch("show transaction_isolation") == [("read committed",)]
    await kernel.route(name="work")
    caller = await kernel.connection(autocommit=False)
    await caller.execute("set transaction isolation level read committed")
    await caller.execute("select enqueue('work')")
    cleaning = asyncio.ensure_future(tasks.remove_idle_routes(database))
    await asyncio.sleep(0)
    await caller.commit()
    await cleaning
    assert await orphans(kernel) == 0
