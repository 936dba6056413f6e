"""Lanes under everything at once: random operations from several connections, the width kept at every commit (K13)."""

import asyncio
import random

import psycopg
import pytest

from harvest_core.model import LaneLimit
from harvest_core.store.postgres import tasks, workers
from harvest_core.store.postgres.tasks import Finished, Released, Retried

WIDTHS = {"one/1": 1, "one/2": 1, "two/1": 2, "two/2": 2}
# Counts the lane's running tasks under a lock of its own, at the end of every transaction that lets one start.
GUARD = """
create table broken (lane text, running bigint);
create function check_lane() returns trigger language plpgsql set search_path = harvest as $$
declare n bigint;
begin
    perform pg_advisory_xact_lock(1);
    select count(*) into n from tasks where lane = new.lane and state = 'running';
    if n > 2 - (new.lane like 'one/%')::integer then
        insert into broken values (new.lane, n);
    end if;
    return null;
end $$;
create constraint trigger guard after update on tasks deferrable initially deferred
for each row when (new.state = 'running' and old.state <> 'running' and new.lane is not null)
execute function check_lane();
"""


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(2))
async def test_the_width_holds_and_every_lane_drains(kernel, seed):
    """Enqueue, claim, every end, cancel, replace, rescue, promote and clean-up race: no deadlock, all lanes drain."""
    await workers.publish_lane_limits(kernel.database, [LaneLimit("two", concurrency=2)])
    await kernel.sql(GUARD)
    troubles = []

    async def actor(number):
        chance = random.Random(seed * 100 + number)
        database = await kernel.another_database(1)
        worker, held = await kernel.claimer("work", database=database), []
        for _ in range(120):
            step = chance.random()
            try:
                if step < 0.25:
                    await enqueue(database, chance)
                elif step < 0.5:
                    held += await worker.take(chance.randint(1, 6))
                elif step < 0.75 and held:
                    chance.shuffle(held)
                    part = [held.pop() for _ in range(min(len(held), chance.randint(1, 3)))]
                    await tasks.write_outcomes(database, [(claim, outcome(chance)) for claim in part])
                elif step < 0.8:
                    await database.fetch(
                        "select {schema}.cancel((select array_agg(id) from (select id from {schema}.tasks "
                        "order by random() limit 2) t)) where exists (select from {schema}.tasks)"
                    )
                elif step < 0.83:
                    await database.fetch(
                        "update {schema}.workers set beaten_at = now() - interval '1 day' where id = %s returning 1",
                        [worker.identity.id],
                    )
                    worker, held = await kernel.claimer("work", database=database), []
                elif step < 0.88:
                    await tasks.rescue(database, max_crashes=2)
                elif step < 0.9:
                    await tasks.remove_leftovers(database)
                elif step < 0.92:
                    held += await worker.take(1, pool="suspect")
                else:
                    await tasks.promote(database)
            except psycopg.errors.DeadlockDetected as error:
                troubles.append(f"{step}: {error.diag.message_detail} {error.diag.context}")
        await tasks.write_outcomes(database, [(claim, Released()) for claim in held])

    await asyncio.gather(*(actor(number) for number in range(5)))
    assert troubles == []
    assert await kernel.sql("select * from broken") == []

    await kernel.sql("update workers set beaten_at = now() - interval '1 day'")
    worker = await kernel.claimer("work")

    async def drained():
        await tasks.rescue(kernel.database, max_crashes=100)
        await kernel.sql("update tasks set scheduled_at = now() where state = 'scheduled'")
        await tasks.promote(kernel.database)
        await worker.finish([*await worker.take(10), *await worker.take(1, pool="suspect")])
        return await kernel.one("select count(*) = 0 from tasks")

    await kernel.until(drained, "the drain of every lane")
    assert await kernel.sql("select * from broken") == []
    assert (await kernel.states())["completed"] > 0


async def enqueue(database, chance):
    lane, conflict = chance.choice([*WIDTHS, None]), chance.choice(["ignore", "replace"])
    await database.fetch(
        "select {schema}.enqueue('work', lane => %s, key => %s, priority => %s, on_conflict => %s, max_attempts => 50)",
        [lane, chance.choice([None, "a", "b", "c"]), chance.randint(0, 2), conflict],
    )


def outcome(chance):
    return chance.choice(
        [
            Finished("completed", "1"),
            Finished("failed", error="no"),
            Retried(0.0, "again"),
            Retried(5.0, "later"),
            Released(),
        ]
    )
