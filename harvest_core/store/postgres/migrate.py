"""Bring a database's schema to this version. Safe to run twice and from several processes at once.

Migrations change tables and are never edited once released; `functions/` holds every function as this version has it,
replaced together with the last migration. A function's old signature stays while workers of the version before call it.
`script` returns the same as plain SQL.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from importlib.resources import files

import psycopg
from psycopg import sql

from harvest_core.errors import MissingRightError, SchemaError
from harvest_core.store.postgres.database import LOCAL, Database

MIGRATIONS = tuple(
    sorted(
        (int(entry.name[:4]), entry.name.removesuffix(".sql"), entry.read_text(encoding="utf-8"))
        for entry in files(__package__).joinpath("migrations").iterdir()
        if re.fullmatch(r"\d{4}_\w+\.sql", entry.name)
    )
)
NEWEST = MIGRATIONS[-1][0]
FUNCTIONS = "set local check_function_bodies = off;\n" + "\n".join(
    entry.read_text(encoding="utf-8")
    for entry in sorted(files(__package__).joinpath("functions").iterdir(), key=lambda entry: entry.name)
    if entry.name.endswith(".sql")
)
_LOCK = "select pg_advisory_xact_lock(hashtext('harvest.migrate'), hashtext({schema_text}))"
_PATIENCE = "set local statement_timeout = 0; set local lock_timeout = '5s'"
"""A long step may take its time. What waits for a table makes all others wait behind it, so that ends soon."""
_TRIES = 12
_SCHEMA = """do $$ begin
    -- IF NOT EXISTS would ask for the right to make what is there.
    if to_regnamespace({schema_name}) is null then
        create schema {schema};
    end if;
end $$"""
_TABLE = (
    "create table if not exists {schema}.migrations (version integer primary key, name text not null, "
    "applied_at timestamptz not null default now())"
)
_VERSION = "select coalesce(max(version), 0) from {schema}.migrations"
_RECORD = "insert into {schema}.migrations (version, name) values ({number}, {name})"
_GUARD = """do $$ begin
    if (select coalesce(max(version), 0) from {schema}.migrations) <> {before} then
        raise exception 'this schema is not at version {before}'
            using hint = 'Ask its table migrations for the version, and print what it lacks with --from VERSION.';
    end if;
end $$"""


async def version(database: Database) -> int:
    """Return the number of the newest migration the database has had; 0 for none."""
    rows = await database.fetch("select to_regclass(%(name)s) is not null", {"name": f"{database.quoted}.migrations"})
    return (await database.fetch(_VERSION))[0][0] if rows[0][0] else 0


async def migrate(database: Database, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> list[str]:
    """Run the migrations the database lacks, each in a transaction of its own, and return their names.

    Raises:
        SchemaError: other transactions did not let go of a table in a minute.
        MissingRightError: the role may not make the schema or its tables.
    """
    found, done = await version(database), []
    for number, name, text in MIGRATIONS:
        if number > found and await _patiently(database, number, name, text, sleep):
            done.append(name)
    return done


def script(schema: str, since: int = 0) -> str:
    """Return as plain SQL what brings a schema from a version to this one, each migration in its own transaction.

    Args:
        schema: name of the schema.
        since: the version it is at; 0 for a database without it.
    """
    parts = []
    for before, (number, name, text) in zip((0, *(one[0] for one in MIGRATIONS)), MIGRATIONS, strict=False):
        if number <= since:
            continue
        steps = ["begin", _LOCK, _PATIENCE, *([_SCHEMA, _TABLE] if before == 0 else []), _GUARD]
        head = sql.SQL(";\n".join(steps)).format(**_names(schema), before=before).as_string()
        record = sql.SQL(_RECORD).format(**_names(schema), number=number, name=name).as_string()
        parts.append(f"-- {name}\n{head};\n\n{_rendered(number, text, schema)}\n;\n{record};\ncommit;\n")
    return "\n".join(parts)


async def require_newest(database: Database) -> None:
    """Migrate an empty database; refuse one that is behind or ahead.

    Raises:
        SchemaError: it names the command that mends it.
    """
    found = await version(database)
    if found == 0:
        try:
            await migrate(database)
        except MissingRightError as error:
            msg = (
                f"schema {database.schema!r} has not been made yet, and role {error.role!r} may not make it "
                f"({error.denied}); let the schema's owner run: harvest db migrate"
            )
            raise SchemaError(msg) from error
    elif found < NEWEST:
        msg = f"schema {database.schema!r} is at version {found}, this Harvest needs {NEWEST}; run: harvest db migrate"
        raise SchemaError(msg)
    elif found > NEWEST:
        msg = (
            f"schema {database.schema!r} is at version {found}, newer than the {NEWEST} this Harvest knows; "
            "upgrade harvest-core here, or point the DSN at another database"
        )
        raise SchemaError(msg)


async def _patiently(
    database: Database, number: int, name: str, text: str, sleep: Callable[[float], Awaitable[None]]
) -> bool:
    """Run a migration; where another transaction holds a table let those behind us pass, and try again."""
    for _ in range(_TRIES):
        try:
            return await _run(database, number, name, text)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            await sleep(1.0)
    msg = (
        f"schema {database.schema!r} was not migrated to version {number}: another transaction has held one of its "
        "tables for a minute; end what enqueues in a long transaction, then run: harvest db migrate"
    )
    raise SchemaError(msg)


async def _run(database: Database, number: int, name: str, text: str) -> bool:
    """Run a migration under the lock, unless another process has."""
    names = _names(database.schema)
    async with database.connection_of_its_own() as connection, connection.transaction():
        if database.pooler:
            await connection.execute(LOCAL)
        # One process migrates a schema at a time; the next one finds nothing left to do.
        await connection.execute(sql.SQL(_LOCK).format(**names))
        await connection.execute(_PATIENCE)
        await connection.execute(sql.SQL(_SCHEMA).format(**names))
        await connection.execute(sql.SQL(_TABLE).format(**names))
        found = "select exists (select from {schema}.migrations where version = %s)"
        cursor = await connection.execute(database.text(found), [number])
        if await cursor.fetchone() == (True,):
            return False
        await connection.execute(_rendered(number, text, database.schema).encode(), prepare=False)
        await connection.execute(sql.SQL(_RECORD).format(**names, number=number, name=name))
    return True


def _rendered(number: int, text: str, schema: str) -> str:
    with_functions = f"{text};\n{FUNCTIONS}" if number == NEWEST else text
    return sql.SQL(with_functions).format(**_names(schema)).as_string()


def _names(schema: str) -> dict[str, sql.Composable]:
    name, text = sql.Identifier(schema), sql.Literal(schema)
    return {"schema": name, "schema_name": sql.Literal(name.as_string()), "channel": text, "schema_text": text}
