"""Tasks in one SQLite file: a form of its own for the functions of `store.postgres` that `order` needs, and no more."""

from harvest_core.store.sqlite import control, schedules, tasks, workers  # noqa: F401 - each registers its functions
from harvest_core.store.sqlite.database import SqliteDatabase

__all__ = ["SqliteDatabase"]
