"""The client of a test: the real one's checks and errors, on tasks in memory. Waiting for a result runs what is due."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, TypeVar, cast

from harvest_core.build import Build
from harvest_core.client import Client, Task
from harvest_core.enqueue import Call, new_task
from harvest_core.inline.memory import Memory
from harvest_core.store.postgres.control import Cancelled, Selection
from harvest_core.store.postgres.database import Database
from harvest_core.store.postgres.inspect import TaskStatus

R = TypeVar("R")


class InlineClient(Client):
    """Stands in for `Client` inside `app.testing()`.

    Args:
        build: as of `Client`.
        memory: where tasks are kept.
        run: runs what is due.
    """

    def __init__(self, build: Build, memory: Memory, run: Callable[[], Awaitable[object]]) -> None:
        super().__init__(build)
        self._memory, self._run = memory, run

    async def __aenter__(self) -> InlineClient:
        self._open = cast(
            Database, self._memory
        )  # closed, it refuses as the real one; what needs more is refused there
        return self

    async def enqueue_many(
        self,
        calls: Sequence[Call],
        *,
        connection: Any = None,
        notify: bool | None = None,  # noqa: ARG002
    ) -> list[Task]:
        """Enqueue as the real one; a connection of any driver is taken, and its transaction has no say."""
        tasks = [new_task(self._build, call) for call in calls]
        memory = self._memory_if_open() if connection is None and tasks else self._memory
        return [Task(task_id, created, self) for task_id, created in memory.enqueue(tasks)]

    async def result(self, task_id: int, timeout: float | str | None = None) -> Any:
        """Run what is due, unless the task has ended; then as the real one, which never waits here.

        Raises:
            TimeoutError: the task has not ended by that, whatever the timeout.
        """
        if not (await self.status(task_id)).finished:
            await self._run()
        if not (found := await self.status(task_id)).finished:
            when = f"due at {found.scheduled_at:%Y-%m-%d %H:%M:%S %Z}"
            msg = (
                f"task {task_id} ({found.name}) is {found.state}, {when}, and everything due has run: "
                "tests.advance() moves the clock, and neither a paused queue nor another app's activity runs"
            )
            raise TimeoutError(msg)
        return await super().result(task_id, timeout)

    async def pause_queue(self, queue: str) -> None:
        """Pause as the real one."""
        self._memory_if_open().pause(queue)

    async def resume_queue(self, queue: str) -> bool:
        """Resume as the real one."""
        return self._memory_if_open().resume(queue)

    async def _find(self, task_id: int) -> TaskStatus | None:
        return self._memory_if_open().status(task_id)

    async def _end(self, selection: Selection, reason: str) -> Cancelled:
        return self._memory_if_open().cancel(selection, reason)

    async def _put_back(self, selection: Selection, states: Sequence[str], since: datetime | None) -> list[int]:
        return self._memory_if_open().retry(selection, states, since)

    def _memory_if_open(self) -> Memory:
        return cast(Memory, self.database)


class AtOnce:
    """Drives an open inline client for code without an event loop: no thread, because nothing of it ever waits."""

    def __init__(self, client: Callable[[], InlineClient]) -> None:
        self._client = client

    def open(self) -> None:
        """Do nothing: there is no connection."""

    def close(self) -> None:
        """Do nothing, either."""

    def run(self, work: Callable[[Client], Coroutine[Any, Any, R]]) -> R:
        """Run a coroutine of the client to its end."""

        async def opened() -> R:
            async with self._client() as client:
                return await work(client)

        try:
            opened().send(None)
        except StopIteration as ended:
            return cast(R, ended.value)
        msg = "a call of the inline client waited for something"
        raise RuntimeError(msg)
