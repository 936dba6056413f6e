"""Whole claims over given routes on a real PostgreSQL, rolled back: what a set of policies lets a worker take."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import psycopg

from harvest_core.claim.planner import Plan, plan
from harvest_core.claim.statement import claim_statement, verdict_statement
from harvest_core.model import Route, Tick
from harvest_core.plugin import Plugin
from harvest_core.policies import Policies

SCHEMA = '"harvest"'

_ROUTES = """
insert into harvest.routes (queue, kind, name, traits)
select i.queue, i.kind, i.name, i.traits
from unnest(%s::text[], %s::text[], %s::text[], %s::text[]::jsonb[]) with ordinality i(queue, kind, name, traits, n)
order by i.n returning id
"""
_TASKS = """
insert into harvest.tasks (route_id, scheduled_at, priority, max_attempts, state, args, kwargs)
select id, now(), 0, 1, 'pending', '[]', '{}' from unnest(%s::bigint[]) id
"""
_WORKER = """
insert into harvest.workers (id, name, queues, activities, concurrency, plugins, facts, live, ttl, host, pid)
values (%s, 'worker', '{}', '{}', 1, '{}', '{}', '{}', 30, 'host', 1)
"""


@attrs.frozen
class Judged:
    """What a claim and its clauses said of one route.

    Args:
        route: the route as the database gives it back, its id included.
        taken: whether the claim took the task on this route.
        verdicts: each clause's verdict on it as a column, in the order of `plan(...).clauses`.
        words: each clause's reasons against it, in the same order.
    """

    route: Route
    taken: bool
    verdicts: tuple[bool | None, ...]
    words: tuple[tuple[str, ...], ...]


class ClaimRunner:
    """Claims from one task on each of the given routes, in a transaction that is rolled back.

    Attributes:
        dsn: of its database.
    """

    def __init__(self, dsn: str, connection: psycopg.Connection[Any]) -> None:
        self.dsn, self._connection = dsn, connection

    @classmethod
    @contextmanager
    def on(cls, dsn: str) -> Iterator[ClaimRunner]:
        """Give a runner on a database with a migrated schema `harvest` that nobody else uses."""
        with psycopg.connect(dsn, autocommit=True, prepare_threshold=1) as connection:
            yield cls(dsn, connection)

    def judge(
        self,
        plugins: Sequence[Plugin],
        tick: Tick,
        routes: Sequence[Route],
        *,
        workflows: frozenset[str] = frozenset(),
        closed: Sequence[int] = (),
    ) -> list[Judged]:
        """Return for each route, in order, what the claim that the plugins make of the tick does with it.

        Args:
            plugins: the enabled plugins, in order.
            tick: the tick to claim for; as many tasks are asked for as there are routes, whatever `tick.free` says.
            routes: the routes; their ids are not used.
            workflows: names among the worker's activities that are workflows.
            closed: positions in routes of those that are kept closed, as after an error on them.

        Raises:
            HookError: a hook raised or broke its law.
            psycopg.Error: a clause cannot be used, or raises on a route.
        """
        policies = Policies.of({plugin.slug: plugin for plugin in plugins})
        asking = attrs.evolve(tick, free=max(1, len(routes)))
        with self._connection.transaction(force_rollback=True):
            ids = self._write(asking, routes)
            planned = plan(policies, asking, workflows, tuple(ids[position] for position in closed))
            verdicts = self._verdicts(planned, ids)
            taken = self._taken(planned)
        judged = []
        for number in ids:
            route, columns = verdicts[number]
            words = tuple(tuple(clause.clause.reasons(route)) for clause in planned.clauses)
            judged.append(Judged(route, number in taken, columns, words))
        return judged

    def taken(self, plugins: Sequence[Plugin], tick: Tick, routes: Sequence[Route], **options: Any) -> frozenset[int]:
        """Return the positions of the routes whose tasks the claim takes; arguments as of `judge`."""
        judged = self.judge(plugins, tick, routes, **options)
        return frozenset(position for position, one in enumerate(judged) if one.taken)

    def _write(self, tick: Tick, routes: Sequence[Route]) -> list[int]:
        rows = self._connection.execute(
            _ROUTES,
            [
                [route.queue for route in routes],
                [route.kind for route in routes],
                [route.name for route in routes],
                [json.dumps(route.traits, allow_nan=False) for route in routes],
            ],
        )
        ids = sorted(row[0] for row in rows)
        self._connection.execute(_TASKS, [ids])
        self._connection.execute(_WORKER, [tick.worker.id])
        return ids

    def _verdicts(self, planned: Plan, ids: Sequence[int]) -> dict[int, tuple[Route, tuple[bool | None, ...]]]:
        statement = verdict_statement(planned.clauses, SCHEMA, ids)
        rows = self._connection.execute(statement.text.encode(), statement.values)
        return {row[0]: (Route(*row[:5]), tuple(row[5:])) for row in rows}

    def _taken(self, planned: Plan) -> frozenset[int]:
        statement = claim_statement(planned, SCHEMA)
        count = len(self._connection.execute(statement.text.encode(), statement.values).fetchall())
        rows = self._connection.execute("select route_id from harvest.tasks where state = 'running'").fetchall()
        if rows and len(rows) != count:
            msg = f"the claim returned {count} rows and took {len(rows)} tasks"
            raise AssertionError(msg)
        return frozenset(row[0] for row in rows)
