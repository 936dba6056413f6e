"""The limits policy: declares budgets and lane limits, which the kernel keeps. It counts nothing itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import attrs

from harvest_core.plugin import (
    BuildView,
    Feature,
    Json,
    LaneLimit,
    Plugin,
    Problem,
    Skip,
    Tick,
    hookimpl,
    starts_and_period,
)
from harvest_limits.check import problems
from harvest_limits.config import LimitsConfig
from harvest_limits.skips import skips_of


@attrs.define(eq=False, slots=False)
class Limits(Plugin):
    """At most so many tasks of an activity, of several together, or of a lane, at once and in any period."""

    slug: ClassVar[str] = "limits"
    config_class: ClassVar[type[LimitsConfig]] = LimitsConfig
    needs: ClassVar[frozenset[Feature]] = frozenset({Feature.SKIP_LIST})

    config: LimitsConfig = attrs.field(factory=LimitsConfig)

    @hookimpl
    def check_build(self, build: BuildView) -> Sequence[Problem]:
        """Return every fault of the configuration."""
        return list(problems(self.config, build))

    @hookimpl
    def publish(self, build: BuildView) -> Mapping[str, Json]:  # noqa: ARG002 - the hook's own form
        """Return the whole configuration."""
        return attrs.asdict(self.config)

    @hookimpl
    def build_skip_list(self, tick: Tick) -> Sequence[Skip] | None:
        """Return a budget for each limited activity of `tick.worker`, from what it published.

        Raises:
            ValueError: it published no readable limits: a gate that cannot be judged is closed.
        """
        facts = tick.worker.facts.get(self.slug)
        try:
            return list(skips_of(facts)) or None
        except ValueError as error:
            msg = (
                f"worker {tick.worker.name!r} published no readable facts of limits: {facts!r} ({error}); "
                "restart it with this version of harvest-limits"
            )
            raise ValueError(msg) from error

    def lanes(self) -> Sequence[LaneLimit]:
        """Return the limit of each configured name of lanes."""
        found = []
        for name, limit in self.config.lanes.items():
            starts, period = (None, 1.0) if limit.rate is None else starts_and_period(limit.rate)
            found.append(LaneLimit(name, limit.concurrency or 1, starts, period))
        return found
