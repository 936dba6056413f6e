"""`app.testing()`: an application's own tests run their tasks with the worker's dispatcher, on a clock they move."""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cache, partial
from queue import SimpleQueue
from types import TracebackType
from typing import Any

from harvest_core.activity import RegisteredActivity
from harvest_core.build import Build
from harvest_core.duration import seconds
from harvest_core.errors import HarvestError, TaskFailedError
from harvest_core.inline.client import AtOnce, InlineClient
from harvest_core.inline.memory import InlineTask, Memory
from harvest_core.model import Route, Worker
from harvest_core.store.postgres.tasks import Claim, Finished, Retried
from harvest_core.worker.context import CurrentTask
from harvest_core.worker.dispatcher import Dispatcher


class Inline:
    """Use it as `with app.testing() as tests`, also in async tests: every client of the app keeps its tasks here.

    Attributes:
        sync: drives the clients that `app.sync_client()` gave.
    """

    def __init__(
        self, build: Callable[[], Build], switch: Callable[[Inline | None], None], clock: Callable[[], datetime]
    ) -> None:
        self._build, self._switch, self._clock = cache(build), switch, clock
        self._ahead = timedelta()
        self._memory = Memory(lambda: self.now, lambda *stored: self._build().payloads.arguments(*stored))
        self.sync = AtOnce(lambda: self._made(self._run_blocking))

    def __enter__(self) -> Inline:
        self._switch(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._switch(None)

    @property
    def now(self) -> datetime:
        """The test's clock: the given one, UTC's unless given, and what `advance` added."""
        return self._clock() + self._ahead

    @property
    def tasks(self) -> list[InlineTask]:
        """Every task that was enqueued, in that order."""
        return list(self._memory.tasks)

    @property
    def finished(self) -> list[InlineTask]:
        """The tasks that have ended, in that order."""
        return list(self._memory.ended)

    def tasks_of(self, activity: RegisteredActivity[..., Any] | str) -> list[InlineTask]:
        """Return the tasks of an activity, in the order of enqueueing."""
        name = activity if isinstance(activity, str) else activity.name
        return [task for task in self._memory.tasks if task.name == name]

    def advance(self, span: float | str) -> None:
        """Move the clock on; what becomes due runs with the next `run`.

        Args:
            span: seconds, or a length of time such as "5m".
        """
        self._ahead += timedelta(seconds=seconds(span))

    async def run(self, *, raising: bool = True, most: int = 1000) -> list[InlineTask]:
        """Run what is due, follow-up tasks and further attempts included, and return what ended by it.

        One task runs at a time. A failed attempt is followed by the next at once, whatever the wait that its policy
        says. Plain functions run in a thread, as in a worker.

        Args:
            raising: False to leave failed tasks to `tasks`.
            most: attempts after which it gives up: something enqueues itself for ever.

        Raises:
            TaskFailedError: a task failed; all that was due has run by then.
        """
        with ThreadPoolExecutor(1) as thread:
            return await self._told(thread, most, raising=raising)

    def run_sync(self, *, raising: bool = True, most: int = 1000) -> list[InlineTask]:
        """Do the same for a test without an event loop; plain functions run in the calling thread."""
        here = _Here()
        with ThreadPoolExecutor(1) as loop:
            told = loop.submit(contextvars.copy_context().run, asyncio.run, self._told(here, most, raising=raising))
            told.add_done_callback(lambda _: here.end())
            here.serve()
            return told.result()

    def client(self) -> InlineClient:
        """Return a client on the tasks of this test."""
        return self._made(partial(self.run, raising=False))

    def _made(self, run: Callable[[], Any]) -> InlineClient:
        return InlineClient(self._build(), self._memory, run)

    async def _run_blocking(self) -> None:
        self.run_sync(raising=False)

    async def _told(self, threads: Executor, most: int, *, raising: bool) -> list[InlineTask]:
        ended = await self._all_due(threads, most)
        failed = [task for task in ended if task.state == "failed"]
        if raising and failed:
            first = failed[0]
            more = f", and {len(failed) - 1} more failed" if failed[1:] else ""
            msg = (
                f"task {first.id} ({first.name}) failed at attempt {first.attempt}: {first.error}{more}; "
                "where that is the test, call run(raising=False)"
            )
            error = TaskFailedError(msg)
            error.add_note(first.traceback or "")
            raise error
        return ended

    async def _all_due(self, threads: Executor, most: int) -> list[InlineTask]:
        build, ended = self._build(), list[InlineTask]()
        dispatcher = Dispatcher(build.runnable, build.middleware, threads, payloads=build.payloads)
        worker = Worker(
            id="00000000-0000-4000-8000-000000000000",
            name="testing",
            queues=tuple(build.config.worker.queues),
            activities=frozenset(build.runnable),
            facts=build.policies.facts(build.view),
        )
        for _ in range(most):
            task = self._memory.due(build.runnable)
            if task is None:
                return ended
            await self._attempt(task, dispatcher, worker)
            if task.finished:
                ended.append(task)
        if (left := self._memory.due(build.runnable)) is None:
            return ended
        msg = (
            f"{most} attempts have run and {left.name!r} is due again: does it enqueue itself for ever? Else give most="
        )
        raise HarvestError(msg)

    async def _attempt(self, task: InlineTask, dispatcher: Dispatcher, worker: Worker) -> None:
        task.state, task.attempt = "running", task.attempt + 1
        claim, loop, asked = _claim(task), asyncio.get_running_loop(), False

        async def beat(_: Claim, details: str | None) -> bool:
            task.details = task.details if details is None else json.loads(details)
            return True

        def stop() -> None:
            nonlocal asked
            asked = current.cancelled = current.asked_to_stop = True
            loop.call_soon_threadsafe(attempt.cancel)

        current = CurrentTask(claim, worker, {}, beat, loop)
        attempt = asyncio.create_task(dispatcher.run(claim, current))
        task.stop = stop
        outcome = await attempt
        if current.thread is not None:
            with suppress(Exception):  # its outcome is decided; its thread ends before the next task
                await asyncio.shield(current.thread)
        if isinstance(outcome, Finished):
            task.stored_result = outcome.result
            self._memory.end(task, outcome.state, outcome.error, outcome.traceback)
            if outcome.result is not None:
                task.result = self._build().payloads.result(task.name, json.loads(outcome.result))
        elif isinstance(outcome, Retried) and not asked and task.replaced_by is None:
            task.state, task.error, task.traceback = "pending", outcome.error, outcome.traceback
        else:
            reason = None if asked else f"replaced by task {task.replaced_by}"
            self._memory.end(task, "cancelled", reason)


def _claim(task: InlineTask) -> Claim:
    return Claim(
        route=Route(0, task.queue, "activity", task.name, task.traits),
        id=task.id,
        token=task.attempt,
        attempt=task.attempt,
        max_attempts=task.max_attempts,
        priority=task.priority,
        scheduled_at=task.scheduled_at,
        enqueued_at=task.enqueued_at,
        start_to_close=task.new.start_to_close,
        heartbeat=task.new.heartbeat,
        args=json.loads(task.new.args),
        kwargs=json.loads(task.new.kwargs),
        turn=0,
    )


class _Here(Executor):
    """Has functions run by the thread that serves, while the loop that submits them runs in another."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def work() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - the future carries it to whoever submitted
                future.set_exception(error)

        future.set_running_or_notify_cancel()
        self._work.put(work)
        return future

    def serve(self) -> None:
        """Run what is submitted until `end` is called."""
        while (work := self._work.get()) is not None:
            work()

    def end(self) -> None:
        """Let `serve` return."""
        self._work.put(None)
