"""The effect log: what each activity says about itself, one JSON line at its start and one at its end.

One file a worker process, appended with a single write a line. The report judges by these lines alone.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from report import Effect

from harvest_core import current_task

FOLDER = "DEMO_EFFECTS"
WORKER = "DEMO_WORKER"
"""Environment of a worker process: the folder of the log, and the worker's policy as JSON (see `fleet.Member`)."""

Result = TypeVar("Result")


@contextmanager
def effect(activity: str, subject: str) -> Iterator[Callable[[Result], Result]]:
    """Log the start of an activity; the value given is a function that logs its result and passes it on."""
    task = current_task()
    seen = task.live.get("cost_hold")
    about = {"task": str(task.id), "activity": activity, "subject": subject, "attempt": task.attempt}
    told = {
        "queue": task.queue,
        "flags": sorted(task.flags),
        "signal": seen.get("value") if isinstance(seen, Mapping) else None,
    }
    _append({"effect": "start", **about, **told, **_policy()})

    def finish(result: Result) -> Result:
        _append({"effect": "end", **about, "worker": _policy()["worker"], "result": result})
        return result

    yield finish


class Tail:
    """Reads what was appended to the logs of a folder since it last looked; knows no more than the lines say."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def new(self) -> list[Effect]:
        """Return the effects whose whole line has arrived, file by file in the order written."""
        return [
            Effect(**json.loads(line)) for path in sorted(self._folder.glob("*.jsonl")) for line in self._lines(path)
        ]

    def _lines(self, path: Path) -> list[bytes]:
        with path.open("rb") as log:
            log.seek(self._read.get(path, 0))
            arrived, _, _ = log.read().rpartition(b"\n")
        if not arrived:
            return []
        self._read[path] = self._read.get(path, 0) + len(arrived) + 1
        return arrived.split(b"\n")


def _append(line: dict[str, Any]) -> None:
    os.write(_log(), json.dumps({**line, "time": time.time()}).encode() + b"\n")


@cache
def _log() -> int:
    path = Path(os.environ[FOLDER], f"{_policy()['worker']}-{os.getpid()}.jsonl")
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


@cache
def _policy() -> dict[str, Any]:
    policy: dict[str, Any] = json.loads(os.environ[WORKER])
    return policy
