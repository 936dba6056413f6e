"""Shares busy slots between the queues of one worker (rule W6), from nothing but what is busy now.

The free slots are dealt one by one, each to the waiting queue that is furthest below its share, and the order makes
the claim take what was dealt. One slot is kept for every queue of positive weight that has none busy, so that tasks of
others, however slow, never hold up its first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from harvest_core.plugin import Turn

SCALE = 2**40
"""Turn up to which the claim takes what was dealt; what one queue leaves of that, others take beyond it."""


def slots_of(
    queues: Sequence[str],
    weights: Mapping[str, int],
    free: int,
    busy: Mapping[str, int],
    waiting: Collection[str],
) -> list[Turn] | None:
    """Return each queue's place, or None where slots cannot be shared: busy is not known, or they are too few.

    Args:
        queues: the polled queues, in configured order.
        weights: whole numbers from 0 to 1000 by queue; absent means 1.
        free: free slots.
        busy: how many slots each queue has.
        waiting: queues that still had a task to take after the last claim.
    """
    if not busy.keys() >= set(queues) or free + sum(busy.values()) < len(queues):
        return None
    positive = {queue: weight for queue in queues if (weight := weights.get(queue, 1))}
    zero = [queue for queue in queues if queue not in positive]
    idle = {queue for queue in positive if not busy[queue]}
    surplus = max(0, free - len(idle))
    hungry = [queue for queue in positive if queue in waiting]
    if not hungry and not any(queue in waiting for queue in zero):
        hungry = list(positive)  # nothing is known to wait: whoever comes gets its share
    dealt = _dealt(surplus, {queue: positive[queue] for queue in hungry}, {q: busy[q] or 1 for q in hungry})
    turns = []
    for queue in positive:
        share = (queue in idle) + dealt.get(queue, 0)
        start, step = (0, SCALE // share) if share else (SCALE, SCALE)
        turns.append(Turn(queue, 0, start, step, most=share if idle else None))
    left = surplus - sum(dealt.values()) if idle else None
    return turns + [Turn(queue, tier, 0, 0, most=left) for tier, queue in enumerate(zero, start=1)]


def _dealt(surplus: int, weights: Mapping[str, int], held: Mapping[str, int]) -> dict[str, int]:
    """Deal out slots: each to the queue with the lowest (slots + 1) / weight of those still below their share."""
    if not weights:
        return {}
    slots = dict(held)
    share, whole = _shares(surplus + sum(held.values()), weights)
    for _ in range(surplus):
        below = [queue for queue in weights if slots[queue] * whole < share[queue]]
        queue = min(below, key=lambda queue: (slots[queue] + 1) / weights[queue])
        slots[queue] += 1
    return {queue: slots[queue] - held[queue] for queue in weights}


def _shares(slots: int, weights: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Return each queue's share of the slots as a numerator over one whole: by weight, but one slot at least."""
    rest = dict(weights)
    while small := [q for q, w in rest.items() if w * (slots - len(weights) + len(rest)) < sum(rest.values())]:
        rest = {queue: weight for queue, weight in rest.items() if queue not in small}
    whole = sum(rest.values())
    left = slots - len(weights) + len(rest)
    return {queue: rest[queue] * left if queue in rest else whole for queue in weights}, whole
