"""What limits cost that refuse nothing: a worker under budgets far above what runs, against one without."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

from ground import BATCH, Figure, Ground, ratio

from harvest_core import Call, Client, Harvest, Worker

LIMITS = {"activities": {"work": {"concurrency": 1_000_000, "rate": "900000000/s"}}}


def figures(ground: Ground) -> Iterator[Figure]:
    """Measure both in turns. Three quarters of the throughput are four thirds of the time."""
    with ground.database() as without, ground.database() as limited:
        found = asyncio.run(_overhead(without, limited, ground.size(2000, 500), ground.size(20, 5)))
    yield Figure(f"drain of no-ops at concurrency {BATCH}, under concurrency and rate: to none", found, bound=4 / 3)


async def _overhead(without: str, limited: str, count: int, rounds: int) -> float:
    async with AsyncExitStack() as stack:
        sides = [
            await _side(stack, without, {"harvest": {}}),
            await _side(stack, limited, {"harvest": {"plugins": ["limits"]}, "plugins": {"limits": LIMITS}}),
        ]
        times: list[list[float]] = [[], []]
        for number in range(rounds + 1):
            for side in (0, 1) if number % 2 else (1, 0):
                client, worker = sides[side]
                await client.enqueue_many([Call("work", (n,)) for n in range(count)])
                started = time.perf_counter()
                await worker.run_once()
                times[side].append(time.perf_counter() - started)
        return ratio(times[1][1:], times[0][1:])


async def _side(stack: AsyncExitStack, dsn: str, tables: dict[str, Any]) -> tuple[Client, Worker]:
    tables["harvest"]["dsn"] = dsn
    app = Harvest(tables | {"worker": {"concurrency": BATCH}})

    @app.activity
    async def work(number: int) -> int:
        return number

    return await stack.enter_async_context(app.client()), await stack.enter_async_context(app.worker())
