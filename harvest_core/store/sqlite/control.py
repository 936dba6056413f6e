"""What operators see and do on a file: a task, queues, cancel, retry by hand, pause, settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import attrs

from harvest_core.errors import HarvestError
from harvest_core.model import Route
from harvest_core.plugin import Setting
from harvest_core.store.postgres import control, inspect, settings
from harvest_core.store.postgres.control import Cancelled, Selection
from harvest_core.store.postgres.inspect import Names, QueueStatus, RouteDepth, TaskStatus
from harvest_core.store.sqlite.database import Transaction, micros, moment, serves
from harvest_core.store.sqlite.tasks import end

_TIMES = ("scheduled_at", "enqueued_at", "claimed_at", "finished_at")
_JSON = ("traits", "args", "kwargs", "result", "details")
_SELECTED = (
    "select id, name, key, state from tasks where (:ids is null or id in (select value from json_each(:ids))) "
    "and (:queue is null or queue = :queue) and (:activity is null or name = :activity) "
)
_DEPTHS = (
    "select queue, name, traits, count(*) as pending, min(scheduled_at) as oldest from tasks "
    "where state = 'pending' or state = 'scheduled' and scheduled_at <= :now group by queue, name, traits"
)


@serves(inspect.task_status, writes=False)
def task_status(at: Transaction, task_id: int) -> TaskStatus | None:
    """Return a task as it stands."""
    for row in at.all("select *, cancelled_at is not null as stopping from tasks where id = ?", [task_id]):
        found: dict[str, Any] = dict.fromkeys((field.name for field in attrs.fields(TaskStatus)), None)
        found |= {name: row[name] for name in row.keys() if name in found}  # noqa: SIM118 - a Row iterates its values
        found |= {name: moment(row[name]) for name in _TIMES}
        found |= {name: None if row[name] is None else json.loads(row[name]) for name in _JSON}
        return TaskStatus(**(found | {"kind": "activity", "stopping": bool(row["stopping"])}))
    return None


@serves(inspect.route_depths, writes=False)
def route_depths(at: Transaction) -> list[RouteDepth]:
    """Return the depth of every combination of queue, name and traits."""
    return [
        RouteDepth(
            Route(0, row["queue"], "activity", row["name"], json.loads(row["traits"])),
            row["pending"],
            max(0.0, (at.now - row["oldest"]) / 1e6),
        )
        for row in at.all(_DEPTHS, {"now": at.now})
    ]


@serves(inspect.queue_states)
def queue_states(at: Transaction) -> list[QueueStatus]:
    """Return the queues that have pending tasks or are paused."""
    paused = {row["name"]: moment(row["paused_at"]) for row in at.all("select * from queues")}
    depths = route_depths(at)
    found = []
    for name in sorted({*paused, *(depth.route.queue for depth in depths)}):
        of_it = [depth for depth in depths if depth.route.queue == name]
        oldest = max((depth.oldest for depth in of_it), default=0.0)
        found.append(QueueStatus(name, paused.get(name), sum(depth.pending for depth in of_it), oldest))
    return found


@serves(inspect.known_names, writes=False)
def known_names(at: Transaction) -> Names:
    """Return the queues and the activities that tasks and schedules name."""
    text = "select queue, name from tasks union select json_extract(options, '$.queue'), activity from schedules"
    rows = at.all(text)
    return Names(frozenset(row["queue"] for row in rows) - {None}, frozenset(row["name"] for row in rows))


@serves(control.cancel)
def cancel(at: Transaction, selection: Selection, reason: str) -> Cancelled:
    """Cancel tasks."""
    _require_filter("cancel", selection == Selection())
    chosen = at.all(_SELECTED + "and finished_at is null", _values(selection))
    idle = [row["id"] for row in chosen if row["state"] != "running"]
    for task in idle:
        end(at, task, "cancelled", reason)
    asked = at.change(
        "update tasks set cancelled_at = ?, error = ? where id in (select value from json_each(?)) "
        "and state = 'running' and cancelled_at is null",
        [at.now, reason, json.dumps([row["id"] for row in chosen])],
    )
    return Cancelled(len(idle), asked)


@serves(control.retry)
def retry(at: Transaction, selection: Selection, states: Sequence[str], since: datetime | None) -> list[int]:
    """Put finished tasks back; of several with one key the newest, where no unfinished task has it."""
    _require_filter("retry", selection == Selection() and since is None)
    values = _values(selection) | {"states": json.dumps(list(states)), "since": 0 if since is None else micros(since)}
    chosen = at.all(
        _SELECTED + "and state in (select value from json_each(:states)) and finished_at >= :since order by id desc",  # noqa: S608
        values,
    )
    back = [row["id"] for row in chosen if _put_back(at, row)]
    return sorted(back)


def _put_back(at: Transaction, row: Any) -> bool:
    text = (
        "update tasks set state = 'pending', attempt = 0, crashes = 0, finished_at = null, claimed_at = null, "
        "worker_id = null, scheduled_at = :now where id = :id and (:key is null or not exists "
        "(select 1 from tasks o where o.name = :name and o.key = :key and o.finished_at is null))"
    )
    return at.change(text, {**dict(row), "now": at.now}) > 0


@serves(control.pause_queue)
def pause_queue(at: Transaction, queue: str) -> None:
    """Pause a queue."""
    at.change("insert into queues (name, paused_at) values (?, ?) on conflict do nothing", [queue, at.now])


@serves(control.resume_queue)
def resume_queue(at: Transaction, queue: str) -> bool:
    """Resume a queue."""
    return at.change("delete from queues where name = ?", [queue]) > 0


@serves(settings.read_settings, writes=False)
def read_settings(at: Transaction) -> Mapping[str, Setting]:
    """Return every setting by key."""
    rows = at.all("select key, value, version from settings")
    return {row["key"]: Setting(json.loads(row["value"]), row["version"]) for row in rows}


@serves(settings.write_setting)
def write_setting(at: Transaction, key: str, value: str) -> int:
    """Set a setting."""
    text = (
        "insert into settings (key, value, version) "
        "values (?, ?, (select coalesce(max(version), 0) + 1 from settings)) "
        "on conflict (key) do update set value = excluded.value, version = excluded.version returning version"
    )
    return int(at.all(text, [key, value])[0]["version"])


def _require_filter(verb: str, missing: bool) -> None:  # noqa: FBT001 - it is what it asks
    if missing:
        msg = f"{verb} of all tasks at once is refused; give ids, a queue or a name"
        raise HarvestError(msg)


def _values(selection: Selection) -> dict[str, Any]:
    ids = None if selection.ids is None else json.dumps(list(selection.ids))
    return {"ids": ids, "queue": selection.queue, "activity": selection.activity}
