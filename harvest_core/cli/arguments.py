"""Values on a command line: JSON, or JSON where it is one and text where it is not; numbers, ids of tasks."""

from __future__ import annotations

import difflib
import json
from typing import Any, NoReturn

import click


class WholeNumber(click.IntRange):
    """A whole number in a range, called so where something else was typed."""

    name = "whole number"


TASK_ID = WholeNumber(1, 2**63 - 1)
"""Type of an argument that is a task's id."""


def json_value(text: str, what: str) -> Any:
    """Return the JSON value that text is.

    Args:
        text: as typed.
        what: its name for messages, e.g. `argument 2`.

    Raises:
        click.UsageError: it is not JSON.
    """
    try:
        return _parsed(text)
    except (ValueError, RecursionError):
        quoted = json.dumps(text, ensure_ascii=False)
        msg = f"{what} is not JSON: {text}; write text as '{quoted}'"
        raise click.UsageError(msg) from None


def json_or_text(text: str) -> Any:
    """Return the JSON value that text is, or else the text."""
    try:
        return _parsed(text)
    except (ValueError, RecursionError):
        return text


def refuse_options(words: list[str]) -> None:
    """Refuse words that look like options: commands that take negative numbers let unknown ones through."""
    for word in words:
        if word.startswith("--"):
            context = click.get_current_context()
            known = [option for parameter in context.command.params for option in parameter.opts]
            flag = word.partition("=")[0]
            raise click.NoSuchOption(flag, possibilities=difflib.get_close_matches(flag, known), ctx=context)


def _parsed(text: str) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(constant)

    return json.loads(text, parse_constant=refuse)
