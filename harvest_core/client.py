"""The client: enqueue tasks, look at them, wait for their results, control queues and settings. Runs no task."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from types import TracebackType
from typing import Any

import attrs
import psycopg

from harvest_core.activity import RegisteredActivity
from harvest_core.build import Build
from harvest_core.claimer import Claimer, direct_build
from harvest_core.connect import connected
from harvest_core.duration import seconds
from harvest_core.enqueue import Call, new_task
from harvest_core.errors import (
    HarvestError,
    PayloadError,
    TaskFailedError,
    TaskNotFoundError,
)
from harvest_core.model import Json
from harvest_core.payload import encode, storable_text
from harvest_core.plugin import ClaimFilter, Setting
from harvest_core.schedule_client import ScheduleClient
from harvest_core.store.postgres import control, settings
from harvest_core.store.postgres import inspect as views
from harvest_core.store.postgres.control import Cancelled, Selection
from harvest_core.store.postgres.database import Database
from harvest_core.store.postgres.enqueue import enqueue_many, enqueue_many_on_async
from harvest_core.store.postgres.inspect import QueueStatus, TaskStatus
from harvest_core.store.postgres.lent import lent


@attrs.frozen
class Task:
    """A handle on an enqueued task.

    Args:
        id: its id.
        created: False where a task of the same key was there already, and this is that one.
    """

    id: int
    created: bool
    _client: Client = attrs.field(repr=False, eq=False)

    async def cancel(self, reason: str = "cancelled") -> Cancelled:
        """Cancel it: it ends at once unless it runs, else its attempt is asked to stop."""
        return await self._client.cancel(self.id, reason=reason)

    async def retry(self) -> bool:
        """Put it back with all its attempts after it failed or was cancelled; False where that cannot be."""
        return bool(await self._client.retry(self.id))

    async def status(self) -> TaskStatus:
        """Return the task as it stands.

        Raises:
            TaskNotFoundError: it is gone: its retention has passed.
        """
        return await self._client.status(self.id)

    async def result(self, timeout: float | str | None = None) -> Any:
        """Wait for the task's end and return its result, of the type that the activity's hint says.

        Args:
            timeout: seconds, or a length of time such as "10s"; None waits for ever.

        Raises:
            TaskFailedError: it failed or was cancelled.
            PayloadError: the result does not match the activity's type hint here, or cannot be decoded.
            TimeoutError: it has not ended in time; it goes on.
        """
        return await self._client.result(self.id, timeout)


class Client(ScheduleClient):
    """Use it as `async with app.client() as client`."""

    def __init__(
        self,
        build: Build,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._build = build
        self._stack = AsyncExitStack()
        self._open: Database | None = None
        self._clock, self._sleep = clock, sleep

    async def __aenter__(self) -> Client:
        self._open = await self._stack.enter_async_context(connected(self._build))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = None
        await self._stack.aclose()

    @property
    def database(self) -> Database:
        """The open database.

        Raises:
            HarvestError: the client is not open.
        """
        if self._open is None:
            msg = "the client is not open; use it as: async with app.client() as client"
            raise HarvestError(msg)
        return self._open

    async def enqueue(
        self,
        activity: RegisteredActivity[..., Any] | str,
        /,
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        connection: psycopg.AsyncConnection[Any] | None = None,
        notify: bool | None = None,
        **options: Any,
    ) -> Task:
        """Enqueue one task and return its handle; a keyed duplicate returns the existing task.

        Args:
            activity: the declared activity, or its name.
            args: its positional arguments.
            kwargs: its keyword arguments.
            connection: your own, in whose transaction the task is written; the client need not be open for that.
            notify: False to wake no sleeping worker; None for the app's `notify`.
            options: as of `Call`.

        Raises:
            EnqueueError: an option or the connection cannot be used; nothing was written.
            UnknownActivityError: the app has no activity of that name.
            PayloadError: an argument does not match its type hint, or cannot be stored.
        """
        call = Call(activity, args, kwargs, **options)
        return (await self.enqueue_many([call], connection=connection, notify=notify))[0]

    async def enqueue_many(
        self,
        calls: Sequence[Call],
        *,
        connection: psycopg.AsyncConnection[Any] | None = None,
        notify: bool | None = None,
    ) -> list[Task]:
        """Enqueue many tasks in one statement, all or none, and return their handles in order."""
        harvest = self._build.config.harvest
        if connection is not None:
            self._build.backend.require("connection=")
        own = None if connection is None else lent(connection, psycopg.AsyncConnection, harvest.schema)
        tasks = [new_task(self._build, call) for call in calls]
        if not tasks:
            return []
        tell = harvest.notify if notify is None else notify
        if own is None:
            rows = await enqueue_many(self.database, tasks, notify=tell)
        else:
            rows = await enqueue_many_on_async(own, harvest.schema, tasks, notify=tell)
        return [Task(task_id, created, self) for task_id, created in rows]

    async def status(self, task_id: int) -> TaskStatus:
        """Return a task as it stands, its payloads as they are stored: JSON, neither structured nor decoded.

        Raises:
            TaskNotFoundError: no task of that id is known.
        """
        found = await self._find(task_id)
        if found is None:
            msg = f"task {task_id} is not known: it was never enqueued here, or its retention has passed"
            raise TaskNotFoundError(msg)
        return found

    async def result(self, task_id: int, timeout: float | str | None = None) -> Any:
        """Wait for a task's end and return its result; see `Task.result`."""
        limit, start = None if timeout is None else seconds(timeout), self._clock()
        pause = 0.01
        while not (found := await self.status(task_id)).finished:
            if limit is not None and self._clock() - start >= limit:
                msg = f"task {task_id} is {found.state} after {limit:g} s (attempt {found.attempt}); it goes on"
                raise TimeoutError(msg)
            await self._sleep(pause)
            pause = min(pause * 1.5, 0.25)
        if found.state != "completed":
            msg = f"task {task_id} ({found.name}) {found.state} at attempt {found.attempt}: {found.error}"
            raise TaskFailedError(msg)
        return self._build.payloads.result(found.name, found.result)

    async def cancel(
        self,
        *task_ids: int,
        queue: str | None = None,
        activity: RegisteredActivity[..., Any] | str | None = None,
        reason: str = "cancelled",
    ) -> Cancelled:
        """Cancel the tasks that meet everything given.

        Those that do not run end at once. A running async function is cancelled; a running plain function is told by
        `current_task().cancelled`, and keeps its slot until it returns.

        Args:
            task_ids: ids of tasks; none for any.
            queue: name of a queue.
            activity: an activity or its name.
            reason: kept as the task's error.

        Raises:
            HarvestError: nothing was given: all tasks at once is refused.
        """
        return await self._end(_selection(task_ids, queue, activity), storable_text(reason))

    async def retry(
        self,
        *task_ids: int,
        queue: str | None = None,
        activity: RegisteredActivity[..., Any] | str | None = None,
        states: Sequence[str] | None = None,
        since: datetime | None = None,
    ) -> list[int]:
        """Put finished tasks back with all their attempts, under the same ids, and return these ids.

        A task whose key another one has by now stays as it is.

        Args:
            task_ids: ids of tasks; none for any.
            queue: name of a queue.
            activity: an activity or its name.
            states: `failed`, `cancelled` or both; unless given both for task_ids, and without them `failed`.
            since: only those that ended then or later; with a time zone.

        Raises:
            HarvestError: nothing was given but states: all tasks at once is refused.
        """
        if states is None:
            states = ("failed", "cancelled") if task_ids else ("failed",)
        if unknown := [state for state in states if state not in ("failed", "cancelled")]:
            msg = f"retry of {unknown[0]!r} tasks: only failed and cancelled tasks can be put back"
            raise HarvestError(msg)
        if since is not None and since.tzinfo is None:
            msg = f"retry since {since!r}: expected a datetime with a time zone"
            raise HarvestError(msg)
        return await self._put_back(_selection(task_ids, queue, activity), states, since)

    def claimer(
        self,
        *,
        queues: Sequence[str] | None = None,
        activities: Collection[RegisteredActivity[..., Any] | str] | None = None,
        filters: Sequence[ClaimFilter] = (),
        lease: str | float | None = None,
    ) -> Claimer:
        """Return what claims tasks for code that runs them itself: `async with client.claimer() as claimer`.

        Args:
            queues: names of queues, in order; the app's `worker.queues` unless given.
            activities: what to claim, other apps' activities by name; all that this app can run unless given.
            filters: what to say in place of plugins' configuration, e.g. `FlagFilter(accepted=["linux"])`.
            lease: silence of this process after which others may take its claims; `worker.worker_ttl` unless given.

        Raises:
            HarvestError: one of these cannot be used, or the client is not open.
        """
        self._build.backend.require("a claimer")
        return Claimer(self.database, direct_build(self._build, queues, filters, lease), activities, sleep=self._sleep)

    async def pause_queue(self, queue: str) -> None:
        """Pause a queue: no claim that starts from now on takes a task of it, and schedule_to_start stands still."""
        await control.pause_queue(self.database, queue)

    async def resume_queue(self, queue: str) -> bool:
        """Resume a queue; False where it was not paused."""
        return await control.resume_queue(self.database, queue)

    async def queues(self) -> list[QueueStatus]:
        """Return the queues that have pending tasks or are paused, by name."""
        return await views.queue_states(self.database)

    async def settings(self) -> Mapping[str, Setting]:
        """Return the runtime settings by key."""
        return await settings.read_settings(self.database)

    async def set_setting(self, key: str, value: Json) -> int:
        """Set a runtime setting, tell every process that listens, and return its version."""
        if not key.strip() or storable_text(key) != key:
            msg = f"setting {key!r}: a key is text that is not blank, without NUL and halves of surrogate pairs"
            raise PayloadError(msg)
        return await settings.write_setting(self.database, key, encode(value, f"setting {key!r}"))

    # What is done to tasks once everything is checked; a test's client does it in memory.

    async def _find(self, task_id: int) -> TaskStatus | None:
        return await views.task_status(self.database, task_id)

    async def _end(self, selection: Selection, reason: str) -> Cancelled:
        return await control.cancel(self.database, selection, reason)

    async def _put_back(self, selection: Selection, states: Sequence[str], since: datetime | None) -> list[int]:
        return await control.retry(self.database, selection, states, since)


def _selection(ids: Sequence[int], queue: str | None, activity: RegisteredActivity[..., Any] | str | None) -> Selection:
    name = activity.name if isinstance(activity, RegisteredActivity) else activity
    return Selection(list(ids) or None, queue, name)
