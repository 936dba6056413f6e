"""Worker labels against activity requirements: a worker is never given an activity whose `requires` it fails."""

from harvest_capabilities.config import CapabilitiesConfig
from harvest_capabilities.grammar import RequirementError, parse
from harvest_capabilities.plugin import Capabilities
from harvest_capabilities.requirement import Operator, Requirement, Term

__all__ = ["Capabilities", "CapabilitiesConfig", "Operator", "Requirement", "RequirementError", "Term", "parse"]
