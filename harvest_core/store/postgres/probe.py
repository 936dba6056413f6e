"""Try every clause on the database before a worker claims with it, and find the routes on which one raises.

Each clause is prepared alone, where the protocol takes one statement only, in a read-only transaction that is rolled
back, wrapped as the claim wraps it and bare; then its parse tree is searched; then it judges present and sample routes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from harvest_core.claim.statement import clause_text, clause_values
from harvest_core.model import Attributed, Json
from harvest_core.store.postgres.database import Database

_Connection = psycopg.AsyncConnection[tuple[Any, ...]]
_FUNCTION = re.compile(r":(?:op)?funcid (\d+)")
_RELATION = re.compile(r":relid (\d+)")
_ROUTES = (
    "(select id, queue, kind, name, traits from {schema}.routes union all "
    "select 0, 'default', 'activity', 'sample', s.traits from unnest(%(samples)s::text[]::jsonb[]) s(traits)) r"
)


async def refusals(
    database: Database, clauses: Sequence[Attributed], samples: Mapping[str, Sequence[Json]]
) -> list[tuple[Attributed, str]]:
    """Return the clauses that cannot be used, each with the reason.

    Args:
        database: where to try them; nothing stays written.
        clauses: the clauses of one worker's claim.
        samples: by plugin slug, traits to try its clauses on beside those of the present routes.
    """
    found: list[tuple[Attributed, str]] = []
    if not clauses:
        return found
    async with database.connection_of_its_own() as connection:
        for clause in clauses:
            traits = [{}, *({clause.plugin: trait} for trait in samples.get(clause.plugin, ()))]
            if reason := await _fault(database, connection, clause, [json.dumps(trait) for trait in traits]):
                found.append((clause, reason))
    return found


async def raising_routes(database: Database, clauses: Sequence[Attributed]) -> Mapping[int, str]:
    """Return the ids of routes on which a clause raises or is NULL, with plugin and reason: they stay closed."""
    found: dict[int, str] = {}
    async with database.connection_of_its_own() as connection:
        routes = [row[0] for row in await _all(connection, database.text("select id from {schema}.routes"))]
        for clause in clauses:
            found.update(await _raising(database, connection, clause, routes))
    return found


async def _raising(
    database: Database, connection: _Connection, clause: Attributed, routes: Sequence[int]
) -> Mapping[int, str]:
    """Judge many routes in one query; halve them where it raises."""
    where = f"from {database.quoted}.routes r where r.id = any(%(probed_routes)s::bigint[])"
    text = f"select r.id, (\n{clause_text(clause)}\n) {where}"
    try:
        rows = await _all(connection, text.encode(), {**clause_values(clause), "probed_routes": list(routes)})
    except psycopg.Error as error:
        if len(routes) <= 1:
            return dict.fromkeys(routes, f"{clause.plugin}: {_sentence(error)}")
        half = len(routes) // 2
        first = await _raising(database, connection, clause, routes[:half])
        return {**first, **await _raising(database, connection, clause, routes[half:])}
    return {route: f"{clause.plugin}: the clause is NULL" for route, verdict in rows if verdict is None}


async def _fault(database: Database, connection: _Connection, clause: Attributed, samples: Sequence[str]) -> str:
    wrapped, bare, values = f"(\n{clause_text(clause)}\n)", f"\n{clause_text(clause)}\n", clause_values(clause)
    source = _ROUTES.replace("{schema}", database.quoted)
    try:
        async with connection.transaction(force_rollback=True):
            await connection.execute("set local transaction read only")
            await connection.execute("set local statement_timeout = '5s'")
            for text in (wrapped, bare):
                query = f"select {text} from {source} limit 0"
                await connection.execute(query.encode(), {**values, "samples": []}, prepare=True)
        async with connection.transaction(force_rollback=True):
            await connection.execute("set local statement_timeout = '5s'")
            if fault := await _tree_fault(database, connection, clause):
                return fault
        async with connection.transaction(force_rollback=True):
            await connection.execute("set local transaction read only")
            await connection.execute("set local statement_timeout = '5s'")
            query = f"select r.traits::text from {source} where {wrapped} is null limit 1"
            rows = await _all(connection, query.encode(), {**values, "samples": list(samples)})
    except psycopg.Error as error:
        return f"cannot be used: {_sentence(error)}"
    except (UnicodeError, ValueError, TypeError) as error:  # the driver cannot send a value
        return f"cannot be used: {error}"
    return f"is NULL for the traits {rows[0][0]}; write (…) is true or coalesce(…, false)" if rows else ""


async def _tree_fault(database: Database, connection: _Connection, clause: Attributed) -> str:
    """Search the parse tree, which is not simplified yet, for volatile functions and other relations."""
    # A view takes no parameters: NULL stands for each value, whose type the clause's own casts give.
    text = clause_text(clause)
    for name in clause_values(clause):
        text = text.replace(f"%({name})s", "null")
    text = text.replace("%%", "%")
    view = (
        f"create temporary view harvest_probe as select (\n{text}\n) is true as verdict from {database.quoted}.routes r"
    )
    await connection.execute(view.encode(), prepare=True)
    rows = await _all(
        connection,
        b"select ev_action::text, (select to_regclass(%s)::oid::bigint) from pg_rewrite "
        b"where ev_class = 'pg_temp.harvest_probe'::regclass",
        [f"{database.quoted}.routes"],
    )
    tree, routes = rows[0]
    others = {int(oid) for oid in _RELATION.findall(tree)} - {0, routes}
    rows = await _all(
        connection,
        b"select distinct relname from pg_class where oid = any(%s) and relname <> 'harvest_probe'",
        [list(others)],
    )
    if rows or "{SUBLINK" in tree:
        return f"reads {rows[0][0] if rows else 'a subquery'}; it may read nothing but r"
    functions = sorted({int(oid) for oid in _FUNCTION.findall(tree)})
    rows = await _all(connection, b"select proname from pg_proc where oid = any(%s) and provolatile = 'v'", [functions])
    return f"calls the volatile function {rows[0][0]}; it may depend on the route and its values only" if rows else ""


async def _all(connection: _Connection, text: bytes, values: Any = None) -> list[tuple[Any, ...]]:
    return await (await connection.execute(text, values)).fetchall()


def _sentence(error: psycopg.Error) -> str:
    return (error.diag.message_primary or str(error)).strip()
