"""`harvest task enqueue`, `show`, `cancel` and `retry`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import attrs
import click

from harvest_core.cli.arguments import TASK_ID, json_value, refuse_options
from harvest_core.cli.locate import Source, app_or_client_build, client_build, locating, named_app
from harvest_core.cli.output import answer, fields, inline, json_option, line
from harvest_core.cli.unmet import statuses, tell_not_cancelled, tell_not_put_back, tell_unknown_names, unknown
from harvest_core.client import Client, Task
from harvest_core.codec import encoded_by
from harvest_core.enqueue import ON_CONFLICT
from harvest_core.errors import UnknownActivityError
from harvest_core.store.postgres.control import Cancelled
from harvest_core.store.postgres.inspect import TaskStatus

_F = TypeVar("_F", bound=Callable[..., Any])


def _filtered(function: _F) -> _F:
    """Give a command ids of tasks, `--queue` and `--activity`."""
    function = click.option("--activity", help="Tasks of this activity.")(function)
    function = click.option("--queue", help="Tasks of this queue.")(function)
    return click.argument("ids", metavar="[ID]...", nargs=-1, type=TASK_ID)(function)


@click.group()
def task() -> None:
    """Enqueue tasks, look at them, cancel them and put them back."""


@task.command("enqueue", context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("args", nargs=-1)
@click.option("--queue", help="Queue; the activity's own unless given.")
@click.option("--priority", type=int, help="Higher runs first.")
@click.option("--delay", help='Run it after this time, such as "5m".')
@click.option("--key", help="Unique among unfinished tasks of the activity; a duplicate gives the existing task.")
@click.option("--key-period", help='Keep the key taken for this time from now, such as "1h", even after the end.')
@click.option("--on-conflict", type=click.Choice(ON_CONFLICT), help="What to do where the key is taken; ignore.")
@click.option("--lane", help='One of a lane runs at a time, such as "customer/7".')
@click.option("--schedule-to-start", help="Time it may wait for its first start once it is due.")
@click.option("--schedule-to-close", help="Time until its end, all attempts included.")
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
    if options["on_conflict"] == "replace":
        known += " and is replaced"
    text = f"task {made.id} enqueued" if made.created else known
    answer({"id": made.id, "created": made.created}, line(text), as_json=as_json)


@task.command("show")
@click.argument("task_id", metavar="ID", type=TASK_ID)
@locating
@json_option
def show(*, source: Source, task_id: int, as_json: bool) -> None:
    """Show a task as it stands."""
    status = asyncio.run(_status(source, task_id))
    document = attrs.asdict(status, recurse=False)
    answer(document, fields(_described(status)), as_json=as_json)


@task.command("cancel")
@_filtered
@click.option("--reason", default="cancelled", show_default=True, help="Kept as the task's error.")
@locating
@json_option
def cancel(
    *, source: Source, ids: tuple[int, ...], queue: str | None, activity: str | None, reason: str, as_json: bool
) -> None:
    """Cancel tasks by IDS or by queue and activity.

    What does not run ends at once. Running attempts are asked to stop. An id that is not known makes the exit code 1.
    """
    _require_filter("cancel", "IDs, --queue or --activity", ids, queue, activity)
    done, missing = asyncio.run(_cancel(source, ids, queue, activity, reason))
    text = f"{_tasks(done.ended)} cancelled" + (f", {_tasks(done.asked)} asked to stop" if done.asked else "")
    answer({"cancelled": done.ended, "asked": done.asked, "unknown": missing}, line(text), as_json=as_json)
    click.get_current_context().exit(1 if missing else 0)


@task.command("retry")
@_filtered
@click.option(
    "--state", type=click.Choice(["failed", "cancelled"]), help="Unless given failed, and for IDs cancelled too."
)
@click.option(
    "--since", metavar="TIME", help='Only what ended then or later: "2026-12-01T08:00+00:00"; UTC unless given.'
)
@locating
@json_option
def retry(
    *,
    source: Source,
    ids: tuple[int, ...],
    queue: str | None,
    activity: str | None,
    state: str | None,
    since: str | None,
    as_json: bool,
) -> None:
    """Put failed or cancelled tasks back, with all their attempts, by IDS or by queue, activity and time.

    IDS go back from both states, all others only from failed unless --state says otherwise. A task whose key another
    one has by now stays. An id that is not known makes the exit code 1.
    """
    _require_filter("retry", "IDs, --queue, --activity or --since", ids, queue, activity, since)
    states, moment = None if state is None else [state], None if since is None else _moment(since)
    back, missing = asyncio.run(_retry(source, ids, queue, activity, states, moment))
    answer({"retried": back, "unknown": missing}, line(f"{_tasks(len(back))} put back"), as_json=as_json)
    click.get_current_context().exit(1 if missing else 0)


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


async def _cancel(
    source: Source, ids: Sequence[int], queue: str | None, activity: str | None, reason: str
) -> tuple[Cancelled, list[int]]:
    async with Client(client_build(source)) as client:
        before = await statuses(client.database, ids)
        done = await client.cancel(*ids, queue=queue, activity=activity, reason=reason)
        tell_not_cancelled(before, queue, activity)
        if not (done.ended or done.asked):
            await tell_unknown_names(client.database, queue, activity)
        return done, unknown(before)


async def _retry(
    source: Source,
    ids: Sequence[int],
    queue: str | None,
    activity: str | None,
    states: Sequence[str] | None,
    since: datetime | None,
) -> tuple[list[int], list[int]]:
    async with Client(client_build(source)) as client:
        back = await client.retry(*ids, queue=queue, activity=activity, states=states, since=since)
        left = await statuses(client.database, (task_id for task_id in ids if task_id not in back))
        tell_not_put_back(left, queue, activity, states, since)
        if not back:
            await tell_unknown_names(client.database, queue, activity)
        return back, unknown(left)


def _require_filter(action: str, options: str, *given: object) -> None:
    if not any(given):
        msg = f"{action} of all tasks at once is refused: give {options}"
        raise click.UsageError(msg)


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        msg = f"--since {text}: expected a time such as 2026-12-01T08:00+00:00"
        raise click.UsageError(msg) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"


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
