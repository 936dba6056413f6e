"""Claims at the same time: none starves while others hold rows, none jumbles the order, none takes a task twice.

The law of one claim is exact, so it is tested exactly: with the others' claims left open in their transactions, the next
one takes the best rows that are not locked, as a model in plain Python says. Real concurrency is tested by claims that
start together; a claim counts there only where enough tasks stayed out of every other claim's hands from its start to
its end, so that no verdict depends on how the machine shares its time.
"""

import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from contextlib import ExitStack
from itertools import groupby

import attrs
import psycopg
import pytest

from harvest_core.claim.planner import Plan
from harvest_core.claim.statement import claim_statement
from harvest_core.model import Turn

BATCH = 50
CLAIMERS = (1, 8, 16)
LAYOUTS = {
    "20 routes alike": [(f"a{i}", 200, 0) for i in range(20)],
    "A 50@10, B 400@5": [("a", 50, 10), ("b", 400, 5)],
    "A 50@10 and 400@0, B 400@5": [("a", 50, 10), ("a", 400, 0), ("b", 400, 5)],
    "20 routes of 40": [(f"a{i}", 40, 0) for i in range(20)],
    "20 routes of 100, own priorities": [(f"a{i}", 100, i) for i in range(20)],
}
PEER = """
import sys
sys.path.insert(0, sys.argv[1])
import test_contention as peer
field = peer.Field(sys.argv[2], peer.LAYOUTS[sys.argv[3]], int(sys.argv[4]))
print("ready", flush=True)
sys.stdin.readline()
for claim in peer.together(field, int(sys.argv[5])):
    print(repr(claim.start), repr(claim.end), *(task.id for task in claim.tasks), flush=True)
"""


@attrs.frozen(order=True)
class Task:
    """A task and its place in the order of K2, which is the order of its fields."""

    minus_priority: int
    scheduled_at: float
    id: int
    route: int = attrs.field(order=False)
    queue: str = attrs.field(order=False)


@attrs.frozen
class Claim:
    """One claim: when it started and ended by the machine's clock, and what it took, in its order."""

    start: float
    end: float
    tasks: list[Task]


class Field:
    """A layout in a database, and claims on it.

    Args:
        dsn: of a database that is this test's own.
        layout: activities with a number of tasks and their priority.
        queues: 0 for one queue without an order; else the activities are dealt to so many queues with an owner.
    """

    def __init__(self, dsn: str, layout: list[tuple[str, int, int]], queues: int) -> None:
        self.dsn = dsn
        self.names = sorted({name for name, _, _ in layout})
        self.queue_of = {name: f"q{n % queues if queues else 0}" for n, name in enumerate(self.names)}
        self.turns = [Turn(f"q{n}", n % 4 // 3, 0, 1 + n % 3) for n in range(queues)] if queues else None
        self.layout = layout
        self.tasks: dict[int, Task] = {}

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.dsn, autocommit=True, prepare_threshold=1)

    def fill(self, connection: psycopg.Connection) -> "Field":
        connection.execute("truncate harvest.tasks, harvest.routes")
        for name, count, priority in self.layout:
            connection.execute(
                "insert into harvest.tasks (route_id, scheduled_at, priority, max_attempts, state, args, kwargs) "
                "select harvest.route_of(%s, 'activity', %s, '{}'), now() - i % 7 * interval '1 ms', %s, 1, 'pending', "
                "'[]', '{}' from generate_series(1, %s) i",
                [self.queue_of[name], name, priority, count],
            )
        return self.read(connection)

    def read(self, connection: psycopg.Connection) -> "Field":
        self.tasks = {task.id: task for task in self.select(connection, "")}
        return self

    def unlocked(self, connection: psycopg.Connection) -> set[Task]:
        with connection.transaction(force_rollback=True):
            return set(self.select(connection, "for update of t skip locked"))

    def select(self, connection: psycopg.Connection, locking: str) -> list[Task]:
        rows = connection.execute(
            "select -t.priority, extract(epoch from t.scheduled_at)::float8, t.id, r.id, r.queue from harvest.tasks t "
            f"join harvest.routes r on r.id = t.route_id where t.state = 'pending' {locking}"
        )
        return [Task(*row) for row in rows]

    def claimer(self, connection: psycopg.Connection) -> "Claimer":
        worker = str(uuid.uuid4())
        connection.execute(
            "insert into harvest.workers (id, name, queues, activities, concurrency, plugins, facts, live, ttl, host, "
            "pid) values (%s, 'worker', '{}', '{}', 1, '{}', '{}', '{}', 300, 'host', 1)",
            [worker],
        )
        queues = tuple(sorted(set(self.queue_of.values())))
        turns = self.turns and tuple(turn for turn in self.turns if turn.queue in queues)
        return Claimer(self, connection, Plan(worker, BATCH, tuple(self.names), (), turns, queues))


class Claimer:
    """A connection that claims."""

    def __init__(self, field: Field, connection: psycopg.Connection, plan: Plan) -> None:
        self.field, self.connection, self.plan = field, connection, plan
        self.statement = claim_statement(plan, '"harvest"')

    def claim(self) -> Claim:
        start = time.monotonic()
        cursor = self.connection.execute(self.statement.text.encode(), self.statement.values)
        column = [description.name for description in cursor.description].index("id")
        ids = [row[column] for row in cursor if row[column] is not None]
        return Claim(start, time.monotonic(), [self.field.tasks[number] for number in ids])


def best(tasks: set[Task], plan: Plan) -> list[Task]:
    """Say what a claim of a plan takes from tasks when nobody interferes: the model."""
    lanes = {turn.queue: [turn.tier, turn.start, turn.step] for turn in plan.turns or ()}
    if not lanes:
        return sorted(tasks)[: plan.free]
    waiting = {queue: sorted(of) for queue, of in groupby(sorted(tasks, key=lambda t: t.queue), lambda t: t.queue)}
    taken: list[Task] = []
    while len(taken) < plan.free and any(waiting.values()):
        queue = min((q for q in lanes if waiting.get(q)), key=lambda q: (lanes[q][0], lanes[q][1] + lanes[q][2]))
        lanes[queue][1] += lanes[queue][2]
        taken.append(waiting[queue].pop(0))
    return taken


def together(field: Field, claimers: int) -> list[Claim]:
    """Start claimers together and let each claim until it gets nothing; return all claims but the empty last ones."""
    claims: list[list[Claim]] = [[] for _ in range(claimers)]
    with ExitStack() as stack:
        connections = [stack.enter_context(field.connect()) for _ in range(claimers)]
        ready = [field.claimer(connection) for connection in connections]
        if not field.tasks:
            field.read(connections[0])
        barrier = threading.Barrier(claimers)

        def work(number: int) -> None:
            barrier.wait()
            while True:
                claims[number].append(ready[number].claim())
                if not claims[number][-1].tasks:
                    return

        threads = [threading.Thread(target=work, args=(number,)) for number in range(claimers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return [claim for made in claims for claim in made]


def judge(field: Field, claims: list[Claim], plan_lanes: bool) -> Counter[str]:
    """Count the claims during all of which BATCH tasks stayed free, the short ones among them, and what is broken."""
    found: Counter[str] = Counter()
    routes = len(field.names)
    for claim in claims:
        others = [other for other in claims if other is not claim]
        under_way = [other for other in others if other.start < claim.end and other.end > claim.start]
        gone = sum(len(other.tasks) for other in others if other.start < claim.end)
        if len(field.tasks) - gone - routes * len(under_way) >= BATCH:
            found["judged"] += 1
            found["short"] += len(claim.tasks) < BATCH
            found["empty"] += not claim.tasks
        later = [task for other in others if other.start >= claim.end for task in other.tasks]
        for queue in sorted({task.queue for task in claim.tasks}) if plan_lanes else [None]:
            mine = [task for task in claim.tasks if queue in (None, task.queue)]
            overtaken = [task for task in later if queue in (None, task.queue) and mine and task < max(mine)]
            found["out of order"] += len(overtaken) > BATCH * len(under_way)
    taken = Counter(task.id for claim in claims for task in claim.tasks)
    found["twice"] = sum(count > 1 for count in taken.values())
    found["never"] = len(field.tasks.keys() - taken.keys())
    return found


@pytest.mark.matrix
@pytest.mark.parametrize("queues", [0, 4, 20], ids=["no order", "4 queues", "20 queues"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_claim_takes_the_best_rows_that_are_not_locked(harvest_database, layout, queues):
    """Beside up to 15 open claims it takes what the model says, and locks one row more a route at most (K1, K2, K6)."""
    field = Field(harvest_database, layout, queues)
    with ExitStack() as stack:
        probe = stack.enter_context(field.connect())
        field.fill(probe)
        for _ in range(max(CLAIMERS)):
            claimer = field.claimer(stack.enter_context(field.connect()))
            before = field.unlocked(probe)
            stack.enter_context(claimer.connection.transaction(force_rollback=True))
            taken = claimer.claim().tasks
            assert taken == best(before, claimer.plan)
            heads = before - field.unlocked(probe) - set(taken)
            assert max(Counter(head.route for head in heads).values(), default=0) <= 1
            if not heads:
                continue
            # A head is locked only in a route whose best pending task, locked ones included, could have won.
            bound = {route: min(of) for route, of in groupby(sorted(field.tasks.values(), key=_route), _route)}
            assert queues or all(bound[head.route] < max(taken) for head in heads if taken)
        assert field.unlocked(probe) <= before


def _route(task: Task) -> int:
    return task.route


@pytest.mark.parametrize("claimers", CLAIMERS)
@pytest.mark.parametrize("queues", [0, 4], ids=["no order", "4 queues"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_claims_started_together_starve_none_and_keep_the_order(harvest_database, layout, queues, claimers):
    """None is empty, under 15 % are short, and the order is off by the batches under way at most (K1, K2)."""
    total: Counter[str] = Counter()
    field = Field(harvest_database, layout, queues)
    with field.connect() as connection:
        for _ in range(4):
            field.fill(connection)
            total += judge(field, together(field, claimers), bool(queues))
    assert (total["empty"], total["out of order"], total["twice"], total["never"]) == (0, 0, 0, 0)
    assert total["short"] <= 0.15 * total["judged"]
