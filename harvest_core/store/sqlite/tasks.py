"""Enqueue, claim, outcomes and rescue on a file, by the rules of `store.postgres`: a token fences every write (K1)."""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Collection, Sequence
from typing import Any

from harvest_core.claim.planner import Plan
from harvest_core.errors import BackendError, KeyTakenError
from harvest_core.model import Turn
from harvest_core.store.backend import SQLITE
from harvest_core.store.postgres import enqueue, tasks
from harvest_core.store.postgres.database import loads_with_care
from harvest_core.store.postgres.enqueue import NewTask
from harvest_core.store.postgres.tasks import Claim, ClaimResult, Finished, Outcome, Promoted, Released, Rescued
from harvest_core.store.sqlite.database import Transaction, micros, moment, serves, span

_INSERT = (
    "insert into tasks (queue, name, traits, priority, state, max_attempts, scheduled_at, enqueued_at, key, "
    "start_to_close, heartbeat, args, kwargs) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) returning id"
)
_READY = (
    "select * from tasks where queue = :queue and state = :pool and name in (select value from json_each(:names)) "
    "order by priority desc, scheduled_at, id limit :most"
)
_END = (
    "update tasks set state = ?1, result = ?2, error = iif(?1 = 'completed', null, coalesce(?3, error)), "
    "traceback = iif(?1 = 'completed', null, coalesce(?4, traceback)), "
    "finished_at = ?5, token = null, cancelled_at = null where id = ?6"
)
_BACK = "state = iif(crashes > 0, 'suspect', 'pending'), token = null, worker_id = null"


@serves(enqueue.enqueue_many)
def enqueue_many(at: Transaction, batch: Sequence[NewTask], *, notify: bool = False) -> list[tuple[int, bool]]:  # noqa: ARG001
    """Write tasks, all or none; nobody is woken."""
    return [_enqueue(at, place, new) for place, new in enumerate(batch, 1)]


def _enqueue(at: Transaction, place: int, new: NewTask) -> tuple[int, bool]:
    if new.key is not None:
        holders = at.all("select id from tasks where name = ? and key = ? and finished_at is null", [new.name, new.key])
        if holders and new.on_conflict == "raise":
            msg = f"task {place} ({new.name}): its key is taken by task {holders[0]['id']}; nothing was written"
            raise KeyTakenError(msg)
        if holders:
            return holders[0]["id"], False
    due = (at.now if new.scheduled_at is None else micros(new.scheduled_at)) + span(new.delay or 0)
    values = (
        *(new.queue or "default", new.name, new.traits, new.priority or 0),
        *("scheduled" if due > at.now else "pending", new.max_attempts or 5, due, at.now, new.key),
        *(new.start_to_close, new.heartbeat, new.args, new.kwargs),
    )
    return at.all(_INSERT, values)[0]["id"], True


@serves(tasks.take)
def take(at: Transaction, plan: Plan) -> ClaimResult:
    """Claim what a plan lets: queues by tier and turn, the rows of each by priority, time and id (K2, W3)."""
    if plan.clauses or plan.partial:
        raise BackendError(SQLITE.refusal("a clause, or a skip with an exception"))
    if not at.all("select 1 from workers where id = ? and beaten_at > ? - ttl", [plan.worker, at.now]):
        return ClaimResult((), frozenset(), registered=False)
    paused = {row["name"] for row in at.all("select name from queues")}
    turns = plan.turns or [Turn(queue, 0, 0, 0) for queue in plan.queues]
    found, names = [], json.dumps(plan.activities)
    for turn in turns:
        if turn.queue in paused:
            continue
        most = plan.free if turn.most is None else min(turn.most, plan.free)
        ready = {"queue": turn.queue, "pool": plan.pool, "names": names, "most": most + 1}
        for count, row in enumerate(at.all(_READY, ready), 1):
            order = (turn.tier, turn.start + count * turn.step, -row["priority"], row["scheduled_at"], row["id"])
            found.append((order, row, count <= most))
    found.sort(key=lambda entry: entry[0])
    chosen = [(order, row) for order, row, allowed in found if allowed][: plan.free]
    token, taken = secrets.randbits(62), {row["id"] for _, row in chosen}
    at.change(
        "update tasks set state = 'running', attempt = attempt + 1, claimed_at = ?, worker_id = ?, token = ? "
        "where id in (select value from json_each(?))",
        [at.now, plan.worker, token, json.dumps(sorted(taken))],
    )
    waiting = frozenset(row["queue"] for _, row, _ in found if row["id"] not in taken)
    return ClaimResult(tuple(_claim(row, token, order[1]) for order, row in chosen), waiting, registered=True)


def _claim(row: Any, token: int, turn: int) -> Claim:
    route = tasks.made_route(row["queue"], "activity", row["name"], loads_with_care(row["traits"]))
    values = (
        *(row["id"], token, row["attempt"] + 1, row["max_attempts"], row["priority"], moment(row["scheduled_at"])),
        *(moment(row["enqueued_at"]), row["start_to_close"], row["heartbeat"]),
        *(loads_with_care(row["args"]), loads_with_care(row["kwargs"]), turn),
    )
    return tasks.made_claim(route, values)


@serves(tasks.write_outcomes)
def write_outcomes(at: Transaction, outcomes: Sequence[tuple[Claim, Outcome]]) -> set[int]:
    """Write outcomes; a claim whose token is no longer its task's changes nothing."""
    return {claim.id for claim, outcome in outcomes if _written(at, claim, outcome)}


def _written(at: Transaction, claim: Claim, outcome: Outcome) -> bool:
    held = at.all("select id, cancelled_at from tasks where id = ? and token = ?", [claim.id, claim.token])
    if not held:
        return False
    if isinstance(outcome, Finished):
        end(at, claim.id, outcome.state, outcome.error, outcome.result, outcome.traceback)
    elif isinstance(outcome, Released) or held[0]["cancelled_at"] is not None:
        _give_back(at, held[0])
    else:
        at.change(
            "update tasks set state = 'scheduled', scheduled_at = ?, token = null, worker_id = null, error = ?, "
            "traceback = ? where id = ?",
            [at.now + span(outcome.wait), outcome.error, outcome.traceback, claim.id],
        )
    return True


def end(
    at: Transaction,
    task: int,
    state: str,
    error: str | None = None,
    result: str | None = None,
    traceback: str | None = None,
) -> None:
    """End a task; an error or a traceback that is not given stays as it was, but a completed task has none."""
    at.change(_END, [state, result, error, traceback, at.now, task])


@serves(tasks.heartbeat)
def heartbeat(at: Transaction, claim: Claim, details: str | None) -> bool:
    """Keep details; False when the claim was lost."""
    text = "update tasks set details = coalesce(?, details) where id = ? and token = ?"
    return at.change(text, [details, claim.id, claim.token]) > 0


@serves(tasks.promote)
def promote(at: Transaction) -> Promoted:
    """Move due tasks to pending."""
    count = at.change("update tasks set state = 'pending' where state = 'scheduled' and scheduled_at <= ?", [at.now])
    ((due,),) = at.all("select min(scheduled_at) from tasks where state = 'scheduled'")
    suspects = bool(at.all("select 1 from tasks where state = 'suspect' limit 1"))
    # A full batch would mean that there may be more; here none is left.
    return Promoted(min(count, tasks.PROMOTE_BATCH - 1), None if due is None else (due - at.now) / 1e6, suspects)


@serves(tasks.rescue)
def rescue(at: Transaction, batch: int = 1000, slack: float = 1.0, max_crashes: int = 3) -> Rescued:  # noqa: ARG001
    """Take back the claims of workers that are gone; one that died leaves a suspect, or a quarantined task."""
    lost = at.all(
        "select t.id, t.cancelled_at, t.crashes + (w.id is not null) as crashes from tasks t "
        "left join workers w on w.id = t.worker_id "
        "where t.state = 'running' and (w.id is null or w.beaten_at <= ? - w.ttl)",
        [at.now],
    )
    orphaned = quarantined = 0
    for task in lost:
        if task["cancelled_at"] is not None:
            end(at, task["id"], "cancelled")
        elif task["crashes"] >= max_crashes:
            text = f"quarantined: {task['crashes']} workers died while they ran it; find out why before it is retried"
            end(at, task["id"], "failed", f"{text} by hand")
            quarantined += 1
        else:
            at.change("update tasks set crashes = ? where id = ?", [task["crashes"], task["id"]])
            at.change("update tasks set " + _BACK + " where id = ?", [task["id"]])  # noqa: S608
            orphaned += 1
    at.change("delete from workers where beaten_at <= ? - ttl", [at.now])
    return Rescued(min(orphaned, batch - 1), min(quarantined, batch - 1), 0, 0)  # a full batch would ask for another


@serves(tasks.release_unknown)
def release_unknown(at: Transaction, worker_id: str, known: Collection[int]) -> int:
    """Give back claims in a worker's name that it does not know."""
    unknown = at.all(
        "select id, cancelled_at from tasks where worker_id = ? and state = 'running' "
        "and id not in (select value from json_each(?))",
        [worker_id, json.dumps(sorted(known))],
    )
    for task in unknown:
        _give_back(at, task)
    return len(unknown)


def _give_back(at: Transaction, task: sqlite3.Row) -> None:
    if task["cancelled_at"] is not None:
        end(at, task["id"], "cancelled")
    else:
        text = "update tasks set attempt = attempt - 1, claimed_at = null, " + _BACK + " where id = ?"  # noqa: S608
        at.change(text, [task["id"]])


@serves(tasks.asked_to_stop, writes=False)
def asked_to_stop(at: Transaction, worker_id: str) -> set[int]:
    """Return the tasks that a worker runs and that were cancelled."""
    text = "select id from tasks where worker_id = ? and state = 'running' and cancelled_at is not null"
    return {row["id"] for row in at.all(text, [worker_id])}


@serves(tasks.prune_finished)
def prune_finished(at: Transaction, keep: float) -> int:
    """Remove the tasks that ended longer ago than keep seconds."""
    return at.change("delete from tasks where finished_at < ?", [at.now - span(keep)])


@serves(tasks.extend_finished, writes=False)
@serves(tasks.remove_leftovers, writes=False)
@serves(tasks.remove_idle_routes, writes=False)
def nothing(at: Transaction) -> int:  # noqa: ARG001
    """Do nothing: a file has no partitions, lanes and routes."""
    return 0
