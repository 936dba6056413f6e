"""`harvest check`: everything that is wrong with a build, and what is in force, before a worker finds out (rule B1)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import attrs
import click
import psycopg
from rich.console import RenderableType

from harvest_core import config as configuration
from harvest_core.app import Harvest
from harvest_core.build import Build
from harvest_core.cli.locate import Source, database_address, load_app, locating
from harvest_core.cli.output import answer, inline, json_option, line, problem_document, table
from harvest_core.connect import opened, opened_file
from harvest_core.errors import BuildError, DatabaseUnavailableError, HookError, Problem, SchemaError
from harvest_core.model import Tick, Worker
from harvest_core.probe import probe
from harvest_core.store.backend import SQLITE, file_of
from harvest_core.store.postgres import migrate


@attrs.frozen
class Probed:
    """How trying the clauses on the database went.

    Args:
        done: True where every clause was tried.
        note: what was done, or why not.
        problems: what is wrong.
    """

    done: bool
    note: str
    problems: Sequence[Problem] = ()


@click.command("check")
@click.argument("app", required=False)
@click.option("--offline", is_flag=True, help="Do not try the clauses on the database.")
@locating
@json_option
@click.pass_context
def check(context: click.Context, *, source: Source, app: str | None, offline: bool, as_json: bool) -> None:
    """Check a build before a worker runs on it.

    Checks configuration, plugins, activities and clauses of APP; exits with 1 where anything is wrong.
    """
    found = load_app(source.naming(app))
    build, errors, warnings = _built(found)
    if build is None:
        probed = Probed(done=False, note="not probed: the app cannot be built")
    elif offline:
        probed = Probed(done=False, note="not probed: --offline")
    else:
        probed = asyncio.run(_probe(build))
    errors = [*errors, *probed.problems]
    config = found.setup.config
    described = configuration.describe(config)
    plugins = {slug: type(plugin) for slug, plugin in found.setup.plugins.items()}
    document: dict[str, Any] = {
        "ok": not errors,
        "problems": [problem_document(problem) for problem in errors],
        "warnings": [problem_document(problem) for problem in warnings],
        "config": [{"key": key, "value": value, "origin": origin} for key, value, origin in described],
        "plugins": [{"name": slug, "class": f"{cls.__module__}.{cls.__qualname__}"} for slug, cls in plugins.items()],
        "activities": sorted(found.activities),
        "database": database_address(config),
        "probe": {"done": probed.done, "note": probed.note},
    }
    parts: list[RenderableType] = [
        table(("key", "value", "origin"), ((key, inline(value), origin) for key, value, origin in described)),
        line(""),
        line(f"plugins: {', '.join(plugins) or 'none'}"),
        line(f"activities: {', '.join(sorted(found.activities)) or 'none'}"),
        line(f"database: {document['database']}"),
        line(f"clauses: {probed.note}"),
        *_listed("warning", warnings, "yellow"),
        *_listed("problem", errors, "red"),
        line("" if errors else "ok", "green"),
    ]
    answer(document, *(parts[:-1] if errors else parts), as_json=as_json)
    context.exit(1 if errors else 0)


def _built(app: Harvest) -> tuple[Build | None, list[Problem], list[Problem]]:
    try:
        build = app.build()
    except BuildError as error:
        return None, list(error.problems), [problem for problem in app.setup.problems if problem.warning]
    return build, [], list(build.warnings)


async def _probe(build: Build) -> Probed:
    """Try the clauses as this configuration's worker would; migrate nothing and make no embedded database."""
    config = build.config
    if config.harvest.dsn is None and not (config.directory / ".harvest" / "postgres18" / "data").exists():
        return Probed(done=False, note="not probed: the embedded database will be made at the first start")
    try:
        if build.backend is SQLITE:
            return await _file(config)
        async with opened(config, size=1) as database:
            if await migrate.version(database) == 0:
                note = f"not probed: schema {config.harvest.schema!r} is missing; it will be made at the first start"
                return Probed(done=False, note=note)
            await migrate.require_newest(database)
            worker = Worker(
                id="check",
                name="check",
                queues=tuple(config.worker.queues),
                activities=frozenset(build.runnable),
                facts=build.policies.facts(build.view),
            )
            tick = Tick(worker, live=build.policies.live())
            problems = await probe(database, build.policies, tick)
            if problems:
                return Probed(done=True, note="probed on the database and refused", problems=problems)
            return Probed(done=True, note=f"{len(build.policies.clauses(tick))} probed on the database")
    except DatabaseUnavailableError as error:
        problem = _problem("away", str(error))
    except SchemaError as error:
        problem = _problem("schema", str(error))
    except psycopg.Error as error:
        problem = _problem("refused", configuration.redacted(str(error).strip()))
    except HookError as error:
        message = f"hook {error.hook}: {error.detail}"
        problem = Problem("plugin.hook", f"plugin {error.plugin!r}", message)
    return Probed(done=False, note="not probed: see the problem below", problems=[problem])


async def _file(config: configuration.Config) -> Probed:
    """Open the SQLite file, where there is one: it takes no clauses."""
    path = file_of(config.harvest.dsn or "", config.directory)
    if path.parent.is_dir() and not path.exists():
        return Probed(done=False, note=f"not probed: {path.name} will be made at the first start")
    async with opened_file(config):
        return Probed(done=True, note="none, the SQLite file takes none")


def _problem(code: str, message: str) -> Problem:
    return Problem(f"database.{code}", "harvest.dsn", message)


def _listed(kind: str, problems: Sequence[Problem], style: str) -> list[RenderableType]:
    if not problems:
        return []
    heading = f"{len(problems)} {kind}{'' if len(problems) == 1 else 's'}"
    return [line(""), line(heading, style), *(line(f"  {problem}") for problem in problems)]
