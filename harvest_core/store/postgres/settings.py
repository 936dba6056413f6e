"""Runtime settings: values that operators change while workers run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch

from harvest_core.plugin import Setting
from harvest_core.store.postgres.database import Database


@singledispatch
async def read_settings(database: Database) -> Mapping[str, Setting]:
    """Return every setting by key."""
    rows = await database.fetch("select key, value, version from {schema}.settings")
    return {key: Setting(value, version) for key, value, version in rows}


@singledispatch
async def write_setting(database: Database, key: str, value: str) -> int:
    """Set a setting to a value given as JSON text, tell every listening process, and return its new version."""
    rows = await database.fetch("select {schema}.set_setting(%s::text, %s::text::jsonb)", [key, value])
    return int(rows[0][0])
