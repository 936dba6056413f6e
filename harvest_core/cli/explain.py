"""`harvest explain`: why a task is not running, worker by worker (rule O3)."""

from __future__ import annotations

import asyncio

import attrs
import click

from harvest_core.build import Build
from harvest_core.cli.arguments import TASK_ID
from harvest_core.cli.locate import Source, app_or_client_build, locating
from harvest_core.cli.output import answer, fields, json_option, line
from harvest_core.connect import connected
from harvest_core.operate.explain import Explanation, Verdict, WorkerVerdict
from harvest_core.operate.explain import explain as explained

_ELIGIBLE = {True: "may take it", False: "may not take it", None: "not judged"}


@click.command("explain")
@click.argument("task_id", metavar="TASK", type=TASK_ID)
@locating
@json_option
def explain(*, source: Source, task_id: int, as_json: bool) -> None:
    """Say why a task is not running.

    Judges the task with the id TASK for every live worker, by the claim's own rules.
    """
    build = app_or_client_build(source)
    build.backend.require("explain")
    found = asyncio.run(_explain(build, task_id))
    task = found.task
    parts = [line(f"task {task.id} ({task.name}, queue {task.queue}): {found.summary}")]
    for worker in found.workers:
        parts += [line(""), line(_headline(worker), "bold")]
        parts.append(fields((f"  {verdict.by}", _words(verdict)) for verdict in worker.verdicts))  # type: ignore[arg-type]
    answer(attrs.asdict(found), *parts, as_json=as_json)


async def _explain(build: Build, task_id: int) -> Explanation:
    async with connected(build, size=2) as database:
        return await explained(database, build.policies, task_id)


def _headline(worker: WorkerVerdict) -> str:
    slots = f"{worker.free} free slot{'' if worker.free == 1 else 's'}"
    name = f"worker {worker.worker_name} ({worker.worker_id})"
    return f"{name}: {_ELIGIBLE[worker.eligible]}; {slots}; judged by facts of {worker.facts_age:.1f} s ago"


def _words(verdict: Verdict) -> str:
    reasons = []
    for reason in verdict.reasons:
        code, colon, detail = reason.partition(":")
        reasons.append(f"{code.replace('_', ' ')}{colon and ': '}{detail}")
    return f"{verdict.verdict}{': ' if reasons else ''}{'; '.join(reasons)}"
