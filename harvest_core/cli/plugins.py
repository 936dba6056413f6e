"""`harvest plugin list`: which plugins are installed, which of them are enabled, and which are broken."""

from __future__ import annotations

import click

from harvest_core import registry
from harvest_core.build import Setup
from harvest_core.cli.locate import Source, load_app, locating
from harvest_core.cli.output import answer, fault, json_option, line, table
from harvest_core.errors import BuildError


@click.group()
def plugin() -> None:
    """Look at plugins."""


@plugin.command("list")
@locating
@json_option
def list_plugins(*, source: Source, as_json: bool) -> None:
    """List the installed and the enabled plugins."""
    setup = load_app(source).setup if source.app else source.configuration()
    _warn(setup, quiet=as_json)
    enabled = [item if isinstance(item, str) else str(item.slug) for item in setup.config.harvest.plugins]
    rows = [
        {
            "name": found.name,
            "enabled": found.name in enabled,
            "distribution": found.distribution,
            "target": found.target,
            "summary": found.summary,
            "fault": found.fault,
        }
        for found in registry.installed()
    ]
    given = {item.slug: item for item in setup.config.harvest.plugins if not isinstance(item, str)}
    for name in enabled:
        if name not in {row["name"] for row in rows}:
            fault_text = "" if name in given else "it is enabled but not installed; install its distribution"
            missing = {"name": name, "enabled": True, "distribution": "", "target": "", "summary": ""}
            rows.append({**missing, "fault": fault_text})
    shown = table(
        ("name", "state", "distribution", "about"),
        (
            (
                str(row["name"]),
                ("enabled" if row["enabled"] else "installed") + (", broken" if row["fault"] else ""),
                str(row["distribution"]),
                str(row["fault"] or row["summary"]),
            )
            for row in rows
        ),
    )
    answer(rows, shown if rows else line("no plugin is installed"), as_json=as_json)


def _warn(setup: Setup, *, quiet: bool) -> None:
    errors = [problem for problem in setup.problems if not problem.warning]
    if errors and not quiet:
        fault(BuildError(errors), as_json=False)
