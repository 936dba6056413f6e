"""Stand-ins for what a worker hands to a plugin: workers, ticks, routes, builds, a clock and a signal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from harvest_core.model import Activity, BuildView, Json, Peer, Route, Tick, Worker
from harvest_core.plugin import Plugin
from harvest_core.policies import Policies


def fake_build(
    *plugins: Plugin,
    activities: Mapping[str, Mapping[str, Any]] | Iterable[str] = ("work",),
    queues: Iterable[str] = ("default",),
) -> BuildView:
    """Return a build as `check_build` and `publish` see it.

    Args:
        plugins: the enabled plugins.
        activities: names, or names with their activity options: `{"train": {"requires": "gpu = true"}}`.
        queues: the queues it polls.
    """
    options = activities if isinstance(activities, Mapping) else {name: {} for name in activities}
    return BuildView(
        activities={name: Activity(name, _nothing, options=given) for name, given in options.items()},
        queues=tuple(queues),
        plugins=frozenset(plugin.slug for plugin in plugins),
    )


def fake_worker(
    *plugins: Plugin,
    id: str = "00000000-0000-4000-8000-000000000001",  # noqa: A002 - the worker's own word
    name: str = "worker",
    activities: Mapping[str, Mapping[str, Any]] | Iterable[str] = ("work",),
    queues: Iterable[str] = ("default",),
    facts: Mapping[str, Json] | None = None,
) -> Worker:
    """Return a worker.

    Args:
        plugins: its facts are what these publish.
        id: a UUID.
        name: its label for people.
        activities: as of `fake_build`.
        queues: the queues it polls.
        facts: by plugin slug; they go over what plugins publish.

    Raises:
        HookError: a plugin's `publish` raised or broke its law.
    """
    build = fake_build(*plugins, activities=activities, queues=queues)
    published = _policies(plugins).facts(build)
    return Worker(id, name, build.queues, frozenset(build.activities), {**published, **(facts or {})})


def fake_tick(
    *plugins: Plugin,
    worker: Worker | None = None,
    free: int = 1,
    live: Mapping[str, Json] | None = None,
    turns: Mapping[str, int] | None = None,
    waiting: Iterable[str] = (),
    busy: Mapping[str, int] | None = None,
    peers: Iterable[Peer] = (),
) -> Tick:
    """Return a tick.

    Args:
        plugins: its live facts are what these observe; without a worker, its worker's facts what they publish.
        worker: the worker being judged; `fake_worker(*plugins)` unless given.
        free: free slots.
        live: by plugin slug; they go over what plugins observe.
        turns: 0 for each queue unless given.
        waiting: queues with a task left.
        busy: running tasks by queue; unless given they are not known.
        peers: the other live workers.

    Raises:
        HookError: a plugin's `publish` or `observe` raised or broke its law.
    """
    judged = worker or fake_worker(*plugins)
    observed = _policies(plugins).live()
    before = dict.fromkeys(judged.queues, 0) if turns is None else turns
    return Tick(judged, free, {**observed, **(live or {})}, before, frozenset(waiting), busy or {}, tuple(peers))


def fake_route(
    *,
    id: int = 1,  # noqa: A002 - the route's own word
    queue: str = "default",
    kind: str = "activity",
    name: str = "work",
    traits: Mapping[str, Json] | None = None,
) -> Route:
    """Return a route; traits go by plugin slug: `traits={"region": "eu"}`."""
    return Route(id, queue, kind, name, traits or {})


class FakeClock:
    """Monotonic seconds that pass when a test says so."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return the seconds."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


class FakeSignal:
    """A signal source whose next reading the test sets.

    Attributes:
        value: what `read` returns.
        error: what `read` raises instead, or None.
        reads: how often it was read.
    """

    def __init__(self, value: Any = 0.0) -> None:
        self.value = value
        self.error: BaseException | None = None
        self.reads = 0

    def read(self) -> Any:
        """Return the value, or raise the error."""
        self.reads += 1
        if self.error is not None:
            raise self.error
        return self.value


def _policies(plugins: Iterable[Plugin]) -> Policies:
    return Policies.of({plugin.slug: plugin for plugin in plugins})


def _nothing() -> None:
    """Stand in for an activity's function."""
