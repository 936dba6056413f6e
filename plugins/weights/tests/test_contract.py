"""Weights keep the laws of a policy."""

from harvest_weights import Weights, WeightsConfig

from harvest_core.testing import PolicyContract


class TestContract(PolicyContract):
    """With weights above, at and below what is absent."""

    queues = ("nightly-export", "user-email", "spare-time")

    def plugin(self):
        return Weights(WeightsConfig({"user-email": 3, "spare-time": 0}))


class TestContractBySlots(TestContract):
    """The same weights, sharing slots."""

    def plugin(self):
        return Weights(WeightsConfig({"user-email": 3, "spare-time": 0}, by="slots"))
