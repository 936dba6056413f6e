"""`harvest schedule list`, `pause`, `resume`, `trigger` and `delete`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TypeVar

import attrs
import click

from harvest_core.cli.locate import Source, client_build, locating
from harvest_core.cli.output import answer, json_option, line, table
from harvest_core.client import Client
from harvest_core.errors import ScheduleError
from harvest_core.store.postgres.schedules import ScheduleStatus

_R = TypeVar("_R")


@click.group()
def schedule() -> None:
    """Look at schedules, pause them, and run one now."""


@schedule.command("list")
@locating
@json_option
def list_schedules(*, source: Source, as_json: bool) -> None:
    """List the schedules with their next and their last tick."""
    found = _ask(source, lambda client: client.schedules())
    shown = table(
        ("name", "activity", "when", "state", "next", "last", "last task"),
        (
            (
                one.name,
                one.activity,
                f"every {one.every:g} s" if one.cron is None else f"{one.cron} {one.timezone}",
                f"{one.state}; {one.error}" if one.error else one.state,
                _moment(one.next_at if one.state == "active" else None),
                _moment(one.last_at),
                "" if one.last_task_id is None else str(one.last_task_id),
            )
            for one in found
        ),
    )
    answer([_document(one) for one in found], shown if found else line("there is no schedule"), as_json=as_json)


@schedule.command("pause")
@click.argument("name")
@locating
@json_option
def pause(*, source: Source, name: str, as_json: bool) -> None:
    """Pause a schedule: ticks that come meanwhile do not count."""
    _ask(source, lambda client: client.pause_schedule(name))
    answer({"name": name, "paused": True}, line(f"schedule {name!r} is paused"), as_json=as_json)


@schedule.command("resume")
@click.argument("name")
@locating
@json_option
def resume(*, source: Source, name: str, as_json: bool) -> None:
    """Resume a schedule with its next tick."""
    resumed = _ask(source, lambda client: client.resume_schedule(name))
    text = f"schedule {name!r} goes on" if resumed else f"schedule {name!r} was not paused"
    answer({"name": name, "paused": False, "resumed": resumed}, line(text), as_json=as_json)


@schedule.command("trigger")
@click.argument("name")
@locating
@json_option
def trigger(*, source: Source, name: str, as_json: bool) -> None:
    """Enqueue a task of a schedule now, paused or not."""
    task_id = _ask(source, lambda client: client.trigger_schedule(name))
    if task_id is None:
        msg = f"schedule {name!r}: an earlier task of it is unfinished, and its overlap policy lets no other in"
        raise ScheduleError(msg)
    answer({"name": name, "id": task_id}, line(f"task {task_id} enqueued"), as_json=as_json)


@schedule.command("delete")
@click.argument("name")
@locating
@json_option
def delete(*, source: Source, name: str, as_json: bool) -> None:
    """Remove a schedule that no live worker declares; its tasks stay."""
    _ask(source, lambda client: client.delete_schedule(name))
    answer({"name": name, "deleted": True}, line(f"schedule {name!r} is deleted"), as_json=as_json)


def _ask(source: Source, what: Callable[[Client], Awaitable[_R]]) -> _R:
    async def asked() -> _R:
        async with Client(client_build(source)) as client:
            return await what(client)

    return asyncio.run(asked())


def _document(one: ScheduleStatus) -> dict[str, object]:
    return attrs.asdict(one, recurse=False) | {"state": one.state}


def _moment(moment: datetime | None) -> str:
    return "" if moment is None else moment.isoformat(" ", "seconds")
