"""`harvest queue list`, `pause` and `resume`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import attrs
import click

from harvest_core.cli.locate import Source, client_build, locating
from harvest_core.cli.output import answer, json_option, line, table
from harvest_core.cli.unmet import tell_unknown_names
from harvest_core.client import Client

_R = TypeVar("_R")


@click.group()
def queue() -> None:
    """Look at queues, pause and resume them."""


@queue.command("list")
@locating
@json_option
def list_queues(*, source: Source, as_json: bool) -> None:
    """List the queues that have pending tasks or are paused, with depth and age of the oldest task."""
    found = _ask(source, lambda client: client.queues())
    shown = table(
        ("queue", "pending", "oldest", "paused since"),
        (
            (
                one.name,
                str(one.pending),
                f"{one.oldest:.1f} s" if one.pending else "",
                "" if one.paused_at is None else one.paused_at.isoformat(" ", "seconds"),
            )
            for one in found
        ),
    )
    nothing = line("no queue has pending tasks, none is paused")
    answer([attrs.asdict(one) for one in found], shown if found else nothing, as_json=as_json)


@queue.command("pause")
@click.argument("name")
@locating
@json_option
def pause(*, source: Source, name: str, as_json: bool) -> None:
    """Pause a queue for every claim that starts from now on; running tasks go on."""

    async def paused(client: Client) -> None:
        await client.pause_queue(name)
        await tell_unknown_names(client.database, name, None)

    _ask(source, paused)
    answer({"name": name, "paused": True}, line(f"queue {name!r} is paused"), as_json=as_json)


@queue.command("resume")
@click.argument("name")
@locating
@json_option
def resume(*, source: Source, name: str, as_json: bool) -> None:
    """Resume a queue."""

    async def went_on(client: Client) -> bool:
        resumed = await client.resume_queue(name)
        if not resumed:
            await tell_unknown_names(client.database, name, None)
        return resumed

    resumed = _ask(source, went_on)
    text = f"queue {name!r} goes on" if resumed else f"queue {name!r} was not paused"
    answer({"name": name, "paused": False, "resumed": resumed}, line(text), as_json=as_json)


def _ask(source: Source, what: Callable[[Client], Awaitable[_R]]) -> _R:
    async def asked() -> _R:
        async with Client(client_build(source)) as client:
            return await what(client)

    return asyncio.run(asked())
