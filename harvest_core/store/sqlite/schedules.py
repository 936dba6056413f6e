"""Schedules on a file: written, read, fired, by the rules of `store.postgres.schedules`."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import attrs

from harvest_core.store.postgres import schedules
from harvest_core.store.postgres.enqueue import NewTask
from harvest_core.store.postgres.schedules import DueSchedule, Fired, Firing, NewSchedule, ScheduleStatus
from harvest_core.store.sqlite.database import Transaction, micros, moment, serves
from harvest_core.store.sqlite.tasks import enqueue_many

_TIMING = ("cron", "every", "timezone")
_LIVE = "select 1 from workers w, json_each(w.schedules) d where d.value = :name and w.beaten_at > :now - w.ttl limit 1"


@serves(schedules.put_schedules)
def put_schedules(at: Transaction, entries: Sequence[NewSchedule]) -> list[str]:
    """Write schedules that are new or changed, and return their names; what code declares is changed by code only."""
    return [new.name for new in entries if _put(at, new)]


def _put(at: Transaction, new: NewSchedule) -> bool:
    values: dict[str, Any] = attrs.asdict(new) | {"options": json.dumps(new.options), "declared": int(new.declared)}
    found = at.all("select * from schedules where name = ?", [new.name])
    old = found[0] if found else None
    if old is not None:
        same = all(old[column] == value for column, value in values.items())
        if (old["declared"] and not new.declared) or (same and old["undeclared_at"] is None):
            return False
    values |= {"version": _version(), "undeclared_at": None, "error": None}
    timing = old is None or any(old[column] != values[column] for column in _TIMING)
    counts = (at.now, at.now) if timing or old is None else (old["counts_from"], old["next_at"])
    values |= {"counts_from": counts[0], "next_at": counts[1]}
    columns, places = ", ".join(values), ", ".join(f":{column}" for column in values)
    changes = ", ".join(f"{column} = excluded.{column}" for column in values)
    at.change(
        f"insert into schedules ({columns}) values ({places}) on conflict (name) do update set {changes}",  # noqa: S608
        values,
    )
    return True


@serves(schedules.declare)
def declare(at: Transaction, worker_id: str, entries: Sequence[NewSchedule]) -> list[str]:
    """Have a worker declare schedules."""
    at.change("update workers set schedules = ? where id = ?", [json.dumps([one.name for one in entries]), worker_id])
    return put_schedules(at, entries)


@serves(schedules.due_schedules, writes=False)
def due_schedules(at: Transaction, batch: int, without: Sequence[int]) -> tuple[list[DueSchedule], float | None]:
    """Return what is due, and the seconds until the next."""
    rows = at.all(
        "select * from schedules where paused_at is null and undeclared_at is null and next_at is not null "
        "and version not in (select value from json_each(?)) order by next_at limit ?",
        [json.dumps(list(without)), batch + 1],
    )
    due = [row for row in rows if row["next_at"] <= at.now][:batch]
    later = [row["next_at"] for row in rows if row["next_at"] > at.now]
    found = [
        DueSchedule(
            *(row["name"], row["version"], row["cron"], row["every"], row["timezone"], row["catch_up"]),
            *(moment(row["next_at"]), moment(row["counts_from"]), moment(at.now)),
        )
        for row in due
    ]
    return found, (later[0] - at.now) / 1e6 if later else None


@serves(schedules.fire)
def fire(at: Transaction, firings: Sequence[Firing], *, notify: bool) -> dict[str, Fired]:  # noqa: ARG001
    """Enqueue ticks and move the schedules on, those still in the version named."""
    fired: dict[str, Fired] = {}
    for one in firings:
        text = "select * from schedules where name = ? and version = ? and paused_at is null"
        for row in at.all(text, [one.name, one.version]):
            if row["declared"] and not at.all(_LIVE, {"name": one.name, "now": at.now}):
                text = "update schedules set undeclared_at = ?, version = ? where name = ?"
                at.change(text, [at.now, _version(), one.name])
                continue
            fired[one.name] = (_enqueue_ticks(at, row, one.ticks), None)
            following = None if one.next_at is None else micros(one.next_at)
            text = "update schedules set next_at = ?, version = ? where name = ?"
            at.change(text, [following, _version(), one.name])
    return fired


def _enqueue_ticks(at: Transaction, row: Any, ticks: Sequence[datetime]) -> list[int]:
    """Enqueue as many ticks, oldest first, as the overlap policy leaves room for."""
    unfinished = at.all(
        "select id from tasks where id in (select value from json_each(?)) and finished_at is null",
        [row["task_ids"]],
    )
    if row["overlap"] != "allow":
        ticks = [] if unfinished else ticks[:1]
    if not ticks:
        return []
    options = json.loads(row["options"])
    new = NewTask(row["activity"], row["args"], row["kwargs"], traits=row["traits"], **options)
    made = [task for task, _ in enqueue_many(at, [attrs.evolve(new, scheduled_at=tick) for tick in ticks])]
    held = made[-1:] if row["overlap"] == "allow" else [*(task["id"] for task in unfinished), *made]
    text = "update schedules set last_at = ?, last_task_id = ?, task_ids = ? where name = ?"
    at.change(text, [micros(ticks[-1]), made[-1], json.dumps(held), row["name"]])
    return made


@serves(schedules.schedule_statuses, writes=False)
def schedule_statuses(at: Transaction) -> list[ScheduleStatus]:
    """Return every schedule by name."""
    return [_status(row) for row in at.all("select * from schedules order by name")]


@serves(schedules.schedule_status, writes=False)
def schedule_status(at: Transaction, name: str) -> ScheduleStatus | None:
    """Return a schedule."""
    return next((_status(row) for row in at.all("select * from schedules where name = ?", [name])), None)


def _status(row: Any) -> ScheduleStatus:
    found = {field.name: row[field.name] for field in attrs.fields(ScheduleStatus)}
    found |= {column: json.loads(row[column]) for column in ("args", "kwargs", "traits", "options")}
    found |= {column: moment(row[column]) for column in ("paused_at", "undeclared_at", "last_at")}
    known = row["next_at"] is not None and row["next_at"] > row["counts_from"]
    found |= {"declared": bool(row["declared"]), "next_at": moment(row["next_at"]) if known else None}
    return ScheduleStatus(**found)


@serves(schedules.pause_schedule)
def pause_schedule(at: Transaction, name: str) -> bool:
    """Pause a schedule; False where there is none."""
    text = "update schedules set paused_at = coalesce(paused_at, ?), version = ? where name = ?"
    return at.change(text, [at.now, _version(), name]) > 0


@serves(schedules.resume_schedule)
def resume_schedule(at: Transaction, name: str) -> bool:
    """Resume a schedule; False where none of that name is paused."""
    text = (
        "update schedules set paused_at = null, version = ?, counts_from = ?, next_at = ? "
        "where name = ? and paused_at is not null"
    )
    return at.change(text, [_version(), at.now, at.now, name]) > 0


@serves(schedules.delete_schedule)
def delete_schedule(at: Transaction, name: str) -> bool:
    """Remove a schedule; False where there is none, or where live workers would only declare it again."""
    text = f"delete from schedules where name = :name and not (declared and exists ({_LIVE}))"  # noqa: S608 - constant
    return at.change(text, {"name": name, "now": at.now}) > 0


@serves(schedules.trigger_schedule)
def trigger_schedule(at: Transaction, name: str, *, notify: bool) -> int | None:  # noqa: ARG001
    """Enqueue a task of a schedule now, if its overlap policy leaves room."""
    for row in at.all("select * from schedules where name = ?", [name]):
        return next(iter(_enqueue_ticks(at, row, [moment(at.now)])), None)
    return None


def _version() -> int:
    return secrets.randbits(62)
