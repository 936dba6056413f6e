"""The weights policy: owns the order in which one worker's queues are served (rules W1-W3, W5 and W6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeGuard

import attrs

from harvest_core.plugin import (
    BuildView,
    Feature,
    Json,
    Plugin,
    Problem,
    Tick,
    Turn,
    Worker,
    WorkerOption,
    hookimpl,
)
from harvest_weights.config import SLOTS, STARTS, WeightsConfig, config_problems, is_weight
from harvest_weights.slots import slots_of
from harvest_weights.stride import turns_of


@attrs.define(eq=False, slots=False)
class Weights(Plugin):
    """Queues that share a worker's dispatches, or its busy slots, in proportion to their weights."""

    slug = "weights"
    config_class = WeightsConfig
    needs = frozenset({Feature.ORDER})
    worker_options = (WorkerOption("--weight", "queues", "give a queue this share, e.g. user-email=3", pairs=True),)

    config: WeightsConfig = attrs.field(factory=WeightsConfig)

    @hookimpl
    def check_build(self, build: BuildView) -> Sequence[Problem]:
        """Return weights out of range and weights for queues the worker does not poll."""
        return config_problems(self.config, build.queues)

    @hookimpl
    def publish(self, build: BuildView) -> Mapping[str, Json]:  # noqa: ARG002 - pluggy matches by name
        """Return the configured weights; a queue that is absent has 1."""
        return {"queues": dict(self.config.queues), "by": self.config.by}

    @hookimpl
    def order_queues(self, tick: Tick) -> Sequence[Turn] | None:
        """Return every polled queue's tier and turns, or None for a worker without weights.

        Where slots cannot be shared, for want of slots or of knowledge, starts are.

        Raises:
            ValueError: the worker published no facts of this plugin, or not in its form.
        """
        weights, by = published(tick.worker)
        queues = tick.worker.queues
        if by == SLOTS and (turns := slots_of(queues, weights, tick.free, tick.busy, tick.waiting)):
            return turns
        return turns_of(queues, weights, tick.turns, tick.waiting) if weights or by == SLOTS else None


def published(worker: Worker) -> tuple[Mapping[str, int], str]:
    """Return the weights the worker published and what they share; one of the version before shares starts.

    Raises:
        ValueError: it is absent or not in the form of `publish`: a gate that cannot be judged is closed.
    """
    match worker.facts.get("weights"):
        case {"queues": queues, **rest} if _is_weights(queues) and rest.get("by", STARTS) in (STARTS, SLOTS):
            return queues, str(rest.get("by", STARTS))
    msg = (
        f"worker {worker.name!r} published no readable facts of weights: {worker.facts.get('weights')!r}; "
        "restart it with this version of harvest-weights"
    )
    raise ValueError(msg)


def _is_weights(value: Json) -> TypeGuard[Mapping[str, int]]:
    return isinstance(value, Mapping) and all(is_weight(weight) for weight in value.values())
