"""The memory of the queue order between two claims: the last turn of each queue, relative to the newest. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from harvest_core.model import Turn


def first_turns(queues: Iterable[str]) -> dict[str, int]:
    """Return the turns of a worker that has claimed nothing yet."""
    return dict.fromkeys(queues, 0)


def next_turns(
    before: Mapping[str, int], planned: Sequence[Turn] | None, taken: Iterable[tuple[str, int]]
) -> dict[str, int]:
    """Return each queue's last turn after a claim.

    A queue that got nothing keeps the start it was given, not an older turn: what its owner took from it once (credit
    for idleness) must not come back with the next tick.

    Args:
        before: the turns the claim was planned with.
        planned: the owner's turns, or None where no plugin owns the order.
        taken: queue and turn of each task taken, in turn order.
    """
    if planned is None:
        return dict(before)
    last = {turn.queue: turn.start for turn in planned}
    last.update(taken)
    newest = max(0, max(last.values(), default=0))
    return {queue: turn - newest for queue, turn in last.items()}
