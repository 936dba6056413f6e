"""Exclusive workers take only what asks for one of their labels (CAP6)."""

import pytest
from harvest_capabilities import Capabilities, CapabilitiesConfig

from harvest_core.plugin import Activity, BuildView, Skip, Tick
from harvest_core.testing import fake_build, fake_worker

LABELS = {"gpu": "a100", "region": "eu", "license": "7"}
ASKING = ["requires", "prefers"]


def skips(exclusive, **options):
    policy = Capabilities(CapabilitiesConfig(LABELS, exclusive))
    return policy.build_skip_list(Tick(fake_worker(policy, activities={"work": options})))


@pytest.mark.parametrize("option", ASKING)
@pytest.mark.parametrize("text", ["gpu = a100", "gpu exists", "region = eu, gpu != h100"])
def test_takes_what_asks_for_its_label(option, text):
    """CAP6: in `requires` or in `prefers`, alone or beside others."""
    assert skips(["gpu"], **{option: text}) is None
    assert skips(["gpu", "license"], **{option: text}) is None


@pytest.mark.parametrize("options", [{}, {"requires": "region = eu"}, {"prefers": "gpu not exists"}])
def test_leaves_what_does_not_ask(options):
    """CAP6: no requirement, another label, and one that asks for its absence are not asking."""
    assert skips(["gpu"], **options) == [Skip("work", ("worker_exclusive:gpu",))]
    assert skips(["gpu", "license"], **options) == [Skip("work", ("worker_exclusive:gpu or license",))]


def test_gives_both_reasons():
    """CAP5: each refusal has its word."""
    assert skips(["gpu"], requires="region = us") == [
        Skip("work", ("unsatisfied_requirement:region=us", "worker_exclusive:gpu"))
    ]
    assert skips(["gpu"], requires="gpu = h100") == [Skip("work", ("unsatisfied_requirement:gpu=h100",))]


def test_a_local_activity_is_no_task():
    """CAP3: it runs inline in its workflow task, so no worker is asked about it."""
    build = BuildView({"resize": Activity("resize", print, local=True)}, ("default",))
    assert Capabilities(CapabilitiesConfig(LABELS, ["gpu"])).publish(build)["ineligible"] == {}


def test_a_key_that_is_no_label_is_a_fault():
    """CAP6: such a worker could run nothing that asks for it."""
    policy = Capabilities(CapabilitiesConfig(LABELS, ["gpus", "disk"]))
    assert list(map(str, policy.check_build(fake_build(policy)))) == [
        "capabilities.exclusive  plugins.capabilities.exclusive: the worker has no label 'gpus', so it could run "
        "nothing that asks for it (did you mean 'gpu'?)",
        "capabilities.exclusive  plugins.capabilities.exclusive: the worker has no label 'disk', so it could run "
        "nothing that asks for it (give the worker a label 'disk', or leave the key out)",
    ]
