"""The laws of the shares (rules W1, W2 and W6), over a simulator of the kernel's merge."""

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

ENDLESS = 10**9
BATCHES = st.sampled_from([1, 7, 50])
WEIGHT = st.integers(1, 5) | st.integers(1, 1000)
WEIGHTS = st.lists(WEIGHT, min_size=2, max_size=8).map(lambda values: dict(zip("abcdefgh", values, strict=False)))


def against(victim):
    """Return the tie-break that is worst for one queue."""
    return lambda tied: next((queue for queue in tied if queue != victim), victim)


@pytest.mark.parametrize("batch", [1, 7, 50])
def test_three_to_one(kernel_of, batch):
    """W1: with both queues saturated dispatch is 3 to 1, in every stretch of four."""
    kernel = kernel_of({"nightly-export": 1, "user-email": 3})
    kernel.backlog.update({"nightly-export": ENDLESS, "user-email": ENDLESS})
    picks = kernel.run(400, batch)
    assert {picks[start : start + 4].count("user-email") for start in range(0, 400, 4)} == {3}


@settings(deadline=None)
@given(WEIGHTS, BATCHES, st.data())
def test_no_queue_falls_behind_its_share(kernel_of, weights, batch, data):
    """W2: after t dispatches a queue has had floor(t*w/W), and it first runs within ceil(W/w), whoever wins ties."""
    victim = data.draw(st.sampled_from(sorted(weights)))
    kernel = kernel_of(weights, against(victim))
    kernel.backlog.update(dict.fromkeys(weights, ENDLESS))
    weight, total = weights[victim], sum(weights.values())
    picks = kernel.run(300, batch)
    had = itertools.accumulate(queue == victim for queue in picks)
    assert all(count >= number * weight // total for number, count in enumerate(had, start=1))
    assert victim in picks[: -(-total // weight)] or total / weight > len(picks)


@settings(deadline=None)
@given(WEIGHTS, BATCHES, st.integers(0, 2**32), st.data())
def test_it_holds_again_after_any_change(kernel_of, weights, batch, seed, data):
    """W2: whatever woke and drained before, from there a queue is behind by a turn of each other queue at most."""
    victim = data.draw(st.sampled_from(sorted(weights)))
    rng = random.Random(seed)
    kernel = kernel_of(weights, against(victim))
    for _ in range(rng.randrange(30)):
        for queue in rng.sample(sorted(weights), rng.randrange(len(weights))):
            kernel.backlog[queue] = rng.choice([0, 1, 2, 30, 500])
        kernel.claim(rng.randint(1, batch))
    others = set(weights) - {victim}
    busy = {victim} | set(rng.sample(sorted(others), rng.randint(1, len(others))))
    kernel.backlog.clear()
    kernel.backlog.update(dict.fromkeys(busy, ENDLESS))

    weight, total, count = weights[victim], sum(weights[queue] for queue in busy), len(busy)
    had = Counter()
    for number, queue in enumerate(kernel.run(300, batch), start=1):
        had[queue] += 1
        assert had[victim] >= -(-(number - count + 2) * weight // total) - 1
        if (count - 2) * weight < total:
            assert had[victim] >= number * weight // total - 1
        for other in busy - {victim}:
            assert abs(had[victim] * weights[other] - had[other] * weight) <= weight + weights[other]


@settings(max_examples=8, deadline=None)
@given(WEIGHTS, st.integers(0, 2**32))
def test_the_split_is_within_one_percent(kernel_of, weights, seed):
    """W6: over 10,000 dispatches, at batches of 1, 7 and 50, each share is that of the weights within 1 %."""
    total = sum(weights.values())
    for batch in (1, 7, 50):
        kernel = kernel_of(weights, random.Random(seed).choice)
        kernel.backlog.update(dict.fromkeys(weights, ENDLESS))
        had = Counter(kernel.run(10_000, batch))
        assert all(abs(had[queue] - 10_000 * weight / total) <= 100 for queue, weight in weights.items())


def test_the_split_holds_while_others_hold_tasks(kernel_of):
    """W6: a queue whose tasks others hold in three claims of ten keeps its turn, so the split is still exact."""
    rng = random.Random(6)
    kernel = kernel_of({"a": 1, "b": 3, "c": 2})
    kernel.backlog.update(dict.fromkeys("abc", ENDLESS))
    had = Counter(kernel.run(10_000, 50, lambda: [queue for queue in "ab" if rng.random() < 0.3]))
    assert all(abs(had[queue] - 10_000 * weight / 6) <= 100 for queue, weight in {"a": 1, "b": 3, "c": 2}.items())


@pytest.mark.parametrize("batch", [1, 7, 50])
def test_idleness_earns_nothing(kernel_of, batch):
    """W2: queues that wake after 1,000 dispatches start at the newest turn, also the one that loses the tie there."""
    for loser in "abc":
        kernel = kernel_of({"a": 1, "b": 1, "c": 1}, against(loser))
        kernel.backlog["a"] = ENDLESS
        kernel.run(1_000, batch)
        kernel.backlog.update({"b": ENDLESS, "c": ENDLESS})
        had = Counter()
        for queue in kernel.run(200, batch):
            had[queue] += 1
            assert max(had.values()) - min(had[name] for name in "abc") <= 2


def test_a_queue_that_a_claim_drained_earns_nothing_in_it(kernel_of):
    """W2: what others take after a queue's last task, in the same claim, is not owed to it."""
    kernel = kernel_of({"a": 1, "b": 1})
    kernel.backlog.update({"a": ENDLESS, "b": 1})
    kernel.run(50, 50)
    kernel.backlog["b"] = ENDLESS
    assert kernel.run(10, 50).count("b") <= 6


def test_what_is_owed_has_a_bound(kernel_of):
    """W2: a queue whose tasks others held for 10,000 dispatches keeps others waiting for 1,000 of its own at most."""
    kernel = kernel_of({"a": 1, "b": 1})
    kernel.backlog.update({"a": ENDLESS, "b": ENDLESS})
    kernel.run(10_000, 50, lambda: ["b"])
    assert 999 <= kernel.run(2_000, 50).index("a") <= 1_001


def test_a_drained_queue_shares_out_its_part(kernel_of):
    """W2: with the middle queue of 5, 3, 1 empty the others split 5 to 1."""
    kernel = kernel_of({"a": 5, "b": 3, "c": 1})
    kernel.backlog.update({"a": ENDLESS, "c": ENDLESS})
    assert Counter(kernel.run(600, 7)) == {"a": 500, "c": 100}
