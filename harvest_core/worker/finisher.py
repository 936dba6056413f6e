"""Write outcomes in batches until each is written or lost: a failed write never leaves a task claimed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import psycopg

from harvest_core.errors import DatabaseUnavailableError
from harvest_core.payload import storable_text
from harvest_core.store.postgres.database import Database
from harvest_core.store.postgres.tasks import Claim, Finished, Outcome, write_outcomes

_log = logging.getLogger("harvest")
_BATCH = 500
_BATCH_BYTES = 8 * 1024 * 1024


class Finisher:
    """Collects outcomes and writes them in the order of arrival.

    Args:
        database: where they go.
        lost: called with each claim whose outcome changed nothing, because the claim was lost.
        written: called after each batch.
        sleep: waits between tries.
    """

    def __init__(
        self,
        database: Database,
        lost: Callable[[Claim], None],
        written: Callable[[], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._database, self._lost, self._written, self._sleep = database, lost, written, sleep
        self._queued: list[tuple[Claim, Outcome]] = []
        self._arrived, self._drained = asyncio.Event(), asyncio.Event()
        self._drained.set()

    @property
    def ids(self) -> frozenset[int]:
        """The tasks whose outcomes are not written yet."""
        return frozenset(claim.id for claim, _ in self._queued)

    @property
    def backlog(self) -> int:
        """How many outcomes are not written yet."""
        return len(self._queued)

    def add(self, claim: Claim, outcome: Outcome) -> None:
        """Take an outcome; it is written soon."""
        self._queued.append((claim, outcome))
        self._drained.clear()
        self._arrived.set()

    async def drained(self) -> None:
        """Wait until every outcome taken so far is written or lost."""
        await self._drained.wait()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._queued:
                batch = _batch(self._queued)
                await self._write(batch)
                del self._queued[: len(batch)]
                self._written()
            self._drained.set()

    async def _write(self, batch: list[tuple[Claim, Outcome]]) -> None:
        pause, answered = 0.1, True
        while True:
            try:
                written = await write_outcomes(self._database, batch)
            except (DatabaseUnavailableError, psycopg.Error) as error:
                if _is_refusal(error):
                    await self._write_alone(batch, error)
                    return
                _log.warning("outcomes of %s tasks are not written yet: %s", len(batch), error)
                answered = False
            else:
                # After a try without an answer, what is missing may be what that try wrote.
                for claim, _ in batch:
                    if claim.id not in written and answered:
                        self._lost(claim)
                return
            await self._sleep(pause)
            pause = min(pause * 2, 5.0)

    async def _write_alone(self, batch: list[tuple[Claim, Outcome]], error: Exception) -> None:
        """Find the outcome that PostgreSQL refuses, and fail that task alone instead of its whole batch."""
        if len(batch) > 1:
            for one in batch:
                await self._write([one])
            return
        claim, outcome = batch[0]
        text = storable_text(f"the outcome cannot be stored: {error}")
        if isinstance(outcome, Finished) and outcome.error == text:
            _log.error("task %s: %s; its claim is left to rescue", claim.id, text)
            return
        await self._write([(claim, Finished("failed", error=text))])


def _batch(queued: Sequence[tuple[Claim, Outcome]]) -> list[tuple[Claim, Outcome]]:
    """Return the first outcomes, at most `_BATCH` of them and some `_BATCH_BYTES` of results, but at least one."""
    size = 0
    for count, (_, outcome) in enumerate(queued[:_BATCH]):
        size += len(outcome.result or "") if isinstance(outcome, Finished) else 0
        if size > _BATCH_BYTES:
            return list(queued[: max(1, count)])
    return list(queued[:_BATCH])


def _is_refusal(error: Exception) -> bool:
    """Tell an outcome that PostgreSQL will never take from trouble that passes, such as a server turned read-only."""
    state = getattr(error, "sqlstate", None) or ""
    return isinstance(error, psycopg.DataError | psycopg.IntegrityError) or state.startswith("54")  # a limit
