"""The local queue: what may start, what waits under a skip, what goes back (K15, C4)."""

from datetime import UTC, datetime

from harvest_core.model import Route, Skip
from harvest_core.store.postgres.tasks import Claim
from harvest_core.worker.local_queue import LocalQueue

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def claim(number, name="work"):
    return Claim(Route(0, "q", "activity", name), number, number, 0, 5, 0, NOW, NOW, None, None, (), {}, 0)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def ids(claims):
    return [claim.id for claim in claims]


def test_it_starts_in_the_order_of_the_claim_as_many_as_are_free():
    """What was taken first starts first; what finds no slot stays."""
    queue = LocalQueue(5, 30.0, Clock())
    queue.add(map(claim, range(4)))
    assert queue.room == 1
    picked = queue.pick(3, {})
    assert (ids(picked.start), ids(picked.give_back), queue.ids) == ([0, 1, 2], [], {3})


def test_what_is_refused_waits_for_its_recheck_and_then_goes_back():
    """A held task waits while others pass it, starts if the hold ends in time, else goes back (C4)."""
    clock = Clock()
    queue = LocalQueue(5, 30.0, clock)
    held = {"train": Skip("train", ("held",), recheck=5.0)}
    queue.add([claim(1, "train"), claim(2)])
    assert ids(queue.pick(2, held).start) == [2]
    clock.now = 4.9
    assert queue.pick(2, held).give_back == ()
    assert ids(queue.pick(0, {}).start) == []  # the hold ends, and begins anew: the wait does too
    assert queue.pick(2, held).give_back == ()
    clock.now = 9.8
    assert queue.pick(2, held).give_back == ()
    clock.now = 10.0
    assert ids(queue.pick(2, held).give_back) == [1]
    assert len(queue) == 0


def test_what_has_not_started_within_the_ttl_goes_back():
    """Others may have a slot: after the ttl a prefetched task is theirs (K15)."""
    clock = Clock()
    queue = LocalQueue(5, 30.0, clock)
    queue.add([claim(1)])
    clock.now = 30.0
    assert ids(queue.pick(5, {}).give_back) == [1]


def test_a_workflow_is_never_held():
    """Skips name activities only (K5)."""
    queue = LocalQueue(5, 30.0, Clock())
    one = Claim(Route(0, "q", "workflow", "train"), 1, 1, 0, 5, 0, NOW, NOW, None, None, (), {}, 0)
    queue.add([one])
    assert queue.pick(1, {"train": Skip("train", ("held",))}).start == (one,)
