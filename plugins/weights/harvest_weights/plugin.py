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
from harvest_weights.config import WeightsConfig, config_problems, is_weight
from harvest_weights.stride import turns_of


@attrs.define(eq=False, slots=False)
class Weights(Plugin):
    """Queues that share a worker's dispatches in proportion to their weights."""

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
        return {"queues": dict(self.config.queues)}

    @hookimpl
    def order_queues(self, tick: Tick) -> Sequence[Turn] | None:
        """Return every polled queue's tier and turns, or None for a worker without weights.

        Raises:
            ValueError: the worker published no facts of this plugin, or not in its form.
        """
        weights = published_weights(tick.worker)
        return turns_of(tick.worker.queues, weights, tick.turns, tick.waiting) if weights else None


def published_weights(worker: Worker) -> Mapping[str, int]:
    """Return what the worker published of this plugin.

    Raises:
        ValueError: it is absent or not in the form of `publish`: a gate that cannot be judged is closed.
    """
    match worker.facts.get("weights"):
        case {"queues": queues, **rest} if not rest and _is_weights(queues):
            return queues
    msg = (
        f"worker {worker.name!r} published no readable facts of weights: {worker.facts.get('weights')!r}; "
        "restart it with this version of harvest-weights"
    )
    raise ValueError(msg)


def _is_weights(value: Json) -> TypeGuard[Mapping[str, int]]:
    return isinstance(value, Mapping) and all(is_weight(weight) for weight in value.values())
