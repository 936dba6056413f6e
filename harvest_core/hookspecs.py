"""Every hook, with its law. Hooks are synchronous, do no I/O, and depend on nothing but their arguments.

Policies narrow and permute; they never widen. Skip lists unite, clauses conjoin, one plugin owns the order.
A hook judges the worker in `tick.worker` from the facts that worker published, never the process it runs in:
that is how any process can explain any worker. A hook that raises or breaks its law closes the claim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pluggy
from prometheus_client import CollectorRegistry

from harvest_core.errors import Problem
from harvest_core.model import BuildView, Clause, Json, Skip, Tick, Turn

PROJECT = "harvest"
HOOK_API = 1
"""Version of this contract. A plugin states the version it was written for as `hook_api`."""
OLDEST_HOOK_API = 1
"""The oldest version whose plugins still work; they are told by a warning of the build if it is not the newest.

What goes is deprecated for one minor version before: its specification carries `warn_on_impl`, an argument
`warn_on_impl_args`, and each build with a plugin that implements or takes it warns, with the plugin's name.
"""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def build_skip_list(tick: Tick) -> Sequence[Skip] | None:
    """Name the activities this claim must not take.

    Called before every claim and by explain. The lists of all plugins unite. It cannot skip a workflow.
    None and an empty list mean that this policy refuses nothing.
    """


@hookspec
def filter_clause(tick: Tick) -> Sequence[Clause] | None:
    """Give conditions on routes; the clauses of all plugins are ANDed into the claim.

    Called before every claim and by explain, which selects each clause as a column instead. The text is constant,
    only values vary. A clause is true or false for every route, whatever its traits hold. No subqueries on other
    relations, no volatile functions. None and an empty list mean that this policy refuses nothing.
    """


@hookspec
def order_queues(tick: Tick) -> Sequence[Turn] | None:
    """Give each polled queue, exactly once, its tier and turns: whole numbers.

    The tier lies within 31 bits, start and step within 48, so that the claim can add thousands of steps.
    Only one enabled plugin may implement it. None means no order: all polled queues are one queue.
    """


@hookspec
def check_build(build: BuildView) -> Sequence[Problem] | None:
    """Return every fault and warning this plugin finds in the whole build.

    Called once by `build()`, with all activities, queues and plugins known. A problem marked as warning is told and
    stops nobody.
    """


@hookspec
def publish(build: BuildView) -> Mapping[str, Json] | None:
    """Return this worker's fixed facts, its whole effective configuration, once at start.

    The claim's hooks find them as `tick.worker.facts[slug]`, after a passage through JSON. No secrets: every process
    of the fleet can read them.
    """


@hookspec
def observe() -> Mapping[str, Json] | None:
    """Return this worker's live facts, such as a signal, before each claim; must not block.

    The claim's hooks find them as `tick.live[slug]`, after a passage through JSON; they are stored with the
    worker's beat so that other processes can judge by them.
    """


@hookspec
def metrics(registry: CollectorRegistry) -> None:
    """Register this plugin's collectors in the registry of one build.

    Called once per build. Names start with `harvest_`; values move in `observe` or are read when scraped.
    """
