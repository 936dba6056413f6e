"""Why is this task not running? Judged for each live worker by the claim's own hooks and clauses (rule O3).

Where this process lacks a plugin that the worker has, that plugin's verdict is "not judged", and the worker is never
called eligible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs
import psycopg

from harvest_core.claim.statement import verdict_statement
from harvest_core.errors import HookError, TaskNotFoundError
from harvest_core.model import Attributed, Budget, Clause, Route, Skip, Tick
from harvest_core.policies import Policies
from harvest_core.store.postgres import inspect as views
from harvest_core.store.postgres.database import Database
from harvest_core.store.postgres.inspect import TaskStatus
from harvest_core.store.postgres.workers import WorkerRow, live_workers

ALLOWS, REFUSES, NOT_JUDGED = "allows", "refuses", "not judged"


@attrs.frozen
class Verdict:
    """What the kernel or one plugin says of a task and a worker.

    Args:
        by: `kernel` or the plugin's slug.
        verdict: `allows`, `refuses` or `not judged`.
        reasons: why not, as `code` or `code:detail`; empty where it allows.
    """

    by: str
    verdict: str
    reasons: tuple[str, ...] = ()


@attrs.frozen
class WorkerVerdict:
    """Whether one live worker may take the task.

    Args:
        worker_id: id of the worker's row.
        worker_name: its label.
        eligible: True, False, or None where something is not judged and nothing refuses.
        verdicts: the kernel's and each of its plugins'.
        free: its free slots.
        facts_age: seconds since the live facts it is judged by were observed.
    """

    worker_id: str
    worker_name: str
    eligible: bool | None
    verdicts: tuple[Verdict, ...]
    free: int
    facts_age: float


@attrs.frozen
class Explanation:
    """The answer: the task as it stands, one sentence, and each live worker's verdicts."""

    task: TaskStatus
    summary: str
    workers: tuple[WorkerVerdict, ...]


async def explain(database: Database, policies: Policies, task_id: int) -> Explanation:
    """Return why a task is not running, or what it does instead.

    Args:
        database: where the task is.
        policies: the policies this process has enabled.
        task_id: its id.

    Raises:
        TaskNotFoundError: no task of that id is known.
    """
    task = await views.task_status(database, task_id)
    if task is None:
        msg = f"task {task_id} is not known: it was never enqueued here, or its retention has passed"
        raise TaskNotFoundError(msg)
    if task.route_id is None:
        return Explanation(task, _sentence(task, ()), ())
    paused = await views.paused_queues(database)
    route = Route(task.route_id, task.queue, task.kind, task.name, task.traits)
    rows = await live_workers(database)
    due_for = await views.due_for(database, task_id)
    workers = [await _judge(database, policies, row, rows, route, paused, due_for) for row in rows]
    occupants = await views.lane_occupants(database, task.lane) if task.state == "blocked" and task.lane else []
    return Explanation(task, _sentence(task, workers, due_for, occupants), tuple(workers))


async def _judge(
    database: Database,
    policies: Policies,
    row: WorkerRow,
    rows: Sequence[WorkerRow],
    route: Route,
    paused: frozenset[str],
    due_for: float,
) -> WorkerVerdict:
    own = policies.only(row.plugins)
    # As in a claim: whoever needs no peers sees none.
    peers = tuple(other.peer for other in rows if own.needs_peers() and other is not row)
    tick = Tick(row.worker, max(1, row.peer.free), row.live, peers=peers)
    verdicts = [_kernel(row, route, paused)]
    for slug in row.plugins:
        if slug in own.plugins:
            verdicts.append(await _policy(database, own, slug, tick, route, due_for))
        else:
            verdicts.append(Verdict(slug, NOT_JUDGED, (f"not_enabled_here:{slug}",)))
    found = {verdict.verdict for verdict in verdicts}
    eligible = False if REFUSES in found else None if NOT_JUDGED in found else True
    return WorkerVerdict(row.worker.id, row.worker.name, eligible, tuple(verdicts), row.peer.free, row.live_age)


def _kernel(row: WorkerRow, route: Route, paused: frozenset[str]) -> Verdict:
    reasons = []
    if route.queue not in row.worker.queues:
        reasons.append(f"queue_not_polled:{route.queue}")
    if route.name not in row.worker.activities:
        reasons.append(f"name_not_registered:{route.name}")
    if route.queue in paused:
        reasons.append(f"queue_paused:{route.queue}")
    if row.draining:
        reasons.append("worker_draining")
    return Verdict("kernel", REFUSES if reasons else ALLOWS, tuple(reasons))


async def _policy(
    database: Database, policies: Policies, slug: str, tick: Tick, route: Route, due_for: float
) -> Verdict:
    reasons: list[str] = []
    try:
        if route.kind == "activity":  # no policy skips a workflow
            for skip in policies.skips_of(slug, tick):
                if skip.activity == route.name and await _refuses(database, policies, tick, skip, due_for):
                    reasons += skip.reasons
        for clause in policies.clauses_of(slug, tick):
            if not await _admits(database, slug, clause, route):
                reasons += tuple(clause.reasons(route)) or (f"refused_by_clause:{slug}",)
    except HookError as error:
        return Verdict(slug, REFUSES, (f"cannot_be_judged:{error.hook} {error.detail}",))
    except psycopg.DataError as error:
        return Verdict(slug, REFUSES, (f"clause_raises:{str(error).strip()}",))
    return Verdict(slug, REFUSES if reasons else ALLOWS, tuple(dict.fromkeys(reasons)))


async def _refuses(database: Database, policies: Policies, tick: Tick, skip: Skip, due_for: float) -> bool:
    """Return whether a skip refuses a task that has been due for so many seconds, or for a negative number not yet."""
    is_old = skip.unless_older is not None and due_for >= skip.unless_older
    is_young = skip.unless_younger is not None and due_for < skip.unless_younger
    if is_old or is_young:
        return False
    if isinstance(budget := skip.at_most, Budget):
        sharing = [other.activity for _, other in policies.skips(tick) if other.at_most == budget]
        return await views.budget_room(database, budget, sharing) <= 0
    return not budget


async def _admits(database: Database, slug: str, clause: Clause, route: Route) -> bool:
    statement = verdict_statement([Attributed(slug, clause)], database.quoted, [route.id])
    rows = await database.fetch(statement.text, statement.values)
    return bool(rows and rows[0][5])


def _sentence(
    task: TaskStatus, workers: Sequence[WorkerVerdict], due_for: float = 0.0, occupants: Sequence[int] = ()
) -> str:
    if task.finished:
        return f"it is {task.state}" + (f": {task.error}" if task.error and task.state != "completed" else "")
    if task.state == "running":
        name = next((worker.worker_name for worker in workers if worker.worker_id == task.worker_id), task.worker_id)
        asked = f"; it was asked to stop ({task.error}) and has not ended yet" if task.stopping else ""
        return f"it is running, attempt {task.attempt}, on worker {name}{asked}"
    if task.state == "scheduled" and due_for < 0:
        wait = -due_for
        cause = f"attempt {task.attempt} failed ({task.error}); the next" if task.attempt else "the first attempt"
        return f"{cause} is due in {wait:.0f} s"
    if task.state == "blocked":
        held = f"taken by task {', '.join(map(str, occupants))}" if occupants else "not open yet"
        return f"it waits for its lane {task.lane!r}, which is {held}"
    if task.state == "suspect":
        died = f"{task.crashes} worker{'s' if task.crashes != 1 else ''} died while running it"
        return f"{died}, so a worker takes it only while it runs no other such task; {_pending_sentence(workers)}"
    return _pending_sentence(workers)


def _pending_sentence(workers: Sequence[WorkerVerdict]) -> str:
    if not workers:
        return "no worker is alive"
    eligible = [worker for worker in workers if worker.eligible]
    if idle := [worker for worker in eligible if worker.free]:
        return f"{len(idle)} of {len(workers)} live workers may take it and have free slots; it is taken in its turn"
    if eligible:
        return f"{len(eligible)} of {len(workers)} live workers may take it, and all their slots are busy"
    causes = Counter(reason for worker in workers for reason in _refusals(worker))
    listed = ", ".join(f"{count} x {reason}" for reason, count in causes.most_common())
    unknown = sum(worker.eligible is None for worker in workers)
    if unknown:
        listed += f"{', ' if listed else ''}{unknown} not judged here"
    return f"none of {len(workers)} live workers may take it: {listed}{_nearest(workers)}"


def _nearest(workers: Sequence[WorkerVerdict]) -> str:
    """Name the worker that the fewest reasons keep off, and these; nothing where no other could be nearer (CAP6)."""
    refused = [(worker.worker_name, _refusals(worker)) for worker in workers if worker.eligible is False]
    if len(workers) < 2 or not refused:
        return ""
    name, reasons = min(refused, key=lambda one: (len(one[1]), one[0]))
    return f"; the nearest is {name}, but for {' and '.join(reasons)}"


def _refusals(worker: WorkerVerdict) -> list[str]:
    return [reason for verdict in worker.verdicts if verdict.verdict == REFUSES for reason in verdict.reasons]
