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
