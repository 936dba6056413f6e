"""The client: enqueue tasks, look at them, wait for their results, control queues and settings. Runs no task."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any

import attrs
import psycopg

from harvest_core.activity import RegisteredActivity
from harvest_core.build import Build
from harvest_core.connect import connected
from harvest_core.duration import seconds
from harvest_core.enqueue import Call, new_task
from harvest_core.errors import (
    EnqueueError,
    HarvestError,
    PayloadError,
    TaskFailedError,
    TaskNotFoundError,
)
from harvest_core.model import Json
from harvest_core.payload import encode, storable_text
from harvest_core.plugin import Setting
from harvest_core.schedule_client import ScheduleClient
from harvest_core.store.postgres import inspect as views
from harvest_core.store.postgres import settings
from harvest_core.store.postgres.database import Database
from harvest_core.store.postgres.enqueue import enqueue_many
from harvest_core.store.postgres.inspect import TaskStatus


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

    async def status(self) -> TaskStatus:
        """Return the task as it stands.

        Raises:
            TaskNotFoundError: it is gone: its retention has passed.
        """
        return await self._client.status(self.id)

    async def result(self, timeout: float | str | None = None) -> Any:
        """Wait for the task's end and return its result.

        Args:
            timeout: seconds, or a length of time such as "10s"; None waits for ever.

        Raises:
            TaskFailedError: it failed or was cancelled.
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
            connection: your own, in whose transaction the task is written.
            notify: False to wake no sleeping worker; None for the app's `notify`.
            options: as of `Call`.

        Raises:
            EnqueueError: an option is unknown or not allowed; nothing was written.
            UnknownActivityError: the app has no activity of that name.
            PayloadError: the arguments cannot be stored.
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
        if connection is not None and not isinstance(connection, psycopg.AsyncConnection):
            kind = type(connection).__name__
            msg = f"connection is a {kind}; pass a psycopg.AsyncConnection, or call {{schema}}.enqueue in SQL"
            raise EnqueueError(msg.replace("{schema}", self._build.config.harvest.schema))
        tasks = [new_task(self._build, call) for call in calls]
        if not tasks:
            return []
        tell = self._build.config.harvest.notify if notify is None else notify
        rows = await enqueue_many(self.database, tasks, notify=tell, connection=connection)
        return [Task(task_id, created, self) for task_id, created in rows]

    async def status(self, task_id: int) -> TaskStatus:
        """Return a task as it stands.

        Raises:
            TaskNotFoundError: no task of that id is known.
        """
        found = await views.task_status(self.database, task_id)
        if found is None:
            msg = f"task {task_id} is not known: it was never enqueued here, or its retention has passed"
            raise TaskNotFoundError(msg)
        return found

    async def result(self, task_id: int, timeout: float | str | None = None) -> Any:
        """Wait for a task's end and return its result; see `Task.result`."""
        end = None if timeout is None else self._clock() + seconds(timeout)
        pause = 0.01
        while not (found := await self.status(task_id)).finished:
            if end is not None and self._clock() >= end:
                msg = f"task {task_id} is {found.state} after {timeout} s (attempt {found.attempt}); it goes on"
                raise TimeoutError(msg)
            await self._sleep(pause)
            pause = min(pause * 1.5, 0.25)
        if found.state != "completed":
            msg = f"task {task_id} ({found.name}) {found.state} at attempt {found.attempt}: {found.error}"
            raise TaskFailedError(msg)
        return found.result

    async def pause_queue(self, queue: str) -> None:
        """Pause a queue: no claim that starts from now on takes a task of it."""
        await self.database.fetch("select {schema}.pause_queue(%s::text)", [queue])

    async def resume_queue(self, queue: str) -> bool:
        """Resume a queue; False where it was not paused."""
        return bool((await self.database.fetch("select {schema}.resume_queue(%s::text)", [queue]))[0][0])

    async def settings(self) -> Mapping[str, Setting]:
        """Return the runtime settings by key."""
        return await settings.read_settings(self.database)

    async def set_setting(self, key: str, value: Json) -> int:
        """Set a runtime setting, tell every process that listens, and return its version."""
        if not key.strip() or storable_text(key) != key:
            msg = f"setting {key!r}: a key is text that is not blank, without NUL and halves of surrogate pairs"
            raise PayloadError(msg)
        return await settings.write_setting(self.database, key, encode(value, f"setting {key!r}"))
