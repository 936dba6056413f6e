"""`explain` judges every live worker by the claim's own hooks and clauses (O3)."""

from contextlib import AsyncExitStack
from typing import Any

import pytest

from harvest_core import Client, Harvest, Task, TaskNotFoundError, Worker
from harvest_core.operate.explain import Explanation, explain
from harvest_core.plugin import Budget, Feature, Plugin, Skip, hookimpl


def app_of(
    dsn: str, name: str, plugins: list[str], tables: dict[str, Any], queues: tuple[str, ...] = ("q",)
) -> Harvest:
    """Return an app with three activities under the given policies."""
    app = Harvest(
        {
            "harvest": {"dsn": dsn, "plugins": plugins},
            "worker": {"name": name, "queues": list(queues), "concurrency": 2},
            "plugins": tables,
        }
    )
    needs = {"requires": "gpu = true"} if "capabilities" in plugins else {}

    @app.activity(queue="q", **needs)
    def render() -> None: ...

    @app.activity(queue="q")
    def train() -> None: ...

    return app


async def told(app: Harvest, client: Client, task: Task) -> Explanation:
    """Explain a task by the plugins of one app."""
    return await explain(client.database, app.build().policies, task.id)


async def test_each_policy_gives_its_reason_in_words(harvest_database: str) -> None:
    """Missing label, forbidden flag and high signal stand beside the worker they hold off (O3, CAP5, hatchet#1782)."""
    app = app_of(
        harvest_database,
        "cpu-box",
        ["capabilities", "flags", "cost_hold"],
        {"flags": {"forbidden": ["gpu"]}, "cost_hold": {"defer_threshold": 400.0, "activities": ["train"]}},
    )
    app.plugin("cost_hold").signal.set(520.0)
    async with app.client() as client, app.worker():
        capable = await told(app, client, await client.enqueue("render"))
        flagged = await told(app, client, await client.enqueue("render", flags={"gpu"}))
        held = await told(app, client, await client.enqueue("train"))

    assert capable.summary == "none of 1 live workers may take it: 1 x unsatisfied_requirement:gpu=true"
    (worker,) = flagged.workers
    assert worker.eligible is False
    assert {verdict.by: verdict.reasons for verdict in worker.verdicts} == {
        "kernel": (),
        "capabilities": ("unsatisfied_requirement:gpu=true",),
        "flags": ("flag_forbidden:gpu",),
        "cost_hold": (),
    }
    assert held.summary == "none of 1 live workers may take it: 1 x cost_hold:signal 520.0 > 400.0"


async def test_a_plugin_this_process_lacks_is_not_judged(harvest_database: str) -> None:
    """A worker with a plugin that the explaining process lacks is never called eligible (O3)."""
    fleet = app_of(harvest_database, "box", ["flags"], {"flags": {"accepted": ["linux"]}})
    here = app_of(harvest_database, "here", [], {})
    async with fleet.worker(), here.client() as client:
        found = await told(here, client, await client.enqueue("train"))
    assert found.workers[0].eligible is None
    assert [verdict.verdict for verdict in found.workers[0].verdicts] == ["allows", "not judged"]
    assert found.summary == "none of 1 live workers may take it: 1 not judged here"


async def test_each_worker_is_judged_by_its_own_facts(harvest_database: str) -> None:
    """One process explains a fleet of differently configured workers, each as it would claim (O3, CAP4)."""
    async with AsyncExitStack() as stack:
        workers: list[Worker] = []
        for name, labels in (("cpu", {}), ("gpu", {"gpu": "true"})):
            app = app_of(harvest_database, name, ["capabilities"], {"capabilities": {"labels": labels}})
            workers.append(await stack.enter_async_context(app.worker()))
        client = await stack.enter_async_context(app.client())
        task = await client.enqueue("render")
        found = await told(app, client, task)
        assert {worker.worker_name: worker.eligible for worker in found.workers} == {"cpu": False, "gpu": True}
        assert found.summary == "1 of 2 live workers may take it and have free slots; it is taken in its turn"
        await workers[0].run_once()
        assert (await task.status()).state == "pending"
        assert (await task.status()).attempt == 0
        await workers[1].run_once()
        assert (await told(app, client, task)).summary == "it is completed"


async def test_the_kernel_gives_its_reasons_too(harvest_database: str) -> None:
    """Queue, name and pause are reasons like any policy's; without workers that is the answer."""
    app = app_of(harvest_database, "box", [], {}, queues=("other",))
    async with app.client() as client:
        task = await client.enqueue("strange", queue="q", elsewhere=True)
        assert (await told(app, client, task)).summary == "no worker is alive"
        await client.pause_queue("q")
        async with app.worker():
            found = await told(app, client, task)
        delayed = await client.enqueue("train", delay="1h")
        assert (await told(app, client, delayed)).summary.startswith("the first attempt is due in 3")
        with pytest.raises(TaskNotFoundError, match="task 999999 is not known"):
            await explain(client.database, app.build().policies, 999_999)
    assert found.workers[0].verdicts[0].reasons == (
        "queue_not_polled:q",
        "name_not_registered:strange",
        "queue_paused:q",
    )


async def test_the_nearest_worker_is_named_with_what_it_lacks(harvest_database: str) -> None:
    """Of several workers that may not take it, the one that the fewest reasons keep off; ties by name (CAP6)."""
    async with AsyncExitStack() as stack:
        for name, queues in (("far", ("other",)), ("near-b", ("q",)), ("near-a", ("q",))):
            app = app_of(harvest_database, name, ["capabilities"], {}, queues)
            await stack.enter_async_context(app.worker())
        client = await stack.enter_async_context(app.client())
        found = await told(app, client, await client.enqueue("render"))
    assert found.summary == (
        "none of 3 live workers may take it: 3 x unsatisfied_requirement:gpu=true, 1 x queue_not_polled:q; "
        "the nearest is near-a, but for unsatisfied_requirement:gpu=true"
    )


async def test_peers_are_judged_as_in_a_claim(harvest_database: str) -> None:
    """A lesser worker is refused while a preferred one is free and the task young, and only then (CAP6, O3)."""
    apps = []
    for name, labels in (("cpu", {}), ("gpu", {"gpu": "true"})):
        app = Harvest(
            {
                "harvest": {"dsn": harvest_database, "plugins": ["capabilities"]},
                "worker": {"name": name, "queues": ["q"], "concurrency": 1},
                "plugins": {"capabilities": {"labels": labels, "prefer_wait": "1h"}},
            }
        )
        app.activity(queue="q", name="paint", prefers="gpu = true")(lambda: None)
        apps.append(app)
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(app.worker()) for app in apps]
        client = await stack.enter_async_context(apps[0].client())
        task = await client.enqueue("paint")

        async def verdicts() -> dict[str, tuple[bool | None, tuple[str, ...]]]:
            found = await told(apps[0], client, task)
            return {one.worker_name: (one.eligible, one.verdicts[-1].reasons) for one in found.workers}

        assert await verdicts() == {"cpu": (False, ("preferred_worker_free:gpu",)), "gpu": (True, ())}
        await client.database.fetch(
            "update {schema}.workers set draining = true where id = %s returning 1", [workers[1].identity.id]
        )
        assert (await verdicts())["cpu"] == (True, ())
        await client.database.fetch("update {schema}.workers set draining = false returning 1", [])
        await client.database.fetch(
            "update {schema}.tasks set scheduled_at = scheduled_at - interval '1 hour' returning 1", []
        )
        assert (await verdicts())["cpu"] == (True, ())


class Capped(Plugin):
    """Lets one `render` run at a time."""

    slug = "capped"
    needs = frozenset({Feature.SKIP_LIST})

    @hookimpl
    def build_skip_list(self) -> list[Skip]:
        """Return a skip that draws from a budget."""
        return [Skip("render", ("limited:1",), at_most=Budget("capped:render", concurrency=1))]


async def test_a_spent_budget_a_lane_and_a_suspect_are_told(harvest_database: str) -> None:
    """A cap refuses while its budget is spent, a lane names who holds it, a suspect says so (O3, K12, K13)."""
    app = app_of(harvest_database, "box", [Capped()], {})  # type: ignore[list-item]
    async with app.client() as client, app.worker() as worker:
        running, waiting = await client.enqueue("render"), await client.enqueue("render")
        first, second = [await client.enqueue("train", lane="a") for _ in range(2)]
        free = await told(app, client, waiting)
        database = client.database
        await database.fetch(
            "update {schema}.tasks set state = 'running', worker_id = %s::uuid where id = %s returning 1",
            [worker.identity.id, running.id],
        )
        spent = await told(app, client, waiting)
        await database.fetch("select * from {schema}.promote_due(9)")
        blocked = await told(app, client, second)
        await database.fetch(
            "update {schema}.tasks set state = 'suspect', crashes = 2 where id = %s returning 1", [first.id]
        )
        suspect = await told(app, client, first)
        await client.cancel(running.id, reason="too dear")
        asked = await told(app, client, running)
    assert free.summary == "1 of 1 live workers may take it and have free slots; it is taken in its turn"
    assert spent.summary == "none of 1 live workers may take it: 1 x limited:1"
    assert blocked.summary == f"it waits for its lane 'a', which is taken by task {first.id}"
    assert suspect.summary == (
        "2 workers died while running it, so a worker takes it only while it runs no other such task; "
        "1 of 1 live workers may take it and have free slots; it is taken in its turn"
    )
    assert asked.summary == (
        "it is running, attempt 0, on worker box; it was asked to stop (too dear) and has not ended yet"
    )


async def test_what_is_due_and_no_worker_has_seen_is_pending_to_the_reader(kernel: Any) -> None:
    """Without workers nothing promotes it: explain names the cause, and the queue's depth counts it (O3)."""
    app = kernel.app()
    async with app.client() as client:
        lane = await client.enqueue("work", lane="a", elsewhere=True)
        later = await client.enqueue("work", delay="1h", elsewhere=True)
        assert (await told(app, client, lane)).summary == "no worker is alive"
        assert (await told(app, client, later)).summary == "the first attempt is due in 3600 s"
        assert [(one.name, one.pending) for one in await client.queues()] == [("default", 1)]
