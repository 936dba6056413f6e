"""The client: enqueue tasks, look at them, wait for their results, control queues and settings. Runs no task."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from types import TracebackType
from typing import Any

import attrs
import psycopg

from harvest_core.activity import RegisteredActivity
from harvest_core.build import ENQUEUE_OPTIONS, Build
from harvest_core.connect import connected
from harvest_core.duration import seconds
from harvest_core.errors import (
    EnqueueError,
    HarvestError,
    LocalActivityError,
    PayloadError,
    TaskFailedError,
    TaskNotFoundError,
    UnknownActivityError,
    near_match,
)
from harvest_core.model import Activity, Json
from harvest_core.payload import encode, storable_text
from harvest_core.plugin import Setting
from harvest_core.store.postgres import inspect as views
from harvest_core.store.postgres import settings
from harvest_core.store.postgres.database import Database
from harvest_core.store.postgres.enqueue import NewTask, enqueue_many
from harvest_core.store.postgres.inspect import TaskStatus

_INTEGER = 2**31
_SECONDS = 300 * 365.25 * 86400
_TEXT_BYTES = 1024
_LAST_YEAR = 9000


class Call:
    """One task to be: an activity, its arguments, and enqueue options.

    Args:
        activity: the declared activity, or its name.
        args: positional arguments.
        kwargs: keyword arguments of the activity.
        options: `queue`, `priority`, `delay` (seconds or "5m"), `scheduled_at` (aware datetime), `key` (unique among
            unfinished tasks of the activity), `max_attempts`, `start_to_close`, `heartbeat`, `elsewhere` (True:
            another app has the activity), and the enqueue options of plugins, e.g. `flags`.
    """

    def __init__(
        self,
        activity: RegisteredActivity[..., Any] | str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(activity, str | RegisteredActivity):
            msg = f"{activity!r} is no activity: decorate the function with @app.activity, or pass a name"
            raise EnqueueError(msg)
        self.activity = activity if isinstance(activity, str) else activity.name
        self.args, self.kwargs, self.options = args, kwargs or {}, options


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
        """Wait for the task's end and return its result, of the type that the activity's hint says.

        Args:
            timeout: seconds, or a length of time such as "10s"; None waits for ever.

        Raises:
            TaskFailedError: it failed or was cancelled.
            PayloadError: the result does not match the activity's type hint here, or cannot be decoded.
            TimeoutError: it has not ended in time; it goes on.
        """
        return await self._client.result(self.id, timeout)


class Client:
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
        if connection is not None and not isinstance(connection, psycopg.AsyncConnection):
            kind = type(connection).__name__
            msg = f"connection is a {kind}; pass a psycopg.AsyncConnection, or call {{schema}}.enqueue in SQL"
            raise EnqueueError(msg.replace("{schema}", self._build.config.harvest.schema))
        tasks = [self._new_task(call) for call in calls]
        if not tasks:
            return []
        tell = self._build.config.harvest.notify if notify is None else notify
        rows = await enqueue_many(self.database, tasks, notify=tell, connection=connection)
        return [Task(task_id, created, self) for task_id, created in rows]

    async def status(self, task_id: int) -> TaskStatus:
        """Return a task as it stands, its payloads as they are stored: JSON, neither structured nor decoded.

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
        return self._build.payloads.result(found.name, found.result)

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

    def _new_task(self, call: Call) -> NewTask:
        name, options = call.activity, dict(call.options)
        activity = self._build.activities.get(name)
        elsewhere = options.pop("elsewhere", False)
        if activity is None and not elsewhere:
            hint = near_match(name, self._build.runnable) or f"it has {', '.join(self._build.runnable) or 'none'}"
            msg = f"this app has no activity {name!r}: {hint}; pass elsewhere=True where another app has it"
            raise UnknownActivityError(msg)
        if activity is not None and activity.local:
            msg = f"{name!r} is a local activity: it runs inline in a workflow and is never enqueued"
            raise LocalActivityError(msg)
        args, kwargs = self._build.payloads.stored_arguments(name, call.args, call.kwargs)
        traits = self._stamped(name, options)
        return NewTask(
            name=name,
            args=args,
            kwargs=kwargs,
            traits=encode(traits, f"options of {name!r}"),
            **_kernel_options(name, activity, options),
        )

    def _stamped(self, name: str, options: dict[str, Any]) -> dict[str, Json]:
        """Take the plugins' options out of options and return the traits they become."""
        given: dict[str, dict[str, Any]] = {}
        for option in [option for option in options if option not in ENQUEUE_OPTIONS]:
            slug = self._build.enqueue_options.get(option)
            if slug is None:
                known = [*ENQUEUE_OPTIONS, *self._build.enqueue_options]
                hint = near_match(option, known) or f"options are {', '.join(known)}"
                msg = (
                    f"enqueue of {name!r}: no option {option!r}: {hint}; the activity's own keywords go through kwargs="
                )
                raise EnqueueError(msg)
            given.setdefault(slug, {})[option] = options.pop(option)
        traits = {slug: self._build.policies.plugins[slug].stamp(values) for slug, values in given.items()}
        return {slug: trait for slug, trait in traits.items() if trait is not None}


def _kernel_options(name: str, activity: Activity | None, options: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(options)
    if activity is not None:
        found.setdefault("queue", activity.queue)
        found.setdefault("priority", activity.priority)
        found.setdefault("max_attempts", activity.retry.max_attempts)
        found.setdefault("start_to_close", activity.start_to_close)
        found.setdefault("heartbeat", activity.heartbeat)
    for option in ("priority", "max_attempts"):
        value, least = found.get(option), 1 if option == "max_attempts" else -_INTEGER
        if value is not None and not (type(value) is int and least <= value < _INTEGER):
            msg = f"enqueue of {name!r}: {option} is {value!r}; expected a whole number from {least} to {_INTEGER - 1}"
            raise EnqueueError(msg)
    for option in ("queue", "key"):
        value = found.get(option)
        if value is not None and not (isinstance(value, str) and value.strip() and storable_text(value) == value):
            msg = f"enqueue of {name!r}: {option} is {value!r}; expected text that is not blank, without NUL"
            raise EnqueueError(msg)
        if value is not None and len(value.encode()) > _TEXT_BYTES:
            msg = f"enqueue of {name!r}: {option} takes more than {_TEXT_BYTES} bytes; use a digest of it"
            raise EnqueueError(msg)
    for option in ("delay", "start_to_close", "heartbeat"):
        if found.get(option) is not None:
            try:
                found[option] = seconds(found[option])
            except ValueError as error:
                msg = f"enqueue of {name!r}: {option} {error}"
                raise EnqueueError(msg) from None
            if found[option] > _SECONDS or (found[option] <= 0 and option != "delay"):
                msg = f"enqueue of {name!r}: {option} is {found[option]:g} s; expected above 0 and at most 300 years"
                raise EnqueueError(msg)
    moment = found.get("scheduled_at")
    if moment is not None and not (isinstance(moment, datetime) and moment.tzinfo is not None):
        msg = f"enqueue of {name!r}: scheduled_at is {moment!r}; expected a datetime with a time zone"
        raise EnqueueError(msg)
    if moment is not None and not 2 <= moment.year < _LAST_YEAR:
        msg = f"enqueue of {name!r}: scheduled_at is {moment!r}; expected a year from 2 to {_LAST_YEAR - 1}"
        raise EnqueueError(msg)
    return found
