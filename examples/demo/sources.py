"""Finds the Python files to index and flags each by what it is."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import attrs

MINIMUM = 400
"""Files below which a worker may see fewer dispatches than the split is judged over."""

_ADVICE = f"give a folder with at least {MINIMUM}, or leave INPUT out to index Python's standard library"
_OUTSIDE = frozenset({"site-packages", "dist-packages", "__pycache__", "node_modules"})
_TEST_FOLDERS = frozenset({"test", "tests", "testing", "idle_test"})
_GENERATED = re.compile(rb"generated (from|by|with)|auto-?generated|automatically generated", re.IGNORECASE)
_HEAD = 600


@attrs.frozen
class Source:
    """One file: its path below the root, and its flags (`generated`, `large`, `small`, `test-code`), sorted."""

    path: str
    flags: tuple[str, ...]


class TooSmallError(Exception):
    """The input cannot be judged; the message says the minimum."""


def standard_library() -> Path:
    """Return the folder of the running Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def discover(root: Path) -> list[Source]:
    """Return every Python file below root that is UTF-8 text, by path.

    The largest tenth is flagged `large`, the smallest `small`, so that any input has tasks for the rules to judge.

    Raises:
        TooSmallError: root is not a folder or holds fewer than `MINIMUM` such files.
    """
    if not root.is_dir():
        msg = f"{root} is not a folder; {_ADVICE}"
        raise TooSmallError(msg)
    found = dict(_readable(root))
    if len(found) < MINIMUM:
        msg = f"{root}: {len(found)} Python files are too few to judge the split of the queues; {_ADVICE}"
        raise TooSmallError(msg)
    by_size = sorted(found, key=lambda path: (len(found[path]), path))
    tenth = len(found) // 10
    sizes = dict.fromkeys(by_size[:tenth], "small") | dict.fromkeys(by_size[-tenth:], "large")
    return [Source(path, tuple(_flags(path, content, sizes.get(path)))) for path, content in sorted(found.items())]


def _readable(root: Path) -> Iterator[tuple[str, bytes]]:
    for path in root.rglob("*.py"):
        inside = path.relative_to(root)
        if path.is_file() and not any(part in _OUTSIDE or part.startswith(".") for part in inside.parts):
            content = path.read_bytes()
            if _is_text(content):
                yield inside.as_posix(), content


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _flags(path: str, content: bytes, size: str | None) -> Iterator[str]:
    *folders, name = path.split("/")
    if _GENERATED.search(content[:_HEAD]):
        yield "generated"
    if size:
        yield size
    if name.startswith("test_") or _TEST_FOLDERS.intersection(folders):
        yield "test-code"
