"""What policies cost: a real worker with all four on against one with none, and the statements of a weighted poll."""

import asyncio
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack
from tempfile import TemporaryFile
from typing import Any

from ground import BATCH, Figure, Ground, add_tasks, connect, ratio, register

from harvest_core import Call, Client, Harvest
from harvest_core import Worker as RunningWorker
from harvest_core.metrics import KernelMetrics
from harvest_core.model import Worker
from harvest_core.plugin import Setting
from harvest_core.store.postgres.database import Database
from harvest_core.worker.poll import Poller
from harvest_core.worker.refresh import Refreshes

QUEUES = [f"queue{number}" for number in range(10)]
POLICIES = {
    "capabilities": {"labels": {"gpu": "true"}},
    "flags": {"accepted": ["linux"], "forbidden": ["no"], "allowlist": ["linux", "kvm"]},
    "weights": {"queues": {"queue0": 1, "queue1": 3}},
    "cost_hold": {"defer_threshold": 400.0, "activities": ["train"]},
}


def figures(ground: Ground) -> Iterator[Figure]:
    """Measure both."""
    with ground.database() as dsn:
        yield Figure("weighted poll over 10 queues", asyncio.run(_statements(dsn)), "statements", bound=1)
    with ground.database() as without, ground.database() as governed:
        overhead = asyncio.run(_overhead(without, governed, ground.size(2000, 500), ground.size(60, 7)))
    yield Figure(f"drain of no-ops at concurrency {BATCH}, all four policies on: to none", overhead, bound=1.15)


async def _statements(dsn: str) -> int:
    """Count the statements that one poll sends, in the messages of its connection."""
    weights = {queue: 1 + number % 3 for number, queue in enumerate(QUEUES)}
    app = Harvest(
        {"harvest": {"plugins": ["weights"]}, "plugins": {"weights": {"queues": weights}}, "worker": {"queues": QUEUES}}
    )
    app.activity(name="work")(print)
    build = app.build()
    async with AsyncExitStack() as stack:
        messages = stack.enter_context(TemporaryFile())  # noqa: SIM115
        identity = Worker(
            str(uuid.uuid4()), "bench", tuple(QUEUES), frozenset(build.runnable), build.policies.facts(build.view)
        )
        with connect(dsn) as connection:
            register(connection, identity.id)
            add_tasks(connection, [(queue, "work") for queue in QUEUES], 1000)
        database = Database(dsn, size=1)
        await database.open()
        stack.push_async_callback(database.close)

        async def no_settings() -> dict[str, Setting]:
            return {}

        refreshes = Refreshes([], no_settings, print, lambda: None)
        poller = Poller(database, build.policies, refreshes, lambda _: None, KernelMetrics(build.registry), (), 3600.0)
        await poller.poll(
            identity, BATCH, {}, suspect=True
        )  # the first also promotes what is due, as the poll interval asks
        async with database.connection() as traced:
            traced.pgconn.trace(messages.fileno())
        poll = await poller.poll(identity, BATCH, {}, suspect=True)
        async with database.connection() as traced:
            traced.pgconn.untrace()
        messages.seek(0)
        sent = re.findall(rb"^[^\t]+\tF\t\d+\t(?:Execute|Query)\b", messages.read(), re.MULTILINE)
        if len(poll.result.claims) != BATCH or {claim.route.queue for claim in poll.result.claims} != set(QUEUES):
            msg = "the poll did not take from every queue"
            raise RuntimeError(msg)
        return len(sent)


async def _overhead(without: str, with_all: str, count: int, rounds: int) -> float:
    async with AsyncExitStack() as stack:
        sides: list[tuple[Client, RunningWorker, list[Call], list[float]]] = []
        for dsn, governed in ((without, False), (with_all, True)):
            app = _app(dsn, governed=governed)
            options: dict[str, Any] = {"flags": {"linux"}} if governed else {}
            calls = [Call(f"work{number % 6}", (number,), **options) for number in range(count)]
            client = await stack.enter_async_context(app.client())
            worker = await stack.enter_async_context(app.worker())
            sides.append((client, worker, calls, []))
        for number in range(rounds + 2):
            for client, worker, calls, found in sides[:: -1 if number % 2 else 1]:
                await client.enqueue_many(calls)
                started = time.perf_counter()
                await worker.run_once()
                found.append(time.perf_counter() - started)
        return ratio(sides[1][3][2:], sides[0][3][2:])


def _app(dsn: str, *, governed: bool) -> Harvest:
    tables: dict[str, Any] = {"harvest": {"dsn": dsn}, "worker": {"queues": QUEUES[:2], "concurrency": BATCH}}
    if governed:
        tables["harvest"]["plugins"] = list(POLICIES)
        tables["plugins"] = POLICIES
    app = Harvest(tables)

    async def nothing(number: int) -> int:
        return number

    options: dict[str, Any] = {"requires": "gpu = true"} if governed else {}
    for number in range(6):
        app.activity(name=f"work{number}", queue=QUEUES[number % 2], **options)(nothing)
    app.activity(name="train", queue=QUEUES[0])(nothing)
    return app
