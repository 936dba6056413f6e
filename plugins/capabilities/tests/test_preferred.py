"""Preferred terms: a lesser worker leaves a task to a better one for a while (CAP6)."""

import attrs
import pytest
from harvest_capabilities import Capabilities, CapabilitiesConfig

from harvest_core.plugin import Activity, BuildView, Peer, Problem, Skip, Tick
from harvest_core.testing import fake_build, fake_worker

RENDER = {"requires": "region = eu", "prefers": "gpu_memory >= 40"}


def box(name="cpu", queues=("default",), activities=("render",), **labels):
    """Return a worker in region eu that has the labels, and whose activities all ask what `render` asks."""
    policy = Capabilities(CapabilitiesConfig({"region": "eu", **labels}))
    return fake_worker(policy, name=name, queues=queues, activities=dict.fromkeys(activities, RENDER))


def skips(worker, *peers):
    return Capabilities().build_skip_list(Tick(worker, peers=peers))


GPU = box("gpu-box", gpu_memory="80")
LEFT = [Skip("render", ("preferred_worker_free:gpu-box",), hold=True, unless_older=10.0)]


def test_a_task_is_left_to_a_free_preferred_worker():
    """CAP6: the lesser worker takes only what has waited for prefer_wait; it is a hold, since it ends by itself."""
    assert skips(box(), Peer(GPU, 1)) == LEFT


def test_the_wait_is_the_lesser_worker_s():
    """CAP6: each worker publishes its own prefer_wait."""
    policy = Capabilities(CapabilitiesConfig({"region": "eu"}, prefer_wait=2.5))
    [skip] = skips(fake_worker(policy, activities={"render": RENDER}), Peer(GPU, 1))
    assert skip.unless_older == 2.5


@pytest.mark.parametrize(
    "peers",
    [
        (),
        (Peer(GPU, 0),),
        (Peer(box("small", gpu_memory="16"), 9),),
        (Peer(box("elsewhere", region="us", gpu_memory="80"), 9),),
        (Peer(box("other-queue", queues=("mail",), gpu_memory="80"), 9),),
        (Peer(box("older-code", activities=("mail",), gpu_memory="80"), 9),),
        (Peer(attrs.evolve(GPU, facts={}), 9),),
        (Peer(attrs.evolve(GPU, facts={"capabilities": {"labels": {"gpu_memory": 80}, "ineligible": {}}}), 9),),
    ],
    ids=["none", "busy or draining", "lesser", "ineligible", "queue", "activity", "no facts", "odd facts"],
)
def test_it_is_taken_at_once_where_no_preferred_worker_can(peers):
    """CAP6: a soft pin falls to peers at once where no preferred one may take it and is free (sdk-python#783)."""
    assert skips(box(), *peers) is None


def test_any_free_preferred_worker_is_enough():
    """CAP6: the busy and the lesser ones among the peers change nothing."""
    assert skips(box(), Peer(box("small"), 9), Peer(GPU, 0), Peer(GPU, 1)) == LEFT


def test_a_preferred_worker_waits_for_nobody():
    """CAP6: preferred workers are equals."""
    assert skips(box(gpu_memory="48"), Peer(GPU, 1)) is None


def test_an_ineligible_worker_is_not_a_lesser_one():
    """CAP1: `requires` refuses first, and for good."""
    assert skips(box(region="us"), Peer(GPU, 1)) == [Skip("render", ("unsatisfied_requirement:region=eu",))]


def test_a_preference_without_a_requirement():
    """CAP6: `prefers` alone keeps nobody off for longer than prefer_wait."""
    worker = fake_worker(Capabilities(), name="bare", activities={"render": {"prefers": "gpu_memory >= 40"}})
    assert skips(worker, Peer(GPU, 1)) == LEFT
    assert skips(worker) is None


def test_the_facts_of_the_version_before_are_judged_as_before():
    """CAP4: a worker that published no preferences is neither closed nor waited upon in vain."""
    before = attrs.evolve(
        box(),
        facts={
            "capabilities": {"labels": {}, "requires": {}, "ineligible": {"render": ["unsatisfied_requirement:x=1"]}}
        },
    )
    assert skips(before, Peer(GPU, 1)) == [Skip("render", ("unsatisfied_requirement:x=1",))]
    older = {"labels": {"gpu_memory": "80"}, "requires": {}, "ineligible": {}}
    assert skips(box(), Peer(attrs.evolve(GPU, facts={"capabilities": older}), 1)) == LEFT


def test_faults_of_a_preference_are_told():
    """CAP3, CAP6: `prefers` is checked like `requires`, and together with it."""
    build = fake_build(
        activities={
            "blank": {"prefers": " "},
            "number": {"prefers": 40},
            "odd": {"prefers": "gpu = 1, gpu = 2"},
            "parted": {"requires": "gpu not exists", "prefers": "gpu = true"},
            "never": {"requires": "gpu = 1, gpu = 2", "prefers": "gpu = 3"},
        }
    )
    assert list(map(str, Capabilities().check_build(build))) == [
        "capabilities.requirement  activity 'blank': 'prefers': there is no term; leave the option out to ask for "
        "nothing\n     \n    ^",
        "capabilities.requirement  activity 'number': 'prefers' is 40, not text (write e.g. "
        'prefers="gpu = true", or leave it out)',
        "capabilities.never-preferred  activity 'odd': no worker will ever be preferred, because this can never hold: "
        "gpu=1, gpu=2 (the terms of 'requires' and 'prefers' must hold together)",
        "capabilities.never-preferred  activity 'parted': no worker will ever be preferred, because this can never "
        "hold: gpu not exists, gpu=true (the terms of 'requires' and 'prefers' must hold together)",
        "capabilities.never-holds  activity 'never': no worker will ever run it, because this can never hold: gpu=1, "
        "gpu=2 (all terms must hold; for one of several values write 'key in [a, b]')",
    ]


def test_a_local_activity_has_no_preference():
    """CAP3: it runs inline in its workflow task."""
    resize = Activity("resize", print, local=True, options={"prefers": "gpu = true"})
    assert Capabilities().check_build(BuildView({"resize": resize}, ("default",))) == [
        Problem(
            "capabilities.local-activity",
            "activity 'resize'",
            "a local activity runs inline in its workflow task, so 'prefers' cannot be enforced",
            "make it an activity, or leave 'prefers' out",
        )
    ]
