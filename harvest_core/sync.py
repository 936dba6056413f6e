"""Client, claimer and worker for code without an event loop: the async ones, driven on a loop in a thread of their own.

Adds no behaviour of its own: a method here is the twin of the one with its name there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from functools import cache, wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

import attrs
import psycopg

from harvest_core.activity import RegisteredActivity
from harvest_core.build import Build
from harvest_core.claimed import ClaimedTask
from harvest_core.claimer import Claimer
from harvest_core.client import Client, Task
from harvest_core.enqueue import Call, new_task
from harvest_core.errors import HarvestError
from harvest_core.loop_thread import OnLoop
from harvest_core.model import Json
from harvest_core.plugin import ClaimFilter
from harvest_core.store.postgres import enqueue as store
from harvest_core.store.postgres.lent import lent
from harvest_core.worker.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
Driven = TypeVar("Driven")
Driven_co = TypeVar("Driven_co", covariant=True)


class _Drives(Protocol[Driven_co]):
    """Has an async twin, and runs a coroutine of it to its end."""

    def _drive(self, work: Callable[[Driven_co], Coroutine[Any, Any, R]]) -> R: ...


class _Runs(Protocol):
    """Opens a client, and runs coroutines of it to their end: a loop in a thread, or a test in memory."""

    def open(self) -> None: ...
    def run(self, work: Callable[[Client], Coroutine[Any, Any, R]], /) -> R: ...
    def close(self) -> None: ...


def _twin(
    method: Callable[Concatenate[Driven, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[_Drives[Driven], P], R]:
    """Return the blocking twin of an async method: same name, parameters, result, errors and docstring."""
    name = method.__name__

    @wraps(method)
    def twin(self: _Drives[Driven], /, *args: P.args, **kwargs: P.kwargs) -> R:
        # By name: what a test's client does otherwise counts here too.
        return self._drive(lambda driven: cast(Coroutine[Any, Any, R], getattr(driven, name)(*args, **kwargs)))

    return twin


@attrs.frozen
class SyncTask:
    """A handle on an enqueued task.

    Args:
        id: its id.
        created: False where a task of the same key was there already, and this is that one.
    """

    id: int
    created: bool
    _client: _Runs = attrs.field(repr=False, eq=False)

    status = _twin(Task.status)
    result = _twin(Task.result)
    cancel = _twin(Task.cancel)
    retry = _twin(Task.retry)

    def _drive(self, work: Callable[[Task], Coroutine[Any, Any, R]]) -> R:
        return self._client.run(lambda client: work(Task(self.id, self.created, client)))


class SyncClient:
    """Use it as `with app.sync_client() as client`, or keep one for the life of the process.

    It may be used by several threads. It connects at first need, and anew after `close` and in a forked child. A call
    that is interrupted (Ctrl-C) is given up on the database too.

    Args:
        build: called at first need, so that activities may be declared after this was made.
        inline: what takes all calls in place of a database as long as a test of the app is open.
    """

    def __init__(self, build: Callable[[], Build], inline: Callable[[], _Runs | None] = lambda: None) -> None:
        self._build = built = cache(build)
        self._inline = inline
        self._on_loop = OnLoop(lambda: Client(built()))

    @property
    def _client(self) -> _Runs:
        return self._inline() or self._on_loop

    def __enter__(self) -> SyncClient:
        self._client.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections and end its thread; calls of other threads fail. A later call opens it again."""
        self._client.close()

    status = _twin(Client.status)
    result = _twin(Client.result)
    cancel = _twin(Client.cancel)
    retry = _twin(Client.retry)
    schedules = _twin(Client.schedules)
    put_schedule = _twin(Client.put_schedule)
    pause_schedule = _twin(Client.pause_schedule)
    resume_schedule = _twin(Client.resume_schedule)
    trigger_schedule = _twin(Client.trigger_schedule)
    delete_schedule = _twin(Client.delete_schedule)
    queues = _twin(Client.queues)
    pause_queue = _twin(Client.pause_queue)
    resume_queue = _twin(Client.resume_queue)
    settings = _twin(Client.settings)
    set_setting = _twin(Client.set_setting)

    def enqueue(
        self,
        activity: RegisteredActivity[..., Any] | str,
        /,
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        connection: psycopg.Connection[Any] | None = None,
        notify: bool | None = None,
        **options: Any,
    ) -> SyncTask:
        """Enqueue one task and return its handle; a keyed duplicate returns the existing task.

        Args:
            activity: the declared activity, or its name.
            args: its positional arguments.
            kwargs: its keyword arguments.
            connection: your own, in whose transaction the task is written, by this thread; the client then needs none.
            notify: False to wake no sleeping worker; None for the app's `notify`.
            options: as of `Call`.

        Raises:
            EnqueueError: an option or the connection cannot be used; nothing was written.
            UnknownActivityError: the app has no activity of that name.
            PayloadError: the arguments cannot be stored.
        """
        call = Call(activity, args, kwargs, **options)
        return self.enqueue_many([call], connection=connection, notify=notify)[0]

    def enqueue_many(
        self,
        calls: Sequence[Call],
        *,
        connection: psycopg.Connection[Any] | None = None,
        notify: bool | None = None,
    ) -> list[SyncTask]:
        """Enqueue many tasks in one statement, all or none, and return their handles in order."""
        if connection is None or self._inline() is not None:
            lend: Any = connection  # only a test's client comes to see one
            made = self._drive(lambda client: client.enqueue_many(calls, connection=lend, notify=notify))
            return [SyncTask(task.id, task.created, self._client) for task in made]
        build = self._build()
        harvest = build.config.harvest
        build.backend.require("connection=")
        own = lent(connection, psycopg.Connection, harvest.schema)
        tasks = [new_task(build, call) for call in calls]
        if not tasks:
            return []
        tell = harvest.notify if notify is None else notify
        rows = store.enqueue_many_on(own, harvest.schema, tasks, notify=tell)
        return [SyncTask(task_id, created, self._on_loop) for task_id, created in rows]

    def claimer(
        self,
        *,
        queues: Sequence[str] | None = None,
        activities: Collection[RegisteredActivity[..., Any] | str] | None = None,
        filters: Sequence[ClaimFilter] = (),
        lease: str | float | None = None,
    ) -> SyncClaimer:
        """Return what claims tasks for code that runs them itself: `with client.claimer() as claimer`.

        Args:
            queues: names of queues, in order; the app's `worker.queues` unless given.
            activities: what to claim, other apps' activities by name; all that this app can run unless given.
            filters: what to say in place of plugins' configuration, e.g. `FlagFilter(accepted=["linux"])`.
            lease: silence of this process after which others may take its claims; `worker.worker_ttl` unless given.
        """
        if self._inline() is not None:
            msg = "app.testing() is open: its tasks are run by it and claimed by nobody else; use tests.run_sync()"
            raise HarvestError(msg)
        return SyncClaimer(
            self._on_loop,
            lambda client: client.claimer(queues=queues, activities=activities, filters=filters, lease=lease),
        )

    def _drive(self, work: Callable[[Client], Coroutine[Any, Any, R]]) -> R:
        return self._client.run(work)


class SyncClaimer:
    """Use it as `with client.claimer() as claimer`; leaving the block gives back what is still claimed.

    Args:
        client: on whose loop it lives; where that is closed or left behind by a fork, calls here fail.
        make: returns the claimer.
    """

    def __init__(self, client: OnLoop[Client], make: Callable[[Client], Claimer]) -> None:
        self._client, self._make = client, make
        self._opened: tuple[Client, Claimer] | None = None

    def __enter__(self) -> SyncClaimer:
        async def enter(client: Client) -> tuple[Client, Claimer]:
            return client, await self._make(client).__aenter__()

        self._opened = self._client.run(enter)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drive(lambda claimer: claimer.__aexit__(None, None, None))

    def claim(self) -> SyncClaimedTask | None:
        """Claim one task; None where there is none for this caller now.

        Raises:
            HookError: a policy cannot be judged; nothing was claimed. So do the methods below.
            DatabaseUnavailableError: what may have been claimed is given back. So do the methods below.
        """
        claimed = self.claim_many(1)
        return claimed[0] if claimed else None

    def claim_many(self, most: int) -> list[SyncClaimedTask]:
        """Claim at most so many tasks, in one statement, and return them in the order of their turns."""
        return [SyncClaimedTask(task, self) for task in self._drive(lambda claimer: claimer.claim_many(most))]

    def stream(self, batch: int = 1, poll_interval: str | float | None = None) -> Iterator[SyncClaimedTask]:
        """Yield tasks as they come, blocking between them, until `stop`; see `Claimer.stream`."""
        stream: AsyncIterator[ClaimedTask] | None = None

        async def following(claimer: Claimer) -> ClaimedTask | None:
            nonlocal stream
            stream = stream or claimer.stream(batch, poll_interval)
            return await anext(stream, None)

        while (task := self._drive(following)) is not None:
            yield SyncClaimedTask(task, self)

    def stop(self) -> None:
        """End every stream of this claimer before its next task; from another thread."""
        if self._opened is not None:
            claimer = self._opened[1]
            self._client.soon(lambda _: claimer.stop())

    def _drive(self, work: Callable[[Claimer], Coroutine[Any, Any, R]]) -> R:
        async def there(client: Client) -> R:
            if self._opened is None or self._opened[0] is not client:
                msg = "the claimer is not open here; use it as: with client.claimer() as claimer"
                raise HarvestError(msg)
            return await work(self._opened[1])

        return self._client.run(there)


class SyncClaimedTask:
    """A claimed task; see `ClaimedTask`, whose attributes it has."""

    def __init__(self, task: ClaimedTask, claimer: SyncClaimer) -> None:
        self._task, self._claimer = task, claimer
        self.id, self.name, self.queue, self.attempt = task.id, task.name, task.queue, task.attempt
        self.args, self.kwargs, self.flags = task.args, task.kwargs, task.flags
        self.traits: Mapping[str, Json] = task.traits

    @property
    def cancelled(self) -> bool:
        """True once the attempt should stop: someone cancelled the task, or its claim was lost."""
        return self._task.cancelled

    complete = _twin(ClaimedTask.complete)
    fail = _twin(ClaimedTask.fail)
    release = _twin(ClaimedTask.release)
    heartbeat = _twin(ClaimedTask.heartbeat)

    def _drive(self, work: Callable[[ClaimedTask], Coroutine[Any, Any, R]]) -> R:
        return self._claimer._drive(lambda _: work(self._task))


class SyncWorker:
    """Use it as `with app.sync_worker() as worker`, then `run()` or `run_once()`; `stop()` from another thread.

    It minds no signals: as a process of its own, run `harvest worker run`.
    """

    def __init__(self, build: Build) -> None:
        self._worker = OnLoop(lambda: Worker(build))

    def __enter__(self) -> SyncWorker:
        self._worker.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._worker.close()

    run = _twin(Worker.run)
    run_once = _twin(Worker.run_once)

    def stop(self) -> None:
        """Stop claiming, let running tasks finish within the grace; called again: stop now (rule K12)."""
        self._worker.soon(Worker.stop)

    def _drive(self, work: Callable[[Worker], Coroutine[Any, Any, R]]) -> R:
        return self._worker.run(work)
