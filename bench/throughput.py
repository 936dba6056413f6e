"""Whole ways through the system: enqueue rates, a worker against the floor of its database, and what an idle one asks.

The floor is the least that any queue on PostgreSQL does: batches claimed from a plain table and deleted, in a loop
without activities.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from statistics import median

import psycopg
from ground import BATCH, Figure, Ground, answer, connect, ratio

from harvest_core import Call, Harvest

TAKE = (
    "update floor f set state = 1 where id in (select id from floor where state = 0 order by id limit %s "
    "for update skip locked) returning id"
)


def figures(ground: Ground) -> Iterator[Figure]:
    """Measure all in turns."""
    with ground.database() as dsn:
        count = ground.size(5000, 500)
        one, many, drained, floor = asyncio.run(_measure(dsn, count, ground.size(9, 3)))
    with ground.database() as dsn:
        idle = asyncio.run(_idle(dsn, ground.size(30, 10)))
    yield Figure("enqueue one at a time, each committed", median(one), "tasks/s")
    yield Figure(f"enqueue_many of {count:,}", median(many), "tasks/s")
    yield Figure(f"drain of no-ops at concurrency {BATCH}", median(drained), "tasks/s")
    yield Figure(f"floor: claim and delete by {BATCH} on a plain table", median(floor), "tasks/s")
    yield Figure("the worker: to the floor", ratio(drained, floor))
    yield Figure("an idle worker's statements", idle, "a second", 3.0)


async def _measure(dsn: str, count: int, rounds: int) -> tuple[list[float], ...]:
    one: list[float] = []
    many: list[float] = []
    drained: list[float] = []
    floor: list[float] = []
    async with AsyncExitStack() as stack:
        app = Harvest({"harvest": {"dsn": dsn}, "worker": {"concurrency": BATCH}})

        @app.activity
        async def work(number: int) -> int:
            return number

        client = await stack.enter_async_context(app.client())
        worker = await stack.enter_async_context(app.worker())
        plain = stack.enter_context(connect(dsn))
        plain.execute("create table floor (id bigserial primary key, state integer not null default 0, args jsonb)")
        plain.execute("create index on floor (id) where state = 0")
        for _ in range(rounds + 1):
            started = time.perf_counter()
            for number in range(count // 20):
                await client.enqueue(work, number)
            one.append(count // 20 / (time.perf_counter() - started))
            started = time.perf_counter()
            await client.enqueue_many([Call(work, (number,)) for number in range(count)])
            many.append(count / (time.perf_counter() - started))
            started = time.perf_counter()
            await worker.run_once()
            drained.append((count + count // 20) / (time.perf_counter() - started))
            floor.append(_floor(plain, count))
    return one[1:], many[1:], drained[1:], floor[1:]


async def _idle(dsn: str, seconds: float) -> float:
    app = Harvest({"harvest": {"dsn": dsn}})

    @app.activity
    async def work() -> None: ...

    count = "select xact_commit from pg_stat_database where datname = current_database()"
    async with app.worker() as worker:
        running = asyncio.ensure_future(worker.run())
        with connect(dsn) as plain:
            await asyncio.sleep(12)  # it falls asleep, and every connection of the start has told what it did
            before, started = answer(plain, count), time.perf_counter()
            await asyncio.sleep(seconds)
            found = (answer(plain, count) - before - 1) / (time.perf_counter() - started)
        worker.stop()
        await running
    return float(found)


def _floor(connection: psycopg.Connection, count: int) -> float:
    connection.execute("insert into floor (args) select '[1]' from generate_series(1, %s)", [count])
    started = time.perf_counter()
    while ids := [row[0] for row in connection.execute(TAKE, [BATCH])]:
        connection.execute("delete from floor where id = any(%s)", [ids])
    return count / (time.perf_counter() - started)
