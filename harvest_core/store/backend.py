"""Which backend a DSN names, and what that backend can do (rule B2)."""

from __future__ import annotations

import attrs

from harvest_core.model import Feature


@attrs.frozen
class Backend:
    """A backend as the build sees it.

    Args:
        name: its name for messages.
        features: what it can do.
    """

    name: str
    features: frozenset[Feature]


POSTGRESQL = Backend("postgresql", frozenset(Feature))
SQLITE = Backend("sqlite", frozenset({Feature.ORDER}))


def backend_of(dsn: str | None) -> Backend | None:
    """Return the backend a DSN names, PostgreSQL for none (the embedded one), or None for an unknown scheme."""
    if dsn is None or dsn.startswith(("postgresql://", "postgres://")):
        return POSTGRESQL
    if dsn.startswith("sqlite:///"):
        return SQLITE
    return POSTGRESQL if "=" in dsn and "://" not in dsn else None
