"""A claim behind a million tasks that it may not take, against a claim with nothing in front."""

from collections.abc import Callable, Iterator, Sequence

import psycopg
from ground import BATCH, Claimer, Figure, Ground, add_tasks, at_once, connect, interleaved, ratio, seconds

from harvest_core import Harvest
from harvest_core.claim.planner import Plan, plan
from harvest_core.model import Tick, Worker

NAMES = [f"work{number}" for number in range(20)]
REFUSED = {
    "held": ("train", "{}"),
    "vetoed by a flag": ("work0", '{"flags": ["no"]}'),
    "not capable": ("render", "{}"),
}
BOUND = 2.0


def figures(ground: Ground) -> Iterator[Figure]:
    """Measure every kind of refusal, with 1 and 8 claimers, before tasks of the same and of lower priority."""
    size = ground.size(1_000_000, 50_000)
    planned = _refusing()
    with ground.database() as empty, ground.database() as crowded:
        with connect(crowded) as connection:
            # Twenty routes of one identity, as if twenty traits had multiplied them.
            front = add_tasks(connection, [("busy", f"front{n}") for n in range(20)], size, priority=5)
            connection.execute("vacuum analyze")
        for refusal, (name, traits) in REFUSED.items():
            with connect(crowded) as connection:
                text = "update harvest.routes set name = %s, traits = %s where id = any(%s)"
                connection.execute(text, [name, traits, front])
            for priority, words in ((5, "of the same priority"), (0, "of higher priority")):
                for claimers, rounds in ((1, ground.size(60, 15)), (8, ground.size(20, 5))):
                    found = _ratio([empty, crowded], planned, claimers, rounds, priority)
                    title = f"claim behind {size:,} {refusal}, {words}, {claimers} at once: to an empty head"
                    yield Figure(title, found, bound=BOUND)
        with connect(crowded) as connection:
            text = "select count(*) from harvest.tasks where state = 'pending' and route_id = any(%s)"
            if connection.execute(text, [front]).fetchone() != (size,):
                msg = "a claim took what it had to refuse"
                raise RuntimeError(msg)


def _refusing() -> Callable[[str], Plan]:
    """Return what plans for a worker with all four policies, each of which has something to refuse."""
    app = Harvest(
        {
            "harvest": {"plugins": ["capabilities", "flags", "weights", "cost_hold"]},
            "worker": {"queues": ["busy"]},
            "plugins": {
                "capabilities": {"labels": {"gpu": "false"}},
                "flags": {"forbidden": ["no"]},
                "cost_hold": {"defer_threshold": 400.0, "activities": ["train"]},
            },
        }
    )
    app.activity(queue="busy", name="train")(print)
    app.activity(queue="busy", name="render", requires="gpu = true")(print)
    for name in NAMES:
        app.activity(queue="busy", name=name)(print)
    app.plugin("cost_hold").signal.set(520.0)
    build = app.build()
    facts, live = build.policies.facts(build.view), build.policies.live()

    def planned(worker: str) -> Plan:
        identity = Worker(worker, "bench", ("busy",), frozenset(build.runnable), facts)
        return plan(build.policies, Tick(identity, BATCH, live, {"busy": 0}))

    return planned


def _ratio(
    databases: Sequence[str], planned: Callable[[str], Plan], claimers: int, rounds: int, priority: int
) -> float:
    sides = {}
    for dsn in databases:
        with connect(dsn) as connection:
            _renew(connection, (rounds + 3) * claimers * BATCH + 1000, priority)
        ready = [Claimer(dsn, planned) for _ in range(claimers)]
        for claimer in ready:
            claimer.claim()
        work = [claimer.claim for claimer in ready]
        sides[dsn] = lambda work=work: seconds(work[0]) if len(work) == 1 else at_once(work)
    found = interleaved(sides, rounds)
    return ratio(found[databases[1]], found[databases[0]])


def _renew(connection: psycopg.Connection, count: int, priority: int) -> None:
    """Leave alone what stands in front; put fresh tasks behind it, and leave no dead rows of the last measurement."""
    connection.execute(
        "delete from harvest.tasks where route_id = any(array("
        "select id from harvest.routes where name = any(%s) and traits = '{}'))",
        [NAMES],
    )
    connection.execute("vacuum harvest.tasks")
    add_tasks(connection, [("busy", name) for name in NAMES], count, priority=priority)
    connection.execute("analyze harvest.tasks, harvest.routes")
    connection.execute("checkpoint")
