"""The kernel's writes to tasks: claim, finish, retry, release, heartbeat, promote, rescue. Knows no policy.

Every write by a holder carries the token of its claim; what it returns is what it changed (rule K1).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import singledispatch
from typing import Any

import attrs
import psycopg
from psycopg.types.string import TextLoader

from harvest_core.claim.planner import Plan
from harvest_core.claim.statement import Statement, claim_statement
from harvest_core.model import Route
from harvest_core.read_only import read_only
from harvest_core.store.postgres.database import Database, UnreadableJson, loads_with_care, many_with_care


@attrs.frozen
class Claim:
    """One task in the hands of one worker, until its token is no longer the task's.

    Times are the database's; `start_to_close` and `heartbeat` are seconds or None; `turn` is relative to the newest
    turn before this claim; `fault` says why the task cannot be run, and is empty as a rule; `suspect`: a worker died
    while it ran the task.
    """

    route: Route
    id: int
    token: int
    attempt: int
    max_attempts: int
    priority: int
    scheduled_at: datetime
    enqueued_at: datetime
    start_to_close: float | None
    heartbeat: float | None
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    turn: int
    fault: str = ""
    suspect: bool = False


@attrs.frozen
class ClaimResult:
    """What a claim found.

    Args:
        claims: the tasks taken, in turn order.
        waiting: queues with a task left that this worker may take, rows that other claims hold included.
        registered: False where the worker's row is gone or its beat is overdue, in which case nothing was taken.
    """

    claims: tuple[Claim, ...]
    waiting: frozenset[str]
    registered: bool


@attrs.frozen
class Finished:
    """The end of a task: its state, result as JSON text, error and traceback."""

    state: str
    result: str | None = None
    error: str | None = None
    traceback: str | None = None


@attrs.frozen
class Retried:
    """Another attempt, after `wait` seconds."""

    wait: float
    error: str
    traceback: str | None = None


@attrs.frozen
class Released:
    """Given back untouched, the attempt restored."""


Outcome = Finished | Retried | Released

_FINISH = (
    "select * from {schema}.finish(%(ids)s::bigint[], %(tokens)s::bigint[], %(states)s::text[], "
    "(select array_agg(r.one -> 0 order by r.n) "
    "from jsonb_array_elements(%(results)s::jsonb) with ordinality r(one, n)), "
    "%(errors)b::text[], %(tracebacks)b::text[])"
)
_RETRY = (
    "select * from {schema}.retry(%(ids)s::bigint[], %(tokens)s::bigint[], %(waits)s::float8[], %(errors)b::text[], "
    "%(tracebacks)b::text[])"
)
_RELEASE = "select * from {schema}.release(%(ids)s::bigint[], %(tokens)s::bigint[])"


@singledispatch
async def take(database: Database, plan: Plan) -> ClaimResult:
    """Claim what a plan lets."""
    return await claim(database, claim_statement(plan, database.quoted))


async def claim(database: Database, statement: Statement) -> ClaimResult:
    """Run a claim."""
    async with database.connection() as connection:
        cursor = connection.cursor()
        cursor.adapters.register_loader("jsonb", TextLoader)
        await cursor.execute(statement.text.encode(), statement.values)
        rows = await cursor.fetchall()
    waiting, registered = rows[0][:2]
    return ClaimResult(_claims([row for row in rows if row[2] is not None]), frozenset(waiting or ()), registered)


def _claims(rows: Sequence[Sequence[Any]]) -> tuple[Claim, ...]:
    # One parse for all arguments, and one route for all tasks of it, take a quarter of the time that each apart takes.
    payloads = many_with_care([text for row in rows for text in row[11:13]])
    routes: dict[Sequence[Any], Route] = {}
    made = []
    for n, row in enumerate(rows):
        identity = row[14:18]
        route = routes.get(identity)
        if route is None:
            route = routes[identity] = made_route(row[14], row[15], row[16], loads_with_care(row[17]))
        made.append(made_claim(route, (*row[2:11], payloads[2 * n], payloads[2 * n + 1], row[13])))
    return tuple(made)


def made_route(queue: str, kind: str, name: str, traits: Any) -> Route:
    """Return the route of a claim, which has no use for its id; its traits are read-only, as tasks share it."""
    return Route(0, queue, kind, name, read_only(traits))


def made_claim(route: Route, values: Sequence[Any]) -> Claim:
    """Return a claim from its values, the route apart; one whose JSON cannot be read has a fault."""
    found = Claim(route, *values)
    unreadable = [value for value in (found.args, found.kwargs, route.traits) if isinstance(value, UnreadableJson)]
    if not unreadable:
        return found
    return attrs.evolve(
        found, route=attrs.evolve(route, traits={}), args=(), kwargs={}, fault=f"the task holds {unreadable[0]}"
    )


@singledispatch
async def write_outcomes(database: Database, outcomes: Sequence[tuple[Claim, Outcome]]) -> set[int]:
    """Write outcomes in batches by kind and return the ids written; an id that is missing was lost to another holder.

    A batch is all or nothing; writing it again is harmless, because a written claim's token is gone.
    """
    written: set[int] = set()
    for kind, text, columns in (
        (Finished, _FINISH, _finish_columns),
        (Retried, _RETRY, _retry_columns),
        (Released, _RELEASE, lambda _: {}),
    ):
        part = [(claim, outcome) for claim, outcome in outcomes if isinstance(outcome, kind)]
        part.sort(key=lambda one: one[0].id)  # as a cancel locks them
        if not part:
            continue
        values = {
            "ids": _array(str(claim.id) for claim, _ in part),
            "tokens": _array(str(claim.token) for claim, _ in part),
        }
        values.update(columns([outcome for _, outcome in part]))
        written |= {row[0] for row in await _fetch_finishing(database, text, values)}
    return written


@singledispatch
async def release_unknown(database: Database, worker_id: str, known: Collection[int]) -> int:
    """Give back claims that stand in a worker's name and that it does not know; return how many.

    A claim whose answer was lost on the way is such a one; while its worker lives, no rescue takes it.
    """
    text = (
        "select {schema}.release(array_agg(t.id order by t.id), array_agg(t.token order by t.id)) "
        "from {schema}.tasks t where t.state = 'running' and t.worker_id = %(worker)s::uuid "
        "and t.id <> all(%(known)s::bigint[]) having count(*) > 0"
    )
    return len(await database.fetch(text, {"worker": worker_id, "known": list(known)}))


@singledispatch
async def heartbeat(database: Database, claim: Claim, details: str | None) -> bool:
    """Prove that a claim's attempt lives; False when the claim was lost."""
    text = "select {schema}.heartbeat(%(id)s::bigint, %(token)s::bigint, %(details)s::text::jsonb)"
    return bool((await database.fetch(text, {"id": claim.id, "token": claim.token, "details": details}))[0][0])


PROMOTE_BATCH = 1000
"""Most tasks that one promotion moves."""


@attrs.frozen
class Promoted:
    """What a promotion found.

    Args:
        count: how many tasks became pending or entered their lane.
        next_due: seconds until the next task is due or a lane opens; None where none is scheduled.
        suspects: there are tasks whose worker died while it ran them.
        pending: there are pending tasks, of whatever queue and activity.
    """

    count: int
    next_due: float | None
    suspects: bool
    pending: bool = True


@singledispatch
async def promote(database: Database) -> Promoted:
    """Move due tasks to pending, or into their lanes."""
    return Promoted(*(await database.fetch("select * from {schema}.promote_due(%s::integer)", [PROMOTE_BATCH]))[0])


@attrs.frozen
class Rescued:
    """What a round of rescue did.

    Args:
        orphaned: claims of dead workers taken back.
        quarantined: tasks among them that failed because too many workers died while they ran it.
        timed_out: attempts that ran out of time.
        overdue: tasks that ended because they had not started in time.
    """

    orphaned: int
    quarantined: int
    timed_out: int
    overdue: int


@singledispatch
async def rescue(database: Database, batch: int = 1000, slack: float = 1.0, max_crashes: int = 3) -> Rescued:
    """Take back claims of dead workers and end what is out of time, at most batch of each kind."""
    text = "select * from {schema}.rescue_tasks(%s::integer, %s::float8, %s::integer)"
    return Rescued(*(await _fetch_finishing(database, text, [batch, slack, max_crashes]))[0])


@singledispatch
async def asked_to_stop(database: Database, worker_id: str) -> set[int]:
    """Return the tasks that a worker runs and that were cancelled."""
    text = (
        "select t.id from {schema}.tasks t "
        "where t.worker_id = %s::uuid and t.cancelled_at is not null and t.state = 'running'"
    )
    return {row[0] for row in await database.fetch(text, [worker_id])}


async def live_claims(database: Database, worker_id: str) -> dict[tuple[int, int], bool]:
    """Return the claims a worker holds, by task and token, each with whether it was cancelled."""
    text = (
        "select t.id, t.token, t.cancelled_at is not null from {schema}.tasks t "
        "where t.worker_id = %s::uuid and t.state = 'running'"
    )
    return {(task, token): asked for task, token, asked in await database.fetch(text, [worker_id])}


async def start_claims(database: Database, claims: Sequence[Claim]) -> list[Claim]:
    """Begin prefetched claims and return those that are still held, with their attempt."""
    in_order = sorted(claims, key=lambda claim: claim.id)  # as a cancel locks them
    values = {"ids": [claim.id for claim in in_order], "tokens": [claim.token for claim in in_order]}
    text = "select * from {schema}.start_claims(%(ids)s::bigint[], %(tokens)s::bigint[])"
    begun = {task: rest for task, *rest in await _fetch_finishing(database, text, values)}
    return [
        attrs.evolve(claim, attempt=begun[claim.id][0], start_to_close=begun[claim.id][1])
        for claim in claims
        if claim.id in begun
    ]


@singledispatch
async def extend_finished(database: Database, days: int = 7) -> int:
    """Make the partitions of `finished` for the days ahead; return how many were made."""
    return int((await database.fetch("select {schema}.extend_finished(%s::integer)", [days]))[0][0])


@singledispatch
async def prune_finished(database: Database, keep: float) -> int | None:
    """Drop the partitions of `finished` that are older than keep seconds; None where someone was in the way."""
    try:
        return int((await database.fetch("select {schema}.prune_finished(%s::float8)", [keep]))[0][0])
    except psycopg.errors.LockNotAvailable:
        return None


@singledispatch
async def remove_leftovers(database: Database) -> int:
    """Remove expired keys and the memory of idle lanes; return how many."""
    return int((await database.fetch("select {schema}.remove_leftovers()"))[0][0])


@singledispatch
async def remove_idle_routes(database: Database) -> int | None:
    """Remove routes without tasks; None where an open enqueue was in the way, in which case nothing changed."""
    async with database.connection() as connection, connection.transaction():
        await connection.execute("set local lock_timeout = '50ms'")
        try:
            async with connection.transaction():
                cursor = await connection.execute(database.text("select {schema}.remove_idle_routes()"))
                row = await cursor.fetchone()
        except psycopg.errors.LockNotAvailable:
            return None
    return int(row[0]) if row else None


async def _fetch_finishing(database: Database, text: str, values: Any) -> list[tuple[Any, ...]]:
    try:
        return await database.fetch(text, values)
    except psycopg.errors.CheckViolation:  # today's partition of `finished` is missing
        await extend_finished(database)
        return await database.fetch(text, values)


def _finish_columns(outcomes: Sequence[Any]) -> dict[str, Any]:
    return {
        "states": _array(outcome.state for outcome in outcomes),
        # Already JSON: one text of all, each in brackets, since none at all is not null.
        "results": "[" + ",".join([f"[{outcome.result or ''}]" for outcome in outcomes]) + "]",
        "errors": _texts(outcome.error for outcome in outcomes),
        "tracebacks": _texts(outcome.traceback for outcome in outcomes),
    }


def _array(plain: Iterable[str]) -> str:
    """Return an array of elements without quotes as PostgreSQL writes it; the driver takes eight times as long."""
    return f"{{{','.join(plain)}}}"


def _texts(texts: Iterable[str | None]) -> list[str | None] | None:
    found = list(texts)
    return found if any(text is not None for text in found) else None


def _retry_columns(outcomes: Sequence[Any]) -> dict[str, Any]:
    return {
        "waits": [outcome.wait for outcome in outcomes],
        "errors": [outcome.error for outcome in outcomes],
        "tracebacks": [outcome.traceback for outcome in outcomes],
    }
