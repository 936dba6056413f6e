"""The fenced writes of a holder, and what rescue takes from it (K1, K8, K12)."""

import asyncio

import pytest

from harvest_core.store.postgres import tasks, workers
from harvest_core.store.postgres.tasks import Finished, Released, Retried

OUTCOMES = {
    "finish": Finished("completed", '"late"'),
    "fail": Finished("failed", error="late"),
    "retry": Retried(0.0, "late", "trace"),
    "release": Released(),
}


async def rescued(kernel, **options):
    """Rescue and return how many claims of dead workers and how many late attempts were taken back."""
    found = await tasks.rescue(kernel.database, **options)
    return found.orphaned, found.timed_out


async def row(kernel):
    return await kernel.sql("select to_jsonb(t) from tasks t order by id")


async def write(kernel, claim, outcome):
    return await tasks.write_outcomes(kernel.database, [(claim, outcome)])


# ------------------------------------------------------------------------------------------------ fencing


@pytest.mark.matrix
@pytest.mark.parametrize("write_of", list(OUTCOMES))
async def test_a_holder_that_lost_its_claim_changes_nothing(kernel, write_of):
    """Every write of an old holder is told it changed nothing, whoever holds the task now (K1, solid_queue#589)."""
    await kernel.enqueue(key="k", heartbeat=60.0)
    worker = await kernel.claimer("work")
    (old,) = await worker.take()
    assert await write(kernel, old, Released()) == {old.id}
    pending = await row(kernel)
    assert await write(kernel, old, OUTCOMES[write_of]) == set()
    assert await tasks.heartbeat(kernel.database, old, '"late"') is False
    assert await row(kernel) == pending
    (new,) = await worker.take()  # the very same worker: its id and name open nothing (aegra#502)
    running = await row(kernel)
    assert await write(kernel, old, OUTCOMES[write_of]) == set()
    assert await tasks.heartbeat(kernel.database, old, '"late"') is False
    assert await row(kernel) == running
    assert await write(kernel, new, Finished("completed", "1")) == {new.id}
    assert await write(kernel, old, OUTCOMES[write_of]) == set()
    assert await write(kernel, new, OUTCOMES[write_of]) == set()
    assert await kernel.sql("select state::text, result, error from finished") == [("completed", 1, None)]


async def test_two_finishers_at_once_and_one_wins(kernel):
    """Late worker and rescuer finish together: one guarded write wins, one row is written (solid_queue#589)."""
    worker = await kernel.claimer("work")
    for _ in range(20):
        await kernel.enqueue()
        (claim,) = await worker.take()
        wrote = await asyncio.gather(*(write(kernel, claim, Finished("completed", str(n))) for n in range(4)))
        assert sorted(map(len, wrote)) == [0, 0, 0, 1]
    assert await kernel.states() == {"completed": 20}


async def test_a_batch_tells_which_of_it_were_lost(kernel):
    """One lost claim does not spoil the others of its batch, in whatever mix of outcomes (K1)."""
    await kernel.enqueue(count=6)
    worker = await kernel.claimer("work")
    claims = await worker.take(6)
    await write(kernel, claims[1], Released())
    await write(kernel, claims[4], Released())
    mix = [Finished("completed", "1"), Finished("failed", error="no"), Retried(60.0, "no"), Released(), Released()]
    outcomes = list(zip(claims, [*mix, Finished("completed", "1")], strict=True))
    written = await tasks.write_outcomes(kernel.database, outcomes)
    assert written == {claims[n].id for n in (0, 2, 3, 5)}
    assert await kernel.states() == {"completed": 2, "scheduled": 1, "pending": 3}


async def test_writing_again_is_harmless(kernel):
    """A batch whose answer was lost with the connection is written again and changes nothing more."""
    await kernel.enqueue(count=3)
    worker = await kernel.claimer("work")
    outcomes = [(claim, Finished("completed", "1")) for claim in await worker.take(3)]
    assert len(await tasks.write_outcomes(kernel.database, outcomes)) == 3
    assert await tasks.write_outcomes(kernel.database, outcomes) == set()
    assert await kernel.states() == {"completed": 3}


# ------------------------------------------------------------------------------------------------ what is kept


@pytest.mark.matrix
async def test_a_finished_task_keeps_everything(kernel):
    """Identity, arguments, times, attempt and result move along; once completed it has no error any more (K8)."""
    await kernel.enqueue(args="[1]", kwargs='{"a": 2}', priority=4, key="k", traits='{"flags": ["x"]}')
    worker = await kernel.claimer("work")
    (claim,) = await worker.take()
    await write(kernel, claim, Retried(0.0, "ValueError: no", "Traceback …"))
    assert await kernel.sql("select state::text, attempt, token, error, traceback from tasks") == [
        ("scheduled", 1, None, "ValueError: no", "Traceback …")
    ]
    await tasks.promote(kernel.database)
    (claim,) = await worker.take()
    assert claim.attempt == 2
    await write(kernel, claim, Finished("completed", '{"ok": true}'))
    rows = await kernel.sql(
        "select id, state::text, queue, kind, name, traits, priority, attempt, key, args, kwargs, result, error, "
        "traceback, worker_id::text, finished_at >= claimed_at and claimed_at >= enqueued_at from finished"
    )
    assert rows == [
        (
            claim.id,
            "completed",
            "default",
            "activity",
            "work",
            {"flags": ["x"]},
            4,
            2,
            "k",
            [1],
            {"a": 2},
            {"ok": True},
            None,
            None,
            worker.identity.id,
            True,
        )
    ]
    assert await kernel.states() == {"completed": 1}


async def test_a_release_restores_the_attempt_and_the_place(kernel):
    """Given back: as if it had not been claimed, but for its version (K12)."""
    await kernel.enqueue(priority=2)
    before = await row(kernel)
    worker = await kernel.claimer("work")
    (claim,) = await worker.take()
    await write(kernel, claim, Released())
    assert await row(kernel) == before


async def test_heartbeat_keeps_details_and_extends_the_deadline(kernel):
    """A heartbeat stores what people may see and moves the deadline, never past start_to_close (K8)."""
    await kernel.enqueue(heartbeat=10.0, start_to_close=15.0)
    worker = await kernel.claimer("work")
    (claim,) = await worker.take()
    left = "select round(extract(epoch from deadline - claimed_at))::integer from tasks"
    assert await kernel.one(left) == 10
    await kernel.sql("update tasks set claimed_at = claimed_at - interval '7 s', deadline = deadline - interval '7 s'")
    assert await tasks.heartbeat(kernel.database, claim, '{"done": 3}') is True
    assert await kernel.one(left) == 15
    assert await kernel.one("select details from tasks") == {"done": 3}
    assert await tasks.heartbeat(kernel.database, claim, None) is True
    assert await kernel.one("select details from tasks") == {"done": 3}


# ------------------------------------------------------------------------------------------------ partitions


@pytest.mark.matrix
async def test_a_missing_partition_is_made_on_the_fly(kernel):
    """A finish that finds no partition for today makes it and goes on; nothing is lost (design: Store)."""
    parts = [
        name
        for (name,) in await kernel.sql(
            "select inhrelid::regclass::text from pg_inherits where inhparent = 'finished'::regclass"
        )
    ]
    assert len(parts) == 8
    for part in parts:
        await kernel.sql(f"drop table {part}")
    await kernel.enqueue(count=2)
    worker = await kernel.claimer("work")
    assert len(await worker.finish(await worker.take(2))) == 2
    assert await kernel.states() == {"completed": 2}


async def test_rescue_too_makes_a_missing_partition(kernel):
    """An attempt that fails by its deadline on a day without a partition neither stays nor blocks rescue (K12)."""
    for (part,) in await kernel.sql(
        "select inhrelid::regclass::text from pg_inherits where inhparent = 'finished'::regclass"
    ):
        await kernel.sql(f"drop table {part}")
    await kernel.enqueue(max_attempts=1, start_to_close=0.001)
    await kernel.enqueue()
    worker = await kernel.claimer("work")
    await worker.take(2)
    dead = await kernel.claimer("work")
    await kernel.sql("update tasks set worker_id = %s where max_attempts = 5", [dead.identity.id])
    await kernel.sql("delete from workers where id = %s", [dead.identity.id])
    assert await rescued(kernel, slack=0.0) == (1, 1)
    assert await kernel.states() == {"pending": 1, "failed": 1}


@pytest.mark.matrix
async def test_partitions_are_made_once_by_any_number_of_workers(kernel):
    """Several workers extending at once make each day's partition once."""
    for (part,) in await kernel.sql(
        "select inhrelid::regclass::text from pg_inherits where inhparent = 'finished'::regclass"
    ):
        await kernel.sql(f"drop table {part}")
    made = await asyncio.gather(*(tasks.extend_finished(kernel.database) for _ in range(4)))
    assert sum(made) == 8
    assert await tasks.extend_finished(kernel.database) == 0


# ------------------------------------------------------------------------------------------------ rescue


async def age(kernel, claimer, seconds):
    await kernel.sql(
        "update workers set beaten_at = beaten_at - make_interval(secs => %s) where id = %s",
        [seconds, claimer.identity.id],
    )


@pytest.mark.matrix
async def test_a_dead_workers_tasks_are_taken_back(kernel):
    """After its ttl a silent worker's tasks are suspects, the attempt counted, its late finish void (K12)."""
    await kernel.enqueue(count=3)
    dead, alive = await kernel.claimer("work", ttl=10.0), await kernel.claimer("work", ttl=10.0)
    lost = await dead.take(2)
    (kept,) = await alive.take(1)
    await age(kernel, dead, 9.0)
    assert await rescued(kernel) == (0, 0)
    await age(kernel, dead, 2.0)
    assert await rescued(kernel) == (2, 0)
    assert await dead.finish(lost) == set()
    assert await alive.finish([kept]) == {kept.id}
    assert await alive.take(5) == []
    assert [claim.attempt for claim in await alive.take(5, pool="suspect")] == [2, 2]


async def test_tasks_of_an_unknown_worker_are_taken_back(kernel):
    """A worker whose row is gone has no claims."""
    await kernel.enqueue()
    worker = await kernel.claimer("work")
    await worker.take()
    await workers.remove(kernel.database, worker.identity.id)
    assert await rescued(kernel) == (1, 0)


@pytest.mark.matrix
async def test_rescue_moves_back_names_it_does_not_know(kernel):
    """A rescuer judges no name: an unknown kind of task is pending again, in its old place (river#1105, K12)."""
    route = await kernel.route(queue="elsewhere", kind="strange", name="nobody knows")
    (task,) = await kernel.rows(route, 1)
    await kernel.sql("update tasks set state = 'running', token = 1, worker_id = gen_random_uuid(), attempt = 9")
    assert await rescued(kernel) == (1, 0)
    rows = await kernel.sql("select id, state::text, attempt, token, worker_id, deadline, error from tasks")
    assert rows == [(task, "pending", 9, None, None, None, None)]


@pytest.mark.matrix
async def test_rescue_pages_past_rows_it_cannot_take(kernel):
    """A page of rows that others hold hides no row behind it (river#1318)."""
    route = await kernel.route()
    ids = await kernel.rows(route, 12)
    await kernel.sql("update tasks set state = 'running', token = 1, worker_id = gen_random_uuid()")
    blocker = await kernel.connection(autocommit=False)
    await blocker.execute("select 1 from tasks where id = any(%s) for update", [ids[:6]])
    assert await asyncio.wait_for(rescued(kernel, batch=4), 5) == (4, 0)
    assert await asyncio.wait_for(rescued(kernel, batch=4), 5) == (2, 0)
    pending = [row[0] for row in await kernel.sql("select id from tasks where state = 'pending' order by id")]
    assert pending == ids[6:]


async def test_late_attempts_page_likewise(kernel):
    """Attempts past their deadline are ended batch by batch, whatever others hold."""
    await kernel.enqueue(count=6, start_to_close=0.001)
    worker = await kernel.claimer("work")
    ids = sorted(claim.id for claim in await worker.take(6))
    blocker = await kernel.connection(autocommit=False)
    await blocker.execute("select 1 from tasks where id = any(%s) for update", [ids[:3]])
    assert await asyncio.wait_for(rescued(kernel, batch=2, slack=0.0), 5) == (0, 2)
    assert await asyncio.wait_for(rescued(kernel, batch=2, slack=0.0), 5) == (0, 1)
    assert await kernel.states() == {"running": 3, "scheduled": 3}


@pytest.mark.matrix
async def test_rescue_ends_attempts_past_their_deadline(kernel):
    """A worker that lives but never ends an attempt: another one ends it, told by which limit, and retries it (K8)."""
    await kernel.enqueue(start_to_close=0.001)
    await kernel.enqueue(heartbeat=0.001)
    await kernel.enqueue(start_to_close=0.001, max_attempts=1, key="k")
    await kernel.enqueue()
    worker = await kernel.claimer("work")
    late = await worker.take(4)
    assert await rescued(kernel, slack=0.0) == (0, 3)
    rows = await kernel.sql("select state::text, attempt, error, scheduled_at > now() from tasks order by id")
    assert rows == [
        ("scheduled", 1, "TimeoutError: start_to_close of 0.001 s has passed", True),
        ("scheduled", 1, "TimeoutError: no heartbeat for 0.001 s", True),
        ("running", 1, None, False),
    ]
    assert await kernel.sql("select state::text, error from finished") == [
        ("failed", "TimeoutError: start_to_close of 0.001 s has passed")
    ]
    assert await kernel.one("select count(*) from keys") == 0
    assert len(await worker.finish(late)) == 1


async def test_rescue_waits_as_the_activity_says(kernel):
    """The wait before the next attempt follows the published policy of the activity (K8)."""
    await kernel.sql("insert into activities values ('work', 'default', 0, 9, 50, 3, 400, 0, null, null)")
    await kernel.enqueue(count=1, start_to_close=0.001)
    await kernel.sql("update tasks set attempt = 1")
    worker = await kernel.claimer("work")
    await worker.take(1)
    await rescued(kernel, slack=0.0)
    assert (
        await kernel.one("select round(extract(epoch from scheduled_at - now()) / 10)::integer * 10 from tasks") == 150
    )


async def test_racing_rescuers_move_each_task_once(kernel):
    """Any number of workers rescue at once: none fails, no task is counted twice (procrastinate#1408)."""
    route = await kernel.route()
    await kernel.rows(route, 300)
    await kernel.sql("update tasks set state = 'running', token = 1, worker_id = gen_random_uuid()")
    moved = await asyncio.gather(*(rescued(kernel, batch=100) for _ in range(4)))
    while (more := await rescued(kernel, batch=100)) != (0, 0):
        moved.append(more)
    assert sum(orphaned for orphaned, _ in moved) == 300


async def test_silent_workers_are_pruned_after_their_tasks(kernel):
    """A row goes once it has been silent for twice its ttl and holds nothing (K12)."""
    await kernel.enqueue()
    dead, alive = await kernel.claimer("work", ttl=10.0), await kernel.claimer("work", ttl=10.0)
    await dead.take()
    await age(kernel, dead, 15.0)
    await rescued(kernel)
    assert await kernel.one("select count(*) from workers") == 2
    await age(kernel, dead, 15.0)
    await rescued(kernel)
    assert await kernel.sql("select id::text from workers") == [(alive.identity.id,)]


async def test_registering_and_beating_write_no_control_state(kernel):
    """A worker's arrival, beat and marks leave pauses and settings as they are (prefect#13935)."""
    await kernel.sql("select pause_queue('default')")
    await kernel.sql("select set_setting('cost_signal', '520')")
    control = "select (select jsonb_agg(to_jsonb(q)) from queues q), (select jsonb_agg(to_jsonb(s)) from settings s)"
    before = await kernel.sql(control)
    app = kernel.app(worker_ttl="300ms")

    @app.activity
    async def work(): ...

    async with kernel.running(app) as worker:
        first = await kernel.one("select beaten_at from workers")
        await kernel.until(lambda: _beaten_after(kernel, first), "a beat")
        await workers.mark(kernel.database, worker.identity.id, asleep=True, draining=False)
    assert await kernel.sql(control) == before


async def _beaten_after(kernel, first):
    return await kernel.one("select bool_and(beaten_at > %s) from workers", [first])
