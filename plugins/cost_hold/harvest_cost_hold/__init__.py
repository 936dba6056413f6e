"""Defer expensive activities while a cost signal is high."""

from harvest_cost_hold.config import CostHoldConfig
from harvest_cost_hold.plugin import CostHold
from harvest_cost_hold.signal import Signal

__all__ = ["CostHold", "CostHoldConfig", "Signal"]
