"""Weighted fair dispatch between the queues of one worker."""

from harvest_weights.config import WeightsConfig
from harvest_weights.plugin import Weights

__all__ = ["Weights", "WeightsConfig"]
