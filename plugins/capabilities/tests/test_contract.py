"""Capabilities keep the laws of a policy."""

from typing import ClassVar

from harvest_capabilities import Capabilities, CapabilitiesConfig

from harvest_core.testing import PolicyContract


class TestContract(PolicyContract):
    """On a worker that meets one requirement of two."""

    activities: ClassVar = {
        "work": {},
        "render": {"requires": "gpu = true"},
        "ship": {"requires": "region in [eu, us]"},
        "paint": {"prefers": "gpu = true"},
    }

    def plugin(self):
        return Capabilities(CapabilitiesConfig({"region": "eu"}))
