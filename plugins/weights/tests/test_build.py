"""What a build says of the weights (rule W5)."""

import pytest
from harvest_weights import Weights, WeightsConfig

from harvest_core.plugin import BuildView

BUILD = BuildView(activities={}, queues=("nightly-export", "user-email"))


@pytest.mark.parametrize(
    ("queue", "weight", "expected"),
    [
        (
            "usr-email",
            3,
            "weights.unknown-queue  plugins.weights.queues.usr-email: no such queue (did you mean 'user-email'?)",
        ),
        (
            "video",
            3,
            (
                "weights.unknown-queue  plugins.weights.queues.video: no such queue "
                "(the worker polls nightly-export, user-email)"
            ),
        ),
        *(
            (
                "user-email",
                weight,
                (
                    f"weights.bad-weight  plugins.weights.queues.user-email: {weight!r} is not a whole number from 0 "
                    "to 1000 (2 is twice the share of 1; 0 runs once all others are drained)"
                ),
            )
            for weight in (-1, 1001, 1.5, True, "3")
        ),
    ],
)
def test_a_faulty_weight_is_told(queue, weight, expected):
    """W5: a weight for a queue the worker does not poll, a negative or a non-integer one is a fault, in words."""
    [problem] = Weights(WeightsConfig({queue: weight})).check_build(BUILD)
    assert (str(problem), problem.warning) == (expected, False)


def test_every_fault_is_told_at_once():
    """B1: all faults, not only the first, and two of one queue."""
    assert len(Weights(WeightsConfig({"usr-email": -1, "user-email": True})).check_build(BUILD)) == 3


@pytest.mark.parametrize(
    "queues", [{}, {"user-email": 3}, {"nightly-export": 0, "user-email": 0}, {"user-email": 1000}]
)
def test_good_weights_pass(queues):
    """W5: some queues, none, or all at zero are fine."""
    assert Weights(WeightsConfig(queues)).check_build(BUILD) == []


def test_a_worker_publishes_its_whole_configuration():
    """A hook judges by the facts, so they hold every configured weight."""
    assert Weights(WeightsConfig({"user-email": 3})).publish(BUILD) == {"queues": {"user-email": 3}, "by": "starts"}


@pytest.mark.parametrize(
    ("by", "hint"),
    [("slot", "did you mean 'slots'?"), ("time", "slots keeps slow tasks of one queue from taking every slot")],
)
def test_an_unknown_share_is_told(by, hint):
    """W6: starts and slots can be shared, nothing else."""
    assert list(map(str, Weights(WeightsConfig(by=by)).check_build(BUILD))) == [
        f"weights.unknown-by  plugins.weights.by: expected 'starts' or 'slots', found {by!r} ({hint})"
    ]
