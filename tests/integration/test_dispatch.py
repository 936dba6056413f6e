"""Weights under a real worker: the split by the order in which activities start (W1, W2, W6)."""

import asyncio
from collections import Counter

import pytest

from harvest_core import Call, Harvest

WEIGHTS = {"a": 3, "b": 1, "c": 2}


@pytest.mark.parametrize("concurrency", [1, 7, 50])
async def test_the_split_of_a_real_worker(harvest_database: str, concurrency: int) -> None:
    """W6: while all queues hold work, each is within a batch of its share at every dispatch, slots trickling."""
    app = Harvest(
        {
            "harvest": {"dsn": harvest_database, "plugins": ["weights"]},
            "worker": {"queues": list(WEIGHTS), "concurrency": concurrency},
            "plugins": {"weights": {"queues": WEIGHTS}},
        }
    )
    started: list[str] = []

    @app.activity
    async def work(queue: str, steps: int) -> None:
        started.append(queue)
        for _ in range(steps):  # ends at odd moments, without a clock
            await asyncio.sleep(0)

    each = 300
    async with app.client() as client, app.worker() as worker:
        calls = [Call(work, (queue, n % 5), queue=queue) for queue in WEIGHTS for n in range(each)]
        await client.enqueue_many(calls)
        await worker.run_once()

    assert Counter(started) == dict.fromkeys(WEIGHTS, each)
    total, counts = sum(WEIGHTS.values()), Counter[str]()
    for dispatches, queue in enumerate(started, start=1):
        counts[queue] += 1
        if max(counts.values()) == each:
            break
        for name, weight in WEIGHTS.items():
            assert abs(counts[name] - dispatches * weight / total) <= 2
    assert dispatches > each
