"""Which tasks the demo enqueues, and what a direct computation of the same makes of them."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import work
from report import Planned
from sources import Source

PER_FILE: Mapping[str, Callable[[Path], int]] = {
    "checksum": work.checksum,
    "count_tokens": work.count_tokens,
    "outline": work.outline,
    "complexity": work.complexity,
    "count_lines": work.count_lines,
    "count_comments": work.count_comments,
    "imports": work.imports,
    "vocabulary": work.vocabulary,
}
PER_SHARD: Mapping[str, Callable[[Sequence[Path]], int]] = {
    "fingerprint": work.fingerprint,
    "similarity": work.similarity,
}
QUEUES: Mapping[str, str] = {
    "checksum": "interactive",
    "count_tokens": "interactive",
    "outline": "interactive",
    "complexity": "bulk",
    "count_lines": "interactive",
    "count_comments": "interactive",
    "imports": "interactive",
    "vocabulary": "bulk",
    "fingerprint": "bulk",
    "similarity": "bulk",
    "merge": "interactive",
}
FEW = 1000
"""Files below which each gets all of `PER_FILE`, not the first four, so that there is enough to judge."""

SHARD = 25
"""Files that are merged, fingerprinted and compared together."""

INDEX = "the whole index"


@attrs.frozen
class Job:
    """One planned task and its arguments."""

    planned: Planned
    args: tuple[Any, ...]


@attrs.frozen
class Shard:
    """Files that are merged together, and the activities on each of them."""

    name: str
    paths: tuple[str, ...]
    per_file: tuple[str, ...]


def shards(sources: Sequence[Source]) -> list[Shard]:
    """Cut the files into shards of `SHARD`, mixed evenly, the same way every time."""
    mixed = sorted(sources, key=lambda source: hashlib.sha256(source.path.encode()).digest())
    parts = [mixed[at : at + SHARD] for at in range(0, len(mixed), SHARD)]
    names = tuple(PER_FILE)[: 4 if len(sources) >= FEW else None]
    return [Shard(subject([s.path for s in part]), tuple(s.path for s in part), names) for part in parts]


def jobs(sources: Sequence[Source], cut: Sequence[Shard]) -> list[Job]:
    """Return the tasks of all shards in the order of enqueue; merges follow when their parts are there."""
    flags = {source.path: source.flags for source in sources}
    return [job for shard in cut for job in _of_shard(shard, flags)]


def merge_planned(name: str) -> Planned:
    """Return the planned task that merges the parts called name."""
    return Planned("merge", name, QUEUES["merge"])


def subject(paths: Sequence[str]) -> str:
    """Return the name of a task on several files."""
    return f"{paths[0]} +{len(paths) - 1}"


def compute_directly(root: str, cut: Sequence[Shard]) -> dict[tuple[str, str], Any]:
    """Compute everything in this one process, without Harvest: result by activity and subject.

    Meant for a process of its own: it silences warnings about the indexed files.
    """
    warnings.simplefilter("ignore")
    results: dict[tuple[str, str], Any] = {}
    parts: dict[str, list[int]] = {name: [] for name in cut[0].per_file}
    for shard in cut:
        files = [Path(root, path) for path in shard.paths]
        results |= {("merge", shard.name): _merge_directly(root, shard, results)}
        results |= {(name, shard.name): function(files) for name, function in PER_SHARD.items()}
        for name, total in results["merge", shard.name].items():
            parts[name].append(total)
    results["merge", INDEX] = work.merge(parts)
    return results


def _merge_directly(root: str, shard: Shard, results: dict[tuple[str, str], Any]) -> dict[str, int]:
    numbers = {name: [PER_FILE[name](Path(root, path)) for path in shard.paths] for name in shard.per_file}
    for name, values in numbers.items():
        results |= {(name, path): value for path, value in zip(shard.paths, values, strict=True)}
    return work.merge(numbers)


def _of_shard(shard: Shard, flags: Mapping[str, tuple[str, ...]]) -> Iterator[Job]:
    for name in PER_SHARD:
        yield Job(Planned(name, shard.name, QUEUES[name]), (list(shard.paths),))
    for path in shard.paths:
        for name in shard.per_file:
            yield Job(Planned(name, path, QUEUES[name], flags[path]), (path,))
