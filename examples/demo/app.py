"""The demo's app: an index of Python files, as activities on two queues.

Run by `harvest worker run app:app` in this folder; `DEMO_INPUT` names the folder that is indexed.
"""

from __future__ import annotations

import os
from pathlib import Path

import work
from effects import effect
from plan import subject

from harvest_core import Harvest

ROOT = Path(os.environ.get("DEMO_INPUT", "."))

app = Harvest.from_toml(Path(__file__).with_name("harvest.toml"))


@app.activity(queue="interactive")
async def checksum(path: str) -> int:
    """Fast, so it may be async: it runs in the worker's loop, as the other counts do."""
    with effect("checksum", path) as finish:
        return finish(work.checksum(ROOT / path))


@app.activity(queue="interactive")
async def count_tokens(path: str) -> int:
    """Words and signs of one file."""
    with effect("count_tokens", path) as finish:
        return finish(work.count_tokens(ROOT / path))


@app.activity(queue="interactive")
def outline(path: str) -> int:
    """Plain, so it runs in a thread, as all heavier activities do."""
    with effect("outline", path) as finish:
        return finish(work.outline(ROOT / path))


@app.activity(queue="bulk")
def complexity(path: str) -> int:
    """Heavier: walks the whole syntax tree."""
    with effect("complexity", path) as finish:
        return finish(work.complexity(ROOT / path))


@app.activity(queue="interactive")
async def count_lines(path: str) -> int:
    """Only for inputs of few files."""
    with effect("count_lines", path) as finish:
        return finish(work.count_lines(ROOT / path))


@app.activity(queue="interactive")
async def count_comments(path: str) -> int:
    """Only for inputs of few files."""
    with effect("count_comments", path) as finish:
        return finish(work.count_comments(ROOT / path))


@app.activity(queue="interactive")
def imports(path: str) -> int:
    """Only for inputs of few files."""
    with effect("imports", path) as finish:
        return finish(work.imports(ROOT / path))


@app.activity(queue="bulk")
def vocabulary(path: str) -> int:
    """Only for inputs of few files."""
    with effect("vocabulary", path) as finish:
        return finish(work.vocabulary(ROOT / path))


@app.activity(queue="bulk")
def fingerprint(paths: list[str]) -> int:
    """Expensive: held while the signal is high."""
    with effect("fingerprint", subject(paths)) as finish:
        return finish(work.fingerprint([ROOT / path for path in paths]))


@app.activity(queue="bulk", requires="memory = large")
def similarity(paths: list[str]) -> int:
    """Only for a worker with much memory."""
    with effect("similarity", subject(paths)) as finish:
        return finish(work.similarity([ROOT / path for path in paths]))


@app.activity(queue="interactive")
def merge(name: str, numbers: dict[str, list[int]]) -> dict[str, int]:
    """Sums the parts of a shard, and in the end of the whole index."""
    with effect("merge", name) as finish:
        return finish(work.merge(numbers))
