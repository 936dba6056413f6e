"""`ClaimedTask`: a task in the hands of a direct caller, who ends it: complete, fail or release."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from harvest_core.errors import HarvestError, LostClaimError
from harvest_core.model import Json, Retry, Worker
from harvest_core.payloads import Payloads
from harvest_core.store.postgres.tasks import Claim, Finished, Outcome, Released
from harvest_core.worker.context import Beat, CurrentTask
from harvest_core.worker.dispatcher import failure, sentence_of

End = Callable[[Claim, Outcome], Awaitable[bool]]
"""Writes an outcome and returns False where the claim was lost."""


class ClaimedTask(CurrentTask):
    """A claimed task. Its attempt lasts until `complete`, `fail` or `release`, the activity's `start_to_close` at most.

    Attributes, beside those of `CurrentTask`:
        args: positional arguments, of the types that the activity's hints say where this app has the activity.
        kwargs: keyword arguments, likewise.
        cancelled: True once the attempt should stop: someone cancelled the task, or its claim was lost.
    """

    def __init__(
        self,
        claim: Claim,
        arguments: tuple[Sequence[Any], Mapping[str, Any]],
        worker: Worker,
        live: Mapping[str, Json],
        beat: Beat,
        end: End,
        retry_of: Callable[[str], Awaitable[Retry]],
        payloads: Payloads,
    ) -> None:
        super().__init__(claim, worker, live, beat, asyncio.get_running_loop())
        self.args, self.kwargs = arguments
        self._end, self._retry_of, self._payloads = end, retry_of, payloads
        self._ended = self._unanswered = False

    async def complete(self, result: Any = None) -> None:
        """End the task as completed.

        Raises:
            PayloadError: the result does not match the activity's type hint, or cannot be stored; it is still claimed.
            LostClaimError: the claim was lost; nothing was changed. So do the methods below.
            DatabaseUnavailableError: call it again. So do the methods below.
        """
        await self._write(Finished("completed", result=self._payloads.stored_result(self.name, result)))

    async def fail(self, error: BaseException | str, *, final: bool = False) -> None:
        """End the attempt as failed; the activity's policy says whether and when there is another.

        Args:
            error: kept with the task; an exception with its traceback.
            final: True for no further attempt.
        """
        raised = None if isinstance(error, str) else error
        text = error if isinstance(error, str) else sentence_of(error)
        retry = await self._retry_of(self.name)
        # The spread of retries needs no secret randomness.
        await self._write(failure(retry, self._claim, raised, text, random.random(), final=final))  # noqa: S311

    async def release(self) -> None:
        """Give the task back untouched, the attempt restored; one that was cancelled ends by it."""
        await self._write(Released())

    async def _write(self, outcome: Outcome) -> None:
        if self._ended:
            msg = f"task {self.id}: this claim has ended already, by complete, fail or release; each claim ends once"
            raise HarvestError(msg)
        try:
            held = await self._end(self._claim, outcome)
        except BaseException:
            self._unanswered = True
            raise
        self._ended = True
        if not held and not self._unanswered:  # else it may be gone because the earlier try was written
            self.cancelled = True
            msg = f"task {self.id}: this attempt's claim was lost, so nothing was written; another may have it"
            raise LostClaimError(msg)
