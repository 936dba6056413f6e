"""The work itself: plain functions of files, without a word of queues or workers.

Each returns one whole number that any change of the input would change, so that totals can be compared.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

_WORD = re.compile(r"\w+")
_TOKEN = re.compile(r"\w+|[^\w\s]")
_DIVIDES = (ast.If, ast.For, ast.While, ast.Try, ast.With, ast.BoolOp, ast.IfExp, ast.comprehension)
_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_EXCERPT = 4096
_GRAM = 12
_WINDOW = 16


def checksum(path: Path) -> int:
    """Return the first 48 bits of the file's SHA-256."""
    return int(hashlib.sha256(path.read_bytes()).hexdigest()[:12], 16)


def count_tokens(path: Path) -> int:
    """Return the number of words and signs."""
    return len(_TOKEN.findall(_text(path)))


def count_lines(path: Path) -> int:
    """Return the number of lines that are not blank."""
    return sum(not line.isspace() for line in _text(path).splitlines(keepends=True))


def count_comments(path: Path) -> int:
    """Return the number of lines that are a comment."""
    return sum(line.lstrip().startswith("#") for line in _text(path).splitlines())


def imports(path: Path) -> int:
    """Return the number of import statements at module level; 0 for a file that does not parse."""
    return sum(isinstance(statement, ast.Import | ast.ImportFrom) for statement in _tree(path).body)


def outline(path: Path) -> int:
    """Return the number of functions and classes at module and class level; 0 for a file that does not parse."""
    return sum(1 for _ in _definitions(_tree(path)))


def complexity(path: Path) -> int:
    """Return the number of branching points; 0 for a file that does not parse."""
    return sum(isinstance(node, _DIVIDES) for node in ast.walk(_tree(path)))


def vocabulary(path: Path) -> int:
    """Return the number of different words."""
    return len(set(_WORD.findall(_text(path))))


def fingerprint(paths: Sequence[Path]) -> int:
    """Return the folded winnowing fingerprint of the files' first 4 kB: expensive, as training a model would be."""
    folded = 0
    for path in paths:
        text = path.read_bytes()[:_EXCERPT]
        grams = [
            int.from_bytes(hashlib.blake2b(text[at : at + _GRAM], digest_size=6).digest(), "big")
            for at in range(max(1, len(text) - _GRAM + 1))
        ]
        chosen = {min(grams[at : at + _WINDOW]) for at in range(max(1, len(grams) - _WINDOW + 1))}
        folded ^= sum(chosen) & 0xFFFFFFFFFFFF
    return folded


def similarity(paths: Sequence[Path]) -> int:
    """Return the number of words shared, over all pairs of the files; needs all of them in memory."""
    vocabularies = [set(_WORD.findall(_text(path))) for path in paths]
    return sum(len(one & other) for one, other in combinations(vocabularies, 2))


def merge(numbers: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the sum for each name."""
    return {name: sum(parts) for name, parts in sorted(numbers.items())}


def _text(path: Path) -> str:
    return path.read_bytes().decode()


def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _definitions(node: ast.Module | ast.ClassDef) -> Iterator[ast.stmt]:
    for statement in node.body:
        if isinstance(statement, _DEFINES):
            yield statement
        if isinstance(statement, ast.ClassDef):
            yield from _definitions(statement)
