"""The frozen values that one step of a claim hands to the next. No behaviour, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeAlias

import attrs

from harvest_core.read_only import read_only

Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None
"""A value that PostgreSQL's jsonb holds: finite numbers, text without NUL, lists, string-keyed mappings."""


class Feature(StrEnum):
    """What a backend states it can do and a plugin states it needs (rule B2)."""

    ORDER = "order"
    SKIP_LIST = "skip_list"
    ROUTE_CLAUSES = "route_clauses"


@attrs.frozen
class Route:
    """The routing identity that tasks share: policies judge routes, never rows.

    Args:
        id: database id; ids are never used again.
        queue: name of the queue.
        kind: `activity` or `workflow`.
        name: name of the activity or workflow.
        traits: what plugins stamped at enqueue, by plugin slug.
    """

    id: int
    queue: str
    kind: str
    name: str
    traits: Mapping[str, Json] = attrs.field(factory=dict)


@attrs.frozen
class Worker:
    """A worker as any process of the fleet knows it.

    Args:
        id: fresh at every process start.
        name: a label for people; nothing is decided by it.
        queues: the queues it polls, in configured order.
        activities: names of the activities and workflows in its registry.
        facts: what its plugins published at start, by plugin slug; has passed through JSON and is read-only.
    """

    id: str
    name: str
    queues: tuple[str, ...]
    activities: frozenset[str]
    facts: Mapping[str, Json] = attrs.field(factory=dict, converter=read_only)


@attrs.frozen
class Peer:
    """Another live worker of the fleet, as this one saw it last.

    Args:
        worker: the worker.
        free: its free slots; 0 for one that is draining.
    """

    worker: Worker
    free: int


@attrs.frozen
class Tick:
    """One poll of one worker: all that a hook may judge by.

    Args:
        worker: the worker being judged, which need not be this process.
        free: free slots, the most tasks this claim may take; at least 1.
        live: what the worker's plugins observed just before, by plugin slug; has passed through JSON and is
            read-only.
        turns: for every polled queue the last turn it took, or else the start it was given last, relative to the newest
            turn (so at most 0); 0 for each before the first claim.
        waiting: polled queues in which the last claim left a task this worker may take, rows held by others included.
        busy: for every polled queue how many of its tasks run on this worker; absent where that is not known.
        peers: the other live workers, a few seconds old at most; empty unless a plugin states `needs_peers`.
    """

    worker: Worker
    free: int = 1
    live: Mapping[str, Json] = attrs.field(factory=dict, converter=read_only)
    turns: Mapping[str, int] = attrs.field(factory=dict, converter=read_only)
    waiting: frozenset[str] = frozenset()
    busy: Mapping[str, int] = attrs.field(factory=dict, converter=read_only)
    peers: tuple[Peer, ...] = ()


def _words(reasons: Iterable[str]) -> tuple[str, ...]:
    return tuple(reasons)


@attrs.frozen
class Budget:
    """A share that every claim of the fleet draws from; reserved in the claim's own transaction, so exact under race.

    Args:
        name: unique in the fleet; begins with the plugin's slug and a colon. Skips of several activities may name one
            budget, which they then share.
        concurrency: the most tasks that may run at once, counted over the activities that name the budget; None for
            any number.
        starts: the most tasks that may start in any `period`; None for any number.
        period: seconds.
    """

    name: str
    concurrency: int | None = None
    starts: int | None = None
    period: float = 1.0


@attrs.frozen
class Skip:
    """One activity that this claim must not take, or only so many, or only so old tasks of.

    What several skips say of one activity is united: each of them refuses what it refuses.

    Args:
        activity: its name. Workflows are never skipped (rule K5).
        reasons: why, as `code` or `code:detail`; at least one.
        hold: True where the refusal ends by itself (a hold), so that depth and age are also shown without it.
        at_most: how many tasks the claim may take all the same, or the budget it draws them from.
        unless_older: seconds; a task that has been due for at least so long is not refused.
        unless_younger: seconds; a task that has been due for less than that is not refused.
        recheck: seconds that a prefetched task waits under this skip before it is given back.
    """

    activity: str
    reasons: tuple[str, ...] = attrs.field(converter=_words)
    hold: bool = False
    at_most: int | Budget = 0
    unless_older: float | None = None
    unless_younger: float | None = None
    recheck: float = 5.0


@attrs.frozen
class Clause:
    """A condition on routes, ANDed into the claim.

    Args:
        sql: constant text over `r` (id, queue, kind, name, traits jsonb) with `{name}` for each value; `{{` and
            `}}` stand for braces. It must be true or false, never NULL.
        values: the values by name, bound as parameters.
        reasons: the refusal in words for one route, as `code` or `code:detail`; empty exactly where the SQL is true.
    """

    sql: str
    values: Mapping[str, Any]
    reasons: Callable[[Route], Sequence[str]]


@attrs.frozen
class Attributed:
    """A clause and the slug of the plugin that gave it."""

    plugin: str
    clause: Clause


@attrs.frozen
class Turn:
    """A queue's place in the order of this claim: its k-th task has the turn `start + k * step`, k from 1.

    Args:
        queue: name of a polled queue.
        tier: lower tiers are drained first.
        start: the turn it took last, relative to the newest.
        step: how far one task moves it; 0 keeps it where it is.
        most: the most tasks of this queue that the claim may take; None for no bound but the free slots.
    """

    queue: str
    tier: int
    start: int
    step: int
    most: int | None = None


@attrs.frozen
class LaneLimit:
    """The limits of the lanes of one name: `customer` limits each of `customer/7`, `customer/8` and so on for itself.

    Args:
        name: what stands before the first `/` in a lane.
        concurrency: the most tasks of one lane that may run at once; None for any number where `starts` is given.
        starts: the most tasks of one lane that may start in any `period`; None for any number.
        period: seconds.
    """

    name: str
    concurrency: int | None = 1
    starts: int | None = None
    period: float = 1.0


@attrs.frozen
class Retry:
    """How an activity is tried again: `initial * factor ** (attempt - 1)` seconds, at most `maximum`, jittered.

    Args:
        max_attempts: starts in all, the first included.
        initial: seconds before the second attempt.
        factor: growth from one attempt to the next.
        maximum: upper bound of the wait in seconds.
        jitter: share of the wait that is random, 0 to 1; the wait is drawn from `[wait * (1 - jitter), wait]`.
        non_retryable: exception types that fail the task at once.
    """

    max_attempts: int = 5
    initial: float = 1.0
    factor: float = 2.0
    maximum: float = 3600.0
    jitter: float = 0.25
    non_retryable: tuple[type[BaseException], ...] = ()


@attrs.frozen
class Activity:
    """A registered function and its defaults.

    Args:
        name: unique in the app.
        function: async or plain; a plain one runs in a thread.
        queue: queue of its tasks unless the call says otherwise.
        local: True for a local activity, which runs inline in its workflow task and is never a row.
        priority: default priority; higher runs first.
        retry: how failures are retried.
        start_to_close: seconds one attempt may take; None for no limit.
        schedule_to_start: seconds that a task may wait to be started; None for no limit.
        heartbeat: seconds between heartbeats of one attempt; None for none expected.
        options: what plugins' activity options were given, by option name.
    """

    name: str
    function: Callable[..., Any]
    queue: str = "default"
    local: bool = False
    priority: int = 0
    retry: Retry = Retry()
    start_to_close: float | None = None
    schedule_to_start: float | None = None
    heartbeat: float | None = None
    options: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen
class BuildView:
    """What a plugin sees of the build it is asked to check.

    Args:
        activities: every registered activity by name, local ones included.
        queues: the queues this configuration's worker polls, in order.
        plugins: slugs of the enabled plugins.
        backend: name of the backend, `postgresql` or `sqlite`.
        origin: the configuration's name for messages, e.g. `harvest.toml`.
    """

    activities: Mapping[str, Activity]
    queues: tuple[str, ...]
    plugins: frozenset[str] = frozenset()
    backend: str = "postgresql"
    origin: str = "configuration"
