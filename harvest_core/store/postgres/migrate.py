"""Bring a database's schema to this version. Safe to run twice and from several processes at once.

Migrations change tables and are never edited once released; `functions/` holds every function as this version has it,
replaced together with the last migration. A function's old signature stays while workers of the version before call it.
"""

from __future__ import annotations

import re
from importlib.resources import files

import psycopg
from psycopg import sql

from harvest_core.errors import SchemaError
from harvest_core.store.postgres.database import Database

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
_LOCK = "select pg_advisory_xact_lock(hashtext('harvest.migrate'), hashtext(%s))"
_VERSION = "select coalesce(max(version), 0) from {schema}.migrations"


async def version(database: Database) -> int:
    """Return the number of the newest migration the database has had; 0 for none."""
    rows = await database.fetch("select to_regclass(%(name)s) is not null", {"name": f"{database.quoted}.migrations"})
    return (await database.fetch(_VERSION))[0][0] if rows[0][0] else 0


async def migrate(database: Database) -> list[str]:
    """Run the migrations the database lacks, each in a transaction of its own, and return their names."""
    done = []
    for number, name, text in MIGRATIONS:
        async with database.connection_of_its_own() as connection, connection.transaction():
            # One process migrates a schema at a time; the next one finds nothing left to do.
            await connection.execute(_LOCK, [database.schema])
            if await _has(connection, database, number):
                continue
            with_functions = f"{text};\n{FUNCTIONS}" if number == NEWEST else text
            await connection.execute(_rendered(with_functions, database.schema).encode(), prepare=False)
            await connection.execute(
                database.text("insert into {schema}.migrations (version, name) values (%s, %s)"), [number, name]
            )
        done.append(name)
    return done


async def require_newest(database: Database) -> None:
    """Migrate an empty database; refuse one that is behind or ahead.

    Raises:
        SchemaError: it names the command that mends it.
    """
    found = await version(database)
    if found == 0:
        await migrate(database)
    elif found < NEWEST:
        msg = f"schema {database.schema!r} is at version {found}, this Harvest needs {NEWEST}; run: harvest db migrate"
        raise SchemaError(msg)
    elif found > NEWEST:
        msg = (
            f"schema {database.schema!r} is at version {found}, newer than the {NEWEST} this Harvest knows; "
            "upgrade harvest-core here, or point the DSN at another database"
        )
        raise SchemaError(msg)


async def _has(connection: psycopg.AsyncConnection[tuple[object, ...]], database: Database, number: int) -> bool:
    await connection.execute(database.text("create schema if not exists {schema}"))
    await connection.execute(
        database.text(
            "create table if not exists {schema}.migrations (version integer primary key, name text not null, "
            "applied_at timestamptz not null default now())"
        )
    )
    cursor = await connection.execute(
        database.text("select exists (select from {schema}.migrations where version = %s)"), [number]
    )
    row = await cursor.fetchone()
    return bool(row and row[0])


def _rendered(text: str, schema: str) -> str:
    return (
        sql.SQL(text)
        .format(schema=sql.Identifier(schema), channel=sql.Literal(schema), schema_text=sql.Literal(schema))
        .as_string()
    )
