"""Start-time fair queuing over the queues of one worker: where each starts, and how far one task moves it.

A queue of weight w moves by a step in proportion to 1/w with every task, and the kernel always takes from the queue
with the lowest turn. A queue that had no task since it last took one starts at the newest turn, whatever it missed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from harvest_core.plugin import Turn

MAX_SCALE = 2**40
"""Above it steps are rounded, to less than one part in 10^9, so that turns stay far within 64 bits."""

MAX_OWED = 1000
"""Most tasks that a queue may be behind while others hold its tasks: so many may it take in a row afterwards."""


def turns_of(
    queues: Sequence[str], weights: Mapping[str, int], taken: Mapping[str, int], waiting: frozenset[str]
) -> list[Turn]:
    """Return each queue's place: tier 0 for positive weights, then one tier for each zero in order (rule W2).

    Args:
        queues: the polled queues, in configured order.
        weights: whole numbers from 0 to 1000 by queue; absent means 1.
        taken: the turn each queue stands at, relative to the newest; absent means 0.
        waiting: queues that still had a task to take after the last claim.
    """
    weight_of = {queue: weights.get(queue, 1) for queue in queues}
    positive = {queue: weight for queue, weight in weight_of.items() if weight}
    scale = _scale(positive.values())
    turns = []
    for queue, weight in positive.items():
        step = (scale + weight // 2) // weight
        owed = MAX_OWED if queue in waiting else 1
        turns.append(Turn(queue, tier=0, start=max(taken.get(queue, 0), -owed * step), step=step))
    fallthrough = [queue for queue, weight in weight_of.items() if not weight]
    return turns + [Turn(queue, tier, start=0, step=0) for tier, queue in enumerate(fallthrough, start=1)]


def _scale(weights: Iterable[int]) -> int:
    return min(math.lcm(*weights), MAX_SCALE)
