"""Flags on tasks, and workers that accept, forbid or allowlist them."""

from harvest_flags.config import FlagsConfig
from harvest_flags.filter import FlagFilter
from harvest_flags.plugin import Flags

__all__ = ["FlagFilter", "Flags", "FlagsConfig"]
