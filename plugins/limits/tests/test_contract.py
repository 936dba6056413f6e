"""Limits keep the laws of a policy."""

from typing import ClassVar

from harvest_limits import Limit, Limits, LimitsConfig, SharedLimit

from harvest_core.testing import PolicyContract


class TestContract(PolicyContract):
    """With limits of every kind, two of them on one activity."""

    activities: ClassVar = {"send_mail": {}, "work": {}}

    def plugin(self):
        return Limits(
            LimitsConfig(
                {"send_mail": Limit(1, "2/m")}, {"api": SharedLimit(3, None, ["send_mail", "work"])}, {"c": Limit(2)}
            )
        )
