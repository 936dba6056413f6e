"""The hooks: what is skipped, published, measured and refused at build (rules C1, C2, C5, C7)."""

from __future__ import annotations

import json
import math
import sys
from importlib.metadata import entry_points

import pytest
from harvest_cost_hold import CostHold, CostHoldConfig
from prometheus_client import CollectorRegistry

from harvest_core.plugin import Activity, BuildError, BuildView, Feature, Setting, Skip, Tick, Worker

BUILD = BuildView(
    activities={
        "train_model": Activity("train_model", print),
        "resize": Activity("resize", print, local=True),
    },
    queues=("default",),
)


def tick(facts, live) -> Tick:
    """Return a poll of a worker with those facts, after the passage through JSON."""
    facts, live = json.loads(json.dumps([facts, live], allow_nan=False))
    worker = Worker("w1", "alpha", ("default",), frozenset({"train_model"}), facts={"cost_hold": facts})
    return Tick(worker, live={"cost_hold": live})


def problems(**table):
    """Return the problems of that table as text, warnings marked."""
    found = CostHold(CostHoldConfig(**table)).check_build(BUILD)
    return [f"{'warning ' if problem.warning else ''}{problem}" for problem in found]


def only_problem(**table):
    (problem,) = problems(**table)
    return problem


def test_is_installed_under_its_slug() -> None:
    """The distribution offers the plugin in `harvest.plugins`, and it needs a skip list (B2, B3)."""
    (point,) = entry_points(group="harvest.plugins", name="cost_hold")
    assert point.load() is CostHold
    assert CostHold.needs == {Feature.SKIP_LIST}


def test_held_while_high(make_hold) -> None:
    """While the signal is high each held name is skipped with the reason in words, and no other (C1, C2)."""
    hold = make_hold(activities=["train_model", "render", "train_model"])
    hold.signal.set(520.0)
    reasons = ("cost_hold:signal 520.0 > 400.0",)
    assert hold.build_skip_list(tick(hold.publish(BUILD), hold.observe())) == [
        Skip("train_model", reasons, hold=True),
        Skip("render", reasons, hold=True),
    ]
    hold.signal.set(100.0)
    assert hold.build_skip_list(tick(hold.publish(BUILD), hold.observe())) is None


def test_judges_the_worker_in_the_tick(make_hold) -> None:
    """The verdict follows the facts of the worker in the tick, never the process that asks (K4)."""
    there, here = make_hold(), make_hold(activities=[])
    there.signal.set(520.0)
    asked = tick(there.publish(BUILD), there.observe())
    assert here.build_skip_list(asked) == [Skip("train_model", ("cost_hold:signal 520.0 > 400.0",), hold=True)]
    assert there.build_skip_list(tick(here.publish(BUILD), here.observe())) is None


def test_unconfigured_has_no_effect(make_hold) -> None:
    """An empty table holds nothing, reads nothing and is no problem, whatever the signal (K3)."""
    hold = CostHold()
    hold.signal.set(1e300)
    assert hold.observe() == {"holding": False, "value": 1e300, "why": "no activities to hold"}
    assert hold.build_skip_list(tick(hold.publish(BUILD), hold.observe())) is None
    assert hold.refreshes() == ()
    assert hold.check_build(BUILD) == []


def test_worker_without_the_plugin_holds_nothing() -> None:
    """A worker that published nothing under this slug has nothing to hold."""
    assert CostHold().build_skip_list(Tick(Worker("w1", "alpha", ("default",), frozenset()))) is None


@pytest.mark.parametrize("live", [None, {}, [], {"holding": 1, "why": "x"}, {"holding": True}, {"holding": "no"}])
def test_unknown_signal_closes_the_gate(make_hold, live) -> None:
    """Live facts that do not say whether the worker holds raise, so that nothing is claimed (K4)."""
    hold = make_hold()
    with pytest.raises(ValueError, match="live facts") as caught:
        hold.build_skip_list(tick(hold.publish(BUILD), live))
    assert str(caught.value) == f"worker 'alpha' has activities to hold, but its live facts are {live!r}"


@pytest.mark.parametrize("facts", [{}, [], {"activities": "train_model"}, {"activities": [1]}])
def test_unknown_activities_close_the_gate(make_hold, facts) -> None:
    """Published facts that do not list the held activities raise (K4)."""
    with pytest.raises(ValueError, match="published facts") as caught:
        make_hold().build_skip_list(tick(facts, {"holding": False}))
    assert str(caught.value) == f"the published facts {facts!r} do not list the activities to hold"


def test_publishes_the_whole_configuration(make_hold) -> None:
    """Facts hold every key, pass through JSON, and call a source given in code `callable`."""
    facts = {"defer_threshold": 400.0, "activities": ["train_model"], "refresh": 5.0, "stale_after": 60.0}
    facts |= {"resume_threshold": None, "thresholds": {}, "max_hold": None, "release_rate": None, "recheck": 5.0}
    for source, name in ((None, None), ("setting", "setting"), (lambda: 1.0, "callable")):
        published = json.loads(json.dumps(make_hold(source=source).publish(BUILD)))
        assert published == facts | {"source": name}


def test_metrics_move(make_hold) -> None:
    """The gauges and counters of C7 say at each scrape what a claim would see, per build."""
    registry, other = CollectorRegistry(), CollectorRegistry()
    hold = make_hold()
    hold.metrics(registry)
    make_hold().metrics(other)
    read = registry.get_sample_value
    assert read("harvest_cost_hold") == 0
    assert math.isnan(read("harvest_cost_signal"))
    hold.signal.set(520.0)
    hold.signal.set(math.nan)
    assert (read("harvest_cost_hold"), read("harvest_cost_signal")) == (1, 520.0)
    assert read("harvest_cost_signal_ignored_total") == 1
    assert read("harvest_cost_signal_failed_reads_total") == 0
    assert other.get_sample_value("harvest_cost_hold") == 0
    assert other.get_sample_value("harvest_cost_signal_ignored_total") == 0


def test_metrics_show_failure_and_staleness_without_a_claim(make_hold, clock) -> None:
    """A source that fell silent shows at the next scrape even where no claim is made (C3, C7)."""
    answers = iter([100.0])
    hold, registry = make_hold(source=lambda: next(answers)), CollectorRegistry()
    hold.metrics(registry)
    (refresh,) = hold.refreshes()
    refresh.run({})
    with pytest.raises(StopIteration):
        refresh.run({})
    assert registry.get_sample_value("harvest_cost_signal_failed_reads_total") == 1
    assert registry.get_sample_value("harvest_cost_hold") == 0
    clock.now += 61.0
    assert registry.get_sample_value("harvest_cost_hold") == 1


def test_metrics_of_a_verdict(make_hold) -> None:
    """A bool holds without being a number."""
    hold, registry = make_hold(source=lambda: True), CollectorRegistry()
    hold.metrics(registry)
    hold.refreshes()[0].run({})
    assert registry.get_sample_value("harvest_cost_hold") == 1
    assert math.isnan(registry.get_sample_value("harvest_cost_signal"))


def test_metrics_names_are_taken_once(make_hold) -> None:
    """A second cost hold in one registry is refused instead of reporting twice."""
    registry = CollectorRegistry()
    make_hold().metrics(registry)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        make_hold().metrics(registry)


def test_sound_configurations_have_no_problem() -> None:
    """What can hold is not complained about, negative thresholds and bool sources without one included."""
    assert problems(defer_threshold=-12.5, activities=["train_model"]) == []
    assert problems(defer_threshold=400.0, activities=["train_model"], source="setting") == []
    assert problems(activities=["train_model"], source=lambda: True) == []


def test_local_activity_fails() -> None:
    """A local activity in the hold fails the build (C5)."""
    assert only_problem(defer_threshold=1.0, activities=["train_model", "resize", "resize"]) == (
        "cost_hold.local-activity  plugins.cost_hold.activities: "
        "'resize' is a local activity and runs inline; a hold cannot defer it"
    )


def test_unregistered_name_warns() -> None:
    """A name that no activity has warns, with the nearest one (C5)."""
    assert only_problem(defer_threshold=1.0, activities=["train_modle"]) == (
        "warning cost_hold.unknown-activity  plugins.cost_hold.activities: "
        "'train_modle' is no registered activity, so holding it has no effect (did you mean 'train_model'?)"
    )


@pytest.mark.parametrize("source", [None, "setting"])
def test_never_high_warns(source) -> None:
    """Activities that nothing can ever hold warn."""
    assert only_problem(activities=["train_model"], source=source) == (
        "warning cost_hold.never-high  plugins.cost_hold.defer_threshold: no threshold is set, so no signal is high "
        "and nothing is held (set defer_threshold, or a source that returns a bool)"
    )


@pytest.mark.parametrize("threshold", [math.nan, math.inf, -math.inf])
def test_threshold_must_be_finite(threshold) -> None:
    """A threshold that nothing can be compared with fails the build (B4)."""
    assert only_problem(defer_threshold=threshold) == (
        f"cost_hold.threshold  plugins.cost_hold.defer_threshold: {threshold} is not a finite number, "
        "so no signal could be compared with it"
    )


def test_refresh_must_pause() -> None:
    """A refresh of 0 fails the build (B4)."""
    assert only_problem(refresh=0.0) == (
        "cost_hold.refresh  plugins.cost_hold.refresh: 0 would read without pause; it must be more than 0 "
        '(the default is "5s")'
    )


def test_stale_between_reads_warns() -> None:
    """A value that goes stale before the next read warns: the hold would flap."""
    assert only_problem(source="setting", refresh=90.0) == (
        "warning cost_hold.stale-after  plugins.cost_hold.stale_after: 60 s is not more than refresh, so a value goes "
        "stale between two reads (the hold would come and go; raise stale_after or lower refresh)"
    )


class AsyncMeter:
    async def read(self) -> float:
        return 1.0


@pytest.mark.parametrize(
    ("source", "subject"), [(42, "the int given"), (CostHold, "the type given"), (AsyncMeter(), "the AsyncMeter given")]
)
def test_source_that_cannot_be_read(source, subject) -> None:
    """A class, an async function and what cannot be called fail the build (C3)."""
    assert only_problem(source=source) == (
        f"cost_hold.source  plugins.cost_hold.source: {subject} cannot be read: it is neither a function of no "
        "arguments nor an object with such a read() (classes and async functions are not accepted)"
    )


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install signals into this process: entry points of a distribution, and the module they name."""

    def install(points: str, module: str, distribution: str = "meters") -> None:
        folder = tmp_path / distribution / f"{distribution}-1.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1\n")
        (folder / "entry_points.txt").write_text(f"[harvest.signals]\n{points}\n")
        (tmp_path / distribution / f"{distribution}_module.py").write_text(module)
        monkeypatch.syspath_prepend(str(tmp_path / distribution))
        monkeypatch.delitem(sys.modules, f"{distribution}_module", raising=False)

    return install


def test_installed_signal(installed, make_hold) -> None:
    """An entry point of `harvest.signals` is read every `refresh`; a function and an object with `read()` (C3)."""
    installed(
        "grid = meters_module:grid\nmeter = meters_module:meter",
        "def grid(): return 520.0\nclass Meter:\n    def read(self): return True\nmeter = Meter()",
    )
    for name, why in (("grid", "signal 520.0 > 400.0"), ("meter", "signal says high")):
        hold = make_hold(source=name, refresh=7.0)
        assert hold.check_build(BUILD) == []
        assert hold.publish(BUILD)["source"] == name
        (refresh,) = hold.refreshes()
        assert (refresh.every, refresh.settings) == (7.0, frozenset())
        assert hold.observe()["why"] == "signal has no value yet"
        refresh.run({"cost_signal": Setting(1, version=1)})
        assert hold.observe()["why"] == why


def test_unknown_signal(installed, make_hold) -> None:
    """A name that no distribution offers fails with the nearest and the installed ones; so does a worker's start."""
    installed("zz_grid = meters_module:grid", "def grid(): return 520.0")
    known = ", ".join(sorted(entry_points(group="harvest.signals").names))
    fault = f"cost_hold.unknown-signal  plugins.cost_hold.source: no signal named {{}} is installed; installed: {known}"
    assert problems(source="zz_gird") == [f"{fault.format(repr('zz_gird'))} (did you mean 'zz_grid'?)"]
    assert problems(source="settings") == [f"{fault.format(repr('settings'))} (did you mean 'setting'?)"]
    with pytest.raises(BuildError, match=r"cost_hold\.unknown-signal"):
        make_hold(source="zz_gird").refreshes()


def test_broken_signal(installed) -> None:
    """An entry point that cannot be imported fails the build with what its import said (B3)."""
    installed("grid = meters_module:grid", "raise RuntimeError('no meter here')")
    assert only_problem(source="grid") == (
        "cost_hold.broken-signal  plugins.cost_hold.source: the signal 'grid' (meters_module:grid) cannot be imported: "
        "RuntimeError: no meter here"
    )


def test_duplicate_signal(installed) -> None:
    """Two signals of one name fail the build: which one was meant is not guessed (B3)."""
    installed("grid = meters_module:grid", "def grid(): return 1.0")
    installed("grid = others_module:grid", "def grid(): return 2.0", distribution="others")
    assert only_problem(source="grid") == (
        "cost_hold.duplicate-signal  plugins.cost_hold.source: several installed signals are named 'grid': "
        "meters_module:grid, others_module:grid (uninstall all but one)"
    )


def test_installed_signal_that_is_a_class(installed) -> None:
    """An entry point that names a class in place of an instance fails the build (C3)."""
    installed("meter = meters_module:Meter", "class Meter:\n    def read(self): return 1.0")
    assert only_problem(source="meter") == (
        "cost_hold.source  plugins.cost_hold.source: 'meter' cannot be read: it is neither a function of no arguments "
        "nor an object with such a read() (classes and async functions are not accepted)"
    )
