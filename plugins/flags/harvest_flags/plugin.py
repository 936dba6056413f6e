"""The flags policy: stamps flags on tasks and gives the claim its conditions on them (rules FL1-FL6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import attrs

from harvest_core.plugin import (
    BuildView,
    Clause,
    EnqueueError,
    Feature,
    Json,
    Plugin,
    Problem,
    Tick,
    Worker,
    WorkerOption,
    hookimpl,
)
from harvest_flags.clauses import accepted_clause, allowlist_clause, forbidden_clause
from harvest_flags.config import FlagsConfig, config_problems, flag_fault

MAX_FLAGS = 32
"""Most distinct flags one task may carry (rule FL1)."""


@attrs.define(eq=False, slots=False)
class Flags(Plugin):
    """Workers that accept, forbid or allowlist the flags of tasks."""

    slug = "flags"
    config_class = FlagsConfig
    needs = frozenset({Feature.ROUTE_CLAUSES})
    enqueue_options = ("flags",)
    worker_options = (
        WorkerOption("--accept", "accepted", "take only tasks with at least one of the accepted flags"),
        WorkerOption("--forbid", "forbidden", "take no task with this flag"),
        WorkerOption("--allow", "allowlist", "take no task with a flag that is not allowed"),
    )

    config: FlagsConfig = attrs.field(factory=FlagsConfig)

    def stamp(self, values: Mapping[str, Any]) -> Json:
        """Return the task's flags, sorted and distinct, or None for an untagged task (rules FL1 and FL6).

        Args:
            values: `flags`: a set, list, tuple or mapping, whose keys count; None or empty for untagged.

        Raises:
            EnqueueError: it is anything else, a member is no flag, or there are more than 32 distinct ones.
        """
        given = values.get("flags")
        if given is None:
            return None
        if not isinstance(given, set | frozenset | list | tuple | Mapping):
            msg = f"flags={given!r} is a {type(given).__name__}; give a set of texts such as {{'vip'}}"
            raise EnqueueError(msg)
        for flag in given:
            if fault := flag_fault(flag):
                msg = f"flag {flag!r} is {fault}; give a set of texts such as {{'vip'}}"
                raise EnqueueError(msg)
        flags = sorted(set(given))
        if len(flags) > MAX_FLAGS:
            msg = f"{len(flags)} distinct flags are more than the {MAX_FLAGS} a task may carry; give fewer"
            raise EnqueueError(msg)
        return flags or None

    def sample_traits(self) -> Sequence[Json]:
        """Return one trait of each JSON form, well formed or not."""
        mixed: list[Json] = ["linux", 1, None, True, ["linux"], {"linux": 1}]
        return [None, True, 0, "linux", "", [], {}, ["linux"], ["gpu", "linux"], {"linux": None}, {"": []}, mixed]

    @hookimpl
    def check_build(self, build: BuildView) -> Sequence[Problem]:  # noqa: ARG002 - pluggy matches by name
        """Return malformed flags, and a warning where no task can be admitted."""
        return config_problems(self.config)

    @hookimpl
    def publish(self, build: BuildView) -> Mapping[str, Json]:  # noqa: ARG002 - pluggy matches by name
        """Return the three sets, each sorted and distinct; allowlist is None where unset."""
        return facts_of(self.config)

    @hookimpl
    def filter_clause(self, tick: Tick) -> Sequence[Clause] | None:
        """Return one condition for each configured set, or None for a worker with none.

        Raises:
            ValueError: the worker published no facts of this plugin, or not in its form.
        """
        config = published_config(tick.worker)
        clauses = []
        if config.accepted:
            clauses.append(accepted_clause(config.accepted))
        if config.forbidden:
            clauses.append(forbidden_clause(config.forbidden))
        if config.allowlist is not None:
            clauses.append(allowlist_clause(config.allowlist))
        return clauses or None


def facts_of(config: FlagsConfig) -> Mapping[str, Json]:
    """Return what a worker of that configuration publishes."""
    return {
        "accepted": sorted(set(config.accepted)),
        "forbidden": sorted(set(config.forbidden)),
        "allowlist": None if config.allowlist is None else sorted(set(config.allowlist)),
    }


def published_config(worker: Worker) -> FlagsConfig:
    """Return what the worker published of this plugin.

    Raises:
        ValueError: it is absent or not in the form of `publish`: a gate that cannot be judged is closed.
    """
    match worker.facts.get("flags"):
        case {"accepted": accepted, "forbidden": forbidden, "allowlist": allowlist, **rest} if not rest:
            if _is_texts(accepted) and _is_texts(forbidden) and (allowlist is None or _is_texts(allowlist)):
                return FlagsConfig(accepted, forbidden, allowlist)
    msg = (
        f"worker {worker.name!r} published no readable facts of flags: {worker.facts.get('flags')!r}; "
        "restart it with this version of harvest-flags"
    )
    raise ValueError(msg)


def _is_texts(value: Json) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(member, str) for member in value)
