"""`harvest task enqueue` and `show`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import click

from harvest_core.cli.arguments import json_value, refuse_options
from harvest_core.cli.locate import Source, app_or_client_build, client_build, locating, named_app
from harvest_core.cli.output import answer, fields, inline, json_option, line
from harvest_core.client import Client, Task
from harvest_core.codec import encoded_by
from harvest_core.errors import UnknownActivityError
from harvest_core.store.postgres.inspect import TaskStatus

_BIGGEST_ID = 2**63 - 1


@click.group()
def task() -> None:
    """Enqueue tasks and look at them."""


@task.command("enqueue", context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("args", nargs=-1)
@click.option("--queue", help="Queue; the activity's own unless given.")
@click.option("--priority", type=int, help="Higher runs first.")
@click.option("--delay", help='Run it after this time, such as "5m".')
@click.option("--key", help="Unique among unfinished tasks of the activity; a duplicate gives the existing task.")
@click.option("--kwargs", metavar="JSON", help="Keyword arguments, as a JSON object.")
@click.option("--max-attempts", type=int, help="Starts in all.")
@click.option("--with", "extra", metavar="OPTION=JSON", multiple=True, help="""Option of a plugin: flags='["vip"]'.""")
@click.option("--elsewhere", is_flag=True, help="Another app has the activity: do not check its name.")
@locating
@json_option
def enqueue(
    *,
    source: Source,
    name: str,
    args: tuple[str, ...],
    kwargs: str | None,
    extra: Sequence[str],
    elsewhere: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Enqueue a task of the activity NAME.

    Each of ARGS is JSON: 5, true, '"text"', '{"a": 1}'.
    """
    refuse_options([name, *args])
    values = [json_value(text, f"argument {number}") for number, text in enumerate(args, 1)]
    keywords = {} if kwargs is None else json_value(kwargs, "--kwargs")
    if not isinstance(keywords, dict):
        msg = """--kwargs is not a JSON object; write '{"name": 1}'"""
        raise click.UsageError(msg)
    given = dict(_option(text) for text in extra) | {key: value for key, value in options.items() if value is not None}
    if not elsewhere and named_app(source) is None:
        msg = f"no app is named, so {name!r} cannot be checked: name the app with --app, or pass --elsewhere"
        raise click.UsageError(msg)
    made = asyncio.run(_enqueue(source, name, values, keywords, given | {"elsewhere": elsewhere}))
    known = f"task {made.id} of the key {options['key']!r} was there already"
    text = f"task {made.id} enqueued" if made.created else known
    answer({"id": made.id, "created": made.created}, line(text), as_json=as_json)


@task.command("show")
@click.argument("task_id", metavar="ID", type=click.IntRange(1, _BIGGEST_ID))
@locating
@json_option
def show(*, source: Source, task_id: int, as_json: bool) -> None:
    """Show a task as it stands."""
    status = asyncio.run(_status(source, task_id))
    document = attrs.asdict(status, recurse=False)
    answer(document, fields(_described(status)), as_json=as_json)


async def _enqueue(
    source: Source, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]
) -> Task:
    build = app_or_client_build(source)
    args, kwargs = build.payloads.written(name, args, kwargs)
    async with Client(build) as client:
        try:
            return await client.enqueue(name, *args, kwargs=kwargs, **options)
        except UnknownActivityError as error:
            raise UnknownActivityError(str(error).replace("elsewhere=True", "--elsewhere")) from None


async def _status(source: Source, task_id: int) -> TaskStatus:
    async with Client(client_build(source)) as client:
        return await client.status(task_id)


def _option(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not (separator and name.isidentifier()):
        msg = f"""--with {text}: expected OPTION=JSON, such as flags='["vip"]'"""
        raise click.UsageError(msg)
    return name, json_value(value, f"--with {name}")


def _described(status: TaskStatus) -> list[tuple[str, str]]:
    pairs = []
    for field in attrs.fields(TaskStatus):
        value = getattr(status, field.name)
        if field.name in ("args", "kwargs", "traits") or (field.name == "result" and status.state == "completed"):
            text = json.dumps(value, ensure_ascii=False)
        elif value is None or field.name == "route_id":
            continue
        elif field.name == "details":
            text = inline(value)
        else:
            text = str(value)
        pairs.append((field.name, text.rstrip()))
    slugs = sorted({slug for slug in (encoded_by(status.kwargs), encoded_by(status.result)) if slug})
    if slugs:
        pairs.append(("encoded", f"by the plugin {slugs[0]}; payloads are shown as they are stored, not decoded"))
    return pairs
