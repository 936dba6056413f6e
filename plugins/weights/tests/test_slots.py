"""Busy slots shared by weight (W6), over a simulator of one worker: claims, running tasks and their ends."""

import heapq
import math
import random
from collections import Counter
from fractions import Fraction

import pytest
from harvest_weights import Weights, WeightsConfig
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harvest_core.plugin import Tick, Turn, Worker

ENDLESS = 10**9


class OneWorker:
    """One worker that claims as the kernel does: in the order of (tier, turn), at most `most` of a queue.

    Args:
        weights: by queue.
        slots: how many tasks it runs at once.
        lasts: seconds that the next task of a queue runs.
    """

    def __init__(self, weights, slots, lasts=lambda queue: 1.0):
        self.plugin = Weights(WeightsConfig(weights, by="slots"))
        facts = {"weights": self.plugin.publish(build=None)}
        self.worker = Worker("1", "one", tuple(weights), frozenset(), facts)
        self.slots, self.lasts, self.now = slots, lasts, 0.0
        self.backlog, self.busy = Counter(), dict.fromkeys(weights, 0)
        self.waiting, self.turns, self.running = frozenset(), {}, []
        self.positive = [queue for queue, weight in weights.items() if weight]

    @property
    def free(self):
        return self.slots - sum(self.busy.values())

    def claim(self):
        """Claim once and return the queues of the tasks taken."""
        if not self.free:
            return []
        order = self.plugin.order_queues(Tick(self.worker, self.free, {}, self.turns, self.waiting, dict(self.busy)))
        assert [turn.queue for turn in order if turn.tier] == [q for q in self.worker.queues if q not in self.positive]
        places = sorted(
            (turn.tier, turn.start + k * turn.step, number, turn.queue)
            for number, turn in enumerate(order)
            for k in range(
                1, 1 + min(self.free, self.backlog[turn.queue], self.free if turn.most is None else turn.most)
            )
        )
        taken = [queue for *_, queue in places[: self.free]]
        for queue in taken:
            self.backlog[queue] -= 1
            self.busy[queue] += 1
            heapq.heappush(self.running, (self.now + self.lasts(queue), random.random(), queue))
        self.turns = {turn.queue: -turn.step * taken.count(turn.queue) for turn in order}
        self.waiting = frozenset(queue for queue, left in self.backlog.items() if left > 0)
        return taken

    def settle(self):
        """Claim until no claim takes anything more."""
        while self.claim() or self.claim():
            pass

    def end_one(self):
        """Let the task that ends first end."""
        self.now, _, queue = heapq.heappop(self.running)
        self.busy[queue] -= 1


def shares(slots, weights):
    """Return the exact share of each queue: by weight, one slot at least; found by trial of who has just one."""
    for ones in range(len(weights)):
        heavy = dict(sorted(weights.items(), key=lambda one: one[1])[ones:])
        exact = {queue: Fraction((slots - ones) * weight, sum(heavy.values())) for queue, weight in heavy.items()}
        if min(exact.values()) >= 1:
            return dict.fromkeys(weights, Fraction(1)) | exact
    raise AssertionError


WEIGHTS = st.lists(st.integers(1, 5) | st.integers(1, 1000), min_size=2, max_size=8).map(
    lambda values: dict(zip("abcdefgh", values, strict=False))
)


@settings(deadline=None, max_examples=50)
@example({"a": 8, "b": 1, "c": 1, "d": 1, "e": 1}, 15, 0, 0)  # by divisors alone "a" would have 16 of 20, not 14
@given(WEIGHTS, st.integers(0, 60), st.integers(0, 2**32), st.sampled_from([0, 1, 4]))
def test_saturated_queues_have_their_shares(weights, more, seed, spread):
    """W6: with all saturated each queue has less than one slot more or less than its share, at all times.

    Tasks last as long in every queue (spread 0) or up to 10^4 times as long in one as in another.
    """
    rng = random.Random(seed)
    scale = {queue: 10 ** rng.uniform(0, spread) for queue in weights}
    worker = OneWorker(weights, len(weights) + more, lambda queue: scale[queue] * rng.uniform(0.5, 1.5))
    worker.backlog.update(dict.fromkeys(weights, ENDLESS))
    expected = shares(worker.slots, weights)
    for _ in range(200):
        worker.settle()
        assert worker.free == 0
        assert all(abs(worker.busy[queue] - share) < 1 for queue, share in expected.items()), (worker.busy, expected)
        for _ in range(rng.randint(1, min(3, worker.slots))):
            worker.end_one()


@settings(deadline=None, max_examples=50)
@given(WEIGHTS, st.integers(0, 20), st.integers(0, 2**32), st.booleans())
def test_no_queue_waits_for_tasks_of_another(weights, more, seed, spare):
    """W6: a queue of positive weight has a task running or finds a free slot, whatever the others do, and however long.

    One task of its own is thus the longest that its next one ever waits; sidekiq#5741.
    """
    rng = random.Random(seed)
    weights = weights | ({"spare": 0} if spare else {})
    worker = OneWorker(weights, len(weights) + more, lambda queue: rng.choice([0.1, 1, 1000]))
    for _ in range(300):
        for queue in rng.sample(sorted(weights), rng.randrange(len(weights))):
            worker.backlog[queue] = rng.choice([0, 1, 2, 100])
        had = {queue for queue in worker.positive if worker.backlog[queue] and not worker.busy[queue]}
        assert had <= set(worker.claim())
        assert worker.free >= sum(not worker.busy[queue] for queue in worker.positive)
        for _ in range(rng.randint(0, 3)):
            if worker.running:
                worker.end_one()


@settings(deadline=None)
@given(WEIGHTS, st.integers(0, 40), st.data())
def test_what_nobody_is_owed_is_used(weights, more, data):
    """W6: queues with work take every slot but one for each idle queue, within three claims."""
    worker = OneWorker(weights, len(weights) + more)
    working = data.draw(st.sets(st.sampled_from(sorted(weights)), min_size=1))
    worker.backlog.update(dict.fromkeys(working, ENDLESS))
    for _ in range(3):
        worker.claim()
    assert worker.free == len(weights) - len(working)
    share = shares(worker.slots - worker.free, {queue: weights[queue] for queue in working})
    assert all(abs(worker.busy[queue] - share[queue]) < 1 for queue in working)


def test_slow_tasks_of_a_light_queue_leave_room():
    """W6: slow tasks fill two light queues; the heavy one starts at once, and wins its share (sidekiq#5741)."""
    worker = OneWorker({"export": 1, "report": 1, "mail": 8}, 20, lambda queue: 0.1 if queue == "mail" else 3600.0)
    worker.backlog.update({"export": ENDLESS, "report": ENDLESS})
    worker.settle()
    assert worker.busy in ({"export": 10, "report": 9, "mail": 0}, {"export": 9, "report": 10, "mail": 0})
    worker.backlog["mail"] = ENDLESS
    assert worker.claim() == ["mail"]
    for _ in range(40_000):
        worker.end_one()
        worker.claim()
    assert worker.now > 3600
    assert worker.busy == {"export": 2, "report": 2, "mail": 16}


def test_a_slot_that_gets_free_goes_to_the_queue_below_its_share():
    """W6: how long tasks run makes no difference to whose turn it is."""
    order = order_of({"a": 3, "b": 1}, 1, {"a": 14, "b": 5}, "ab")
    assert order == [Turn("a", 0, 0, 2**40), Turn("b", 0, 2**40, 2**40)]
    order = order_of({"a": 3, "b": 1}, 1, {"a": 15, "b": 4}, "ab")
    assert order == [Turn("a", 0, 2**40, 2**40), Turn("b", 0, 0, 2**40)]


def test_zero_weights_come_last_and_leave_room():
    """W2, W6: a queue of weight zero runs once the others are drained, and keeps their first slots free."""
    worker = OneWorker({"spare": 0, "a": 1, "b": 3}, 10)
    worker.backlog.update({"spare": ENDLESS, "a": 2})
    worker.settle()
    assert worker.busy == {"spare": 7, "a": 2, "b": 0}
    worker.backlog.update({"a": ENDLESS, "b": ENDLESS})
    worker.claim()
    worker.settle()
    assert worker.busy == {"spare": 7, "a": 2, "b": 1}


def test_all_zero_is_the_configured_order():
    """W5: with every weight zero there is nothing to share and nothing to keep free."""
    worker = OneWorker({"z": 0, "a": 0, "m": 0}, 5)
    worker.backlog.update({"a": 3, "m": 9, "z": 1})
    assert "".join(worker.claim()) == "zaaam"


@pytest.mark.parametrize("tick", [{}, {"busy": {"a": 1}}, {"busy": {"a": 1, "b": 0, "c": 0}}])
def test_where_slots_cannot_be_shared_starts_are(tick):
    """W6: fewer slots than queues, or not known what is busy, as where another process explains: W1 holds."""
    facts = {"weights": {"queues": {"a": 2}, "by": "slots"}}
    by_starts = {"weights": {"queues": {"a": 2}}}
    one, other = (Tick(Worker("1", "one", tuple("abc"), frozenset(), each), 1, **tick) for each in (facts, by_starts))
    assert Weights().order_queues(one) == Weights().order_queues(other)
    assert Weights().order_queues(one)[0] == Turn("a", 0, 0, 1)


def test_slots_are_shared_alike_without_weights():
    """W6: `by = "slots"` alone is a configuration: every queue has weight 1."""
    worker = OneWorker({}, 1)
    worker.worker = Worker("1", "one", ("a", "b"), frozenset(), {"weights": {"queues": {}, "by": "slots"}})
    order = worker.plugin.order_queues(Tick(worker.worker, 4, busy={"a": 0, "b": 0}))
    assert order == [Turn("a", 0, 0, 2**39, most=2), Turn("b", 0, 0, 2**39, most=2)]


@pytest.mark.parametrize("slots", [1000, 50_000])
def test_numbers_stay_within_their_bits(slots):
    """W6: the claim takes what was dealt and not one more, also of very many slots."""
    weights = {"a": 1000, "b": 1, "c": 0}
    order = order_of(weights, slots, {"a": 0, "b": 0, "c": 0}, "abc")
    for turn in order[:2]:
        assert turn.most * turn.step <= 2**40 < (turn.most + 1) * turn.step
    assert sum(turn.most for turn in order) == slots
    assert math.log2(max(turn.start + slots * turn.step for turn in order)) < 62


def order_of(weights, free, busy, waiting):
    facts = {"weights": {"queues": weights, "by": "slots"}}
    return Weights().order_queues(
        Tick(Worker("1", "one", tuple(weights), frozenset(), facts), free, waiting=frozenset(waiting), busy=busy)
    )
