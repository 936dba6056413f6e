"""Which backend a DSN names, what that backend can do, and how what it cannot do is refused (rule B2)."""

from __future__ import annotations

from pathlib import Path

import attrs

from harvest_core.errors import BackendError, page
from harvest_core.model import Feature

PAGE = page("Backends and features")
"""Says why a backend lacks what it lacks."""

_FILE = "sqlite:///"


@attrs.frozen
class Backend:
    """A backend as the build sees it.

    Args:
        name: its name for messages.
        features: what it can do.
        lacks: options of enqueues, activities and workers that it has no means for.
    """

    name: str
    features: frozenset[Feature]
    lacks: frozenset[str] = frozenset()

    def refusal(self, what: str) -> str:
        """Return the sentence that refuses what only PostgreSQL can do."""
        return f"{what} needs PostgreSQL, and harvest.dsn names the {self.name} backend; {PAGE} says why"

    def require(self, what: str) -> None:
        """Let pass where the backend has every feature.

        Raises:
            BackendError: it has not.
        """
        if self.features != POSTGRESQL.features:
            raise BackendError(self.refusal(what))


POSTGRESQL = Backend("postgresql", frozenset(Feature))
SQLITE = Backend(
    "sqlite",
    frozenset({Feature.ORDER}),
    frozenset({"lane", "key_period", "schedule_to_start", "schedule_to_close", "prefetch"}),
)


def backend_of(dsn: str | None) -> Backend | None:
    """Return the backend a DSN names, PostgreSQL for none (the embedded one), or None for an unknown scheme."""
    if dsn is None or dsn.startswith(("postgresql://", "postgres://")):
        return POSTGRESQL
    if dsn.startswith("sqlite:"):
        return SQLITE
    return POSTGRESQL if "=" in dsn and "://" not in dsn else None


def file_fault(dsn: str) -> str:
    """Return what is wrong with a SQLite DSN, empty for nothing."""
    path = dsn.removeprefix(_FILE)
    if ":memory:" in dsn:
        return "a database in memory is seen by one process alone, and client and worker would each have their own"
    if not dsn.startswith(_FILE) or not path.strip("/"):
        return "names no file: three slashes stand before a path, four before one that begins at the root"
    return "takes a path alone, without ? and options" if "?" in path else ""


def file_of(dsn: str, directory: Path) -> Path:
    """Return the file that a sound SQLite DSN names.

    Args:
        dsn: such as `sqlite:///tasks.db`.
        directory: the folder of the configuration, from which a relative path counts.
    """
    return directory / dsn.removeprefix(_FILE)
