"""`Harvest`: where an application declares its activities, configures its plugins, and gets clients and workers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import attrs

from harvest_core import build as composition
from harvest_core.activity import P, R, RegisteredActivity, declaration_faults
from harvest_core.client import Client
from harvest_core.duration import Duration, seconds
from harvest_core.errors import HarvestError, Problem, near_match
from harvest_core.model import Activity, Retry
from harvest_core.plugin import Plugin
from harvest_core.schedule import Schedule
from harvest_core.scheduling import schedule_problems
from harvest_core.sync import SyncClient, SyncWorker
from harvest_core.worker.worker import Worker

if TYPE_CHECKING:
    from harvest_core.inline.session import Inline

PluginT = TypeVar("PluginT", bound=Plugin)


class Harvest:
    """An application: its configuration, plugins, activities and middleware.

    Never raises on a fault of the configuration; `build` does, with every fault at once (rule B1).

    Args:
        config: a mapping in the shape of `harvest.toml`; the environment has no say over it. None for the defaults
            and the environment.
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self._source: Path | Mapping[str, Any] | None = config
        self._launch = composition.launch.get()
        self._setup: composition.Setup | None = None
        self._activities: dict[str, Activity] = {}
        self._middleware: list[Callable[..., Any]] = []
        self._schedules: list[Schedule] = []
        self._faults: list[Problem] = []
        self._inline: Inline | None = None

    @classmethod
    def from_toml(cls, path: str | Path) -> Harvest:
        """Return an application configured by a TOML file, over which the environment and a command line go."""
        app = cls()
        app._source = Path(path)
        return app

    @property
    def setup(self) -> composition.Setup:
        """The configuration and its plugins with every problem found, made once."""
        if self._setup is None:
            self._setup = composition.configure(self._source, self._launch)
        return self._setup

    @property
    def activities(self) -> Mapping[str, Activity]:
        """The declared activities by name, local ones included."""
        return self._activities

    @overload
    def activity(self, function: Callable[P, R], /) -> RegisteredActivity[P, R]: ...
    @overload
    def activity(
        self,
        *,
        name: str | None = ...,
        queue: str = ...,
        priority: int = ...,
        max_attempts: int | None = ...,
        retry: Retry | None = ...,
        start_to_close: str | float | None = ...,
        schedule_to_start: str | float | None = ...,
        schedule_to_close: str | float | None = ...,
        heartbeat: str | float | None = ...,
        **options: Any,
    ) -> Callable[[Callable[P, R]], RegisteredActivity[P, R]]: ...
    def activity(
        self,
        function: Callable[P, R] | None = None,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 0,
        max_attempts: int | None = None,
        retry: Retry | None = None,
        start_to_close: str | float | None = None,
        schedule_to_start: str | float | None = None,
        schedule_to_close: str | float | None = None,
        heartbeat: str | float | None = None,
        **options: Any,
    ) -> Any:
        """Declare an async or plain function as an activity.

        Args:
            function: given where the decorator stands without parentheses.
            name: unique in the app; the function's own name unless given.
            queue: queue of its tasks unless a call says otherwise.
            priority: higher runs first.
            max_attempts: starts in all, 5 unless given here or in retry.
            retry: how failures are retried.
            start_to_close: the time one attempt may take, e.g. `"10m"`.
            schedule_to_start: the time a due task may wait for its start; it runs on under a hold, and stands still
                while the queue is paused.
            schedule_to_close: the time from when a task is due to its end, all attempts included.
            heartbeat: the time between two heartbeats of an attempt, after which it counts as failed.
            options: activity options of the enabled plugins, e.g. `requires=`.
        """

        def declare(decorated: Callable[P, R]) -> RegisteredActivity[P, R]:
            chosen = name or str(getattr(decorated, "__name__", ""))
            policy = retry if isinstance(retry, Retry) else Retry()
            if retry is not policy and retry is not None:
                self._fault(chosen, "retry", f"is {retry!r}; expected a harvest_core.Retry")
            if max_attempts is not None:
                policy = attrs.evolve(policy, max_attempts=max_attempts)
            activity = Activity(
                name=chosen,
                function=decorated,
                queue=queue,
                priority=priority,
                retry=policy,
                start_to_close=self._span(chosen, "start_to_close", start_to_close),
                schedule_to_start=self._span(chosen, "schedule_to_start", schedule_to_start),
                schedule_to_close=self._span(chosen, "schedule_to_close", schedule_to_close),
                heartbeat=self._span(chosen, "heartbeat", heartbeat),
                options=options,
            )
            return self._declare(activity, decorated)

        return declare if function is None else declare(function)

    @overload
    def local_activity(self, function: Callable[P, R], /) -> RegisteredActivity[P, R]: ...
    @overload
    def local_activity(
        self, *, name: str | None = ..., **options: Any
    ) -> Callable[[Callable[P, R]], RegisteredActivity[P, R]]: ...
    def local_activity(self, function: Callable[P, R] | None = None, *, name: str | None = None, **options: Any) -> Any:
        """Declare a function that runs inline in its workflow's task and is never a row.

        Args:
            function: given where the decorator stands without parentheses.
            name: unique in the app; the function's own name unless given.
            options: activity options of the enabled plugins; most refuse local activities.
        """

        def declare(decorated: Callable[P, R]) -> RegisteredActivity[P, R]:
            activity = Activity(name or str(getattr(decorated, "__name__", "")), decorated, local=True, options=options)
            return self._declare(activity, decorated)

        return declare if function is None else declare(function)

    def middleware(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Run an async function `(task, call_next)` around every attempt; the first one declared is the outermost."""
        if not inspect.iscoroutinefunction(function):
            where, hint = f"middleware {function.__name__!r}", "write async def"
            self._faults.append(Problem("middleware.sync", where, "is not an async function", hint))
        self._middleware.append(function)
        return function

    def schedule(
        self,
        name: str,
        activity: RegisteredActivity[..., Any] | str,
        /,
        *args: Any,
        cron: str | None = None,
        every: str | float | None = None,
        timezone: str | None = None,
        catch_up: str = "one",
        overlap: str = "skip",
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Have an activity enqueued at set times, as long as a live worker declares it so.

        Args:
            name: unique in the database.
            activity: the declared activity, or its name.
            args: positional arguments of its tasks.
            cron: minute, hour, day, month and weekday, e.g. `"0 3 * * *"`; six fields begin with seconds.
            every: in place of cron a length of time, 1 s to 366 days, counted from 1970-01-01 UTC.
            timezone: in which cron is read, e.g. `"Europe/Berlin"`; UTC unless given.
            catch_up: for ticks missed while no worker ran: `"one"` enqueues the newest of them, `"all"` the newest
                1000, `"none"` none that is more than a minute late.
            overlap: while an earlier task is unfinished, held or running: `"skip"` leaves the tick out, `"allow"`
                enqueues it, `"buffer_one"` lets one task wait for a running one.
            kwargs: keyword arguments of its tasks.
            options: of the enqueue, such as `queue`, `priority` and what plugins add; none is there unless given here.
        """
        made = Schedule(name, activity, args, kwargs, cron, every, timezone, catch_up, overlap, options)
        self._schedules.append(made)

    @overload
    def plugin(self, which: type[PluginT]) -> PluginT: ...
    @overload
    def plugin(self, which: str) -> Any: ...
    def plugin(self, which: str | type[Plugin]) -> Any:
        """Return an enabled plugin by slug or class, also before `build`.

        Raises:
            LookupError: it is not enabled.
        """
        slug = which if isinstance(which, str) else which.slug
        plugins = self.setup.plugins
        if slug not in plugins:
            hint = near_match(slug, plugins) or f"enabled: {', '.join(plugins) or 'none'}"
            msg = f'plugin {slug!r} is not enabled: {hint}; enable it with plugins = ["{slug}"] under [harvest]'
            raise LookupError(msg)
        return plugins[slug]

    def build(self) -> composition.Build:
        """Check that configuration, plugins, activities and backend fit each other. No I/O (rule B1).

        Raises:
            BuildError: with every problem found.
        """
        return composition.build(
            self.setup, self._activities, self._middleware, self._faults, self._schedules, schedule_problems
        )

    def client(self) -> Client:
        """Return a client, to be used as `async with app.client() as client`."""
        return Client(self.build()) if self._inline is None else self._inline.client()

    def worker(self) -> Worker:
        """Return a worker, to be used as `async with app.worker() as worker`."""
        self._refuse_inline()
        return Worker(self.build())

    def sync_client(self) -> SyncClient:
        """Return a client for code without an event loop: one for good, or `with app.sync_client() as client`."""
        return SyncClient(self.build, lambda: None if self._inline is None else self._inline.sync)

    def sync_worker(self) -> SyncWorker:
        """Return a worker for code without an event loop, to be used as `with app.sync_worker() as worker`."""
        self._refuse_inline()
        return SyncWorker(self.build())

    def testing(self, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Inline:
        """Return what an application's own tests run in, as `with app.testing() as tests`: no database, no worker.

        Inside, every client of this app, in whatever thread, keeps its tasks in memory, with the checks and the errors
        of the real one; `connection=` may be of any driver. `tests.run()` runs what is due. Arguments and results pass
        through type hints, JSON and codec; middleware, `current_task()`, retries, start_to_close, heartbeats, keys,
        priorities and paused queues are real. Plugins stamp tasks and have no say in what runs: which worker of the
        fleet would take a task is not known here, so all queues are served. Lanes, schedule_to_start and
        schedule_to_close have no effect. Schedules do not fire.

        Args:
            clock: returns the time with a time zone; `tests.advance` adds to it.
        """
        from harvest_core.inline.session import Inline  # here: production imports nothing of it

        return Inline(self.build, self._set_inline, clock)

    def _set_inline(self, inline: Inline | None) -> None:
        if inline is not None:
            self._refuse_inline()
        self._inline = inline

    def _refuse_inline(self) -> None:
        if self._inline is not None:
            msg = "app.testing() is open, in which neither a worker nor another one of it opens; tests.run() runs tasks"
            raise HarvestError(msg)

    def _declare(self, activity: Activity, function: Callable[P, R]) -> RegisteredActivity[P, R]:
        if activity.name in self._activities:
            self._fault(activity.name, "name", "is declared twice", "give one of them another name=")
        for option, message in declaration_faults(activity):
            self._fault(activity.name, option, message)
        self._activities[activity.name] = activity
        return RegisteredActivity(activity, function)

    def _span(self, activity: str, option: str, value: str | float | None) -> Duration | None:
        try:
            span = None if value is None else seconds(value)
        except ValueError as error:
            self._fault(activity, option, str(error))
            return None
        if span is not None and span <= 0:
            self._fault(activity, option, "is 0; expected a length of time above 0, or none for no limit")
        return span

    def _fault(self, activity: str, option: str, message: str, hint: str = "") -> None:
        self._faults.append(Problem(f"activity.{option}", f"activity {activity!r}", f"{option} {message}", hint))
