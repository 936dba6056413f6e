"""The plugin's hooks, alone."""

import json

import pytest
from harvest_capabilities import Capabilities, CapabilitiesConfig

from harvest_core.plugin import Activity, BuildView, Feature, Problem, Skip, Tick, Worker, WorkerOption

TRANSCODE = "gpu = true, region in [us-east-1, us-west-2]"


def view(**requires: object) -> BuildView:
    """Return a build of one activity for each keyword, and one that requires nothing."""
    named = {name: Activity(name, print, options={"requires": text}) for name, text in requires.items()}
    return BuildView({"plain": Activity("plain", print), **named}, queues=("default",))


def tick(facts: object) -> Tick:
    """Return a tick of a worker that published facts, passed through JSON as in a claim."""
    published = json.loads(json.dumps(facts))
    return Tick(Worker("w1", "box-1", ("default",), frozenset({"plain", "transcode_video"}), published))


def plugin(**labels: str) -> Capabilities:
    return Capabilities(CapabilitiesConfig(labels))


def test_declares_its_place():
    """One slug, its options, and the feature without which it cannot enforce anything (B2, CAP1)."""
    assert Capabilities.slug == "capabilities"
    assert Capabilities.config_class() == CapabilitiesConfig({})
    assert Capabilities.needs == {Feature.SKIP_LIST}
    assert Capabilities.needs_peers
    assert Capabilities.activity_options == ("requires", "prefers")
    assert Capabilities.worker_options == (
        WorkerOption("--label", "labels", "Label of this worker, as key=value.", pairs=True),
        WorkerOption("--exclusive", "exclusive", "Take only activities that ask for this label."),
    )


def test_publishes_labels_requirements_and_verdicts():
    """Another process can answer from the facts alone what this worker may run, and why not (CAP2, CAP4, CAP5)."""
    build = view(transcode_video=TRANSCODE, train="gpu exists", sync="region = us-east-1")
    assert plugin(region="us-east-1").publish(build) == {
        "labels": {"region": "us-east-1"},
        "requires": {"transcode_video": TRANSCODE, "train": "gpu exists", "sync": "region = us-east-1"},
        "ineligible": {
            "transcode_video": ["unsatisfied_requirement:gpu=true"],
            "train": ["unsatisfied_requirement:gpu exists"],
        },
        "prefers": {},
        "lesser": {},
        "prefer_wait": 10.0,
    }


def test_skips_what_the_worker_cannot_run():
    """A task that needs a label waits even where a worker without it is the only one (CAP2; hatchet#1782)."""
    policy = plugin()
    facts = {"capabilities": policy.publish(view(transcode_video=TRANSCODE, always="gpu not exists"))}
    assert policy.build_skip_list(tick(facts)) == [
        Skip(
            "transcode_video",
            ("unsatisfied_requirement:gpu=true", "unsatisfied_requirement:region in [us-east-1, us-west-2]"),
        )
    ]


def test_skips_nothing_that_the_worker_can_run():
    """A capable worker takes it, and other labels change nothing (CAP1; hatchet#2511)."""
    policy = plugin(gpu="true", region="us-west-2", shelf="7")
    facts = {"capabilities": policy.publish(view(transcode_video=TRANSCODE))}
    assert policy.build_skip_list(tick(facts)) is None


def test_judges_the_worker_in_the_tick_not_its_own():
    """A process with every label says the same of a bare worker as that worker does (O3)."""
    facts = {"capabilities": plugin().publish(view(transcode_video="gpu = true"))}
    explainer = plugin(gpu="true")
    assert explainer.build_skip_list(tick(facts)) == [Skip("transcode_video", ("unsatisfied_requirement:gpu=true",))]


def test_without_labels_and_requirements_has_no_effect():
    """Enabled with an empty configuration it finds nothing and skips nothing (K3)."""
    policy = Capabilities()
    facts = policy.publish(view())
    assert facts == {
        "labels": {},
        "requires": {},
        "ineligible": {},
        "prefers": {},
        "lesser": {},
        "prefer_wait": 10.0,
    }
    assert policy.build_skip_list(tick({"capabilities": facts})) is None
    assert policy.check_build(view()) == []


def test_a_worker_without_facts_claims_nothing():
    """A gate that cannot be judged is closed, and says what to do (CAP3)."""
    with pytest.raises(ValueError, match="published") as caught:
        plugin(gpu="true").build_skip_list(tick({"flags": {}}))
    assert str(caught.value) == (
        "worker 'box-1' published None, so it cannot be judged and claims nothing; "
        "start it anew with the capabilities plugin enabled"
    )


@pytest.mark.parametrize(
    "facts",
    [
        None,
        "ineligible",
        [],
        {},
        {"labels": {}, "requires": {}},
        {"ineligible": None},
        {"ineligible": ["transcode_video"]},
        {"ineligible": {"transcode_video": None}},
        {"ineligible": {"transcode_video": "gpu"}},
        {"ineligible": {"transcode_video": []}},
        {"ineligible": {"transcode_video": {"gpu": "true"}}},
        {"ineligible": {}, "lesser": ["transcode_video"]},
        {"ineligible": {}, "prefers": {"transcode_video": 1}},
        {"ineligible": {}, "lesser": {"transcode_video": "q"}},
        {"ineligible": {}, "prefer_wait": "10s"},
        {"ineligible": {"plain": ["why"], "transcode_video": ["why", 1]}},
    ],
)
def test_malformed_facts_close_the_claim(facts):
    """No shape but the published one counts as leave to run (CAP3)."""
    with pytest.raises(ValueError, match="cannot be judged and claims nothing"):
        plugin().build_skip_list(tick({"capabilities": facts}))


def test_publish_raises_on_what_check_build_refuses():
    """Published facts never hold a requirement that was not judged (CAP3)."""
    with pytest.raises(ValueError, match="empty value"):
        plugin().publish(view(transcode_video="gpu ="))


def test_reports_a_requirement_that_cannot_be_read():
    """Every bad activity is named, with the caret (CAP1, B1)."""
    assert plugin().check_build(view(transcode_video="gpu = ", sync="region IN [a]", train="gpu = true")) == [
        Problem(
            "capabilities.requirement",
            "activity 'transcode_video'",
            "'requires': empty value; write the text to compare the label with\n    gpu = \n          ^",
        ),
        Problem(
            "capabilities.requirement",
            "activity 'sync'",
            "'requires': unknown operator 'IN'; did you mean 'in'?\n    region IN [a]\n           ^",
        ),
    ]


@pytest.mark.parametrize("text", [None, True, 7, ["gpu = true"], {"gpu": "true"}, b"gpu = true"])
def test_reports_a_requirement_that_is_no_text(text):
    """None too: leaving `requires` out is the one way to ask for nothing (CAP3)."""
    assert plugin().check_build(view(transcode_video=text)) == [
        Problem(
            "capabilities.requirement",
            "activity 'transcode_video'",
            f"'requires' is {text!r}, not text",
            'write e.g. requires="gpu = true", or leave it out',
        )
    ]


def test_reports_a_local_activity_with_a_requirement():
    """It runs inline in its workflow task, where nothing could enforce it (CAP3)."""
    resize = Activity("resize", print, local=True, options={"requires": "gpu = true"})
    assert plugin().check_build(BuildView({"resize": resize}, ("default",))) == [
        Problem(
            "capabilities.local-activity",
            "activity 'resize'",
            "a local activity runs inline in its workflow task, so 'requires' cannot be enforced",
            "make it an activity, or leave 'requires' out",
        )
    ]


def test_warns_of_a_requirement_that_can_never_hold():
    """A warning, since the worker can do its other work (CAP3)."""
    assert plugin().check_build(view(train="region exists, gpu = 1, gpu = 2")) == [
        Problem(
            "capabilities.never-holds",
            "activity 'train'",
            "no worker will ever run it, because this can never hold: gpu=1, gpu=2",
            "all terms must hold; for one of several values write 'key in [a, b]'",
            warning=True,
        )
    ]


@pytest.mark.parametrize("key", ["", "a b", "gpu=", "a,b", "[a]", "it's", "a\n"])
def test_reports_a_label_that_no_requirement_can_name(key):
    """Such a label would be configured in vain (CAP1)."""
    assert Capabilities(CapabilitiesConfig({key: "x", "gpu": "a, [b] ="})).check_build(view()) == [
        Problem(
            "capabilities.label",
            "plugins.capabilities.labels",
            f"no requirement can name the label {key!r}",
            "a key is not empty and has no white space and none of , [ ] ' \" = ! < >",
        )
    ]


def test_reports_a_label_that_cannot_be_stored():
    """Labels are published to the database, which holds no NUL (CAP4)."""
    assert plugin(gpu="a\0").check_build(view()) == [
        Problem(
            "capabilities.label",
            "plugins.capabilities.labels",
            "the label 'gpu' = 'a\\x00' holds a character that cannot be stored",
            "leave it out",
        )
    ]
