"""Hysteresis, thresholds by activity, the ends of holds and what follows them (rules C5, C9)."""

from __future__ import annotations

import json
import math

import pytest
from harvest_cost_hold import CostHold, CostHoldConfig
from prometheus_client import CollectorRegistry

from harvest_core.plugin import Activity, Budget, BuildView, Skip, Tick, Worker

BUILD = BuildView({name: Activity(name, print) for name in ("train_model", "render")}, ("default",))
TEN_A_MINUTE = Budget("cost_hold:train_model", starts=10, period=60.0)


def told(hold: CostHold, **facts) -> list[Skip]:
    """Return what a process without any configuration makes of a worker's facts, after their passage through JSON."""
    published, live = json.loads(json.dumps([{**hold.publish(BUILD), **facts}, hold.observe()], allow_nan=False))
    return judged(published, live)


def judged(published, live) -> list[Skip]:
    worker = Worker("w1", "alpha", ("default",), frozenset({"train_model", "render"}), {"cost_hold": published})
    return list(CostHold().build_skip_list(Tick(worker, live={"cost_hold": live})) or [])


def faults(**table) -> list[str]:
    found = CostHold(CostHoldConfig(**table)).check_build(BUILD)
    return [f"{'warning ' if problem.warning else ''}{problem}" for problem in found]


def whys(hold: CostHold, *values: float) -> list[str]:
    """Set one value after the other and return the words after each."""
    found = []
    for value in values:
        hold.signal.set(value)
        found.append(hold.observe()["why"])
    return found


# ------------------------------------------------------------------------------------------------------ thresholds


def test_a_hold_lasts_to_the_resume_threshold(make_hold) -> None:
    """Between the thresholds a hold that began goes on, and none begins (C9)."""
    hold = make_hold(resume_threshold=350.0)
    assert whys(hold, 380.0, 401.0, 380.0, 350.0, 380.0) == [
        "signal 380.0 <= 400.0",
        "signal 401.0 > 400.0",
        "signal 380.0 > 350.0, the resume threshold",
        "signal 350.0 <= 400.0",
        "signal 380.0 <= 400.0",
    ]


def test_silence_is_no_high_value(make_hold, clock) -> None:
    """A source that is back between the thresholds goes on as before its silence: held only if it was high (C3, C9)."""
    answers = iter([380.0, 380.0, 401.0, 380.0])
    hold = make_hold(resume_threshold=350.0, source=lambda: next(answers))
    (refresh,) = hold.refreshes()
    seen = [hold.observe()["holding"]]
    for _ in range(4):
        refresh.run({})
        seen.append(hold.observe()["holding"])
        clock.now += 61.0
        seen.append(hold.observe()["holding"])
    assert seen == [True, False, True, False, True, True, True, True, True]


def test_an_activity_has_a_threshold_of_its_own(make_hold) -> None:
    """Each name is judged by its own threshold, and resumes as far below it as the others below theirs (C9)."""
    hold = make_hold(thresholds={"render": 300}, resume_threshold=350.0)
    hold.signal.set(320.0)
    assert told(hold) == [Skip("render", ("cost_hold:signal 320.0 > 300.0",), hold=True)]
    assert hold.observe() == {
        "holding": True,
        "value": 320.0,
        "why": "signal 320.0 > 300.0",
        "held": {"render": "signal 320.0 > 300.0"},
    }
    hold.signal.set(260.0)
    assert told(hold) == [Skip("render", ("cost_hold:signal 260.0 > 250.0, the resume threshold",), hold=True)]
    hold.signal.set(250.0)
    assert told(hold) == []
    hold.signal.set(401.0)
    assert [skip.activity for skip in told(hold)] == ["train_model", "render"]


def test_an_own_threshold_needs_no_other(make_hold) -> None:
    """An activity in `thresholds` is held without standing in `activities`, and published among them (C4)."""
    hold = make_hold(activities=[], defer_threshold=None, thresholds={"render": 300.0})
    hold.signal.set(320.0)
    assert [skip.activity for skip in told(hold)] == ["render"]
    assert hold.publish(BUILD)["activities"] == ["render"]
    assert len(hold.refreshes()) == 1


def test_a_verdict_holds_whatever_the_thresholds(make_hold) -> None:
    """A bool holds every activity, those with a threshold of their own too (C3)."""
    hold = make_hold(thresholds={"render": 1e9}, source=lambda: True)
    hold.refreshes()[0].run({})
    assert [skip.reasons for skip in told(hold)] == [("cost_hold:signal says high",)] * 2


# ---------------------------------------------------------------------------------------------- max_hold and recheck


def test_what_waited_for_max_hold_is_not_refused(make_hold) -> None:
    """The skip spares what has been due for max_hold; a prefetched task waits under it for recheck (C4, C9)."""
    hold = make_hold(max_hold=21600.0, recheck=7.0)
    hold.signal.set(520.0)
    reasons = ("cost_hold:signal 520.0 > 400.0",)
    assert told(hold) == [Skip("train_model", reasons, hold=True, unless_older=21600.0, recheck=7.0)]


def test_what_max_hold_lets_through_starts_at_the_rate(make_hold) -> None:
    """With both, what has waited for max_hold starts at the rate: a backlog is a backlog (C9)."""
    hold = make_hold(max_hold=21600.0, release_rate="10/m")
    hold.signal.set(520.0)
    assert told(hold) == [
        Skip("train_model", ("cost_hold:signal 520.0 > 400.0",), hold=True, unless_older=21600.0),
        Skip("train_model", ("cost_hold_release:10/m",), hold=True, at_most=TEN_A_MINUTE),
    ]


# ----------------------------------------------------------------------------------------------------- release_rate


def test_the_backlog_of_a_hold_starts_at_the_rate(make_hold, clock) -> None:
    """After a hold what was due before its end starts at the rate, for ten times as long as it lasted (C9).

    The time since the end is told in steps of ten seconds, since every change is written to the worker's row.
    """
    hold = make_hold(release_rate="10/m")
    assert told(hold) == []
    hold.signal.set(520.0)
    assert [skip.reasons for skip in told(hold)] == [("cost_hold:signal 520.0 > 400.0",)]
    clock.now += 60.0
    hold.signal.set(100.0)
    reasons = ("cost_hold_release:10/m",)
    for passed, since in ((0.0, 0.0), (9.5, 0.0), (0.5, 10.0), (589.5, 590.0)):
        clock.now += passed
        expected = Skip("train_model", reasons, hold=True, at_most=TEN_A_MINUTE, unless_younger=since)
        assert told(hold) == [expected]
    assert hold.observe() == {
        "holding": False,
        "value": 100.0,
        "why": "signal 100.0 <= 400.0",
        "released": {"train_model": 590.0},
    }
    clock.now += 0.5
    assert told(hold) == []
    assert "released" not in hold.observe()


def test_a_short_hold_in_a_release_continues_the_long_one(make_hold, clock) -> None:
    """A signal that rises once more for a moment does not let go of the long hold's backlog (C9)."""
    hold = make_hold(release_rate="10/m")
    whys(hold, 520.0)
    clock.now += 3600.0
    whys(hold, 100.0)
    clock.now += 60.0
    whys(hold, 520.0)
    clock.now += 1.0
    whys(hold, 100.0)
    clock.now += 3600.0
    assert [skip.unless_younger for skip in told(hold)] == [3600.0]
    clock.now += 36610.0
    assert told(hold) == []


def test_without_a_rate_nothing_follows_a_hold(make_hold, clock) -> None:
    """Without release_rate the next poll takes what was held (C1)."""
    hold = make_hold(max_hold=60.0)
    whys(hold, 520.0)
    clock.now += 3600.0
    whys(hold, 100.0)
    assert told(hold) == []


@pytest.mark.parametrize(
    ("rate", "starts", "period"),
    [("1/s", 1, 1.0), ("10/m", 10, 60.0), ("7/h", 7, 3600.0), ("999999999/d", 999999999, 86400.0)],
)
def test_rates(make_hold, rate, starts, period) -> None:
    """A rate is a whole number and a period (C9)."""
    hold = make_hold(max_hold=60.0, release_rate=rate)
    hold.signal.set(520.0)
    assert told(hold)[1].at_most == Budget("cost_hold:train_model", starts=starts, period=period)
    assert faults(release_rate=rate) == []


# -------------------------------------------------------------------------------------------------- other versions


def test_facts_of_the_version_before() -> None:
    """A worker that tells no more than whether it holds is judged by that: all its activities, without end (K4)."""
    published = {"activities": ["train_model", "render"], "defer_threshold": 400.0}
    live = {"holding": True, "value": 520.0, "why": "signal 520.0 > 400.0"}
    reasons = ("cost_hold:signal 520.0 > 400.0",)
    assert judged(published, live) == [Skip("train_model", reasons, hold=True), Skip("render", reasons, hold=True)]
    assert judged(published, live | {"holding": False}) == []


def test_a_later_version_may_tell_more(make_hold) -> None:
    """Facts of which this version knows nothing change nothing."""
    hold = make_hold()
    hold.signal.set(520.0)
    assert judged({**hold.publish(BUILD), "later": 1}, {**hold.observe(), "later": [1]}) == told(hold)


@pytest.mark.parametrize("more", [{"held": ["train_model"]}, {"released": 7}, {"held": None}])
def test_live_facts_that_cannot_be_read_close_the_gate(make_hold, more) -> None:
    """What a later version may have made of these facts is not guessed: the claim is closed, with the reason (K4)."""
    live = {"holding": True, "why": "x"} | more
    with pytest.raises(ValueError, match="live facts") as caught:
        judged(make_hold().publish(BUILD), live)
    assert str(caught.value) == f"worker 'alpha' has activities to hold, but its live facts are {live!r}"


def test_a_rate_that_cannot_be_read_closes_the_gate(make_hold, clock) -> None:
    """So is a rate of another form (K4)."""
    hold = make_hold(release_rate="10/m", max_hold=60.0)
    hold.signal.set(520.0)
    with pytest.raises(ValueError, match="is no rate") as caught:
        told(hold, release_rate=10)
    assert str(caught.value) == (
        '10 is no rate; expected a whole number above 0 and a period, such as "10/m" (s, m, h or d)'
    )


# --------------------------------------------------------------------------------------------------------- counters


def test_counters_of_holds_move(make_hold, clock) -> None:
    """How often and for how long each activity was held is counted, the present hold included (C9)."""
    registry, hold = CollectorRegistry(), make_hold(thresholds={"render": 300.0})
    hold.metrics(registry)

    def counted(name: str, activity: str) -> float | None:
        return registry.get_sample_value(name, {"activity": activity})

    def both(activity: str) -> tuple[float | None, float | None]:
        return (
            counted("harvest_cost_holds_total", activity),
            counted("harvest_cost_hold_seconds_total", activity),
        )

    assert both("train_model") == (0, 0)
    whys(hold, 350.0)
    clock.now += 10.0
    assert (both("train_model"), both("render")) == ((0, 0), (1, 10))
    whys(hold, 520.0)
    clock.now += 5.0
    whys(hold, 100.0)
    clock.now += 100.0
    assert (both("train_model"), both("render")) == ((1, 5), (1, 15))
    whys(hold, 350.0)
    clock.now += 1.0
    assert both("render") == (2, 16)


# ------------------------------------------------------------------------------------------------- faults of a build


def test_sound_tables_have_no_problem() -> None:
    """Every key at once, and values at their edges, are no problem."""
    table = {"activities": ["train_model"], "defer_threshold": -4.0, "resume_threshold": -4.0, "recheck": 0.0}
    assert faults(**table, thresholds={"render": -9.0}, max_hold=0.5, release_rate="1/d") == []
    assert faults(thresholds={"render": 1.0}) == []


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        (
            {"defer_threshold": 400.0, "resume_threshold": 401.0},
            "cost_hold.resume-threshold  plugins.cost_hold.resume_threshold: 401 is not at or below 400 "
            "(a hold ends at or below resume_threshold and begins above defer_threshold)",
        ),
        (
            {"resume_threshold": 401.0},
            "cost_hold.resume-threshold  plugins.cost_hold.resume_threshold: 401 is not at or below any "
            "defer_threshold (a hold ends at or below resume_threshold and begins above defer_threshold)",
        ),
        (
            {"defer_threshold": 400.0, "resume_threshold": -math.inf},
            "cost_hold.threshold  plugins.cost_hold.resume_threshold: -inf is not a finite number, so no signal could "
            "be compared with it",
        ),
        (
            {"thresholds": {"render": math.nan}},
            "cost_hold.threshold  plugins.cost_hold.thresholds.render: nan is not a finite number, so no signal could "
            "be compared with it",
        ),
        (
            {"max_hold": 0.0},
            "cost_hold.max-hold  plugins.cost_hold.max_hold: 0 s is no time to hold a task for; it must be more than 0 "
            "and less than 300 years (leave it out to hold without end)",
        ),
        (
            {"recheck": 1e10},
            'cost_hold.recheck  plugins.cost_hold.recheck: 1e+10 s is longer than any task waits (the default is "5s")',
        ),
        (
            {"release_rate": "0/m"},
            "cost_hold.release-rate  plugins.cost_hold.release_rate: '0/m' is no rate; expected a whole number above 0 "
            'and a period, such as "10/m" (s, m, h or d)',
        ),
        (
            {"activities": ["train_model"], "thresholds": {"render": 300.0}},
            "warning cost_hold.never-high  plugins.cost_hold.defer_threshold: 'train_model' has no threshold, so no "
            "signal is high for it (set defer_threshold, or a source that returns a bool)",
        ),
        (
            {"thresholds": {"rendr": 300.0}},
            "warning cost_hold.unknown-activity  plugins.cost_hold.thresholds: 'rendr' is no registered activity, so "
            "holding it has no effect (did you mean 'render'?)",
        ),
    ],
)
def test_faults(table, fault) -> None:
    """What cannot work fails the build, and what has no effect warns, at its key and with a remedy (B4, C5)."""
    assert faults(**table) == [fault]


@pytest.mark.parametrize(
    "rate", ["10", "10/5m", "1.5/m", "-1/m", "10/min", " 10/m", "10/m\n", "1234567890/d", "\u0661/m"]
)
def test_forms_that_are_no_rate(rate) -> None:
    """A rate of another form fails the build; a plain number too, since its period would be a guess (B4)."""
    assert [fault.split()[0] for fault in faults(release_rate=rate)] == ["cost_hold.release-rate"]


def test_a_limit_on_waiting_warns() -> None:
    """A held activity with a default schedule_to_start warns: its tasks can fail of the hold (C5, C6)."""
    build = BuildView({"render": Activity("render", print, schedule_to_start=300.0)}, ("default",))
    (problem,) = CostHold(CostHoldConfig(400.0, ["render"])).check_build(build)
    assert problem.warning
    assert str(problem) == (
        "cost_hold.schedule-to-start  plugins.cost_hold.activities: 'render' has a schedule_to_start of 300 s, which "
        "runs on under a hold (what a hold defers for longer fails; leave it out, or make it longer than any hold)"
    )
