"""What the claim makes of a hold that ends for some tasks, on a real PostgreSQL (rule C9)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import psycopg
from harvest_cost_hold import CostHold, CostHoldConfig

from harvest_core import Client, Harvest, Task
from harvest_core.testing import FakeClock


def app_of(dsn: str, hold: CostHold, concurrency: int = 20) -> Harvest:
    """Return an app of two activities under a hold."""
    app = Harvest({"harvest": {"dsn": dsn, "plugins": [hold]}, "worker": {"concurrency": concurrency}})

    @app.activity
    async def train_model() -> None: ...

    @app.activity
    async def other() -> None: ...

    return app


def hold_of(clock: FakeClock, **changes) -> CostHold:
    return CostHold(CostHoldConfig(400.0, ["train_model"], **changes), clock=clock)


async def enqueue(client: Client, dsn: str, count: int, *, due_since: str) -> list[Task]:
    """Enqueue tasks that have been due for so long."""
    tasks = [await client.enqueue("train_model") for _ in range(count)]
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        text = "update harvest.tasks set scheduled_at = scheduled_at - %s::interval where id = any(%s)"
        await connection.execute(text, [due_since, [task.id for task in tasks]])
    return tasks


async def completed(tasks: Sequence[Task]) -> list[int]:
    """Return the positions of the tasks that ran; each other one is untouched."""
    found = [await task.status() for task in tasks]
    assert {(status.state, status.attempt) for status in found} <= {("completed", 1), ("pending", 0)}
    return [position for position, status in enumerate(found) if status.state == "completed"]


async def test_max_hold_lets_through_what_waited_so_long(harvest_database: str) -> None:
    """Under a hold exactly the tasks run that have been due for max_hold, whatever stands before them (C9)."""
    hold = hold_of(FakeClock(), max_hold=6 * 3600.0)
    hold.signal.set(520.0)
    app = app_of(harvest_database, hold)
    async with app.client() as client, app.worker() as worker:
        young = await enqueue(client, harvest_database, 3, due_since="5 hours")
        old = await enqueue(client, harvest_database, 3, due_since="7 hours")
        urgent = await client.enqueue("train_model", priority=9)
        free = await client.enqueue("other")
        await worker.run_once()
        await worker.run_once()
        assert await completed([*young, *old, urgent, free]) == [3, 4, 5, 7]


async def test_a_backlog_starts_at_the_rate_over_the_fleet(harvest_database: str) -> None:
    """After a hold at most so many of its tasks start in a period, two workers claiming at once; younger ones run (C9).

    When the release is over, ten times the hold's length after its end, the rest runs.
    """
    clock = FakeClock()
    holds = [hold_of(clock, release_rate="4/h") for _ in range(2)]
    for hold in holds:
        hold.signal.set(520.0)
    one, other = (app_of(harvest_database, hold) for hold in holds)
    async with one.client() as client, one.worker() as first, other.worker() as second:

        async def both() -> None:
            await asyncio.gather(first.run_once(), second.run_once())

        backlog = await enqueue(client, harvest_database, 10, due_since="2 hours")
        await both()
        assert await completed(backlog) == []

        clock.advance(3600)
        for hold in holds:
            hold.signal.set(100.0)
        await both()
        await both()
        assert len(await completed(backlog)) == 4

        clock.advance(600)
        younger = await enqueue(client, harvest_database, 5, due_since="1 minute")
        await both()
        assert await completed(younger) == [0, 1, 2, 3, 4]
        assert len(await completed(backlog)) == 4

        clock.advance(36_000)
        await both()
        assert len(await completed(backlog)) == 10


async def test_what_max_hold_lets_through_starts_at_the_rate(harvest_database: str) -> None:
    """Under a hold the tasks that have been due for max_hold start at the rate, and no other (C9)."""
    hold = hold_of(FakeClock(), max_hold=6 * 3600.0, release_rate="2/h")
    hold.signal.set(520.0)
    app = app_of(harvest_database, hold)
    async with app.client() as client, app.worker() as worker:
        young = await enqueue(client, harvest_database, 3, due_since="5 hours")
        old = await enqueue(client, harvest_database, 5, due_since="7 hours")
        await worker.run_once()
        await worker.run_once()
        assert (len(await completed(old)), await completed(young)) == (2, [])
