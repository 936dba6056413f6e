"""Direct claims: the kernel's own claim for callers without a worker, with filters and a lease (rule FL7)."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
from harvest_flags import FlagFilter, Flags

from harvest_core import Call, Client, Retry
from harvest_core.claimer import Claimer
from harvest_core.errors import HarvestError, HookError, LostClaimError, PayloadError
from harvest_core.plugin import ClaimFilter, Plugin, hookimpl
from harvest_core.store.postgres import tasks as store


@pytest.fixture
def app(kernel):
    """Give an app with flags; its configuration takes no task flagged `gpu`."""
    app = kernel.app(plugins=[Flags], tables={"flags": {"forbidden": ["gpu"]}})

    @app.activity(retry=Retry(initial=100.0, jitter=0.0, max_attempts=2, non_retryable=(KeyError,)))
    async def build(number: int, tags: set[str] | None = None) -> set[int]:
        return {number}

    return app


async def test_one_task_from_claim_to_result(kernel, app):
    """FL7: arguments and result go by the hints; the fleet sees a worker without slots, and no row is left behind."""
    async with app.client() as client:
        task = await client.enqueue("build", 7, kwargs={"tags": {"a"}}, flags={"linux"}, priority=3)
        async with client.claimer(lease="20s") as claimer:
            claim = await claimer.claim()
            assert (claim.id, claim.name, claim.args, claim.kwargs) == (task.id, "build", [7], {"tags": {"a"}})
            assert (claim.attempt, claim.flags, claim.queue, claim.cancelled) == (1, ("linux",), "default", False)
            assert await kernel.sql("select ttl, concurrency, name like 'direct:%%' from workers") == [(20.0, 0, True)]
            await claim.heartbeat({"percent": 50})
            assert await claimer.claim() is None
            with pytest.raises(PayloadError):
                await claim.complete("no set")
            await claim.complete({1})
            with pytest.raises(HarvestError) as caught:
                await claim.fail("too late")
            assert str(caught.value) == (
                f"task {task.id}: this claim has ended already, by complete, fail or release; each claim ends once"
            )
        assert await task.result(timeout=1) == {1}
        assert await kernel.one("select count(*) from workers") == 0


async def test_a_failure_is_judged_by_the_policy_of_the_activity(kernel, app):
    """K7: retried after its wait, ended when attempts are used up, when final, and for what is not retried."""
    async with app.client() as client, client.claimer() as claimer:
        again, ended, final, elsewhere = [await client.enqueue("build", n) for n in range(4)]
        await kernel.sql("update tasks set attempt = 1 where id = %s", [ended.id])
        claims = {claim.id: claim for claim in await claimer.claim_many(4)}
        await claims[again.id].fail("no luck")
        await claims[ended.id].fail(ValueError("no"))
        await claims[final.id].fail("hopeless", final=True)
        await claims[elsewhere.id].fail(KeyError("x"))
        status = await again.status()
        assert (status.state, status.error) == ("scheduled", "no luck")
        wait = "select extract(epoch from scheduled_at - now())::float8 from tasks where id = %s"
        assert 90 < await kernel.one(wait, [again.id]) <= 100
        found = [(one.state, one.error) for one in [await task.status() for task in (ended, final, elsewhere)]]
        assert found == [("failed", "ValueError: no"), ("failed", "hopeless"), ("failed", "KeyError: 'x'")]
        assert "ValueError: no" in await kernel.one("select traceback from finished where id = %s", [ended.id])


async def test_activities_of_other_apps_are_claimed_by_name(kernel, app):
    """FL7: the caller is its own executor; arguments are plain, and retries go by what the other app published."""
    await kernel.sql(
        "insert into activities (name, queue, priority, max_attempts, retry_initial, retry_factor, retry_maximum, "
        "retry_jitter) values ('away', 'default', 0, 5, 500, 2, 3600, 0)"
    )
    await kernel.enqueue("away", args="[1]")
    async with app.client() as client:
        async with client.claimer() as claimer:
            assert await claimer.claim() is None
        async with client.claimer(activities=["away"]) as claimer:
            claim = await claimer.claim()
            assert (claim.args, claim.kwargs) == ([1], {})
            await claim.fail("no")
    assert 490 < await kernel.one("select extract(epoch from scheduled_at - now())::float8 from tasks") <= 500


CASES = [
    ([], {"untagged", "linux", "gpu", "both", "null", "number"}),
    ([FlagFilter(accepted=["linux"])], {"linux", "both"}),
    ([FlagFilter(accepted=["linux"], forbidden=["gpu"])], {"linux"}),
    ([FlagFilter(allowlist=["linux"])], {"untagged", "linux"}),
    ([FlagFilter(allowlist=[])], {"untagged"}),
    ([FlagFilter(accepted=("gpu",), allowlist={"gpu"})], {"gpu"}),
]


@pytest.mark.parametrize(("filters", "wanted"), CASES)
async def test_a_filter_stands_in_for_the_configuration(kernel, app, filters, wanted):
    """FL2, FL3, FL6, FL7: chosen in PostgreSQL; scalar and NULL traits too; what is refused stays untouched."""
    traits = {
        "untagged": "{}",
        "linux": '{"flags": ["linux"]}',
        "gpu": '{"flags": ["gpu"]}',
        "both": '{"flags": {"gpu": 1, "linux": 1}}',
        "null": '{"flags": null}',
        "number": '{"flags": 5}',
    }
    ids = {}
    for name, trait in traits.items():
        (ids[name],) = await kernel.enqueue("build", args="[1]", traits=trait)
    async with app.client() as client, client.claimer(filters=filters) as claimer:
        claimed = {claim.id for claim in await claimer.claim_many(10)}
        names = {name for name, task in ids.items() if task in claimed}
        assert names == (wanted if filters else wanted - {"gpu", "both"})  # the app's own configuration
        assert await kernel.one("select count(*) from tasks where attempt > 0") == len(names)


async def test_the_claim_is_the_kernels_own(kernel, app, monkeypatch):
    """FL5: the statement is the worker's, with the flags clause in it: no second way to claim."""
    seen = []
    original = store.claim

    async def claim(database, statement):
        seen.append(statement)
        return await original(database, statement)

    monkeypatch.setattr(store, "claim", claim)
    async with app.client() as client, client.claimer() as claimer, app.worker() as worker:
        await client.enqueue_many([Call("build", (n,)) for n in (1, 2)])  # a claim of nothing may be spared
        await claimer.claim()
        await worker.run_once()
    assert seen[0].text == seen[-1].text
    assert "flags__forbidden" in seen[0].text


class Closed(Plugin):
    """A gate that cannot be judged."""

    slug = "closed"

    @hookimpl
    def build_skip_list(self, tick):
        raise RuntimeError("broken")


async def test_a_policy_that_raises_closes_the_claim(kernel):
    """C9: nothing is claimed, and the caller is told by which plugin."""
    app = kernel.app(plugins=[Closed])
    await kernel.enqueue("work")
    async with app.client() as client, client.claimer(activities=["work"]) as claimer:
        with pytest.raises(HookError, match="plugin 'closed', hook build_skip_list: raised RuntimeError: broken"):
            await claimer.claim()
        with pytest.raises(HookError):
            await anext(claimer.stream())
    assert await kernel.states() == {"pending": 1}


class Look(Plugin):
    """Takes nothing while it observes that it is shut."""

    slug = "look"
    shut = True

    @hookimpl
    def observe(self):
        return {"shut": self.shut}

    @hookimpl
    def build_skip_list(self, tick):
        from harvest_core.plugin import Skip

        return [Skip("work", ["look_shut"])] if tick.live["look"]["shut"] else None


async def test_live_facts_are_observed_before_each_claim(kernel):
    """C2: every enabled policy applies, with live facts of this process."""
    app = kernel.app(plugins=[Look])
    await kernel.enqueue("work")
    async with app.client() as client, client.claimer(activities=["work"]) as claimer:
        assert await claimer.claim() is None
        app.plugin(Look).shut = False
        assert (await claimer.claim()).live == {"look": {"shut": False}}


async def test_claimers_race_without_a_double_claim(kernel, app):
    """K1: 200 tasks, four streams at once: each task goes to one of them."""
    await kernel.enqueue("build", 200, args="[1]")
    taken = []

    async def work(client):
        async with client.claimer() as claimer:
            async for claim in claimer.stream(batch=3):
                taken.append(claim.id)
                await claim.complete({1})
                if len(taken) == 200:
                    claimer.stop()
                    return

    async with app.client() as client:
        runs = [asyncio.ensure_future(work(client)) for _ in range(4)]
        await asyncio.wait(runs, return_when=asyncio.FIRST_COMPLETED, timeout=30)
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
    assert len(taken) == len(set(taken)) == 200
    assert await kernel.states() == {"completed": 200}
    assert await kernel.one("select count(*) from workers") == 0


async def test_a_stream_sees_new_work_and_stops(kernel, app):
    """FL7: it waits for work; `stop` ends it, and what was claimed ahead goes back with its attempt restored."""
    async with app.client() as client, client.claimer() as claimer:
        seen = []

        async def follow():
            async for claim in claimer.stream(batch=5, poll_interval="20ms"):
                seen.append(claim.id)
                if len(seen) == 2:
                    claimer.stop()
                await claim.complete({1})

        following = asyncio.ensure_future(follow())
        first = await client.enqueue("build", 1)
        await first.result(timeout=10)
        await client.enqueue("build", 1)
        await kernel.until(lambda: asyncio.sleep(0, following.done()), "the stream's end")
        await following
        await kernel.enqueue("build", 4, args="[1]")
        assert [claim async for claim in claimer.stream()] == []
        assert await kernel.one("select count(*) from tasks where attempt = 0 and state = 'pending'") == 4


async def test_a_batch_left_in_the_middle_goes_back(kernel, app):
    """FL7: closing a stream gives back what it claimed ahead; leaving the block gives back the rest."""
    await kernel.enqueue("build", 5, args="[1]")
    async with app.client() as client:
        async with client.claimer() as claimer:
            stream = claimer.stream(batch=5)
            claim = await anext(stream)
            assert await kernel.states() == {"running": 5}
            await stream.aclose()
            assert await kernel.states() == {"running": 1, "pending": 4}
        assert await kernel.states() == {"pending": 5}
        assert await kernel.one("select max(attempt) from tasks") == 0
        with pytest.raises(LostClaimError) as caught:
            await claim.complete({1})
        text = f"task {claim.id}: this attempt's claim was lost, so nothing was written; another may have it"
        assert str(caught.value) == text
        with pytest.raises(HarvestError) as caught:
            await claimer.claim()
        text = "the claimer is not open; use it as: async with client.claimer() as claimer"
        assert str(caught.value) == text


async def test_a_claim_that_was_cut_off_is_given_back(kernel, app, monkeypatch):
    """K1: a caller that gives up waiting leaves no task claimed in its name."""
    await kernel.enqueue("build", args="[1]")
    original = store.claim
    claimed = asyncio.Event()

    async def claim(database, statement):
        found = await original(database, statement)
        if not claimed.is_set():
            claimed.set()
            await asyncio.Event().wait()  # the answer never arrives
        return found

    monkeypatch.setattr(store, "claim", claim)
    async with app.client() as client, client.claimer() as claimer:
        cut = asyncio.ensure_future(claimer.claim())
        await claimed.wait()
        cut.cancel()
        await asyncio.gather(cut, return_exceptions=True)
        assert (await claimer.claim()).attempt == 1


async def test_a_write_without_an_answer_may_be_tried_again(kernel, app, monkeypatch):
    """K1: what an unanswered try wrote is not called lost."""
    original = store.write_outcomes

    async def write(database, outcomes):
        await original(database, outcomes)
        monkeypatch.setattr(store, "write_outcomes", original)
        raise ConnectionResetError

    async with app.client() as client, client.claimer() as claimer:
        task = await client.enqueue("build", 1)
        claim = await claimer.claim()
        monkeypatch.setattr(store, "write_outcomes", write)
        with pytest.raises(ConnectionResetError):
            await claim.complete({1})
        await claim.complete({1})
        assert await task.result(timeout=1) == {1}


async def test_unreadable_arguments_fail_the_task_and_the_next_is_claimed(kernel, app):
    """K10: as on a worker: what does not match the activity fails, and holds nobody up."""
    (bad,) = await kernel.enqueue("build", args='["x"]')
    (good,) = await kernel.enqueue("build", args="[1]")
    async with app.client() as client, client.claimer() as claimer:
        assert (await claimer.claim()).id == good
        assert "PayloadError: arguments of 'build'" in (await client.status(bad)).error
    assert (await client_state(kernel, bad)) == "failed"


async def client_state(kernel, task):
    return await kernel.one("select state::text from finished where id = %s", [task])


async def test_a_holder_learns_that_its_task_was_cancelled(kernel, app):
    """K13: `cancelled` turns true, and giving it back ends it."""
    async with app.client() as client, client.claimer(lease="1s") as claimer:
        task = await client.enqueue("build", 1)
        claim = await claimer.claim()
        await task.cancel("no longer wanted")
        await kernel.until(lambda: asyncio.sleep(0, claim.cancelled), "cancelled")
        await claim.release()
        status = await task.status()
        assert (status.state, status.error) == ("cancelled", "no longer wanted")


async def test_a_claimer_taken_for_dead_registers_anew(kernel, app):
    """K12: its claims are marked and lost, and the next claim is that of a fresh worker."""
    async with app.client() as client, client.claimer(lease="1s") as claimer:
        await client.enqueue("build", 1)
        claim = await claimer.claim()
        old = await kernel.one("delete from workers returning id::text")
        await kernel.until(lambda: asyncio.sleep(0, claim.cancelled), "the mark")
        again = await kernel.until(claimer.claim, "the rescued task")  # by its own maintenance
        assert (again.id, again.worker.id != old) == (claim.id, True)
        with pytest.raises(LostClaimError):
            await claim.heartbeat()
        with pytest.raises(LostClaimError):
            await claim.fail("no")
        await again.complete({1})


async def test_a_holder_learns_that_its_time_is_over(kernel, app):
    """K8, K13: `cancelled` turns true once the claim was taken back, by whatever, and stays false for what it ended."""
    async with app.client() as client, client.claimer(lease="1s") as claimer:
        await client.enqueue("build", 1, start_to_close="50ms")
        await client.enqueue("build", 2)
        lost, kept = await claimer.claim(), await claimer.claim()
        await kept.complete({1})
        await kernel.until(lambda: asyncio.sleep(0, lost.cancelled), "the mark")
        assert not kept.cancelled
        with pytest.raises(LostClaimError):
            await lost.complete({1})


async def test_an_overdue_attempt_is_lost(kernel, app):
    """K8: start_to_close counts for direct callers too."""
    async with app.client() as client, client.claimer(lease="300ms") as claimer:
        task = await client.enqueue("build", 1, start_to_close="50ms")
        claim = await claimer.claim()

        async def late():
            return (await task.status()).state == "scheduled"

        await kernel.until(late, "the end of the attempt")
        with pytest.raises(LostClaimError):
            await claim.complete({1})


SCRIPT = """
import asyncio, sys
from harvest_core import Harvest

async def main():
    app = Harvest({"harvest": {"dsn": sys.argv[1]}})
    async with app.client() as client, client.claimer(activities=["build"], lease="500ms") as claimer:
        claim = await claimer.claim()
        print(claim.id, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_killed_caller_loses_its_claims_after_the_lease(kernel, app, tmp_path):
    """K12, FL7: after kill -9 a worker takes the task back and runs it, one at a time as a suspect."""
    (task,) = await kernel.enqueue("build", args="[1]")
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", textwrap.dedent(SCRIPT), kernel.dsn], stdout=subprocess.PIPE, text=True
    )
    assert await asyncio.to_thread(process.stdout.readline) == f"{task}\n"
    async with kernel.running(app):
        assert await kernel.states() == {"running": 1}
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        process.stdout.close()

        async def finished():
            return await kernel.states() == {"completed": 1}

        await kernel.until(finished, "the rescue")
    assert await kernel.one("select attempt from finished") == 2


SENTENCES = [
    (
        {"filters": [ClaimFilter("flag", {})]},
        "a filter for the plugin 'flag', which this app does not enable: did you mean 'flags'?",
    ),
    ({"filters": [FlagFilter(), FlagFilter()]}, "two filters for the plugin 'flags'; give one that says all"),
    ({"queues": "mail"}, "queues='mail': expected a list of different names"),
    ({"queues": []}, "queues=[]: expected a list of different names"),
    ({"lease": "1ms"}, 'lease=\'1ms\': expected a length of time from "100ms" to "1d"'),
]


@pytest.mark.parametrize(("options", "sentence"), SENTENCES)
async def test_what_cannot_be_used_is_told(app, options, sentence):
    """FL7: each in a sentence, before anything is registered."""
    async with app.client() as client:
        with pytest.raises(HarvestError) as caught:
            client.claimer(**options)
    assert str(caught.value) == sentence


async def test_nothing_is_no_number_of_tasks(app):
    """FL7: a claim is for at least one task."""
    async with app.client() as client, client.claimer() as claimer:
        with pytest.raises(HarvestError, match=r"^0 tasks cannot be claimed; claim at least 1$"):
            await claimer.claim_many(0)


def test_a_filter_refuses_what_no_task_can_carry():
    """FL1, FL7: told at once, not by a claim that finds nothing."""
    with pytest.raises(ValueError, match=r"^FlagFilter: accepted='linux' is a text; give a list such as \['linux'\]$"):
        FlagFilter(accepted="linux")
    with pytest.raises(ValueError, match=r"^FlagFilter: allowlist has '', which is empty; no task can carry it, so"):
        FlagFilter(allowlist=[""])


def test_without_an_event_loop(harvest_database):
    """FL7: one, a batch and a stream, blocking; `stop` from another thread; leaving gives back."""
    from harvest_core import Harvest

    app = Harvest({"harvest": {"dsn": harvest_database, "plugins": [Flags]}})

    @app.activity(start_to_close="1h")
    def build(number: int) -> int:
        return number

    with app.sync_client() as client:
        tasks = [client.enqueue(build, n, flags={"linux"}) for n in range(5)]
        with client.claimer(filters=[FlagFilter(accepted=["linux"])], lease="10s") as claimer:
            one = claimer.claim()
            assert (one.args, one.flags, one.attempt, one.cancelled) == ([0], ("linux",), 1, False)
            one.heartbeat("half")
            one.complete(10)
            first, second = claimer.claim_many(2)
            first.fail("no", final=True)
            second.release()
            for claim in claimer.stream(batch=2, poll_interval="20ms"):
                claim.complete(claim.args[0])
                if claim.id == tasks[-1].id:
                    threading.Timer(0.1, claimer.stop).start()
            assert [task.status().state for task in tasks] == ["completed", "failed", *["completed"] * 3]
            last = client.enqueue(build, 9, flags={"linux"})
            held = claimer.claim()
        assert last.status().state == "pending"
        with pytest.raises(LostClaimError):
            held.complete(9)
    with pytest.raises(HarvestError, match=r"^the claimer is not open here; use it as: with client.claimer"):
        claimer.claim()
    client.close()


def test_public_names():
    """FL7: what a caller annotates with."""
    assert Client.claimer.__annotations__["return"] == Claimer.__name__
