"""Skips that refuse some tasks of an activity and not all: caps, budgets and ages, inside the claim (K4, K6, C9)."""

import asyncio

import pytest

from harvest_core.claim.planner import _check_budgets
from harvest_core.errors import HookError
from harvest_core.model import Budget, Skip, Turn

HOUR = 3600.0


def skips(*found):
    """Return skips as a plan has them."""
    return tuple(("limits", Skip(name, ("limited",), **options)) for name, options in found)


async def locked(kernel):
    """Return how many tasks some other transaction has locked now."""
    free = await kernel.sql("select id from tasks for update skip locked")
    return await kernel.one("select count(*) from tasks") - len(free)


@pytest.mark.matrix
async def test_at_most_caps_one_claim(kernel):
    """A claim takes at most so many of the activity, the best ones, and others beside it (design: Hooks)."""
    first, *_ = await kernel.enqueue(count=5)
    others = await kernel.enqueue("other", 5, priority=-1)
    worker = await kernel.claimer("work", "other")
    claims = await worker.take(4, skips=skips(("work", {"at_most": 1})))
    assert [claim.id for claim in claims] == [first, *others[:3]]
    assert [claim.route.name for claim in await worker.take(9)] == ["work"] * 4 + ["other"] * 2


@pytest.mark.matrix
async def test_caps_unite(kernel):
    """Of several caps of one activity each refuses for itself: the narrowest holds."""
    await kernel.enqueue(count=5)
    worker = await kernel.claimer("work")
    both = skips(("work", {"at_most": 3}), ("work", {"at_most": Budget("limits:a", concurrency=2)}))
    assert len(await worker.take(9, skips=both)) == 2
    assert await worker.take(9, skips=both) == []


@pytest.mark.matrix
async def test_a_cap_covers_all_routes_of_its_activity(kernel):
    """The cap is the activity's, not the route's: its queues, flags and batches draw from one counter."""
    for queue in ("a", "b", "c"):
        await kernel.enqueue(count=3, queue=queue)
    worker = await kernel.claimer("work", queues=("a", "b", "c"))
    assert len(await worker.take(9, skips=skips(("work", {"at_most": Budget("limits:a", concurrency=4)})))) == 4


@pytest.mark.matrix
async def test_a_budget_of_concurrency_counts_what_runs(kernel):
    """What runs counts, whoever claimed it; what ended counts no more."""
    await kernel.enqueue(count=9)
    budget = skips(("work", {"at_most": Budget("limits:a", concurrency=3)}))
    one, two = await kernel.claimer("work"), await kernel.claimer("work")
    claims = await one.take(2, skips=budget)
    assert len(await two.take(5, skips=budget)) == 1
    await one.finish(claims)
    assert len(await two.take(5, skips=budget)) == 2


async def test_two_activities_share_a_budget(kernel):
    """Skips of several activities that name one budget draw from it together."""
    await kernel.enqueue(count=3)
    await kernel.enqueue("other", 3)
    worker = await kernel.claimer("work", "other")
    shared = Budget("limits:api", concurrency=2)
    both = skips(("work", {"at_most": shared}), ("other", {"at_most": shared}))
    assert len(await worker.take(1, skips=both)) == 1
    assert len(await worker.take(9, skips=both)) == 1


@pytest.mark.matrix
@pytest.mark.parametrize("known", [("work",), ("work", "other")])
async def test_a_shared_budget_counts_what_this_worker_may_not_claim(kernel, known):
    """A worker that does not know the other activity of a budget, or must not take it now, counts its tasks too."""
    await kernel.enqueue(count=3)
    await kernel.enqueue("other", 3)
    shared = {"at_most": Budget("limits:api", concurrency=2)}
    both = (("work", shared), ("other", shared))
    one = await kernel.claimer("other")
    assert len(await one.take(1, skips=skips(*both))) == 1
    two = await kernel.claimer(*known)
    held = {"skips": skips(*both, ("other", {})), "activities": ("work",)}
    assert [claim.route.name for claim in await two.take(9, **held)] == ["work"]


@pytest.mark.matrix
async def test_a_budget_survives_a_change_of_its_period(kernel):
    """Starts of a shorter period do not fill the window of a longer one for ever, nor the other way round."""
    await kernel.enqueue(count=9)
    worker = await kernel.claimer("work")
    for period, expected in ((60.0, 3), (3600.0, 3), (1.0, 3)):
        budget = skips(("work", {"at_most": Budget("limits:a", starts=3, period=period)}))
        assert len(await worker.take(9, skips=budget)) == expected
        assert await worker.take(9, skips=budget) == []


async def test_a_budget_has_one_limit():
    """Two skips that give one budget different limits are a fault of the plugin that came second."""
    with pytest.raises(HookError) as caught:
        _check_budgets(
            skips(
                ("work", {"at_most": Budget("limits:a", concurrency=2)}),
                ("other", {"at_most": Budget("limits:a", concurrency=3)}),
            )
        )
    assert str(caught.value) == (
        "plugin 'limits', hook build_skip_list: two skips give the budget 'limits:a' different limits; a budget has one"
    )


@pytest.mark.matrix
async def test_a_budget_of_starts_holds_for_every_window(kernel):
    """No window of the period holds more starts than allowed, wherever it begins."""
    await kernel.enqueue(count=12)
    worker = await kernel.claimer("work")
    budget = skips(("work", {"at_most": Budget("limits:a", starts=4, period=0.5)}))
    starts = []

    async def drained():
        for claim in await worker.take(3, skips=budget):
            starts.append(await kernel.one("select claimed_at from tasks where id = %s", [claim.id]))
            await worker.finish([claim])
        return len(starts) == 12

    await kernel.until(drained)
    for begun in starts:
        assert sum(0 <= (at - begun).total_seconds() < 0.5 for at in starts) <= 4


async def test_a_budget_is_exact_under_race(kernel):
    """Many claimers at once from their own connections never exceed it, at any moment (pgqueuer#761)."""
    await kernel.enqueue(count=400)
    claimers = [await kernel.claimer("work", database=await kernel.another_database(1)) for _ in range(10)]
    budget = skips(("work", {"at_most": Budget("limits:a", concurrency=3)}))
    most = []

    async def work(claimer):
        while await kernel.one("select exists (select from tasks where state = 'pending')"):
            claims = await claimer.take(5, skips=budget)
            most.append(await kernel.one("select count(*) from tasks where state = 'running'"))
            await claimer.finish(claims)

    await asyncio.gather(*map(work, claimers))
    assert max(most) == 3
    assert await kernel.one("select count(*) from finished") == 400


@pytest.mark.matrix
async def test_nothing_slips_in_between_count_and_claim(kernel):
    """Many claims that all began before any of them counted take no more than the budget (pgqueuer#761)."""
    await kernel.enqueue(count=60)
    budget = skips(("work", {"at_most": Budget("limits:a", concurrency=3, starts=5, period=HOUR)}))
    claimers = [await kernel.claimer("work", database=await kernel.another_database(1)) for _ in range(12)]
    idle = await kernel.claimer("work")
    (first,) = await idle.take(1, skips=budget)
    holder = await kernel.connection(autocommit=False)
    await holder.execute("select from budgets for update")
    claims = [asyncio.create_task(claimer.take(5, skips=budget)) for claimer in claimers]
    waiting = (
        "select count(*) = 12 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    )
    await kernel.until(lambda: kernel.one(waiting))
    await idle.finish([first])
    await holder.commit()
    assert sum(map(len, await asyncio.gather(*claims))) == 3
    assert len(await claimers[0].take(5, skips=budget)) == 0


async def test_a_full_budget_touches_nothing(kernel):
    """What a cap refuses is not locked and not written (K6)."""
    await kernel.enqueue(count=3)
    worker = await kernel.claimer("work")
    before = await kernel.sql("select xmin, ctid from tasks")
    statement = worker.statement(3, skips=skips(("work", {"at_most": Budget("limits:a", concurrency=0)})))
    holder = await kernel.connection(autocommit=False)
    await holder.execute(statement.text.encode(), statement.values)
    assert await locked(kernel) == 0
    await holder.rollback()
    assert await kernel.sql("select xmin, ctid from tasks") == before


@pytest.mark.matrix
async def test_unless_older_lets_exactly_the_old_ones_through(kernel):
    """Of a held activity the tasks due for so long are taken, of every priority and in K2's order (C9)."""
    route = await kernel.route()
    await kernel.rows(route, 3, priority=5, due="now() - i * interval '1 minute'")
    low = await kernel.rows(route, 2, priority=0, due="now() - interval '2 hours' + i * interval '1 second'")
    high = await kernel.rows(route, 2, priority=9, due="now() - interval '3 hours' + i * interval '1 second'")
    await kernel.rows(route, 2, priority=9, due="now()")
    worker = await kernel.claimer("work")
    claims = await worker.take(20, skips=skips(("work", {"unless_older": HOUR})))
    assert [claim.id for claim in claims] == [*high, *low]
    assert await worker.take(20, skips=skips(("work", {"unless_older": HOUR}))) == []


@pytest.mark.matrix
async def test_unless_younger_spares_young_tasks_the_cap(kernel):
    """A cap on what was due before a moment does not count what came after it (C9)."""
    route = await kernel.route()
    await kernel.rows(route, 4, due="now() - interval '2 hours'")
    young = await kernel.rows(route, 3)
    worker = await kernel.claimer("work")
    release = skips(("work", {"at_most": Budget("cost_hold:work", starts=4, period=HOUR), "unless_younger": HOUR}))
    assert len(await worker.take(2, skips=release)) == 2
    assert len(await worker.take(9, skips=release)) == 5
    await kernel.rows(route, 2, due="now() - interval '2 hours'")
    assert await worker.take(9, skips=release) == []
    assert len(young) == 3


@pytest.mark.matrix
async def test_unless_older_holds_for_suspects_too(kernel):
    """A younger suspect of higher priority does not slip through in place of the old one (K12, C9)."""
    route = await kernel.route()
    await kernel.rows(route, 1, state="suspect", priority=9)
    old = await kernel.rows(route, 1, state="suspect", due="now() - interval '2 hours'")
    worker = await kernel.claimer("work")
    held = skips(("work", {"unless_older": HOUR}))
    assert [claim.id for claim in await worker.take(1, pool="suspect", skips=held)] == old
    assert await worker.take(1, pool="suspect", skips=held) == []


async def test_ages_and_caps_together(kernel):
    """A held activity whose old tasks run anyway can be under a budget too."""
    route = await kernel.route()
    old = await kernel.rows(route, 4, due="now() - interval '2 hours'")
    await kernel.rows(route, 3)
    worker = await kernel.claimer("work")
    both = skips(("work", {"unless_older": HOUR}), ("work", {"at_most": Budget("limits:a", concurrency=3)}))
    assert [claim.id for claim in await worker.take(9, skips=both)] == old[:3]


async def test_capped_queues_count_as_waiting_no_more(kernel):
    """What a cap or an age keeps back is no work that this worker may take now: run_once ends (K14)."""
    await kernel.enqueue(count=3)
    worker = await kernel.claimer("work")
    result = await worker.claim(9, skips=skips(("work", {"at_most": 1})))
    assert (len(result.claims), result.waiting) == (1, frozenset())


@pytest.mark.matrix
async def test_a_turn_gives_at_most_so_many(kernel):
    """A queue's turn can bound what the claim takes of it, whatever else is free (W6)."""
    await kernel.enqueue(count=9, queue="a")
    await kernel.enqueue(count=9, queue="b")
    worker = await kernel.claimer("work", queues=("a", "b"))
    turns = (Turn("a", 0, 0, 1, most=2), Turn("b", 0, 0, 1))
    claims = await worker.take(9, turns=turns)
    assert sorted(claim.route.queue for claim in claims) == ["a"] * 2 + ["b"] * 7


async def test_a_cap_that_is_full_leaves_the_order_of_the_rest(kernel):
    """Dropping a full route in the middle of the merge disturbs no other route, opened or not (K2)."""
    expected = []
    for number in range(12):
        name = f"work{number}"
        ids = await kernel.enqueue(name, 3, priority=-number % 5)
        expected += [(-(-number % 5), identifier, name) for identifier in (ids[:1] if number % 3 == 0 else ids)]
    worker = await kernel.claimer(*(f"work{number}" for number in range(12)))
    capped = skips(*((f"work{number}", {"at_most": 1}) for number in range(0, 12, 3)))
    claims = await worker.take(40, skips=capped)
    assert [claim.id for claim in claims] == [identifier for _, identifier, _ in sorted(expected)]
