"""The tasks of one test, by the kernel's rules for keys, order, cancelling and putting back, without a database.

Leaves out what means nothing where one task runs at a time and nobody waits: lanes, schedule_to_start,
schedule_to_close, crashes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import count
from typing import Any, NoReturn

import attrs

from harvest_core.errors import HarvestError, KeyTakenError
from harvest_core.model import Json
from harvest_core.store.postgres.control import Cancelled, Selection
from harvest_core.store.postgres.enqueue import NewTask
from harvest_core.store.postgres.inspect import TaskStatus

Structured = Callable[[str, Any, Any], tuple[list[Any], dict[str, Any]]]
"""Returns the arguments an activity gets, from its name and what is stored of them."""


@attrs.define(eq=False)
class InlineTask:
    """A task of a test: everything it was enqueued with, and what has become of it.

    Attributes:
        id: from 1 in every test, in the order of enqueueing.
        name: name of its activity.
        args: its positional arguments, as the activity gets them.
        kwargs: its keyword arguments, as the activity gets them.
        queue: its queue.
        priority: its priority.
        traits: what plugins stamped, by slug.
        key: its key.
        lane: its lane.
        max_attempts: its attempts in all.
        enqueued_at: when, by the test's clock.
        scheduled_at: when it is due, by the test's clock.
        state: `scheduled` or `pending`, `running`, then `completed`, `failed` or `cancelled`.
        attempt: its attempts so far.
        result: what the activity returned, of the type that its hint says.
        error: of its last attempt.
        traceback: of its last attempt.
        details: of its last heartbeat.
        finished_at: when it ended.
    """

    id: int
    new: NewTask = attrs.field(repr=False)
    _structured: Structured = attrs.field(repr=False)
    enqueued_at: datetime
    scheduled_at: datetime
    state: str = "pending"
    attempt: int = 0
    result: Any = None
    error: str | None = None
    traceback: str | None = attrs.field(default=None, repr=False)
    details: Any = None
    finished_at: datetime | None = None
    stored_result: str | None = attrs.field(default=None, repr=False)
    replaced_by: int | None = None
    stop: Callable[[], None] | None = attrs.field(default=None, repr=False)

    name = property(lambda self: self.new.name)
    queue = property(lambda self: self.new.queue or "default")
    priority = property(lambda self: self.new.priority or 0)
    key = property(lambda self: self.new.key)
    lane = property(lambda self: self.new.lane)
    max_attempts = property(lambda self: self.new.max_attempts or 5)

    @property
    def args(self) -> list[Any]:
        """Its positional arguments, as the activity gets them."""
        return self._structured(self.name, json.loads(self.new.args), json.loads(self.new.kwargs))[0]

    @property
    def kwargs(self) -> dict[str, Any]:
        """Its keyword arguments, as the activity gets them."""
        return self._structured(self.name, json.loads(self.new.args), json.loads(self.new.kwargs))[1]

    @property
    def traits(self) -> Mapping[str, Json]:
        """What plugins stamped, by slug."""
        found: dict[str, Json] = json.loads(self.new.traits)
        return found

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return self.finished_at is not None


class Memory:
    """Holds the tasks of one test.

    Args:
        now: the test's clock.
        structured: reads arguments.
    """

    def __init__(self, now: Callable[[], datetime], structured: Structured) -> None:
        self._now, self._structured, self._ids = now, structured, count(1)
        self.tasks: list[InlineTask] = []
        self.ended: list[InlineTask] = []
        self._paused: set[str] = set()
        self._keys: dict[tuple[str, str], tuple[InlineTask, datetime | None]] = {}

    def enqueue(self, batch: Sequence[NewTask]) -> list[tuple[int, bool]]:
        """Keep new tasks, all or none, and return each one's id and whether it is new.

        Raises:
            KeyTakenError: a key is taken, and the call said `raise`.
        """
        now, ids, holders = self._now(), [next(self._ids) for _ in batch], dict[Any, int]()
        for place, (made, new) in enumerate(zip(ids, batch, strict=True), 1):
            holder = self._holder(new)
            taken = holders.setdefault((new.name, new.key), holder.id if holder else made)
            if new.key is not None and new.on_conflict == "raise" and taken != made:
                msg = f"task {place} ({new.name}): its key is taken by task {taken}; nothing was written"
                raise KeyTakenError(msg)
        return [self._keep(made, new, now) for made, new in zip(ids, batch, strict=True)]

    def due(self, names: Mapping[str, Any]) -> InlineTask | None:
        """Return the first due task of these activities by priority, time and id (rule K2), or None."""
        now = self._now()
        waiting = [
            task
            for task in self.tasks
            if task.state in ("pending", "scheduled")
            and task.scheduled_at <= now
            and task.queue not in self._paused
            and task.name in names
        ]
        return min(waiting, key=lambda task: (-task.priority, task.scheduled_at, task.id), default=None)

    def status(self, task_id: int) -> TaskStatus | None:
        """Return a task as a client sees it, or None where there is none of that id."""
        task = next((task for task in self.tasks if task.id == task_id), None)
        if task is None:
            return None
        return TaskStatus(
            id=task.id,
            state=task.state,
            queue=task.queue,
            name=task.name,
            kind="activity",
            traits=task.traits,
            priority=task.priority,
            attempt=task.attempt,
            max_attempts=task.max_attempts,
            scheduled_at=task.scheduled_at,
            enqueued_at=task.enqueued_at,
            claimed_at=None,
            finished_at=task.finished_at,
            worker_id=None,
            key=task.key,
            args=json.loads(task.new.args),
            kwargs=json.loads(task.new.kwargs),
            result=None if task.stored_result is None else json.loads(task.stored_result),
            error=task.error,
            traceback=task.traceback,
            details=task.details,
            route_id=None,
            lane=task.lane,
            crashes=0,
            stopping=False,
        )

    def end(self, task: InlineTask, state: str, error: str | None = None, traceback: str | None = None) -> None:
        """End a task; an error or a traceback that is not given stays as it was, but a completed task has none."""
        task.state, task.finished_at, task.stop = state, self._now(), None
        completed = state == "completed"
        task.error = None if completed else error or task.error
        task.traceback = None if completed else traceback or task.traceback
        self.ended.append(task)

    def cancel(self, selection: Selection, reason: str) -> Cancelled:
        """Cancel what was selected: a running task is asked to stop, any other ends."""
        chosen = [task for task in self._selected(selection, "cancel") if not task.finished]
        running = [task for task in chosen if task.state == "running"]
        for task in chosen:
            if task not in running:
                self.end(task, "cancelled", reason)
            elif task.stop is not None:
                task.error = reason
                task.stop()
        return Cancelled(len(chosen) - len(running), len(running))

    def retry(self, selection: Selection, states: Sequence[str], since: datetime | None) -> list[int]:
        """Put ended tasks back, save those whose key another one has."""
        back = []
        for task in self._selected(selection, "retry", elsewise=since is not None):
            holder = self._holder(task.new)
            freed = holder is None or holder is task or holder.finished
            if task.state in states and freed and (since is None or task.finished_at >= since):  # type: ignore[operator]
                task.state, task.attempt, task.finished_at, task.scheduled_at = "pending", 0, None, self._now()
                self.ended.remove(task)
                if task.key is not None:
                    self._keys[task.name, task.key] = (task, None)
                back.append(task.id)
        return back

    def pause(self, queue: str) -> None:
        """Pause a queue."""
        self._paused.add(queue)

    def resume(self, queue: str) -> bool:
        """Resume a queue; False where it was not paused."""
        paused = queue in self._paused
        self._paused.discard(queue)
        return paused

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        msg = (
            "schedules, settings, claimers and the list of queues need a database, and app.testing() has none; "
            "test them with a real one"
        )
        raise HarvestError(msg)

    def _holder(self, new: NewTask) -> InlineTask | None:
        """Return the task that has a new one's key, for its life and for its period."""
        if new.key is None:
            return None
        task, until = self._keys.get((new.name, new.key), (None, None))
        return task if task and (not task.finished or (until is not None and until > self._now())) else None

    def _keep(self, made: int, new: NewTask, now: datetime) -> tuple[int, bool]:
        holder = self._holder(new)
        if holder is not None and (new.on_conflict == "ignore" or holder.finished):
            return holder.id, False
        due = (new.scheduled_at or now) + timedelta(seconds=new.delay or 0)
        state = "scheduled" if due > now else "pending"
        if holder is not None and holder.state != "running":  # replaced where it stands
            fresh = InlineTask(holder.id, new, self._structured, holder.enqueued_at, due, state)
            for field in attrs.fields(InlineTask):
                setattr(holder, field.name, getattr(fresh, field.name))
            return holder.id, False
        task = InlineTask(made, new, self._structured, now, due, state)
        if holder is not None:
            holder.replaced_by = made
        if new.key is not None:
            until = None if new.key_period is None else now + timedelta(seconds=new.key_period)
            self._keys[new.name, new.key] = (task, until)
        self.tasks.append(task)
        return made, True

    def _selected(self, selection: Selection, verb: str, *, elsewise: bool = False) -> list[InlineTask]:
        if selection == Selection() and not elsewise:
            msg = f"{verb} of all tasks at once is refused; give ids, a queue or a name"
            raise HarvestError(msg)
        return [
            task
            for task in self.tasks
            if (selection.ids is None or task.id in selection.ids)
            and selection.queue in (None, task.queue)
            and selection.activity in (None, task.name)
        ]
