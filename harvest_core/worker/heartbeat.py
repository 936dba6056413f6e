"""A worker's sign of life, from a thread and a connection of its own, so that no activity can hold it up (rule K12)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

import psycopg

from harvest_core.errors import DatabaseUnavailableError
from harvest_core.model import Json
from harvest_core.store.postgres import workers
from harvest_core.store.postgres.database import Database
from harvest_core.structure import redacted

_log = logging.getLogger("harvest")
_AT_MOST_EVERY = 1.0


class Heartbeat:
    """Beats until stopped.

    Args:
        database: names the server and the schema.
        worker_id: whose row.
        interval: seconds between beats.
        pruned: called in the thread when the row is gone: others have taken the worker for dead.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        database: Database,
        worker_id: str,
        interval: float,
        pruned: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database, self._worker_id, self._interval, self._pruned = database, worker_id, interval, pruned
        self._clock = clock
        self._live: tuple[Mapping[str, Json], float] = ({}, clock())
        self._changed, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="harvest-heartbeat", daemon=True)
        self.last = clock()
        """Monotonic time at which the last written beat was begun."""

    def start(self) -> None:
        """Start beating."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Stop beating; wait at most timeout seconds for the thread."""
        self._stopping.set()
        self._changed.set()
        self._thread.join(timeout)

    def observe(self, live: Mapping[str, Json]) -> None:
        """Take the live facts of a tick; a change is written at once, at most once a second."""
        changed = live != self._live[0]
        self._live = (live, self._clock())
        if changed:
            self._changed.set()

    def _run(self) -> None:
        beats = workers.beats(self._database, self._worker_id)
        while not self._stopping.is_set():
            begun = self._clock()
            try:
                live, seen = self._live
                if not beats.write(live, begun - seen):
                    self._pruned()
                    break
                self.last = begun
            except (psycopg.Error, DatabaseUnavailableError) as error:
                _log.warning("a beat was not written: %s", redacted(str(error)))
                beats.close()
            self._stopping.wait(min(_AT_MOST_EVERY, self._interval))
            self._changed.wait(max(0.0, self._interval - _AT_MOST_EVERY))
            self._changed.clear()
        beats.close()
