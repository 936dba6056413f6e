"""The claim against real PostgreSQL: what it takes, in which order, and what it leaves alone (K1 to K7, K13)."""

import asyncio
import os
import tempfile
from pathlib import Path

import pytest

from harvest_core.model import Clause, Skip, Turn
from harvest_core.plugin import Plugin, hookimpl
from harvest_core.policies import Policies


def policies_of(plugin):
    return Policies.of({plugin.slug: plugin})


class Order(Plugin):
    slug = "order"

    @hookimpl
    def order_queues(self, tick):
        return [Turn(queue, 0, 0, step) for queue, step in self.steps.items()]


# ------------------------------------------------------------------------------------------------ one claim


@pytest.mark.matrix
async def test_a_claim_carries_what_a_run_needs(kernel):
    """A claim counts the attempt, carries a token and everything that was enqueued."""
    await kernel.enqueue("work", args='[1, "é"]', kwargs='{"a": null}', priority=3, traits='{"flags": ["x"]}')
    worker = await kernel.claimer("work")
    (claim,) = await worker.take(5)
    assert (claim.attempt, claim.max_attempts, claim.priority) == (1, 5, 3)
    assert (claim.args, claim.kwargs) == ([1, "é"], {"a": None})
    assert (claim.route.queue, claim.route.kind, claim.route.name) == ("default", "activity", "work")
    assert claim.route.traits == {"flags": ["x"]}
    rows = await kernel.sql("select state::text, attempt, token, worker_id::text, claimed_at is not null from tasks")
    assert rows == [("running", 1, claim.token, worker.identity.id, True)]


async def test_every_claim_has_a_fresh_token(kernel):
    """Given back and claimed again, a task has another token; the old one opens nothing (K1, aegra#502)."""
    await kernel.enqueue()
    worker = await kernel.claimer("work")
    tokens = []
    for _ in range(3):
        (claim,) = await worker.take()
        tokens.append(claim.token)
        assert await kernel.sql("select * from release(%s, %s)", [[claim.id], [claim.token]]) == [(claim.id,)]
    assert len(set(tokens)) == 3


@pytest.mark.matrix
async def test_of_fifty_claimers_one_succeeds(kernel):
    """Fifty claims started at once on one task: exactly one gets it, none waits (procrastinate#103, K1)."""
    await kernel.enqueue()
    worker = await kernel.claimer("work")
    start = asyncio.Event()

    async def one(connection):
        statement = worker.statement(10)
        await start.wait()
        rows = await (await connection.execute(statement.text.encode(), statement.values)).fetchall()
        return sum(row[2] is not None for row in rows)

    connections = [await kernel.connection() for _ in range(50)]
    runs = [asyncio.ensure_future(one(connection)) for connection in connections]
    await asyncio.sleep(0)
    start.set()
    assert sum(await asyncio.gather(*runs)) == 1


async def test_racing_claimers_share_without_overlap(kernel):
    """Eight claimers drain a queue together: every task is claimed once, in all (K1)."""
    route, other = await kernel.route(), await kernel.route(name="other")
    ids = await kernel.rows(route, 400) + await kernel.rows(other, 400, priority=1)
    workers = [await kernel.claimer("work", "other", database=await kernel.another_database(1)) for _ in range(8)]

    async def drain(worker):
        found = []
        result = await worker.claim(7)
        while result.claims or result.waiting:
            found += [claim.id for claim in result.claims]
            result = await worker.claim(7)
        return found

    found = [task for part in await asyncio.gather(*map(drain, workers)) for task in part]
    assert sorted(found) == sorted(ids)


# ------------------------------------------------------------------------------------------------ order


@pytest.mark.matrix
async def test_the_order_is_priority_then_time_then_id(kernel):
    """Within a queue: priority descending, then the time due, then the id, across routes (K2)."""
    first, second = await kernel.route(), await kernel.route(name="other")
    for route in (first, second):
        for priority in (0, 5, -5):
            await kernel.rows(route, 4, priority=priority, due="now() - make_interval(secs => 10 * (i %% 2))")
    expected = [row[0] for row in await kernel.sql("select id from tasks order by priority desc, scheduled_at, id")]
    worker = await kernel.claimer("work", "other")
    taken = []
    while claims := await worker.take(5):
        taken += [claim.id for claim in claims]
    assert taken == expected


async def test_without_an_owner_all_polled_queues_are_one(kernel):
    """Where nobody owns the order, the best task of any polled queue is next (K2)."""
    ids = {}
    for queue, priority in (("a", 1), ("b", 3), ("c", 2), ("a", 0), ("b", 4)):
        ids[(await kernel.enqueue(queue=queue, priority=priority))[0]] = priority
    worker = await kernel.claimer("work", queues=["c", "b", "a"])
    assert [ids[claim.id] for claim in await worker.take(10)] == [4, 3, 2, 1, 0]


async def test_an_owner_picks_the_queue_and_priority_the_row(kernel):
    """Turns decide between queues; inside a queue K2 stands (W3)."""
    for queue in ("a", "b"):
        for priority in (1, 2, 3, 4):
            await kernel.enqueue(queue=queue, priority=priority)
    order = Order()
    order.steps = {"a": 3, "b": 1}
    worker = await kernel.claimer("work", queues=["a", "b"])
    claims = await worker.take(8, policies=policies_of(order))
    # b's turns are 1, 2, 3, 4 and a's 3, 6, 9, 12; a stands first in the order and wins the tie at 3
    assert [claim.route.queue for claim in claims] == ["b", "b", "a", "b", "b", "a", "a", "a"]
    assert [claim.turn for claim in claims] == [1, 2, 3, 3, 4, 6, 9, 12]
    for queue in ("a", "b"):
        assert [claim.priority for claim in claims if claim.route.queue == queue] == [4, 3, 2, 1]


async def test_rows_of_a_retry_keep_their_new_place(kernel):
    """A task given back goes to its old place, before younger ones of its priority (K2, K12)."""
    first, second = await kernel.enqueue(count=2)
    worker = await kernel.claimer("work")
    (claim,) = await worker.take()
    await kernel.sql("select * from release(%s, %s)", [[claim.id], [claim.token]])
    assert [claim.id for claim in await worker.take(2)] == [first, second]


# ------------------------------------------------------------------------------------------------ one statement


async def test_a_claim_is_one_statement(kernel):
    """A claim over ten queues is one execution of one prepared statement, with an order and without (K3, W6)."""
    queues = [f"q{number}" for number in range(10)]
    for queue in queues:
        await kernel.enqueue(queue=queue)
    database = await kernel.another_database(1)
    worker = await kernel.claimer("work", queues=queues, database=database)
    order = Order()
    order.steps = dict.fromkeys(queues, 1)
    for policies in (None, policies_of(order)):
        for _ in range(2):
            await worker.take(2, policies=policies)  # from the second run on the statement is prepared
        messages = await trace(database, worker.take(2, policies=policies))
        assert [kind for kind in messages if kind in ("Parse", "Query", "Execute")] == ["Execute"]


async def trace(database, work):
    """Return the kinds of messages that the pool's one connection sends while work runs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
        async with database.connection() as connection:
            connection.pgconn.trace(descriptor)
        await work
        async with database.connection() as connection:
            connection.pgconn.untrace()
        os.close(descriptor)
        lines = [line.split("\t") for line in path.read_text().splitlines()]
    return [line[3].strip() for line in lines if line[1].strip() == "F"]


# ------------------------------------------------------------------------------------------------ skips and names


class Skips(Plugin):
    slug = "skips"

    @hookimpl
    def build_skip_list(self, tick):
        return [Skip(name, ["held"]) for name in self.names]


async def test_a_skip_holds_activities_and_no_workflow(kernel):
    """A skip of a name keeps the activity and lets the workflow of that very name through (K5)."""
    workflow = await kernel.route(kind="workflow", name="train")
    (task,) = await kernel.rows(workflow, 1)
    await kernel.enqueue("train")
    await kernel.enqueue("free")
    skips = Skips()
    skips.names = ["train"]
    worker = await kernel.claimer("free", workflows=["train"])
    claims = await worker.take(10, policies=policies_of(skips))
    assert {(claim.route.kind, claim.route.name) for claim in claims} == {("workflow", "train"), ("activity", "free")}
    assert task in [claim.id for claim in claims]


async def test_a_skipped_activity_waits_untouched(kernel):
    """Skipped: no attempt, no slot, no waiting; asked anew, it is taken with attempt 1 (K5, C1, hatchet#1782)."""
    await kernel.enqueue("train", priority=9)
    await kernel.enqueue("free")
    skips = Skips()
    skips.names = ["train"]
    worker = await kernel.claimer("free", "train")
    result = await worker.claim(1, policies=policies_of(skips))
    assert [claim.route.name for claim in result.claims] == ["free"]
    assert result.waiting == frozenset()
    skips.names = []
    (claim,) = await worker.take(1, policies=policies_of(skips))
    assert (claim.route.name, claim.attempt) == ("train", 1)


async def test_kind_and_name_stay_gates(kernel):
    """A name in the registry admits no task of another kind, and an unknown name waits (K7, hatchet#2511)."""
    workflow = await kernel.route(kind="workflow", name="work")
    strange = await kernel.route(kind="strange", name="work")
    await kernel.rows(workflow, 1)
    await kernel.rows(strange, 1)
    await kernel.enqueue("unknown")
    worker = await kernel.claimer("work")
    result = await worker.claim(10)
    assert (result.claims, result.waiting) == ((), frozenset())
    assert await kernel.states() == {"pending": 3}


async def test_a_queue_that_is_not_polled_is_left(kernel):
    """Only the polled queues are claimed from, whatever the priority."""
    await kernel.enqueue(queue="other", priority=100)
    worker = await kernel.claimer("work")
    assert (await worker.claim(10)).waiting == frozenset()


async def test_a_worker_without_a_row_claims_nothing(kernel):
    """A pruned worker gets nothing and is told so; its claims could not be told from a dead one's (K12)."""
    await kernel.enqueue()
    worker = await kernel.claimer("work")
    await kernel.sql("delete from workers")
    result = await worker.claim(10)
    assert (result.claims, result.registered) == ((), False)
    assert await kernel.states() == {"pending": 1}


# ------------------------------------------------------------------------------------------------ what is left alone


@pytest.mark.matrix
async def test_a_task_that_is_not_claimed_is_not_touched(kernel):
    """Rows that were passed over, lost to others or left keep their version, and no lock outlives the claim (K6)."""
    for name in ("held", "work", "unknown"):
        await kernel.enqueue(name, count=5)
    await kernel.enqueue(count=5, queue="other")
    before = dict(await kernel.sql("select id, (ctid, xmin)::text from tasks"))
    skips = Skips()
    skips.names = ["held"]
    worker = await kernel.claimer("held", "work")
    claims = await worker.take(2, policies=policies_of(skips))
    after = dict(await kernel.sql("select id, (ctid, xmin)::text from tasks"))
    assert {task for task in before if before[task] != after[task]} == {claim.id for claim in claims}
    other = await kernel.connection()
    assert len(await (await other.execute("select 1 from tasks for update nowait")).fetchall()) == 20


LAYOUTS = {
    "tiny": [("work", 3, 0), ("other", 3, 0)],
    "skewed": [("work", 20, 10), ("other", 400, 5)],
    "many": [(f"a{number}", 20, number) for number in range(20)],
}
PLANNERS = [
    {},
    {"enable_hashjoin": "off", "enable_mergejoin": "off"},
    {"enable_nestloop": "off", "enable_indexscan": "off"},
    {"plan_cache_mode": "force_generic_plan"},
]


@pytest.mark.matrix
@pytest.mark.parametrize("layout", list(LAYOUTS))
async def test_a_claim_locks_what_it_takes(kernel, layout):
    """Locked rows are those returned and a head a route at most, by any plan (odd-jobs#115, queue_classic#320)."""
    names = [name for name, _, _ in LAYOUTS[layout]]
    for name, count, priority in LAYOUTS[layout]:
        await kernel.rows(await kernel.route(name=name), count, priority=priority)
    worker = await kernel.claimer(*names)
    total = await kernel.one("select count(*) from tasks")
    claiming = await kernel.connection(autocommit=False)
    statement = worker.statement(5)
    for setting in (*PLANNERS, {"analyzed": "now"}, *PLANNERS):
        if "analyzed" in setting:
            await kernel.sql("analyze")
            continue
        for name, value in ({"jit": "off"} | setting).items():
            await claiming.execute(f"set {name} = {value}")
        rows = await (await claiming.execute(statement.text.encode(), statement.values)).fetchall()
        taken = [row[2] for row in rows]
        assert len(taken) == len(set(taken)) == 5
        free = len(await kernel.sql("select 1 from tasks for update skip locked"))
        assert 5 <= total - free <= 5 + len(names), setting
        await claiming.rollback()


async def test_a_claim_never_waits_and_takes_what_others_leave(kernel):
    """Rows locked by another transaction are passed over at once, and are told as waiting (K1, W2)."""
    route = await kernel.route()
    held, free = await kernel.rows(route, 2)
    blocker = await kernel.connection(autocommit=False)
    await blocker.execute("select 1 from tasks where id = %s for update", [held])
    worker = await kernel.claimer("work")
    result = await asyncio.wait_for(worker.claim(10), 5)
    assert [claim.id for claim in result.claims] == [free]
    assert result.waiting == {"default"}
    result = await asyncio.wait_for(worker.claim(10), 5)
    assert (result.claims, result.waiting) == ((), {"default"})


async def test_a_future_task_blocks_nobody(kernel):
    """Tasks due in an hour, of whatever priority, stand in no due task's way (procrastinate#1599)."""
    await kernel.enqueue(delay=3600.0, priority=100, count=50)
    await kernel.enqueue()
    worker = await kernel.claimer("work")
    result = await worker.claim(10)
    assert (len(result.claims), result.waiting) == (1, frozenset())


# ------------------------------------------------------------------------------------------------ pause


@pytest.mark.matrix
async def test_a_pause_holds_every_claim_that_starts_after_it(kernel):
    """Paused: nothing of that queue, all of the others; resumed: as before, and nothing was lost (K13)."""
    await kernel.enqueue(queue="a", count=3)
    await kernel.enqueue(queue="b", count=3)
    worker = await kernel.claimer("work", queues=["a", "b"])
    await kernel.sql("select pause_queue('a')")
    result = await worker.claim(10)
    assert ({claim.route.queue for claim in result.claims}, result.waiting) == ({"b"}, frozenset())
    assert await kernel.one("select resume_queue('a')") is True
    assert await kernel.one("select resume_queue('a')") is False
    assert len(await worker.take(10)) == 3


async def test_a_second_pause_keeps_the_time_of_the_first(kernel):
    """Pausing twice is pausing once."""
    await kernel.sql("select pause_queue('a')")
    first = await kernel.one("select paused_at from queues")
    await kernel.sql("select pause_queue('a')")
    assert await kernel.sql("select name, paused_at from queues") == [("a", first)]


# ------------------------------------------------------------------------------------------------ clauses


class Picky(Plugin):
    slug = "picky"
    text = "(r.traits ->> 'size')::integer < {most}"

    @hookimpl
    def filter_clause(self, tick):
        return [Clause(self.text, {"most": 10}, lambda route: ())]


async def test_a_closed_route_is_not_judged(kernel):
    """A clause is not tried on a closed route, where it would raise; the others are claimed from."""
    await kernel.enqueue(traits='{"size": 1}')
    await kernel.enqueue(traits='{"size": 99}')
    await kernel.enqueue(traits='{"size": "odd"}')
    bad = await kernel.one('select id from routes where traits @> \'{"size": "odd"}\'')
    worker = await kernel.claimer("work")
    claims = await worker.take(10, policies=policies_of(Picky()), closed=(bad,))
    assert [claim.route.traits for claim in claims] == [{"size": 1}]


async def test_a_null_verdict_is_a_refusal(kernel):
    """A clause that is NULL for a route admits nothing of it, and disturbs no other (narrow only)."""
    await kernel.enqueue()
    await kernel.enqueue(traits='{"size": 1}')
    worker = await kernel.claimer("work")
    assert [claim.route.traits for claim in await worker.take(10, policies=policies_of(Picky()))] == [{"size": 1}]


async def test_percent_signs_and_braces_of_a_clause_arrive(kernel):
    """A literal percent sign and doubled braces reach PostgreSQL as they were meant."""
    await kernel.enqueue("work")
    await kernel.enqueue("other")
    picky = Picky()
    picky.text = "r.name like 'w%' and '{{}}'::jsonb is not null and 5 %% 2 = 1 and {most} = 10"
    picky.text = picky.text.replace("%%", "%")
    worker = await kernel.claimer("work", "other")
    assert [claim.route.name for claim in await worker.take(10, policies=policies_of(picky))] == ["work"]


async def test_clauses_conjoin(kernel):
    """A clause with OR, or ending in a comment, stays inside its own parentheses (K4, hatchet#4936)."""
    await kernel.enqueue("work")
    await kernel.enqueue("other")
    wide, narrow = Picky(), Picky()
    wide.text = "false or {most} = 10 -- everything"
    narrow.text = "r.name = 'other' and {most} = 10"
    narrow_slug = "narrow"
    policies = Policies.of({"picky": wide, narrow_slug: narrow})
    worker = await kernel.claimer("work", "other")
    assert [claim.route.name for claim in await worker.take(10, policies=policies)] == ["other"]
