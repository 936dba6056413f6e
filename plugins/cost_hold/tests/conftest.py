"""A clock that tests move, and a cost hold that runs by it."""

from __future__ import annotations

import pytest
from harvest_cost_hold import CostHold, CostHoldConfig


class Clock:
    """Monotonic seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_hold(clock):
    """Make a cost hold on `train_model` above 400, changed by keywords."""

    def make(**changes) -> CostHold:
        table = {"defer_threshold": 400.0, "activities": ["train_model"]} | changes
        return CostHold(CostHoldConfig(**table), clock=clock)

    return make
