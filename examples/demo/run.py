"""Index Python's standard library with Harvest, show it happening, and check what happened.

    python run.py [FOLDER]

Exit status: 0 when every check passed, 1 when one failed or the run broke, 2 when FOLDER cannot be judged.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
from effects import Tail
from fleet import MEMBERS, EndedError, Worker, fleet, operate
from plan import INDEX, Job, Shard, compute_directly, jobs, shards
from progress import Merges, Progress
from report import Run, judge
from rich.console import Console
from signals import LOW, Operator
from sources import Source, TooSmallError, discover, standard_library
from view import Scene, report_table, view

from harvest_core import Call, HarvestError
from harvest_core.store.postgres.embedded import start as start_postgresql

LONGEST = 600.0
"""Seconds after which a run that is not complete is given up."""

_LOOK = 0.2


def main(arguments: Sequence[str]) -> int:
    """Run the demo on the folder named, or on the standard library."""
    console = Console()
    root = Path(arguments[0]).expanduser().resolve() if arguments and arguments[0] else standard_library()
    try:
        sources = discover(root)
    except TooSmallError as refusal:
        console.print(str(refusal), style="red", highlight=False, soft_wrap=True)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="harvest-demo-"))
    try:
        passed = _demo(console, root, sources, folder)
    except (EndedError, HarvestError, TimeoutError) as fault:
        console.print(str(fault), style="red", highlight=False, soft_wrap=True, markup=False)
        passed = False
    except KeyboardInterrupt:
        console.print("interrupted; nothing was judged")
        shutil.rmtree(folder, ignore_errors=True)
        return 130
    if not passed:
        console.print(f"effect log and output of the workers: {folder}/effects", soft_wrap=True)
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _demo(console: Console, root: Path, sources: list[Source], folder: Path) -> bool:
    console.print(f"Indexing {len(sources):,} files of {root} with {len(MEMBERS)} workers.", soft_wrap=True)
    console.print("Starting an embedded PostgreSQL …")
    (folder / "effects").mkdir()
    server = start_postgresql(folder / "postgresql")
    try:
        # The demo shows its own configuration, whatever the caller's environment says.
        for name in [name for name in os.environ if name.startswith("HARVEST_")]:
            del os.environ[name]
        os.environ["HARVEST_DSN"], os.environ["DEMO_INPUT"] = server.dsn, str(root)
        began = time.monotonic()
        judged = asyncio.run(_run(console, root, sources, folder / "effects"))
        took = time.monotonic() - began
    finally:
        server.close()
    checks = judge(judged)
    console.print(report_table(checks))
    for check in checks:
        for line in check.evidence:
            console.print(f"FAIL {check.name}: {line}", style="red", highlight=False, soft_wrap=True, markup=False)
    failed = sum(not check.passed for check in checks)
    verdict = "every check passed" if not failed else f"{failed} of {len(checks)} checks failed"
    console.print(f"{len(judged.starts):,} tasks in {took:.0f} s: {verdict}.")
    return not failed


async def _run(console: Console, root: Path, sources: list[Source], folder: Path) -> Run:
    cut = shards(sources)
    work = jobs(sources, cut)
    operator = Operator(operate)
    await operate("db", "migrate")
    await operator.set(LOW)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        direct = asyncio.get_running_loop().run_in_executor(pool, compute_directly, str(root), cut)
        indexing = await _index(console, work, cut, operator, folder)
        console.print("Comparing with a direct computation in one process …")
        expected = await direct
    return Run(
        planned=[job.planned for job in work],
        followed=list(indexing.merges.planned.values()),
        effects=indexing.progress.effects,
        members=MEMBERS,
        changes=operator.changes,
        expected=expected,
        index=indexing.result,
        index_key=("merge", INDEX),
    )


async def _index(console: Console, work: list[Job], cut: list[Shard], operator: Operator, folder: Path) -> Indexing:
    """Enqueue everything, then start the workers, so that both queues hold work from the first dispatch on."""
    import app as demo  # reads the environment, which is set only by now

    indexing = Indexing(Progress([job.planned for job in work]), Merges(cut), Tail(folder))
    async with demo.app.client() as client:
        await client.enqueue_many([_call(demo, job) for job in work])
        async with fleet(MEMBERS, folder) as workers:
            await asyncio.gather(
                indexing.watch(console, client, demo, operator, workers),
                operator.follow(lambda: indexing.progress.files_done),
            )
        indexing.look()
    return indexing


@attrs.define
class Indexing:
    """The run under way: what the effect log says, the merges that follow from it, and the handle of the last one."""

    progress: Progress
    merges: Merges
    tail: Tail
    last: Any = None
    result: Any = None

    def look(self) -> None:
        """Take in what the workers logged since the last look."""
        self.progress.add(self.tail.new())

    async def watch(
        self, console: Console, client: Any, demo: ModuleType, operator: Operator, workers: Sequence[Worker]
    ) -> None:
        """Show the run and enqueue merges until everything has ended.

        Raises:
            EndedError: a worker is gone, or the run takes too long.
        """
        began = time.monotonic()
        with view(console) as screen:
            while not (INDEX in self.merges.planned and self.progress.complete):
                for worker in workers:
                    worker.check()
                if time.monotonic() - began > LONGEST:
                    raise EndedError(self._unfinished())
                self.look()
                for name, numbers in self.merges.due(self.progress.results):
                    self.progress.planned.append(self.merges.planned[name])
                    self.last = await client.enqueue(demo.merge, name, numbers)
                seconds = time.monotonic() - began
                screen.show(Scene(self.progress, MEMBERS, operator.signal, seconds))
                await asyncio.sleep(_LOOK)
        self.result = await self.last.result(timeout=30)

    def _unfinished(self) -> str:
        missing = [planned for planned in self.progress.planned if planned.key not in self.progress.results]
        first = "; ".join(f"{planned.activity}({planned.subject})" for planned in missing[:5])
        return f"{len(missing)} tasks have not ended after {LONGEST:g} s: {first}"


def _call(demo: ModuleType, job: Job) -> Call:
    options: dict[str, Any] = {"flags": set(job.planned.flags)} if job.planned.flags else {}
    return Call(getattr(demo, job.planned.activity), job.args, **options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
