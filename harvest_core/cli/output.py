"""What commands print: tables and lines for people, JSON for programs. Values are shown as they are, never as markup.

Standard output carries the answer alone; errors go to standard error, and with `--json` to standard output as
`{"error": {"type", "message", "problems"}}`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, TypeVar

import attrs
import click
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from harvest_core.errors import BuildError, Problem

_F = TypeVar("_F", bound=Callable[..., Any])
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_WIDE = 10_000


def json_option(function: _F) -> _F:
    """Give a command `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def answer(document: Any, *parts: RenderableType, as_json: bool) -> None:
    """Print a command's answer.

    Args:
        document: the answer in plain values.
        parts: the same for people, one below the other.
        as_json: print the document.
    """
    if as_json:
        click.echo(json_text(document))
        return
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _WIDE  # a program reads it, line by line
    with console.capture() as captured:
        for part in parts:
            console.print(part, soft_wrap=isinstance(part, Text))  # a value stays one line, however long
    text = captured.get()
    if not console.is_terminal:
        text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    click.echo(text, nl=False)


def fault(error: Exception, *, as_json: bool) -> None:
    """Print an error: its sentence on standard error, or as JSON on standard output."""
    message = error.format_message() if isinstance(error, click.ClickException) else str(error)
    if as_json:
        kind = "UsageError" if isinstance(error, click.UsageError) else type(error).__name__
        document: dict[str, Any] = {"type": kind, "message": message}
        if isinstance(error, BuildError):
            document["problems"] = [problem_document(problem) for problem in error.problems]
        click.echo(json_text({"error": document}))
    else:
        click.echo(f"error: {clean(message)}", err=True)


def problem_document(problem: Problem) -> dict[str, str]:
    """Return a problem in plain values."""
    return attrs.asdict(problem, filter=lambda field, _: field.name != "warning")


def json_text(value: Any) -> str:
    """Return value as JSON in ASCII, which every terminal and pipe carries."""
    return json.dumps(value, default=_plain)


def inline(value: Any) -> str:
    """Return a JSON value on one line for people."""
    return clean(json.dumps(value, ensure_ascii=False, default=_plain))


def clean(text: str) -> str:
    """Return text with control characters spelt out, so that stored data cannot steer a terminal."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class LogFormatter(logging.Formatter):
    """Formats log records for a terminal: what tasks put into them is cleaned too."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's text."""
        return clean(super().format(record))


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return rows below headings; a cell too long for the terminal is folded, never cut."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        made.add_column(heading, overflow="fold")
    for row in rows:
        made.add_row(*(Text(clean(cell)) for cell in row))
    return made


def fields(pairs: Iterable[tuple[str, str]]) -> Table:
    """Return names and values side by side."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs:
        made.add_row(name, Text(clean(value)))
    return made


def line(text: str, style: str = "") -> Text:
    """Return a line of text."""
    return Text(clean(text), style=style)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if attrs.has(type(value)):
        return attrs.asdict(value, recurse=False)
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return str(value)
