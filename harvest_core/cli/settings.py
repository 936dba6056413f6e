"""`harvest config get` and `set`: the runtime settings that live in the database."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import click

from harvest_core.cli.arguments import json_or_text, refuse_options
from harvest_core.cli.locate import Source, client_build, locating
from harvest_core.cli.output import answer, inline, json_option, line, table
from harvest_core.client import Client
from harvest_core.errors import HarvestError, near_match
from harvest_core.plugin import Setting


class SettingNotFoundError(HarvestError):
    """No runtime setting of that key is set."""


@click.group()
def config() -> None:
    """Read and change runtime settings."""


@config.command("get")
@click.argument("key", required=False)
@locating
@json_option
def get(*, source: Source, key: str | None, as_json: bool) -> None:
    """Print one runtime setting, or all."""
    found = asyncio.run(_read(source))
    if key is None:
        rows = [{"key": name, "value": it.value, "version": it.version} for name, it in sorted(found.items())]
        listed = table(
            ("key", "value", "version"),
            ((name, inline(it.value), str(it.version)) for name, it in sorted(found.items())),
        )
        answer(rows, listed if rows else line("no runtime setting is set"), as_json=as_json)
        return
    if key not in found:
        hint = near_match(key, found) or f"set are: {', '.join(sorted(found)) or 'none'}"
        msg = f"no runtime setting {key!r} is set; {hint}"
        raise SettingNotFoundError(msg)
    value = found[key].value
    document = {"key": key, "value": value, "version": found[key].version}
    answer(document, line(value if isinstance(value, str) else inline(value)), as_json=as_json)


@config.command("set", context_settings={"ignore_unknown_options": True})
@click.argument("key")
@click.argument("value")
@locating
@json_option
def set_value(*, source: Source, key: str, value: str, as_json: bool) -> None:
    """Set a runtime setting; running workers hear of it.

    VALUE is read as JSON where it is JSON, and as text where it is not.
    """
    refuse_options([key, value])
    if not key.strip():
        msg = "KEY is blank"
        raise click.UsageError(msg)
    parsed = json_or_text(value)
    version = asyncio.run(_write(source, key, parsed))
    document = {"key": key, "value": parsed, "version": version}
    answer(document, line(f"{key} = {inline(parsed)} (version {version})"), as_json=as_json)


async def _read(source: Source) -> Mapping[str, Setting]:
    async with Client(client_build(source)) as client:
        return await client.settings()


async def _write(source: Source, key: str, value: object) -> int:
    async with Client(client_build(source)) as client:
        return await client.set_setting(key, value)  # type: ignore[arg-type]  # JSON by its making
