"""`harvest worker run`: a worker's command line, the options of plugins included."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from logging import getLevelNamesMapping, getLogger
from typing import Any

import attrs
import click

from harvest_core import registry
from harvest_core.build import Build
from harvest_core.cli.arguments import WholeNumber
from harvest_core.cli.locate import Source, database_address, load_app, locating
from harvest_core.cli.output import answer, json_option
from harvest_core.cli.serve import leave_stuck_threads, metrics_served, serve
from harvest_core.errors import BuildError, Problem, near_match
from harvest_core.model import Worker as Identity
from harvest_core.plugin import WorkerOption

_OPTIONS = "harvest.plugin_options"
_log = getLogger("harvest")


class WorkerCommand(click.Command):
    """A command that takes any further `--flag value` for plugins: which ones exist is known once the app is loaded."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Set further flags aside before click sees them, since it would not know that a value follows."""
        known = {name: not getattr(it, "is_flag", False) for it in self.params for name in it.opts}
        ctx.meta[_OPTIONS], rest = _set_aside(args, known, ctx)
        return super().parse_args(ctx, rest)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options of the installed plugins below the command's own."""
        super().format_options(ctx, formatter)
        rows = [
            (f"{option.flag} {'NAME=VALUE' if option.pairs else 'VALUE'}", f"{option.help} [{slug}]")
            for slug, option in _installed_options()
        ]
        if rows:
            with formatter.section("Options of plugins, for each that is enabled; may be repeated"):
                formatter.write_dl(rows)


@click.group()
def worker() -> None:
    """Run workers."""


@worker.command("run", cls=WorkerCommand)
@click.argument("app", required=False)
@click.option("--queue", "queues", multiple=True, help="Queue to poll, in place of worker.queues; may be repeated.")
@click.option("--metrics-port", type=WholeNumber(0, 65535), help="Serve /metrics on 127.0.0.1; 0 for a free port.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Least level of what is logged on standard error.",
)
@locating
@json_option
@click.pass_context
def run(
    context: click.Context,
    *,
    source: Source,
    app: str | None,
    queues: Sequence[str],
    metrics_port: int | None,
    log_level: str,
    as_json: bool,
) -> None:
    """Run a worker of APP.

    It runs until SIGTERM or SIGINT: the first lets running tasks finish, a second one stops at once.
    """
    level = getLevelNamesMapping()[log_level.upper()]
    getLogger().setLevel(level)
    getLogger("harvest").setLevel(level)
    source = source.naming(app)
    if queues:
        source = source.setting("worker.queues", list(queues))
    try:
        build = load_app(source, context.meta[_OPTIONS]).build()
    except BuildError as error:
        raise BuildError(_with_better_hints(error, context)) from None
    with metrics_served(build.registry, metrics_port) as address:

        def announce(identity: Identity) -> None:
            _announce(build, identity, address, as_json=as_json)

        serve(build, announce, sample_depths=address is not None)
    if as_json:
        answer({"event": "stopped"}, as_json=True)
    leave_stuck_threads()


def _announce(build: Build, identity: Identity, metrics: str | None, *, as_json: bool) -> None:
    settings = build.config.worker
    document: dict[str, Any] = {
        "event": "started",
        "id": identity.id,
        "name": identity.name,
        "queues": list(identity.queues),
        "concurrency": settings.concurrency,
        "plugins": list(build.policies.plugins),
        "database": database_address(build.config),
        "metrics": metrics,
    }
    _log.info(
        "worker %s (%s) started: queues %s; concurrency %s; plugins %s; database %s; metrics %s",
        identity.name,
        identity.id,
        ", ".join(identity.queues),
        settings.concurrency,
        ", ".join(build.policies.plugins) or "none",
        document["database"],
        metrics or "off",
    )
    if as_json:
        answer(document, as_json=True)
        sys.stdout.flush()


def _set_aside(
    args: Sequence[str], known: Mapping[str, bool], context: click.Context
) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the flags that are not known, with their values, and all other words in order.

    Args:
        args: words of the command line.
        known: the command's own options, and whether each takes a value.
        context: names the command in messages.
    """
    options: list[tuple[str, str]] = []
    rest: list[str] = []
    words = iter(args)
    for word in words:
        flag, separator, value = word.partition("=")
        if word == "--":
            return options, [*rest, word, *words]
        if flag == "--help" or flag in known or not word.startswith("--"):
            rest.append(word)
            continue
        if not separator:
            value = next(words, "--")
        if not separator and value.startswith("--"):
            hint = near_match(flag, [name for name, valued in known.items() if not valued])
            msg = f"{flag} has no value: write {flag} VALUE or {flag}=VALUE" + (f" ({hint})" if hint else "")
            raise click.UsageError(msg, context)
        options.append((flag, value))
    return options, rest


def _with_better_hints(error: BuildError, context: click.Context) -> list[Problem]:
    """Return the problems; an unknown option says which plugin brings it, or which of the command's own is near."""
    own = [name for parameter in context.command.params for name in parameter.opts if name.startswith("--")]
    problems = []
    for problem in error.problems:
        if problem.code == "command.unknown-option":
            flag = problem.message.rpartition(" ")[2]
            brings = next((slug for slug, option in _installed_options() if option.flag == flag), None)
            hint = f"enable the plugin that brings it: {brings}" if brings else near_match(flag, own)
            if brings or not problem.hint.startswith("did you mean"):
                problem = attrs.evolve(problem, hint=hint or problem.hint)
        problems.append(problem)
    return problems


def _installed_options() -> list[tuple[str, WorkerOption]]:
    sound = sorted({plugin.name for plugin in registry.installed() if not plugin.fault})
    classes, _ = registry.resolve(sound)
    return [(slug, option) for slug, cls in classes.items() for option in cls.worker_options]
