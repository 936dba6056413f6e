"""One clause over given routes on a real PostgreSQL, in the claim's own text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import psycopg

from harvest_core.claim.statement import clause_text, clause_values
from harvest_core.model import Attributed, Clause, Route

_ROUTES = """(
    select i.id, i.queue, i.kind, i.name, i.traits, i.n
    from unnest(%(ids)s::bigint[], %(queues)s::text[], %(kinds)s::text[], %(names)s::text[], %(traits)s::jsonb[])
        with ordinality i(id, queue, kind, name, traits, n)
) r"""


class ClauseRunner:
    """Judges routes by a clause as the claim would; the probe's restrictions on clauses do not apply.

    Args:
        connection: to any PostgreSQL, in autocommit; nothing is written.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def verdict(self, clause: Clause, route: Route) -> bool:
        """Return whether the clause admits a route; raises as `verdicts` does."""
        return self.verdicts(clause, [route])[0]

    def verdicts(self, clause: Clause, routes: Sequence[Route]) -> list[bool]:
        """Return for each route whether the clause admits it.

        Raises:
            AssertionError: the clause is NULL for a route; names it.
            psycopg.Error: the clause cannot be used, or raises on a route.
        """
        attributed = Attributed("clause", clause)
        text = f"select (\n{clause_text(attributed)}\n) from {_ROUTES} order by r.n"  # noqa: S608 - the clause under test
        values = {
            **clause_values(attributed),
            "ids": [route.id for route in routes],
            "queues": [route.queue for route in routes],
            "kinds": [route.kind for route in routes],
            "names": [route.name for route in routes],
            "traits": [json.dumps(route.traits, allow_nan=False) for route in routes],
        }
        found = [row[0] for row in self._connection.execute(text.encode(), values)]
        for route, verdict in zip(routes, found, strict=True):
            if not isinstance(verdict, bool):
                said = "NULL" if verdict is None else repr(verdict)
                msg = f"the clause {clause.sql.strip()!r} is {said} for {route}"
                raise AssertionError(msg)
        return found
