"""What a claim reads follows the batch, not the backlog: 10,000 and 100,000 tasks it may not take cost the same.

Counted are rows and index entries that PostgreSQL handed up, by its own counters, and pages touched; nothing is timed.
The plans must hold whatever the planner believes, so each is tried on tables it knows, on tables it has never analyzed,
without hash and merge joins, and as a generic plan.
"""

import uuid
from contextlib import contextmanager

import psycopg
import pytest

from harvest_core import Harvest
from harvest_core.claim.planner import plan
from harvest_core.claim.statement import claim_statement
from harvest_core.claim.turns import first_turns
from harvest_core.model import Tick, Worker

pytestmark = pytest.mark.matrix

BATCH = 50
ROUTES = 20
SIZES = (10_000, 100_000)
BACKLOGS = {
    "held": ("busy", "train", "{}"),
    "vetoed": ("busy", "work0", '{"flags": ["no"]}'),
    "not capable": ("busy", "render", "{}"),
    "unknown name": ("busy", "nobody", "{}"),
    "queue not polled": ("elsewhere", "work0", "{}"),
    "paused": ("paused", "work0", "{}"),
}
BELIEFS = {
    "analyzed": (True, ()),
    "never analyzed": (False, ()),
    "no hash or merge joins": (True, ("enable_hashjoin = off", "enable_mergejoin = off")),
    "never analyzed, no hash or merge joins": (False, ("enable_hashjoin = off", "enable_mergejoin = off")),
    "generic plan": (True, ("plan_cache_mode = force_generic_plan",)),
}
ROWS = {"priority": 0, "state": "pending", "offset": 0}
INSERT = (
    "insert into harvest.tasks (route_id, scheduled_at, priority, max_attempts, state, args, kwargs) "
    "select %(first)s + i %% %(routes)s, now() + %(offset)s * interval '1 s' + i * interval '1 us', %(priority)s, 1, "
    "%(state)s::harvest.task_state, '[]', '{}' from generate_series(1, %(count)s) i"
)
PROMOTE = b"select * from harvest.promote(100)"
FINISH = (
    b"select * from harvest.finish(%s::bigint[], %s::bigint[], array_fill('completed'::text, array[50]), "
    b"array_fill('1'::jsonb, array[50]), array_fill(null::text, array[50]), array_fill(null::text, array[50]))"
)
RUNNING = "select array_agg(id), array_agg(token) from harvest.tasks where state = 'running' and token > 0"
CLAIM_READS = 20 * (BATCH + ROUTES)
"""Rows and entries that a claim may read: a walk past the backlog would be 10,000."""
READ = (
    "select sum(pg_stat_get_xact_tuples_returned(c.oid) + pg_stat_get_xact_tuples_fetched(c.oid))::integer "
    "from pg_class c where c.relnamespace = 'harvest'::regnamespace and c.relkind in ('r', 'i')"
)


@pytest.fixture(scope="module")
def backlogs(harvest_server, harvest_servers):
    """Databases by size of the backlog and whether they are analyzed: 500 tasks to take behind it, on 5 routes."""
    with (
        harvest_servers.database(harvest_server) as small,
        harvest_servers.database(harvest_server) as large,
        harvest_servers.database(harvest_server) as small_analyzed,
        harvest_servers.database(harvest_server) as large_analyzed,
    ):
        found = {
            (SIZES[0], False): small,
            (SIZES[1], False): large,
            (SIZES[0], True): small_analyzed,
            (SIZES[1], True): large_analyzed,
        }
        for (size, analyzed), dsn in found.items():
            with psycopg.connect(dsn, autocommit=True) as connection:
                _fill(connection, size)
                if analyzed:
                    connection.execute("analyze")
        yield found


def _fill(connection, size, free=500):
    connection.execute("alter table harvest.tasks set (autovacuum_enabled = off)")
    connection.execute("alter table harvest.routes set (autovacuum_enabled = off)")
    connection.execute("insert into harvest.queues values ('paused', now())")
    connection.execute(
        "insert into harvest.routes (queue, kind, name, traits) overriding system value "
        "select 'busy', 'activity', case when i <= 20 then 'train' else 'work' || i - 21 end, '{}' "
        "from generate_series(1, 25) i"
    )
    connection.execute(INSERT, {**ROWS, "first": 1, "routes": ROUTES, "count": size, "priority": 10})
    connection.execute(INSERT, {**ROWS, "first": 21, "routes": 5, "count": free})


@pytest.fixture(scope="module")
def policies():
    """All four policies, each with something to refuse, and the tick of a worker under them."""
    app = Harvest(
        {
            "harvest": {"plugins": ["capabilities", "flags", "weights", "cost_hold"]},
            "worker": {"queues": ["busy", "paused"]},
            "plugins": {
                "capabilities": {"labels": {"gpu": "false"}},
                "flags": {"forbidden": ["no"]},
                "weights": {"queues": {"busy": 3}},
                "cost_hold": {"defer_threshold": 400.0, "activities": ["train"]},
            },
        }
    )
    app.activity(queue="busy", name="train")(print)
    app.activity(queue="busy", name="render", requires="gpu = true")(print)
    for number in range(5):
        app.activity(queue="busy", name=f"work{number}")(print)
    app.plugin("cost_hold").signal.set(520.0)
    build = app.build()
    queues = tuple(build.config.worker.queues)
    worker = Worker(str(uuid.uuid4()), "w", queues, frozenset(build.runnable), build.policies.facts(build.view))
    return build.policies, Tick(worker, BATCH, build.policies.live(), first_turns(queues))


@contextmanager
def claiming(dsn, tick, settings=()):
    """Give a connection in a transaction that is rolled back, with the worker registered."""
    with psycopg.connect(dsn, prepare_threshold=0) as connection:
        for setting in settings:
            connection.execute(f"set local {setting}")
        connection.execute(
            "insert into harvest.workers (id, name, queues, activities, concurrency, plugins, facts, live, ttl, host, "
            "pid) values (%s, 'worker', '{}', '{}', 1, '{}', '{}', '{}', 300, 'host', 1)",
            [tick.worker.id],
        )
        yield connection
        connection.rollback()


def rows_read(connection, text, values=None):
    """Return what a statement gave, and how many rows and index entries it read."""
    before = connection.execute(READ).fetchone()[0]
    rows = connection.execute(text, values).fetchall()
    return rows, connection.execute(READ).fetchone()[0] - before


def claim_of(policies):
    """Return text and values of the claim."""
    statement = claim_statement(plan(*policies), '"harvest"')
    return statement.text.encode(), statement.values


def pages_read(connection, text, values=None):
    """Return how many pages a statement touches."""
    found = connection.execute(b"explain (analyze, buffers, format json) " + text, values).fetchone()[0][0]["Plan"]
    return found["Shared Hit Blocks"] + found["Shared Read Blocks"]


@pytest.mark.parametrize("belief", BELIEFS)
@pytest.mark.parametrize("backlog", BACKLOGS)
def test_a_claim_reads_by_the_batch_whatever_stands_in_front(backlogs, policies, backlog, belief):
    """Tasks of higher priority that it may not take add no row and no page to a claim (C9, FL5, CAP2, K7, K13).

    Public reports of the slow case: graphile/worker#240, graphile/worker#274, good_job#1578.
    """
    analyzed, settings = BELIEFS[belief]
    rows, pages = [], []
    for size in SIZES:
        for measured, into in ((rows_read, rows), (pages_read, pages)):
            with claiming(backlogs[size, analyzed], policies[1], settings) as connection:
                connection.execute(
                    "update harvest.routes set queue = %s, name = %s, traits = %s where id <= 20", BACKLOGS[backlog]
                )
                into.append(measured(connection, *claim_of(policies)))
    assert [len(taken) for taken, _ in rows] == [BATCH, BATCH]
    assert max(read for _, read in rows) <= CLAIM_READS
    assert pages[1] <= 1.5 * pages[0]


def test_plans_made_on_an_empty_table_hold_when_it_fills(harvest_database, policies):
    """A connection that has claimed and finished in an empty schema keeps its plans; they read by the batch (C9)."""
    with psycopg.connect(harvest_database, autocommit=True) as connection:
        _fill(connection, 0, free=0)
    with claiming(harvest_database, policies[1], ["plan_cache_mode = force_generic_plan"]) as connection:
        for _ in range(6):
            connection.execute(*claim_of(policies))
            connection.execute(FINISH, [[0], [0]])
            connection.execute(PROMOTE)
        connection.execute(INSERT, {**ROWS, "first": 1, "routes": ROUTES, "count": SIZES[0], "priority": 10})
        connection.execute(INSERT, {**ROWS, "first": 21, "routes": 5, "count": 500})
        connection.execute(
            INSERT, {**ROWS, "first": 21, "routes": 5, "count": SIZES[0], "state": "scheduled", "offset": -9}
        )
        taken, read = rows_read(connection, *claim_of(policies))
        assert (len(taken), read <= CLAIM_READS) == (BATCH, True)
        finished, read = rows_read(connection, FINISH, connection.execute(RUNNING).fetchone())
        assert (len(finished), read <= 10 * BATCH) == (BATCH, True)
        [(promoted, _)], read = rows_read(connection, PROMOTE)
        assert (promoted, read <= 10 * 100) == (100, True)


@pytest.mark.parametrize("analyzed", [True, False], ids=["analyzed", "never analyzed"])
def test_finishing_reads_by_the_batch(backlogs, policies, analyzed):
    """A finish reads its own tasks and keys, whatever else is pending, running or keyed (C9)."""
    pages = []
    for size in SIZES:
        with claiming(backlogs[size, analyzed], policies[1]) as connection:
            connection.execute("update harvest.tasks set state = 'running', token = 0 where id % 10 = 0")
            connection.execute("insert into harvest.keys select 'train', 'key ' || id, id from harvest.tasks")
            connection.execute(*claim_of(policies))
            held = connection.execute(RUNNING).fetchone()
            with connection.transaction(force_rollback=True):
                finished, read = rows_read(connection, FINISH, held)
                assert (len(finished), read <= 10 * BATCH) == (BATCH, True)
            pages.append(pages_read(connection, FINISH, held))
    assert pages[1] <= 1.5 * pages[0]


@pytest.mark.parametrize("analyzed", [True, False], ids=["analyzed", "never analyzed"])
def test_tasks_due_later_cost_nothing(harvest_server, harvest_servers, policies, analyzed):
    """A claim does not see them, and promotion reads the batch that it moves (K8, K9)."""
    rows = {**ROWS, "first": 21, "routes": 5, "priority": 10, "state": "scheduled"}
    pages = []
    for size in SIZES:
        with harvest_servers.database(harvest_server) as dsn:
            with psycopg.connect(dsn, autocommit=True) as connection:
                _fill(connection, 0)
                connection.execute(INSERT, {**rows, "count": size, "offset": 3600})
                if analyzed:
                    connection.execute("analyze")
            with claiming(dsn, policies[1]) as connection:
                taken, read = rows_read(connection, *claim_of(policies))
                assert (len(taken), read <= CLAIM_READS) == (BATCH, True)
                [(promoted, next_due)], read = rows_read(connection, PROMOTE)
                assert (promoted, read <= 20, 3000 < next_due < 3601) == (0, True, True)
                connection.execute(INSERT, {**rows, "count": size, "offset": -3600})
                [(promoted, _)], read = rows_read(connection, PROMOTE)
                assert (promoted, read <= 10 * 100) == (100, True)
                pages.append(pages_read(connection, PROMOTE) + pages_read(connection, *claim_of(policies)))
    assert pages[1] <= 1.5 * pages[0]
