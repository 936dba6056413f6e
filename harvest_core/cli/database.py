"""`harvest db`: bring the database's schema to this version, or print how; tell other programs where it is."""

from __future__ import annotations

import asyncio
import signal

import click

from harvest_core.build import Build
from harvest_core.cli.arguments import WholeNumber
from harvest_core.cli.locate import Source, client_build, locating
from harvest_core.cli.output import answer, json_option, json_text, line
from harvest_core.config import Config
from harvest_core.connect import opened, opened_file, served
from harvest_core.errors import HarvestError
from harvest_core.store.backend import SQLITE
from harvest_core.store.postgres import migrate as migrations
from harvest_core.store.sqlite.database import VERSION

_BRIEF = (
    "note: this embedded PostgreSQL runs only while a process of Harvest uses it, such as a worker; "
    "--hold keeps it running"
)


@click.group()
def db() -> None:
    """Look after the database's schema, and tell where it is."""


@db.command("migrate")
@locating
@click.option("--sql", "as_sql", is_flag=True, help="Print the migrations as plain SQL; no database is needed.")
@click.option("--from", "since", type=WholeNumber(0), help="With --sql: the version that the schema is at, 0 for none.")
@json_option
def migrate(*, source: Source, as_sql: bool, since: int | None, as_json: bool) -> None:
    """Run the migrations that the database lacks.

    Safe to run twice and from several places at once.
    """
    if since is not None and not as_sql:
        msg = "--from goes with --sql; without it the database itself tells its version"
        raise click.UsageError(msg)
    build = client_build(source, offline=as_sql)
    if as_sql:
        build.backend.require("--sql")
        _print(build.config.harvest.schema, since or 0, as_json=as_json)
        return
    ran, version = asyncio.run(_migrate(build))
    schema = build.config.harvest.schema
    lines = [line(f"ran {name}") for name in ran]
    place = "the SQLite file" if build.backend is SQLITE else f"schema {schema!r}"
    lines.append(line(f"{place} is at version {version}{'' if ran else '; nothing to run'}"))
    answer({"schema": schema, "ran": ran, "version": version}, *lines, as_json=as_json)


@db.command("dsn")
@locating
@click.option("--hold", is_flag=True, help="Keep the embedded PostgreSQL running until SIGTERM or SIGINT.")
@json_option
def dsn(*, source: Source, hold: bool, as_json: bool) -> None:
    """Print the database's DSN, its password included, for psql and other programs.

    The embedded PostgreSQL runs only while a process of Harvest uses it.
    """
    asyncio.run(_tell(client_build(source).config, hold=hold, as_json=as_json))


async def _tell(config: Config, *, hold: bool, as_json: bool) -> None:
    embedded = config.harvest.dsn is None
    ended = asyncio.Event()
    if embedded and hold:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with served(config) as address:
        answer({"dsn": address, "embedded": embedded}, line(address), as_json=as_json)
        if embedded and hold:
            await ended.wait()
        elif embedded:
            click.echo(_BRIEF, err=True)


def _print(schema: str, since: int, *, as_json: bool) -> None:
    newest = migrations.NEWEST
    if since > newest:
        msg = f"there is no version {since}: this Harvest knows {newest}; upgrade harvest-core here"
        raise HarvestError(msg)
    text = migrations.script(schema, since) or f"-- nothing to run: version {since} is the newest\n"
    if as_json:
        click.echo(json_text({"schema": schema, "from": since, "to": newest, "sql": text}))
    else:
        click.echo(text, nl=False)


async def _migrate(build: Build) -> tuple[list[str], int]:
    if build.backend is SQLITE:
        async with opened_file(build.config) as file:
            return ["schema.sql"] if file.created else [], VERSION
    async with opened(build.config, size=1) as database:
        ran = await migrations.migrate(database)
        await migrations.require_newest(database)
        return ran, await migrations.version(database)
