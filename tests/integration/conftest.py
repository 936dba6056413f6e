"""`kernel`: one fresh database as its enemies see it: apps, bare claimers, raw SQL and further connections."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager

import attrs
import psycopg
import pytest

from harvest_core import Harvest
from harvest_core.claim.planner import plan
from harvest_core.claim.statement import claim_statement
from harvest_core.model import Tick, Worker
from harvest_core.policies import Policies
from harvest_core.store.postgres import tasks, workers
from harvest_core.store.postgres.database import Database
from harvest_core.store.postgres.tasks import Finished

PATIENCE = 15.0


class Claimer:
    """A registered worker that only claims: no loop, no heartbeat beyond its first."""

    def __init__(self, database, identity, workflows):
        self.database, self.identity, self.workflows = database, identity, workflows

    def statement(self, n=1, *, policies=None, closed=(), **changes):
        """Return the claim as this worker would run it."""
        tick = Tick(self.identity, n)
        planned = plan(policies or Policies({}, {}, None), tick, workflows=self.workflows, closed=closed)
        return claim_statement(attrs.evolve(planned, **changes), self.database.quoted)

    async def claim(self, n=1, **options):
        """Claim and return the whole result."""
        return await tasks.claim(self.database, self.statement(n, **options))

    async def take(self, n=1, **options):
        """Claim and return the claims."""
        return list((await self.claim(n, **options)).claims)

    async def finish(self, claims, result="null"):
        """Finish claims as completed and return the ids that were written."""
        return await tasks.write_outcomes(self.database, [(claim, Finished("completed", result)) for claim in claims])


class Kernel:
    """One database and what a test does to it."""

    def __init__(self, dsn, schema, stack):
        self.dsn, self.schema, self.stack = dsn, schema, stack

    async def open(self):
        """Connect."""
        self.database = await self.another_database()
        self.control = await self.connection()
        return self

    async def another_database(self, size=4):
        """Return a pool of its own."""
        database = Database(self.dsn, self.schema, size)
        await database.open()
        self.stack.push_async_callback(database.close)
        return database

    async def connection(self, **options):
        """Return one more connection, in autocommit, closed at the end of the test."""
        connection = await psycopg.AsyncConnection.connect(self.dsn, **{"autocommit": True} | options)
        self.stack.push_async_callback(connection.close)
        await connection.execute(f'set search_path to "{self.schema}", public')
        if not connection.autocommit:
            await connection.commit()
        return connection

    async def sql(self, text, values=None):
        """Run a statement on the control connection, in the schema, and return its rows."""
        cursor = await self.control.execute(text, values)
        return await cursor.fetchall() if cursor.pgresult.nfields else []

    async def one(self, text, values=None):
        """Return the first column of the first row."""
        return (await self.sql(text, values))[0][0]

    def app(self, *, plugins=(), harvest=None, tables=None, **worker):
        """Return an app on this database; short times unless given."""
        times = {"poll_interval": "50ms", "shutdown_grace": "5s"}
        return Harvest(
            {
                "harvest": {"dsn": self.dsn, "schema": self.schema, "plugins": list(plugins)} | (harvest or {}),
                "worker": times | worker,
                "plugins": tables or {},
            }
        )

    async def claimer(self, *names, queues=("default",), workflows=(), ttl=3600.0, database=None):
        """Return a registered claimer of these activities and workflows."""
        known = frozenset([*names, *workflows])
        identity = Worker(str(uuid.uuid4()), "claimer", tuple(queues), known)
        database = database or self.database
        await workers.register(database, identity, plugins=(), live={}, concurrency=1, ttl=ttl, host="here", pid=1)
        return Claimer(database, identity, frozenset(workflows))

    async def enqueue(self, name="work", count=1, **options):
        """Enqueue by the SQL function, as any client would, and return the ids."""
        arguments = "".join(f", {option} => %({option})s" for option in options)
        rows = await self.sql(
            f"select enqueue(%(name)s{arguments}) from generate_series(1, %(count)s)",
            {"name": name, "count": count} | options,
        )
        return [row[0] for row in rows]

    async def route(self, queue="default", kind="activity", name="work", traits="{}"):
        """Return the id of a route, made where there is none."""
        return await self.one("select route_of(%s, %s, %s, %s::jsonb)", [queue, kind, name, traits])

    async def rows(self, route, count, *, state="pending", priority=0, due="now()"):
        """Insert tasks of a route in bulk and return their ids; `due` is SQL, with `i` from 1 to count."""
        rows = await self.sql(
            "insert into tasks (route_id, scheduled_at, priority, max_attempts, state, args, kwargs) "
            f"select %s, {due}, %s, 5, %s::task_state, '[]', '{{}}' from generate_series(1, %s) i returning id",
            [route, priority, state, count],
        )
        return [row[0] for row in rows]

    async def states(self):
        """Return how many tasks are in each state, finished ones included."""
        rows = await self.sql("select state::text from tasks union all select state::text from finished")
        return dict(Counter(row[0] for row in rows))

    async def until(self, condition, why="the condition"):
        """Wait until an async condition holds; a bound ends the wait, no test depends on its length."""
        async with asyncio.timeout(PATIENCE) as limit:
            try:
                while not (found := await condition()):
                    await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                if limit.when() is not None and asyncio.get_running_loop().time() >= limit.when():
                    msg = f"{why} did not come to hold within {PATIENCE} s; tasks are {await self.states()}"
                    raise AssertionError(msg) from None
                raise
        return found

    @asynccontextmanager
    async def running(self, app, **options):
        """Run a worker of an app or build in the background; it is stopped at the end, gracefully."""
        from harvest_core.worker.worker import Worker as Process

        async with Process(app.build() if isinstance(app, Harvest) else app, **options) as worker:
            loop = asyncio.ensure_future(worker.run())
            try:
                yield worker
            finally:
                worker.stop()
                await asyncio.wait_for(loop, PATIENCE)


@pytest.fixture
async def kernel(harvest_database):
    """Give a fresh, migrated database with the schema `harvest`."""
    async with AsyncExitStack() as stack:
        yield await Kernel(harvest_database, "harvest", stack).open()


@pytest.fixture
def until_asleep(harvest_database):
    """Return what waits until every worker of the database is asleep: an enqueue before that wakes nobody."""

    def wait():
        with psycopg.connect(harvest_database, autocommit=True) as connection:
            while not connection.execute("select bool_and(asleep) from harvest.workers").fetchone()[0]:
                time.sleep(0.01)

    return wait
