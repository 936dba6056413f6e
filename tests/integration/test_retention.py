"""Finished tasks go by whole days; what nothing refers to any more goes too (K13)."""

import time
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from harvest_core import TaskNotFoundError
from harvest_core.store.postgres import tasks

DAY = 86_400.0


async def partitions(kernel):
    rows = await kernel.sql("select inhrelid::regclass::text from pg_inherits where inhparent = 'finished'::regclass")
    return sorted(row[0].rpartition("finished_")[2] for row in rows)


def day(offset):
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=offset)


async def old_partition(kernel, offset):
    """Make the partition of a day before today with one task in it, and return the task's id."""
    at, name = day(offset), f"finished_{day(offset):%Y%m%d}"
    await kernel.sql(f"create table {name} (like finished including defaults including constraints)")
    await kernel.sql(
        f"alter table finished attach partition {name} for values from ('{at.isoformat()}') to "
        f"('{(at + timedelta(days=1)).isoformat()}')"
    )
    ((task_id,),) = await kernel.sql(
        "insert into finished (id, finished_at, scheduled_at, enqueued_at, priority, attempt, max_attempts, state, "
        "queue, kind, name, traits, args, kwargs) select nextval('task_ids'), %s, now(), now(), 0, 1, 1, 'completed', "
        "'default', 'activity', 'work', '{}', '[]', '{}' returning id",
        [at],
    )
    return task_id


@pytest.mark.matrix
async def test_old_partitions_are_dropped(kernel):
    """Every day that ended at least the retention ago goes; today, yesterday and the days ahead stay (K13)."""
    ahead = await partitions(kernel)
    ids = {offset: await old_partition(kernel, offset) for offset in (-40, -9, -8, -7, -1)}
    assert await tasks.prune_finished(kernel.database, 7 * DAY) == 3
    left = [f"{day(offset):%Y%m%d}" for offset in (-7, -1)]
    assert await partitions(kernel) == left + ahead
    assert await tasks.prune_finished(kernel.database, 7 * DAY) == 0
    async with kernel.app().client() as client:
        assert (await client.status(ids[-7])).state == "completed"
        with pytest.raises(TaskNotFoundError) as caught:
            await client.status(ids[-8])
        assert str(caught.value) == (
            f"task {ids[-8]} is not known: it was never enqueued here, or its retention has passed"
        )
    assert await tasks.prune_finished(kernel.database, DAY) == 1
    assert await partitions(kernel) == [f"{day(-1):%Y%m%d}", *ahead]


@pytest.mark.matrix
async def test_a_reader_holds_it_up_a_moment_only(kernel):
    """Someone who reads is not waited for longer than 100 ms, nothing is half done, the next round does it (K13)."""
    await old_partition(kernel, -9)
    await old_partition(kernel, -8)
    reader = await kernel.connection(autocommit=False)
    await reader.execute(f"select * from finished_{day(-8):%Y%m%d}")
    begun = time.monotonic()
    assert await tasks.prune_finished(kernel.database, 7 * DAY) is None
    assert time.monotonic() - begun < 2.0
    assert f"{day(-9):%Y%m%d}" in await partitions(kernel)
    await kernel.enqueue()
    worker = await kernel.claimer("work")
    await worker.finish(await worker.take())  # no one queues behind it
    await reader.commit()
    assert await tasks.prune_finished(kernel.database, 7 * DAY) == 2


@pytest.mark.matrix
async def test_a_missing_partition(kernel):
    """A worker makes today's at its start, and an outcome that finds none makes it and is written (K13)."""
    today, ahead = f"finished_{day(0):%Y%m%d}", await partitions(kernel)
    for name in ahead:
        await kernel.sql(f"drop table finished_{name}")
    await kernel.enqueue()
    worker = await kernel.claimer("work")
    await worker.finish(await worker.take())
    assert await kernel.one(f"select count(*) from {today}") == 1
    for name in await partitions(kernel):
        await kernel.sql(f"drop table finished_{name}")
    app = kernel.app()
    app.activity(name="work")(print)
    async with app.worker():
        assert await partitions(kernel) == ahead


async def test_a_worker_prunes(kernel):
    """Maintenance drops what is older than `retention` in its first round (K13)."""
    await old_partition(kernel, -3)
    app = kernel.app(harvest={"retention": "1d"})
    app.activity(name="work")(print)
    async with kernel.running(app):
        await kernel.until(lambda: gone(kernel, -3), "the drop")


async def gone(kernel, offset):
    return f"{day(offset):%Y%m%d}" not in await partitions(kernel)


@pytest.mark.matrix
async def test_leftovers(kernel):
    """Only what nothing refers to is removed: keys, marks and lanes of what lives stay (K3, K13)."""
    await kernel.enqueue(lane="used")
    await tasks.promote(kernel.database)
    await kernel.enqueue(key="live")
    (period,) = await kernel.enqueue(key="period", key_period=3600.0)
    await kernel.sql("select cancel(array[%s])", [period])
    await kernel.sql("insert into lanes (lane) values ('idle')")
    await kernel.sql("insert into replaced (task_id, by_id) values (-1, 1), ((select min(id) from tasks), 1)")
    await kernel.sql("insert into keys (name, key, task_id, expires_at) values ('work', 'old', -2, now())")
    await kernel.sql("insert into keys (name, key, task_id) values ('work', 'lost', -3)")
    assert await tasks.remove_leftovers(kernel.database) == 4
    assert await kernel.sql("select key from keys order by 1") == [("live",), ("period",)]
    assert await kernel.sql("select lane from lanes") == [("used",)]
    assert await kernel.one("select count(*) from replaced") == 1
    assert await tasks.remove_leftovers(kernel.database) == 0


async def test_an_open_enqueue_loses_nothing_to_the_removal(kernel):
    """A key that is not committed yet is not looked at, nor waited for (K3)."""
    client = await kernel.connection(autocommit=False)
    await client.execute("select enqueue('work', key => 'k')")
    assert await tasks.remove_leftovers(kernel.database) == 0
    await client.commit()
    assert await tasks.remove_leftovers(kernel.database) == 0
    with pytest.raises(psycopg.errors.UniqueViolation):
        await kernel.enqueue(key="k", on_conflict="raise")
