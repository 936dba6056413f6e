"""All that a plugin author imports. Nothing else of the core is public to a plugin.

A plugin is a class derived from `Plugin`, named in the entry-point group `harvest.plugins` under its slug. The slug is
folder, entry point, configuration table, prefix of its SQL values and metric label, all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import attrs

from harvest_core.duration import Duration, seconds
from harvest_core.errors import BuildError, EnqueueError, Problem, near_match
from harvest_core.hookspecs import HOOK_API, hookimpl
from harvest_core.model import (
    Activity,
    Budget,
    BuildView,
    Clause,
    Feature,
    Json,
    LaneLimit,
    Peer,
    Route,
    Skip,
    Tick,
    Turn,
    Worker,
)
from harvest_core.rate import starts_and_period

__all__ = [
    "HOOK_API",
    "Activity",
    "Budget",
    "BuildError",
    "BuildView",
    "ClaimFilter",
    "Clause",
    "Duration",
    "EnqueueError",
    "Feature",
    "Json",
    "LaneLimit",
    "NoConfig",
    "Peer",
    "Plugin",
    "Problem",
    "Refresh",
    "Route",
    "Setting",
    "Skip",
    "Tick",
    "Turn",
    "Worker",
    "WorkerOption",
    "hookimpl",
    "near_match",
    "seconds",
    "starts_and_period",
]


@attrs.frozen
class NoConfig:
    """Configuration of a plugin that has none: any key in its table is an error."""


@attrs.frozen
class WorkerOption:
    """An option that a plugin adds to `harvest worker run`.

    Args:
        flag: as typed, e.g. `--label`; may be given several times.
        key: the key of the plugin's own table that it adds to: a list key collects values, a table key collects
            `name=value` pairs.
        help: one line for `--help`.
        pairs: True where a value is `name=value`.
    """

    flag: str
    key: str
    help: str
    pairs: bool = False


@attrs.frozen
class Setting:
    """A runtime setting as the database holds it.

    Args:
        value: its JSON value.
        version: rises with every change of this key, never reused.
    """

    value: Json
    version: int


@attrs.frozen
class Refresh:
    """Work of a plugin that reads something, kept out of the claim path: it runs in a thread of its own.

    Args:
        run: called with the present runtime settings by key. What it raises is counted and logged; the worker goes on.
        every: seconds between runs; 0 to run before each claim instead, in which case the claim waits for it at most
            `patience`. A run that is still under way is not started again.
        patience: seconds a claim waits for a run of its own; afterwards it goes on with what the plugin knows.
        settings: keys of runtime settings whose change starts a run at once.
    """

    run: Callable[[Mapping[str, Setting]], None]
    every: float
    patience: float = 0.05
    settings: frozenset[str] = frozenset()


@attrs.frozen
class ClaimFilter:
    """What a direct caller says in a plugin's stead: facts of its own for `client.claimer(filters=[...])`.

    Args:
        slug: the plugin's.
        facts: what stands in place of what the plugin would publish (its `publish` hook).
    """

    slug: str
    facts: Mapping[str, Json]


@attrs.define(eq=False, slots=False)
class Plugin:
    """Base of every policy: one instance per build, made from its configuration table.

    Class attributes:
        slug: the plugin's one name: lower case letters, digits and underscores.
        config_class: attrs class of its table `[plugins.<slug>]`; every field has a default, and the defaults mean
            "no effect".
        needs: features the backend must offer.
        hook_api: version of the hook contract it was written for.
        activity_options: keyword names it adds to `@app.activity(...)`, e.g. `requires`.
        enqueue_options: keyword names it adds to `client.enqueue(...)`, e.g. `flags`; given to `stamp`.
        worker_options: options it adds to `harvest worker run`.
        needs_peers: True where its hooks judge by `tick.peers`, which is read only then.
    """

    slug: ClassVar[str]
    config_class: ClassVar[type[Any]] = NoConfig
    needs: ClassVar[frozenset[Feature]] = frozenset()
    hook_api: ClassVar[int] = HOOK_API
    activity_options: ClassVar[tuple[str, ...]] = ()
    enqueue_options: ClassVar[tuple[str, ...]] = ()
    worker_options: ClassVar[tuple[WorkerOption, ...]] = ()
    needs_peers: ClassVar[bool] = False

    config: Any = attrs.field(factory=NoConfig)

    def stamp(self, values: Mapping[str, Any]) -> Json:  # noqa: ARG002 - the base ignores what subclasses read
        """Return this plugin's trait for one task, or None for none.

        Args:
            values: the enqueue options of this plugin that the call gave.

        Raises:
            EnqueueError: a value is not allowed; nothing is enqueued.
        """
        return None

    def encode_payload(self, data: bytes) -> bytes:
        """Return the bytes to store in place of a payload's JSON text; one enabled plugin may override both of these.

        Called for the arguments of every task enqueued and every result; no I/O, and safe in threads. Whatever it
        raises refuses the payload; only the name of the exception's class is told.
        """
        return data

    def decode_payload(self, data: bytes) -> bytes:
        """Return what `encode_payload` was given. Whatever it raises fails the task, without another attempt."""
        return data

    def sample_traits(self) -> Sequence[Json]:
        """Return traits, odd ones included, over which the probe evaluates this plugin's clauses."""
        return ()

    def refreshes(self) -> Sequence[Refresh]:
        """Return what this plugin reads outside the claim path; asked once when a worker starts."""
        return ()

    def lanes(self) -> Sequence[LaneLimit]:
        """Return the limits of lanes that this plugin's configuration declares; they are published at start."""
        return ()
