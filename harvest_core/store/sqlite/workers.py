"""The workers on a file: their rows, and their beats from a thread and a connection of their own (K12)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from harvest_core.model import Json, Worker
from harvest_core.store.postgres import workers
from harvest_core.store.sqlite.database import SqliteDatabase, Transaction, serves, span


@serves(workers.register)
def register(at: Transaction, /, worker: Worker, *, ttl: float, **_: Any) -> None:
    """Write a worker's row: on one machine nobody else judges by more than its beat."""
    at.change("insert into workers (id, ttl, beaten_at) values (?, ?, ?)", [worker.id, span(ttl), at.now])


@serves(workers.remove)
def remove(at: Transaction, worker_id: str) -> None:
    """Remove a worker's row."""
    at.change("delete from workers where id = ?", [worker_id])


@serves(workers.publish_activities, writes=False)
@serves(workers.mark, writes=False)
def nothing(at: Transaction, *_: Any, **__: Any) -> None:
    """Do nothing: there is no enqueue from plain SQL, and nobody who would wake a worker."""


class SqliteBeats(workers.Beats):
    """Writes the beats of one worker, from the thread that calls."""

    def __init__(self, database: SqliteDatabase, worker_id: str) -> None:
        self._file, self._id = database, worker_id

    def write(self, live: Mapping[str, Json], age: float) -> bool:  # noqa: ARG002
        """Write a beat; False where the row is gone, or so old that others may have taken its tasks."""
        with closing(self._file.connect()) as connection, self._file.transaction(connection) as at:
            text = "update workers set beaten_at = ? where id = ? and beaten_at > ? - ttl"
            return bool(at.change(text, [at.now, self._id, at.now]))

    def close(self) -> None:
        """Do nothing: each beat has a connection of its own."""


workers.beats.register(SqliteDatabase, SqliteBeats)
