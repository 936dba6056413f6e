"""The table `[plugins.weights]`, and what is wrong with it for a worker of these queues."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from harvest_core.plugin import Problem, near_match

MAX_WEIGHT = 1000
"""Largest weight of a queue (rule W5)."""

STARTS, SLOTS = "starts", "slots"


@attrs.frozen
class WeightsConfig:
    """How dispatch is shared between queues (rule W1).

    Args:
        queues: weight by queue, 0 to 1000; absent means 1, and 0 that it runs once all others are drained.
        by: what is shared, `starts` or `slots`: how many tasks of each queue start, or how many run (rule W6).
    """

    queues: dict[str, int] = attrs.field(factory=dict)
    by: str = STARTS


def is_weight(value: object) -> bool:
    """Return whether value is a whole number from 0 to 1000, which True is not."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_WEIGHT


def config_problems(config: WeightsConfig, polled: Sequence[str]) -> list[Problem]:
    """Return a problem for every bad key: weights, queues that the worker does not poll (rule W5), and `by`."""
    problems = []
    if config.by not in (STARTS, SLOTS):
        message = f"expected 'starts' or 'slots', found {config.by!r}"
        hint = near_match(config.by, (STARTS, SLOTS)) or "slots keeps slow tasks of one queue from taking every slot"
        problems.append(Problem(code="weights.unknown-by", where="plugins.weights.by", message=message, hint=hint))
    for queue, weight in config.queues.items():
        where = f"plugins.weights.queues.{queue}"
        if queue not in polled:
            hint = near_match(queue, polled) or f"the worker polls {', '.join(polled)}"
            problems.append(Problem(code="weights.unknown-queue", where=where, message="no such queue", hint=hint))
        if not is_weight(weight):
            message = f"{weight!r} is not a whole number from 0 to {MAX_WEIGHT}"
            hint = "2 is twice the share of 1; 0 runs once all others are drained"
            problems.append(Problem(code="weights.bad-weight", where=where, message=message, hint=hint))
    return problems
