"""Flags keep the laws of a policy."""

from harvest_flags import Flags, FlagsConfig

from harvest_core.testing import PolicyContract


class TestContract(PolicyContract):
    """With all three sets."""

    enqueued = ({"flags": {"linux"}}, {"flags": ["gpu", "linux"]}, {"flags": {"arm": True}}, {})

    def plugin(self):
        return Flags(FlagsConfig(["linux", "macos"], ["gpu"], ["linux", "macos", "gpu"]))


class TestForbiddenAlone(PolicyContract):
    """With one of the sets."""

    enqueued = ({"flags": {"gpu"}}, {})

    def plugin(self):
        return Flags(FlagsConfig(forbidden=["gpu"]))


class TestEmptyAllowlist(PolicyContract):
    """With the one empty set that has an effect."""

    enqueued = ({"flags": {"gpu"}}, {})

    def plugin(self):
        return Flags(FlagsConfig(allowlist=[]))
