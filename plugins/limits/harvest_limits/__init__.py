"""Concurrency and rate limits over the whole fleet."""

from harvest_limits.config import Limit, LimitsConfig, SharedLimit
from harvest_limits.plugin import Limits

__all__ = ["Limit", "Limits", "LimitsConfig", "SharedLimit"]
