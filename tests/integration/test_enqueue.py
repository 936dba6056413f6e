"""Enqueue through the SQL contract, as any client of any language would (K8, K9, K11)."""

import asyncio

import psycopg
import pytest

MANY = (
    "select task_id, created from enqueue_many(%(names)s, array_fill('[]'::jsonb, array[cardinality(%(names)s)]), "
    "array_fill('{{}}'::jsonb, array[cardinality(%(names)s)]), array_fill(null::text, array[cardinality(%(names)s)]), "
    "array_fill(null::integer, array[cardinality(%(names)s)]), "
    "array_fill(null::timestamptz, array[cardinality(%(names)s)]), "
    "array_fill(null::float8, array[cardinality(%(names)s)]), %(keys)s, "
    "array_fill(null::jsonb, array[cardinality(%(names)s)]), array_fill(null::integer, array[cardinality(%(names)s)]), "
    "array_fill(null::float8, array[cardinality(%(names)s)]), array_fill(null::float8, array[cardinality(%(names)s)]))"
).replace("{{}}", "{}")


async def many(connection, keys, names=None):
    """Enqueue one task a key in one call and return (id, created) for each."""
    values = {"names": names or ["work"] * len(keys), "keys": keys}
    text = MANY.replace("%(names)s", "%(names)s::text[]").replace("%(keys)s", "%(keys)s::text[]")
    return await (await connection.execute(text, values)).fetchall()


async def finish(kernel, state="completed"):
    """Claim one task and end it."""
    worker = await kernel.claimer("work")
    (claim,) = await worker.take()
    await kernel.sql(
        "select * from finish(%s, %s, array[%s], array[null::jsonb], array[null::text], array[null::text])",
        [[claim.id], [claim.token], state],
    )
    return claim.id


# ------------------------------------------------------------------------------------------------ one and many


@pytest.mark.matrix
async def test_a_bare_call_gets_defaults(kernel):
    """Plain SQL names the activity and nothing else (K9)."""
    await kernel.sql("select enqueue('work')")
    rows = await kernel.sql(
        "select r.queue, r.kind, r.name, r.traits, t.state::text, t.priority, t.attempt, t.max_attempts, t.args, "
        "t.kwargs, t.key, t.scheduled_at <= now() from tasks t join routes r on r.id = t.route_id"
    )
    assert rows == [("default", "activity", "work", {}, "pending", 0, 0, 5, [], {}, None, True)]


async def test_published_defaults_reach_plain_sql(kernel):
    """What a worker published for an activity holds for an enqueue from plain SQL; the call's own values win (K8)."""
    app = kernel.app(queues=["slow"])

    @app.activity(queue="slow", priority=7, max_attempts=2, start_to_close="10m", heartbeat="5s")
    async def work(): ...

    async with app.worker():
        pass
    await kernel.sql("select enqueue('work')")
    await kernel.sql("select enqueue('work', queue => 'fast', priority => 1, max_attempts => 9, start_to_close => 3)")
    rows = await kernel.sql(
        "select r.queue, t.priority, t.max_attempts, t.start_to_close, t.heartbeat "
        "from tasks t join routes r on r.id = t.route_id order by t.id"
    )
    assert rows == [("slow", 7, 2, 600.0, 5.0), ("fast", 1, 9, 3.0, 5.0)]


async def test_delayed_tasks_are_scheduled_and_promoted(kernel):
    """A delay or a later time makes a scheduled task; what is due is pending at once, and promotion keeps the rest."""
    await kernel.enqueue(delay=3600.0)
    (due,) = await kernel.enqueue(delay=3600.0)
    await kernel.sql("select enqueue('work', scheduled_at => now() - interval '1 s')")
    await kernel.sql("select enqueue('work', scheduled_at => now() + interval '1 h')")
    assert await kernel.states() == {"scheduled": 3, "pending": 1}
    await kernel.sql("update tasks set scheduled_at = now() where id = %s", [due])
    promoted, next_due = (await kernel.sql("select * from promote(10)"))[0]
    assert (promoted, 3500 < next_due <= 3600) == (1, True)
    assert await kernel.states() == {"scheduled": 2, "pending": 2}


async def test_promotion_is_bounded_and_shared(kernel):
    """A promotion moves at most its batch, the oldest first, and passes rows that another one holds."""
    route = await kernel.route()
    ids = await kernel.rows(route, 5, state="scheduled", due="now() - make_interval(secs => 10 - i)")
    blocker = await kernel.connection(autocommit=False)
    await blocker.execute("select 1 from tasks where id = %s for update", [ids[0]])
    promoted, _ = (await kernel.sql("select * from promote(2)"))[0]
    pending = [row[0] for row in await kernel.sql("select id from tasks where state = 'pending' order by id")]
    assert (promoted, pending) == (2, ids[1:3])


async def test_an_empty_batch_is_no_task(kernel):
    """No task in, no task out, no error."""
    assert await many(kernel.control, []) == []


# ------------------------------------------------------------------------------------------------ refusals


HINT = (
    "A name, a queue, a key and a lane are not blank, key and lane take at most 1024 bytes, args is a JSON array, "
    "kwargs and traits are JSON objects, max_attempts is at least 1, scheduled_at lies in the years 2 to 8999, "
    "delay is not negative, key_period and all time limits are above 0, all of them below 1e10 seconds, a key_period "
    "needs a key, on_conflict is ignore, replace or raise, and arguments take at most 2 MB."
)


REFUSED = [
    "enqueue('')",
    "enqueue('  ')",
    "enqueue(null)",
    "enqueue('work', queue => '')",
    "enqueue('work', queue => ' ')",
    "enqueue('work', args => '{}')",
    "enqueue('work', args => 'null')",
    "enqueue('work', args => null)",
    "enqueue('work', kwargs => '[]')",
    "enqueue('work', kwargs => null)",
    "enqueue('work', traits => '[]')",
    "enqueue('work', traits => '\"x\"')",
    "enqueue('work', max_attempts => 0)",
    "enqueue('work', delay => -1)",
    "enqueue('work', scheduled_at => 'infinity')",
    "enqueue('work', scheduled_at => '-infinity')",
    "enqueue('work', scheduled_at => '0044-03-15 BC')",
    "enqueue('work', delay => 'NaN')",
    "enqueue('work', delay => 'Infinity')",
    "enqueue('work', start_to_close => 0)",
    "enqueue('work', start_to_close => -1)",
    "enqueue('work', heartbeat => 0)",
    "enqueue('work', heartbeat => 'NaN')",
    "enqueue('work', key => ' ')",
    "enqueue('work', key => repeat('x', 1025))",
    "enqueue('work', lane => '')",
    "enqueue('work', lane => repeat('x', 1025))",
    "enqueue('work', key => 'k', key_period => 0)",
    "enqueue('work', key_period => 1)",
    "enqueue('work', key => 'k', on_conflict => 'merge')",
    "enqueue('work', schedule_to_start => 0)",
    "enqueue('work', schedule_to_close => 'Infinity')",
    "enqueue('work', args => jsonb_build_array(repeat('x', 2 * 1024 * 1024)))",
]


async def test_what_sql_refuses(kernel):
    """Bad input from plain SQL is refused with words that say what is allowed, and writes nothing (Bad input)."""
    for call in REFUSED:
        with pytest.raises(psycopg.errors.InvalidParameterValue) as caught:
            await kernel.sql(f"select {call}")
        assert caught.value.diag.message_hint == HINT
    assert await kernel.states() == {}
    assert await kernel.one("select count(*) from keys") == 0


async def test_a_bad_task_is_named_and_none_of_its_batch_is_written(kernel):
    """The error tells which task of a batch it was; all or none."""
    with pytest.raises(psycopg.errors.InvalidParameterValue) as caught:
        await many(kernel.control, [None, None, None], names=["work", "", "work"])
    assert caught.value.diag.message_primary == "harvest: task 2 (no name) cannot be enqueued"
    assert await kernel.states() == {}


# ------------------------------------------------------------------------------------------------ keys


@pytest.mark.matrix
async def test_a_keyed_duplicate_is_the_existing_task(kernel):
    """While a task of that key and activity is not finished, another one is not made (K9)."""
    first = await kernel.enqueue(key="k")
    assert await kernel.enqueue(key="k", priority=9) == first
    assert await kernel.enqueue("other", key="k") != first
    worker = await kernel.claimer("work")
    await worker.take()
    assert await kernel.enqueue(key="k") == first
    assert await kernel.states() == {"running": 1, "pending": 1}


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
async def test_a_key_is_free_after_the_end(kernel, state):
    """However a task ended, its key is free (K9)."""
    (first,) = await kernel.enqueue(key="k")
    assert await finish(kernel, state) == first
    assert await kernel.one("select count(*) from keys") == 0
    (second,) = await kernel.enqueue(key="k")
    assert second != first


async def test_a_key_is_kept_over_a_retry(kernel):
    """A task that waits for another attempt still holds its key (K9)."""
    (first,) = await kernel.enqueue(key="k")
    worker = await kernel.claimer("work")
    (claim,) = await worker.take()
    await kernel.sql(
        "select * from retry(%s, %s, array[3600.0]::float8[], array['no'], array[null::text])",
        [[claim.id], [claim.token]],
    )
    assert await kernel.enqueue(key="k") == [first]


async def test_duplicate_keys_in_one_batch_are_one_task(kernel):
    """The first of a key makes the task, the others are told of it, in their order (K9)."""
    (old,) = await kernel.enqueue(key="old")
    rows = await many(kernel.control, ["a", None, "old", "a", "b", None, "a"])
    ids, created = [row[0] for row in rows], [row[1] for row in rows]
    assert created == [True, True, False, False, True, True, False]
    assert ids[0] == ids[3] == ids[6]
    assert ids[2] == old
    assert len({ids[0], ids[1], ids[4], ids[5], old}) == 5
    assert await kernel.states() == {"pending": 5}
    assert sorted(await kernel.sql("select key, task_id from keys")) == [("a", ids[0]), ("b", ids[4]), ("old", old)]


@pytest.mark.matrix
async def test_two_connections_on_one_key_make_one_task(kernel):
    """The second waits for the first transaction, then finds its task; after a rollback it makes its own (K9)."""
    for end in ("commit", "rollback"):
        first, second = await kernel.connection(autocommit=False), await kernel.connection(autocommit=False)
        (one,) = await many(first, [end])
        waiting = asyncio.ensure_future(many(second, [end]))
        await kernel.until(lambda: _blocked(kernel), "the wait for the other's key")
        await getattr(first, end)()
        (other,) = await waiting
        await second.commit()
        assert (other == (one[0], False)) if end == "commit" else (other[0] != one[0] and other[1])
        assert await kernel.one("select count(*) from tasks where key = %s", [end]) == 1


async def _blocked(kernel):
    return await kernel.one("select count(*) from pg_stat_activity where wait_event_type = 'Lock'")


async def test_racing_connections_on_one_key_make_one_task(kernel):
    """Ten at once, many times: exactly one task a key, and all are told of it (K9)."""
    connections = [await kernel.connection() for _ in range(10)]
    for key in map(str, range(20)):
        rows = await asyncio.gather(*(many(connection, [key]) for connection in connections))
        assert len({row[0][0] for row in rows}) == 1
        assert sum(row[0][1] for row in rows) == 1
    assert await kernel.states() == {"pending": 20}


@pytest.mark.matrix
async def test_cross_ordered_batches_do_not_deadlock(kernel):
    """Batches that hold the same keys in opposite order take them in one order (K9)."""
    connections = [await kernel.connection() for _ in range(4)]
    for turn in range(10):
        keys = [f"{turn}-{number}" for number in range(50)]
        batches = [keys if number % 2 else keys[::-1] for number in range(4)]
        rows = await asyncio.gather(
            *(many(connection, batch) for connection, batch in zip(connections, batches, strict=True))
        )
        assert sum(created for part in rows for _, created in part) == 50
    assert await kernel.states() == {"pending": 500}


async def test_enqueue_races_with_the_end_of_the_keys_task(kernel):
    """A key whose task ends at this moment: either the old task or a new one, never none and never two (K9)."""
    connection = await kernel.connection()
    worker = await kernel.claimer("work")
    (task,) = await kernel.enqueue(key="k")
    for _ in range(30):
        (claim,) = await worker.take()
        assert claim.id == task
        ended, rows = await asyncio.gather(worker.finish([claim]), many(connection, ["k"]))
        assert ended == {task}
        if rows[0][0] == task:
            (rows) = await many(connection, ["k"])
        assert rows[0][0] != task
        task = rows[0][0]
        assert await kernel.one("select count(*) from tasks") == 1


async def test_an_old_snapshot_meets_a_freed_key(kernel):
    """A REPEATABLE READ caller that still sees a finished task's key gets one new task, or is told to try again."""
    await kernel.enqueue(key="k")
    old = await kernel.connection(autocommit=False)
    await old.execute("set transaction isolation level repeatable read")
    await old.execute("select count(*) from keys")
    await finish(kernel)
    try:
        rows = await many(old, [None, "k", None])
        await old.commit()
    except psycopg.errors.SerializationFailure:
        await old.rollback()
        assert await kernel.one("select count(*) from tasks") == 0
    else:
        assert [created for _, created in rows] == [True, True, True]
        assert await kernel.one("select count(*) from tasks") == 3
        assert await kernel.sql("select key, task_id from keys") == [("k", rows[1][0])]


async def test_an_old_snapshot_meets_a_key_it_cannot_see(kernel):
    """A REPEATABLE READ caller cannot be told of a task it does not see: it is told to try again, in bounded time."""
    old = await kernel.connection(autocommit=False)
    await old.execute("set transaction isolation level repeatable read")
    await old.execute("select count(*) from keys")
    await kernel.enqueue(key="k")
    with pytest.raises(psycopg.errors.SerializationFailure):
        await asyncio.wait_for(many(old, ["k"]), 5)


# ------------------------------------------------------------------------------------------------ transactions


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_the_callers_transaction_decides(kernel, end):
    """A task exists when the caller commits, and never if he does not; its key likewise (K9)."""
    caller = await kernel.connection(autocommit=False)
    await caller.execute("select enqueue('work', key => 'k')")
    assert await kernel.states() == {}
    await getattr(caller, end)()
    assert await kernel.states() == ({"pending": 1} if end == "commit" else {})
    assert await kernel.one("select count(*) from keys") == (1 if end == "commit" else 0)


async def test_enqueue_is_callable_by_its_qualified_name(kernel):
    """A client without our search path calls `harvest.enqueue`."""
    plain = await psycopg.AsyncConnection.connect(kernel.dsn, autocommit=True)
    await plain.execute(
        "select harvest.enqueue('mail', args => '[\"x@example.org\"]', traits => '{\"flags\": [\"v\"]}')"
    )
    await plain.close()
    assert await kernel.states() == {"pending": 1}


# ------------------------------------------------------------------------------------------------ notifications


async def heard(connection):
    """Return what a listening connection was told so far; a notification of one's own marks the end."""
    await connection.execute("select pg_notify('harvest', 'end')")
    payloads = []
    async for notification in connection.notifies(timeout=5):
        if notification.payload == "end":
            break
        payloads.append(notification.payload)
    return payloads


async def test_only_a_sleeping_worker_is_notified_and_once_a_batch(kernel):
    """No row of ours asleep: silence; one asleep: one notification a queue and call, never one a row (K11)."""
    listener = await kernel.connection()
    await listener.execute("listen harvest")
    await kernel.claimer("work", queues=["default", "slow"])
    await many(kernel.control, [None] * 100)
    assert await heard(listener) == []
    await kernel.sql("update workers set asleep = true")
    await many(kernel.control, [None] * 100)
    assert await heard(listener) == ["default"]
    await kernel.enqueue(queue="slow")
    await kernel.enqueue(queue="nobody")
    assert await heard(listener) == ["slow"]
    await kernel.enqueue(notify=False)
    assert await heard(listener) == []


async def test_a_notification_comes_with_the_commit(kernel):
    """A worker is woken when the task is there, not before, and not for a rollback (K11)."""
    listener = await kernel.connection()
    await listener.execute("listen harvest")
    await kernel.claimer("work")
    await kernel.sql("update workers set asleep = true")
    caller = await kernel.connection(autocommit=False)
    await caller.execute("select enqueue('work')")
    assert await heard(listener) == []
    await caller.rollback()
    await caller.execute("select enqueue('work')")
    await caller.execute("select enqueue('work')")
    await caller.commit()
    assert await heard(listener) == ["default"]


async def test_a_keyed_duplicate_wakes_nobody_for_nothing(kernel):
    """Where nothing was made there is nothing to wake for."""
    listener = await kernel.connection()
    await listener.execute("listen harvest")
    await kernel.claimer("work")
    await kernel.sql("update workers set asleep = true")
    await kernel.enqueue(key="k")
    assert await heard(listener) == ["default"]
    await kernel.enqueue(key="k")
    assert await heard(listener) in ([], ["default"])
