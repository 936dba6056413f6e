"""The cost hold keeps the laws of a policy."""

from typing import ClassVar

import pytest
from harvest_cost_hold import CostHold, CostHoldConfig

from harvest_core.testing import FakeClock, FakeSignal, PolicyContract


class TestContract(PolicyContract):
    """While it holds, by a value set in code."""

    activities: ClassVar = {"train_model": {}, "work": {}}

    def plugin(self):
        hold = CostHold(CostHoldConfig(400.0, ["train_model"]), clock=FakeClock())
        hold.signal.set(520.0)
        return hold


class TestStaleSource(PolicyContract):
    """While it holds because its source has been silent for too long."""

    activities: ClassVar = {"train_model": {}, "work": {}}

    def plugin(self):
        clock, source = FakeClock(), FakeSignal(100.0)
        hold = CostHold(CostHoldConfig(400.0, ["train_model"], source=source), clock=clock)
        [refresh] = hold.refreshes()
        refresh.run({})
        source.error = OSError("no answer")
        clock.advance(61)
        with pytest.raises(OSError, match="no answer"):
            refresh.run({})
        return hold


class TestOwnThresholds(PolicyContract):
    """While it holds one of two activities, below the threshold of the other, by the resume threshold."""

    activities: ClassVar = {"train_model": {}, "work": {}}

    def plugin(self):
        config = CostHoldConfig(400.0, ["work"], resume_threshold=350.0, thresholds={"train_model": 300.0})
        hold = CostHold(config, clock=FakeClock())
        for value in (320.0, 280.0):
            hold.signal.set(value)
            hold.observe()
        return hold


class TestMaxHold(PolicyContract):
    """While it holds all but what has waited for max_hold, which starts at a rate."""

    activities: ClassVar = {"train_model": {}, "work": {}}

    def plugin(self):
        hold = CostHold(CostHoldConfig(400.0, ["train_model"], max_hold=60.0, release_rate="1/h"), clock=FakeClock())
        hold.signal.set(520.0)
        return hold


class TestRelease(PolicyContract):
    """While it releases the backlog of a hold that ended."""

    activities: ClassVar = {"train_model": {}, "work": {}}

    def plugin(self):
        clock = FakeClock()
        hold = CostHold(CostHoldConfig(400.0, ["train_model"], release_rate="1/h"), clock=clock)
        for value in (520.0, 100.0):
            hold.signal.set(value)
            hold.observe()
            clock.advance(60)
        return hold
