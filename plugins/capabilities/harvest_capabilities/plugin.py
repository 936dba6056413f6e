"""The policy: skips what this worker cannot run, and for a while what a preferred worker can take (CAP2, CAP6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from harvest_capabilities.checks import OPTIONS, activity_problems, config_problems
from harvest_capabilities.config import CapabilitiesConfig
from harvest_capabilities.facts import facts_of, written
from harvest_core.plugin import BuildView, Feature, Json, Plugin, Problem, Skip, Tick, WorkerOption, hookimpl


@attrs.define(eq=False, slots=False)
class Capabilities(Plugin):
    """Keeps activities off workers whose labels do not meet their `requires`, or for a while their `prefers`."""

    slug = "capabilities"
    config_class = CapabilitiesConfig
    needs = frozenset({Feature.SKIP_LIST})
    needs_peers = True
    activity_options = OPTIONS
    worker_options = (
        WorkerOption(flag="--label", key="labels", help="Label of this worker, as key=value.", pairs=True),
        WorkerOption(flag="--exclusive", key="exclusive", help="Take only activities that ask for this label."),
    )

    config: CapabilitiesConfig = attrs.field(factory=CapabilitiesConfig)

    @hookimpl
    def check_build(self, build: BuildView) -> Sequence[Problem]:
        """Return whatever cannot be meant, and a warning for what can never hold."""
        activities = build.activities.values()
        return [*config_problems(self.config), *(fault for each in activities for fault in activity_problems(each))]

    @hookimpl
    def publish(self, build: BuildView) -> Mapping[str, Json]:
        """Return this worker's labels, what its activities ask for, and its verdict on each (CAP4)."""
        return written(self.config, build.activities)

    @hookimpl
    def build_skip_list(self, tick: Tick) -> Sequence[Skip] | None:
        """Skip what the worker in tick found itself ineligible for, and leave to preferred peers what they can take.

        Raises:
            ValueError: the worker published no verdict that can be read.
        """
        facts = facts_of(tick.worker, self.slug)
        skips = [Skip(name, reasons) for name, reasons in sorted(facts.ineligible.items())]
        for name in sorted(facts.lesser):
            if peer := next((peer for peer in tick.peers if facts.leaves(name, peer, self.slug)), None):
                reasons = (f"preferred_worker_free:{peer.worker.name}",)
                skips.append(Skip(name, reasons, hold=True, unless_older=facts.prefer_wait))
        return skips or None
