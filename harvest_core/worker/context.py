"""What a running activity can learn and do about its own task: `current_task()`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any

from harvest_core.errors import HarvestError, LostClaimError
from harvest_core.model import Json, Worker
from harvest_core.payload import encode
from harvest_core.store.postgres.tasks import Claim

Beat = Callable[[Claim, str | None], Awaitable[bool]]
_current: ContextVar[CurrentTask] = ContextVar("current_task")


class CurrentTask:
    """The task that runs here, for its activity and for middleware.

    Attributes:
        id: its id.
        name: name of its activity.
        queue: its queue.
        attempt: 1 for the first start.
        traits: what plugins stamped at enqueue, by slug.
        worker: the worker that runs it.
        live: the live facts its claim was judged by, by plugin slug.
        cancelled: True once the attempt should stop: it was cancelled, its claim was lost, its time is over, or the
            worker stops. A plain function that runs long looks at it.
    """

    def __init__(
        self, claim: Claim, worker: Worker, live: Mapping[str, Json], beat: Beat, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.id, self.name, self.queue = claim.id, claim.route.name, claim.route.queue
        self.attempt, self.traits = claim.attempt, claim.route.traits
        self.worker, self.live, self.cancelled = worker, live, False
        self.began = False
        self.stopped = False  # by the worker, as against by the activity itself
        self.asked_to_stop = False  # by someone who cancelled the task
        self.thread: asyncio.Future[Any] | None = None  # a plain function's run that outlives its attempt
        self.lease: asyncio.Timeout | None = None  # runs out when no heartbeat comes
        self._claim, self._beat, self._loop = claim, beat, loop

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags it was enqueued with, sorted."""
        flags = self.traits.get("flags")
        if isinstance(flags, str):
            return (flags,)
        return tuple(flags) if isinstance(flags, list | dict) else ()

    async def heartbeat(self, details: Any = None) -> None:
        """Prove that this attempt lives, and keep details (JSON) for people to see.

        Raises:
            LostClaimError: the claim was lost; stop, nothing you return will be kept.
        """
        text = None if details is None else encode(details, f"heartbeat details of {self.name!r}")
        if not await self._beat(self._claim, text):
            self.cancelled = True
            msg = f"task {self.id}: this attempt's claim was lost; another worker may have it, so stop"
            raise LostClaimError(msg)
        if self.lease is not None and self._claim.heartbeat is not None:
            self.lease.reschedule(self._loop.time() + self._claim.heartbeat)

    def heartbeat_sync(self, details: Any = None) -> None:
        """Do the same from a plain function's thread."""
        asyncio.run_coroutine_threadsafe(self.heartbeat(details), self._loop).result()


def current_task() -> CurrentTask:
    """Return the task whose activity is running here.

    Raises:
        HarvestError: no task is.
    """
    try:
        return _current.get()
    except LookupError:
        msg = "current_task() was called outside a running activity; inside one it returns the task"
        raise HarvestError(msg) from None
