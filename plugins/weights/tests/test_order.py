"""The order that one tick gets (rules W2 and W5), value by value."""

import attrs
import pytest
from harvest_weights import Weights, WeightsConfig

from harvest_core.plugin import Tick, Turn, Worker


def order(weights, queues=("a", "b", "c"), **tick):
    facts = {"weights": Weights(WeightsConfig(weights)).publish(build=None)}
    return Weights().order_queues(Tick(Worker("1", "one", queues, frozenset(), facts), **tick))


def test_unconfigured_means_no_order():
    """K3: a plugin enabled with an empty configuration leaves all polled queues one queue."""
    assert order({}) is None


def test_a_step_is_the_scale_over_the_weight():
    """W1: absent means 1; the worker of the tick is judged, not the configuration around the hook."""
    assert order({"b": 3, "c": 2}) == [Turn("a", 0, 0, 6), Turn("b", 0, 0, 2), Turn("c", 0, 0, 3)]


def test_only_a_waiting_queue_keeps_an_old_turn():
    """W2: a queue without a candidate stands one step back at most, so that its first task has the newest turn."""
    turns = {"a": -30, "b": -30, "c": -1}
    assert order({"a": 2, "b": 1}, turns=turns, waiting=frozenset({"b"})) == [
        Turn("a", 0, -1, 1),
        Turn("b", 0, -30, 2),
        Turn("c", 0, -1, 2),
    ]


def test_zero_weights_come_last_in_configured_order():
    """W2: each queue of weight zero is a tier of its own below all others, whatever turn it took."""
    assert order({"a": 0, "c": 0}, turns={"a": -5, "c": -9}, waiting=frozenset("ac")) == [
        Turn("b", 0, 0, 1),
        Turn("a", 1, 0, 0),
        Turn("c", 2, 0, 0),
    ]


def test_all_zero_is_the_configured_order(kernel_of):
    """W5: with every weight zero the queues are drained one after the other, as configured."""
    kernel = kernel_of({"z": 0, "a": 0, "m": 0})
    kernel.backlog.update({"a": 3, "m": 2, "z": 4})
    assert "".join(kernel.run(9, 7)) == "zzzzaaamm"


def test_zero_runs_once_the_others_are_drained(kernel_of):
    """W2: a queue of weight zero gets nothing while a positive one has a task, and leaves turns as they were."""
    kernel = kernel_of({"spare": 0, "a": 1, "b": 3})
    kernel.backlog.update({"spare": 10, "a": 2, "b": 6})
    picks = kernel.run(12, 7)
    assert set(picks[:8]) == {"a", "b"}
    assert picks[8:] == ["spare"] * 4
    kernel.backlog.update({"a": 1, "b": 3})
    assert kernel.run(5, 7)[4] == "spare"


def test_steps_stay_within_64_bits():
    """W6: where the common multiple is too large, steps are rounded, to less than one part in 10^9."""
    weights = {f"q{weight}": weight for weight in range(1, 1001)}
    turns = order(weights, queues=tuple(weights), turns=dict.fromkeys(weights, -(10**30)), waiting=frozenset(weights))
    for turn in turns:
        assert abs(turn.step * weights[turn.queue] / 2**40 - 1) < 1e-9
        assert abs(turn.start) + 10**6 * turn.step < 2**63


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"weights": None},
        {"weights": {}},
        {"weights": {"queues": ["a"]}},
        {"weights": {"queues": {"a": True}}},
        {"weights": {"queues": {"a": -1}}},
        {"weights": {"queues": {"a": 1.5}}},
        {"weights": {"queues": {}, "by": "time"}},
        {"weights": {"queues": {}, "by": ["slots"]}},
        {"weights": {"queues": {}, "by": None}},
    ],
)
def test_unreadable_facts_close_the_claim(facts):
    """A gate that cannot be judged is closed: a worker without facts in our form raises, and says what to do."""
    worker = attrs.evolve(Worker("1", "one", ("a",), frozenset()), facts=facts)
    with pytest.raises(ValueError, match="restart it") as caught:
        Weights().order_queues(Tick(worker))
    assert str(caught.value) == (
        f"worker 'one' published no readable facts of weights: {facts.get('weights')!r}; "
        "restart it with this version of harvest-weights"
    )
