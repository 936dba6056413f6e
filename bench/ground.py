"""What the benchmarks stand on: an embedded PostgreSQL as users get it, databases on it, tasks in them, and timing."""

import asyncio
import statistics
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import psycopg
from psycopg import sql

from harvest_core.claim.planner import Plan
from harvest_core.claim.statement import claim_statement
from harvest_core.store.postgres import embedded
from harvest_core.store.postgres.database import Database
from harvest_core.store.postgres.migrate import migrate

BATCH = 50


@attrs.frozen
class Figure:
    """One line of the report: what was measured, and the bound it has to keep; None where it is told, not judged."""

    name: str
    value: float
    unit: str = "ratio"
    bound: float | None = None

    @property
    def broken(self) -> bool:
        """Whether the bound is not kept."""
        return self.bound is not None and not self.value <= self.bound


@attrs.frozen
class Ground:
    """A running server.

    Args:
        dsn: of its maintenance database.
        quick: True for sizes that only show that the benchmark works.
    """

    dsn: str
    quick: bool

    def size(self, full: int, quick: int) -> int:
        """Return the size of something, as asked for."""
        return quick if self.quick else full

    @contextmanager
    def database(self) -> Iterator[str]:
        """Give the DSN of a fresh migrated database."""
        name = f"bench_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        dsn = psycopg.conninfo.make_conninfo(self.dsn, dbname=name)
        asyncio.run(_migrated(dsn))
        try:
            yield dsn
        finally:
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@contextmanager
def ground(*, quick: bool) -> Iterator[Ground]:
    """Start a server with its default durability; its data is deleted at the end."""
    with TemporaryDirectory(prefix="harvest-bench-") as folder, embedded.start(Path(folder) / "server") as server:
        yield Ground(server.dsn, quick)


async def _migrated(dsn: str) -> None:
    database = Database(dsn)
    await database.open()
    await migrate(database)
    await database.close()


def connect(dsn: str) -> psycopg.Connection:
    """Connect as a worker does: in autocommit, with prepared statements."""
    return psycopg.connect(dsn, autocommit=True, prepare_threshold=1)


def register(connection: psycopg.Connection, worker: str) -> None:
    """Write a worker's row, without which it claims nothing."""
    connection.execute(
        "insert into harvest.workers (id, name, queues, activities, concurrency, plugins, facts, live, ttl, host, pid) "
        "values (%s, 'bench', '{}', '{}', 1, '{}', '{}', '{}', 3600, 'host', 1)",
        [worker],
    )


def answer(connection: psycopg.Connection, query: str, values: Sequence[object] = ()) -> Any:
    """Return the one value that a query answers."""
    row = connection.execute(query, values).fetchone()
    if row is None:
        msg = f"{query} answered nothing: this measured something else"
        raise RuntimeError(msg)
    return row[0]


def add_tasks(
    connection: psycopg.Connection,
    routes: Sequence[tuple[str, str]],
    count: int,
    *,
    priority: int = 0,
    traits: str = "{}",
) -> list[int]:
    """Write count tasks, spread over routes given as queue and name, and return the ids of the routes."""
    ids = [
        answer(connection, "select harvest.route_of(%s, 'activity', %s, %s)", [queue, name, traits])
        for queue, name in routes
    ]
    connection.execute(
        "insert into harvest.tasks (route_id, scheduled_at, priority, max_attempts, state, args, kwargs) "
        "select (%(ids)s::bigint[])[1 + i %% %(routes)s], clock_timestamp(), %(priority)s, 1, 'pending', '[]', '{}' "
        "from generate_series(1, %(count)s) i",
        {"ids": ids, "routes": len(ids), "priority": priority, "count": count},
    )
    return ids


class Claimer:
    """A registered worker with a connection that claims batches.

    Args:
        dsn: of the database.
        planned: makes the plan of a worker's id.
    """

    def __init__(self, dsn: str, planned: Callable[[str], Plan]) -> None:
        self.connection = connect(dsn)
        worker = str(uuid.uuid4())
        register(self.connection, worker)
        self._plan = planned(worker)
        self._statement = claim_statement(self._plan, '"harvest"')

    def claim(self) -> list[tuple[int, int]]:
        """Claim a full batch and return ids and tokens."""
        rows = self.connection.execute(self._statement.text.encode(), self._statement.values).fetchall()
        if len(rows) != self._plan.free:
            msg = f"a claim got {len(rows)} of {self._plan.free} tasks: too few were written for this measurement"
            raise RuntimeError(msg)
        return [(row[2], row[3]) for row in rows]


def plain_plan(names: Sequence[str], queues: Sequence[str] = ("busy",), free: int = BATCH) -> Callable[[str], Plan]:
    """Return what makes a plan without policies."""
    return lambda worker: Plan(worker, free, tuple(sorted(names)), (), None, tuple(queues))


def at_once(work: Sequence[Callable[[], object]]) -> float:
    """Start all work together, one thread each, and return the seconds until all is done."""
    barrier = threading.Barrier(len(work) + 1)

    def run(one: Callable[[], object]) -> None:
        barrier.wait()
        one()

    threads = [threading.Thread(target=run, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    barrier.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def seconds(work: Callable[[], object]) -> float:
    """Return how long work takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def interleaved(sides: Mapping[str, Callable[[], float]], rounds: int, warm: int = 3) -> dict[str, list[float]]:
    """Measure each side once a round, in turns that alternate, and return the measurements after the warm-up."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + warm):
        for name in sorted(sides, reverse=bool(number % 2)):
            measured = sides[name]()
            if number >= warm:
                found[name].append(measured)
    return found


def ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """Return the median of the ratios round by round: what disturbs a round disturbs both of its sides."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))
