"""The demo's workers: processes started with `harvest worker run`, each with a policy of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
from effects import FOLDER, WORKER
from report import Member

HERE = Path(__file__).parent
HARVEST = Path(sys.executable).with_name("harvest")

_WEIGHTS = {"interactive": 3, "bulk": 1}
MEMBERS = (
    Member("atlas", weights=_WEIGHTS, labels={"memory": "large"}),
    Member("birch", weights=_WEIGHTS, labels={"memory": "small"}, forbidden=("large",)),
    Member("cedar", weights=_WEIGHTS, allowlist=("large", "test-code")),
    Member("delta", slots=2, queues=("interactive",), accepted=("large", "test-code")),
)


class EndedError(Exception):
    """A process of the demo ended with a fault; the message carries the end of what it printed."""


@attrs.define
class Worker:
    """A running worker process."""

    member: Member
    process: asyncio.subprocess.Process
    output: Path

    def check(self) -> None:
        """Raise `EndedError` where the process is gone."""
        if self.process.returncode is not None:
            raise EndedError(self._fault())

    async def stop(self, grace: float = 20.0) -> None:
        """Ask the process to stop; end it after grace seconds.

        Raises:
            EndedError: it did not stop in time, or not with exit status 0.
        """
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.process.wait(), grace)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
        if self.process.returncode != 0:
            raise EndedError(self._fault())

    def _fault(self) -> str:
        said = self.output.read_text(errors="replace")[-2000:].strip() or "nothing"
        return f"worker {self.member.name} ended with status {self.process.returncode}; it printed:\n{said}"


@asynccontextmanager
async def fleet(members: Sequence[Member], folder: Path) -> AsyncIterator[list[Worker]]:
    """Start the workers, and stop them all in the end.

    Raises:
        EndedError: a worker did not stop as asked.
    """
    workers = await asyncio.gather(*(_start(member, folder) for member in members))
    try:
        yield workers
    finally:
        stopped = await asyncio.gather(*(worker.stop() for worker in workers), return_exceptions=True)
    for fault in stopped:
        if isinstance(fault, BaseException):
            raise fault


async def _start(member: Member, folder: Path) -> Worker:
    """Start a worker process that logs its effects in folder."""
    output = folder / f"{member.name}.out"
    with output.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            HARVEST,
            *("worker", "run", "app:app", "--config", "harvest.toml"),
            *_options(member),
            cwd=HERE,
            env={**os.environ, FOLDER: str(folder), WORKER: _policy(member), "PYTHONWARNINGS": "ignore"},
            stdout=out,
            stderr=asyncio.subprocess.STDOUT,
        )
    return Worker(member, process, output)


async def operate(*words: str) -> None:
    """Run a `harvest` command to its end, as an operator would.

    Raises:
        EndedError: it failed.
    """
    process = await asyncio.create_subprocess_exec(
        HARVEST, *words, cwd=HERE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    if process.returncode != 0:
        msg = f"harvest {' '.join(words)} ended with status {process.returncode}; it printed:\n{said.decode()}"
        raise EndedError(msg)


def rule(member: Member) -> str:
    """Return what sets a worker apart, in a few words."""
    words = [f"{name}={value}" for name, value in member.labels.items()]
    words += [f"{verb} {', '.join(flags)}" for verb, flags in _flag_sets(member).items()]
    return "; ".join(words) + ("" if len(member.queues) > 1 else f"; only {member.queues[0]}")


def _flag_sets(member: Member) -> Mapping[str, Sequence[str]]:
    sets = {"accept": member.accepted, "forbid": member.forbidden, "allow": member.allowlist or ()}
    return {verb: flags for verb, flags in sets.items() if flags}


def _options(member: Member) -> list[str]:
    options = ["--set", f"worker.name={member.name}", "--set", f"worker.concurrency={member.slots}"]
    for queue in member.queues:
        options += ["--queue", queue]
    for queue, weight in member.weights.items():
        options += ["--weight", f"{queue}={weight}"]
    for name, value in member.labels.items():
        options += ["--label", f"{name}={value}"]
    for verb, flags in _flag_sets(member).items():
        for flag in flags:
            options += [f"--{verb}", flag]
    return options


def _policy(member: Member) -> str:
    policy: dict[str, Any] = {"worker": member.name, "labels": dict(member.labels)}
    return json.dumps(policy | {name: getattr(member, name) for name in ("accepted", "forbidden", "allowlist")})
