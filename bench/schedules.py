"""What ten thousand schedules cost: processor time of the duty and of the server for it, as a share of a core."""

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

from ground import Figure, Ground, answer, connect
from prometheus_client import CollectorRegistry

from harvest_core.metrics import KernelMetrics
from harvest_core.store.postgres.database import Database
from harvest_core.worker.schedules import Schedules

BOUND = 1.0
_TICKS = os.sysconf("SC_CLK_TCK")
_PUT = """
insert into harvest.schedules (name, activity, args, kwargs, traits, options, cron, timezone, catch_up, overlap,
                               declared)
select 'schedule ' || i, 'work' || i %% 20, '[]', '{}', '{}', '{}', format('%%s %%s * * * *', i %% 60, i / 60 %% 60),
       'Europe/Berlin', 'one', 'allow', false from generate_series(1, %(size)s) i
"""


def figures(ground: Ground) -> Iterator[Figure]:
    """Measure a scheduler with schedules that are not due, with hourly ones, and with all due at once."""
    size, length = ground.size(10_000, 2_000), ground.size(20, 4)
    with ground.database() as dsn, connect(dsn) as connection:
        connection.execute(_PUT, {"size": size})
        yield Figure(f"{size:,} schedules worked out", asyncio.run(_look(dsn)), "s")
        connection.execute("update harvest.schedules set next_at = next_at + interval '1 day'")
        connection.execute("vacuum analyze harvest.schedules")
        yield Figure(f"{size:,} schedules at rest", asyncio.run(_share(dsn, length)), "% of a core", BOUND)
        connection.execute("update harvest.schedules set next_at = next_at - interval '1 day'")
        share = asyncio.run(_share(dsn, length))
        made = answer(connection, "select count(*) from harvest.tasks")
        if not 0.5 < made / (size * length / 3600) < 10:
            msg = f"{made} ticks in {length} s: this measured something else"
            raise RuntimeError(msg)
        yield Figure(f"{size:,} hourly schedules, ticking", share, "% of a core", BOUND)
        connection.execute("update harvest.schedules set next_at = next_at - interval '1 hour'")
        yield Figure(f"{size:,} schedules due at once", asyncio.run(_look(dsn)), "s")


async def _share(dsn: str, length: float) -> float:
    """Return the percentage of a core that a scheduler takes beyond what this process takes without it."""
    database = Database(dsn)
    await database.open()
    processes = [
        row[0]
        for row in await database.fetch(
            "select pid from pg_stat_activity where datname = current_database() and backend_type = 'client backend'"
        )
    ]
    without = await _used(processes, length / 4)
    duty = asyncio.ensure_future(_scheduler(database).run())
    await asyncio.sleep(1)
    share = await _used(processes, length) - without
    duty.cancel()
    await database.close()
    return 100 * max(0.0, share)


async def _look(dsn: str) -> float:
    database = Database(dsn)
    await database.open()
    started = time.monotonic()
    await _scheduler(database).look()
    found = time.monotonic() - started
    await database.close()
    return found


def _scheduler(database: Database) -> Schedules:
    return Schedules(database, KernelMetrics(CollectorRegistry()), notify=True)


async def _used(processes: list[int], length: float) -> float:
    """Wait, and return the share of a core that this process and the server's backends take meanwhile."""
    started, before = time.monotonic(), _processor_seconds(processes)
    await asyncio.sleep(length)
    return (_processor_seconds(processes) - before) / (time.monotonic() - started)


def _processor_seconds(processes: list[int]) -> float:
    fields = [Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split() for one in processes]
    return time.process_time() + sum(int(field[11]) + int(field[12]) for field in fields) / _TICKS
