"""`harvest db migrate`: bring the database's schema to this version."""

from __future__ import annotations

import asyncio

import click

from harvest_core.build import Build
from harvest_core.cli.locate import Source, client_build, locating
from harvest_core.cli.output import answer, json_option, line
from harvest_core.connect import opened
from harvest_core.errors import HarvestError
from harvest_core.store.backend import SQLITE
from harvest_core.store.postgres import migrate as migrations


@click.group()
def db() -> None:
    """Look after the database's schema."""


@db.command("migrate")
@locating
@json_option
def migrate(*, source: Source, as_json: bool) -> None:
    """Run the migrations that the database lacks.

    Safe to run twice and from several places at once.
    """
    build = client_build(source)
    ran, version = asyncio.run(_migrate(build))
    schema = build.config.harvest.schema
    lines = [line(f"ran {name}") for name in ran]
    lines.append(line(f"schema {schema!r} is at version {version}{'' if ran else '; nothing to run'}"))
    answer({"schema": schema, "ran": ran, "version": version}, *lines, as_json=as_json)


async def _migrate(build: Build) -> tuple[list[str], int]:
    if build.backend is SQLITE:
        msg = "the SQLite backend has no schema in this version; set harvest.dsn to a PostgreSQL, or leave it out"
        raise HarvestError(msg)
    async with opened(build.config, size=1) as database:
        ran = await migrations.migrate(database)
        await migrations.require_newest(database)
        return ran, await migrations.version(database)
