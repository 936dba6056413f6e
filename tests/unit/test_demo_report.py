"""The demo's report can fail: every check is fed a doctored log and names what it found."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import attrs
import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo"
FILES = 600
SHARDS = 24
START = 1000.0


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"demo_{name}", DEMO / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


report = load("report")
sources = load("sources")
work = load("work")

WEIGHTS = {"interactive": 3, "bulk": 1}
MEMBERS = [
    report.Member("atlas", weights=WEIGHTS, labels={"memory": "large"}),
    report.Member("birch", weights=WEIGHTS, forbidden=("large",)),
    report.Member("cedar", queues=("bulk",), allowlist=("test-code",)),
    report.Member("delta", queues=("bulk",), accepted=("large",)),
]
POLICY = {m.name: {n: getattr(m, n) for n in ("labels", "accepted", "forbidden", "allowlist")} for m in MEMBERS}
INDEX = report.Planned("merge", "index", "interactive")


def plan():
    """Three interactive tasks and a bulk one for each file, then held, required and flagged ones in bulk."""
    planned = []
    for file in range(FILES):
        planned += [report.Planned(name, f"f{file}", "interactive") for name in ("checksum", "count_tokens", "outline")]
        planned.append(report.Planned("complexity", f"f{file}", "bulk"))
    planned += [report.Planned("fingerprint", f"s{shard}", "bulk") for shard in range(SHARDS)]
    planned += [report.Planned("similarity", f"s{shard}", "bulk") for shard in range(SHARDS)]
    return planned + [report.Planned("complexity", f"big{file}", "bulk", ("large",)) for file in range(10)]


def honest():
    """Return a run in which everything went as it should: atlas and birch take turns, three interactive to one bulk."""
    planned = plan()
    queues = {
        q: [p for p in planned if p.queue == q and p.activity not in ("fingerprint", "similarity")] for q in WEIGHTS
    }
    queues["bulk"] = [p for p in queues["bulk"] if not p.flags]
    order = [next_of.pop(0) for _ in range(FILES) for next_of in [queues["interactive"]] * 3 + [queues["bulk"]]]
    held = [p for p in planned if p.activity == "fingerprint"]
    rest = [p for p in planned if p.activity == "similarity" or p.flags]
    turns = [
        ("atlas" if number // 4 % 2 else "birch", p, 520.0 if number > 400 else 120.0) for number, p in enumerate(order)
    ]
    turns[300:300] = [("birch", p, 120.0) for p in held[:1]]
    turns += [("birch", p, 120.0) for p in held[1:]] + [("atlas", p, 120.0) for p in [*rest, INDEX]]
    effects = []
    for number, (worker, p, signal) in enumerate(turns):
        effects += lines(number, worker, p, signal)
    changes = [
        report.Change(120.0, 990.0, 991.0),
        report.Change(520.0, 1040.0, 1041.0),
        report.Change(120.0, 1239.0, 1240.0),
    ]
    everything = [*planned, INDEX]
    expected = {p.key: 7 for p in everything}
    expected[INDEX.key] = {"complexity": 7}
    effects[-1] = attrs.evolve(effects[-1], result={"complexity": 7})
    return report.Run(planned, [INDEX], effects, MEMBERS, changes, expected, {"complexity": 7}, INDEX.key)


def lines(number, worker, planned, signal):
    common = {
        "task": str(number),
        "activity": planned.activity,
        "subject": planned.subject,
        "attempt": 1,
        "worker": worker,
        "time": START + number / 10,
    }
    told = {"queue": planned.queue, "flags": list(planned.flags), "signal": signal, **POLICY[worker]}
    return [report.Effect("start", **common, **told), report.Effect("end", **common, result=7)]


def doctored(find, **changes):
    """Return the honest run with the first start that find accepts changed."""
    run = honest()
    at = next(at for at, effect in enumerate(run.effects) if effect.effect == "start" and find(effect))
    changes = {name: value(run.effects[at]) if callable(value) else value for name, value in changes.items()}
    return attrs.evolve(
        run, effects=[*run.effects[:at], attrs.evolve(run.effects[at], **changes), *run.effects[at + 1 :]]
    )


def failures(run):
    return {check.name: check.evidence for check in report.judge(run) if not check.passed}


def test_an_honest_run_passes_every_check():
    """A run that keeps all rules passes, and the checks say what they saw."""
    checks = report.judge(honest())
    assert {check.name for check in checks} == {
        "totals",
        "merged index",
        "once",
        "log",
        "requirement",
        "flags",
        "hold",
        "hold shown",
        "attempt 1",
        "span of atlas",
        "split of atlas",
        "span of birch",
        "split of birch",
    }
    assert all(check.passed for check in checks), failures(honest())
    said = {check.name: check.said for check in checks}
    assert said["requirement"] == "24 tasks that require a label ran on atlas, none on birch, cedar, delta"


def test_a_wrong_result_fails_the_totals():
    """A result that differs from the direct computation is shown with both values."""
    run = honest()
    run = attrs.evolve(run, expected={**run.expected, ("complexity", "f3"): 8})
    assert failures(run) == {"totals": ["complexity(f3): the log says 7, directly 8"]}


def test_a_task_that_never_ended_fails_the_totals():
    """A planned task without an end line is a loss."""
    run = honest()
    kept = [e for e in run.effects if not (e.effect == "end" and e.key == ("outline", "f5"))]
    assert failures(attrs.evolve(run, effects=kept)) == {"totals": ["outline(f5): the log says nothing, directly 7"]}


def test_a_wrong_merge_fails_the_index():
    """The result that comes back through the queue is compared as well."""
    run = attrs.evolve(honest(), index={"complexity": 6})
    assert list(failures(run)) == ["merged index"]


@pytest.mark.parametrize("same_id", [True, False])
def test_a_second_start_fails_once(same_id):
    """K1: a task that started twice is found by its id, and work enqueued twice by its subject."""
    run = honest()
    again = attrs.evolve(run.effects[-2], time=run.effects[-2].time + 1)
    again = again if same_id else attrs.evolve(again, task="another")
    found = failures(attrs.evolve(run, effects=[*run.effects, again]))
    assert list(found) == ["once"]
    assert found["once"][-1] == str(again)


def test_two_tasks_under_one_id_fail_once():
    """K1: an id names one task."""
    run = honest()
    found = failures(doctored(lambda e: e.key == ("outline", "f5"), task=run.effects[0].task))
    assert list(found) == ["once"]


@pytest.mark.parametrize(
    "changes", [{"queue": "bulk"}, {"flags": ["test-code"]}, {"labels": {}}, {"subject": "unplanned"}]
)
def test_an_effect_that_does_not_match_what_was_given_fails_the_log(changes):
    """A lost flag, another queue, another policy of the worker or an unknown task is found."""
    assert "log" in failures(doctored(lambda e: e.activity == "checksum" and e.worker == "atlas", **changes))


def test_a_task_on_a_worker_without_the_label_fails_the_requirement():
    """CAP2: `requires` holds by the labels of the worker that ran it."""
    run = doctored(lambda e: e.activity == "similarity", worker="birch", **POLICY["birch"])
    found = failures(run)
    assert list(found) == ["requirement"]
    assert "birch start" in found["requirement"][0]


def test_requirements_that_nothing_used_fail():
    """A check that had nothing to judge does not pass."""
    run = honest()
    planned = [p for p in run.planned if p.activity != "similarity"]
    effects = [e for e in run.effects if e.activity != "similarity"]
    found = failures(attrs.evolve(run, planned=planned, effects=effects))
    assert found == {"requirement": ["nothing to judge: no task with a requirement ran, or every worker meets it"]}


@pytest.mark.parametrize(
    ("worker", "activity", "words"),
    [
        ("birch", "big", "birch forbids large"),
        ("cedar", "big", "cedar does not allow large"),
        ("delta", "s", "delta accepts only large"),
    ],
)
def test_a_task_that_a_flag_rule_refuses_fails_the_flags(worker, activity, words):
    """FL2, FL3: forbidden, allowlist and accepted are each judged by the flags the demo gave."""
    wanted = lambda e: e.subject.startswith(activity) and e.activity != "similarity"  # noqa: E731
    found = failures(doctored(wanted, worker=worker, **POLICY[worker]))
    assert list(found) == ["flags"]
    assert found["flags"][0].startswith(f"{words}: ")


def test_a_flagged_task_that_lost_its_flags_is_still_judged_by_them():
    """A flag lost on the way hides nothing from the check."""
    run = doctored(lambda e: e.subject == "big3", flags=[], worker="birch", **POLICY["birch"])
    assert set(failures(run)) == {"flags", "log"}


def test_flag_rules_that_refuse_nothing_fail():
    """A check that had nothing to judge does not pass."""
    run = attrs.evolve(honest(), members=MEMBERS[:1])
    assert failures(run)["flags"] == ["nothing to judge: no worker refuses any task"]


@pytest.mark.parametrize("signal", [520.0, 400.1, None])
def test_a_held_task_claimed_under_a_high_or_unknown_signal_fails_the_hold(signal):
    """C1, C2: the signal its claim saw must be at most the threshold."""
    found = failures(doctored(lambda e: e.activity == "fingerprint", signal=signal))
    assert list(found) == ["hold"]
    assert found["hold"][0].startswith("claimed under a signal that is not low: ")


def test_a_held_task_at_the_threshold_passes():
    """C1: high is strictly above."""
    assert failures(doctored(lambda e: e.activity == "fingerprint", signal=400.0)) == {}


def test_a_held_task_that_ran_while_the_operator_held_the_signal_high_fails_the_hold():
    """C4: a worker that never heard of the rise is found by the clock, whatever it says it saw."""
    run = honest()
    effects = [
        attrs.evolve(e, time=1100.05) if e.key == ("fingerprint", "s3") and e.effect == "start" else e
        for e in run.effects
    ]
    found = failures(attrs.evolve(run, effects=effects))
    assert list(found) == ["hold"]
    assert found["hold"][0].startswith("started 59.0 s after the signal was set to 520.0: 1100.050 birch")


def test_a_hold_under_which_nothing_else_ran_fails():
    """C1: other work goes on under a hold, or the hold was not shown."""
    run = honest()
    run = attrs.evolve(run, effects=[attrs.evolve(e, signal=120.0) for e in run.effects])
    assert failures(run) == {
        "hold shown": ["only 0 tasks were claimed under a high signal while held work waited (at least 50)"]
    }


def test_a_held_task_at_its_second_attempt_fails():
    """C1: a hold uses no attempt."""
    found = failures(doctored(lambda e: e.activity == "fingerprint", attempt=2))
    assert list(found) == ["attempt 1"]
    assert "attempt 2" in found["attempt 1"][0]


def test_a_skewed_split_fails_with_the_first_dispatch_out_of_bound():
    """W2: the bound holds at every dispatch of the span, not only in the end."""
    run = honest()
    starts = [e for e in run.effects if e.effect == "start" and e.worker == "atlas" and e.time < 1150]
    bulk = [e.time for e in starts if e.queue == "bulk"][:20]
    early = {e.key: START - 9 + number / 100 for number, e in enumerate(starts) if e.time in bulk}
    effects = [attrs.evolve(e, time=early.get(e.key, e.time)) for e in run.effects]
    found = failures(attrs.evolve(run, effects=effects))
    assert list(found) == ["split of atlas"]
    (evidence,) = found["split of atlas"]
    assert evidence.startswith("after 7 dispatches interactive had 0, due 5.25 ± 5: ")


def test_a_split_out_of_order_within_the_slots_passes():
    """Tasks of one claim may log their start in any order."""
    run = honest()
    starts = [e for e in run.effects if e.effect == "start" and e.worker == "atlas"][40:44]
    swapped = dict(zip([e.key for e in starts], [e.time for e in reversed(starts)], strict=True))
    effects = [attrs.evolve(e, time=swapped.get(e.key, e.time)) for e in run.effects]
    assert failures(attrs.evolve(run, effects=effects)) == {}


def test_a_span_that_is_too_short_fails():
    """The split is not judged on fewer than 300 dispatches of a worker."""
    run = honest()
    to_birch = [
        attrs.evolve(e, worker="birch", **(POLICY["birch"] if e.effect == "start" else {}))
        if e.worker == "atlas" and e.time < START + 200 and e.time > START + 10
        else e
        for e in run.effects
    ]
    found = failures(attrs.evolve(run, effects=to_birch))
    assert "dispatches of atlas while both queues held work for it (at least 300)" in found["span of atlas"][0]


def test_held_work_extends_no_span():
    """Work that is held is no candidate, so a queue that holds nothing else has run dry for the split."""
    run = honest()

    def span(fewer):
        left = lambda p: not (p.activity == "complexity" and p.subject > "f3") and not (fewer and held(p))  # noqa: E731
        held = lambda p: p.activity == "fingerprint" and p.subject != "s0"  # noqa: E731
        parts = {"planned": list(filter(left, run.planned)), "effects": list(filter(left, run.effects))}
        return next(c.said for c in report.judge(attrs.evolve(run, **parts)) if c.name == "span of atlas")

    assert span(fewer=True) == span(fewer=False)


def test_a_folder_that_is_too_small_is_refused_with_the_minimum(tmp_path):
    """An input on which nothing could be judged is refused before anything starts."""
    (tmp_path / "one.py").write_text("x = 1\n")
    with pytest.raises(sources.TooSmallError) as refused:
        sources.discover(tmp_path)
    assert str(refused.value) == (
        f"{tmp_path}: 1 Python files are too few to judge the split of the queues; "
        "give a folder with at least 400, or leave INPUT out to index Python's standard library"
    )
    with pytest.raises(sources.TooSmallError, match=r"one\.py is not a folder; give a folder with at least 400"):
        sources.discover(tmp_path / "one.py")


def test_files_are_flagged_by_what_they_are(tmp_path, monkeypatch):
    """Any input has flags to judge: the largest tenth is large, the smallest small."""
    monkeypatch.setattr(sources, "MINIMUM", 10)
    contents = {f"tests/t{number}.py": b"#" * number for number in range(8)}
    contents |= {"a.py": b"# generated from grammar.txt\n", "b.py": b"x = 1\n" * 100}
    passed_over = {"not_text.py": b"\xff\xfe\x00", "site-packages/e.py": b"", ".hidden/f.py": b""}
    for name, content in {**contents, **passed_over}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    found = {source.path: source.flags for source in sources.discover(tmp_path)}
    assert found == {
        "a.py": ("generated",),
        "b.py": ("large",),
        "tests/t0.py": ("small", "test-code"),
        **{f"tests/t{number}.py": ("test-code",) for number in range(1, 8)},
    }


def test_the_work_counts_what_it_says(tmp_path):
    """Files that are not valid Python count 0 where syntax is asked for."""
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text("class A:\n    def f(self):\n        return 1 if self else 2\n\ndef g():\n    for x in (): pass\n")
    bad.write_text("def (:\n")
    assert (work.outline(good), work.complexity(good)) == (3, 2)
    assert (work.outline(bad), work.complexity(bad), work.imports(bad)) == (0, 0, 0)
    assert work.similarity([good, bad]) == 1
    bad.write_text("import os\n\n  # os = 1\n")
    counts = (work.imports(bad), work.count_tokens(bad), work.vocabulary(bad), work.count_comments(bad))
    assert (*counts, work.count_lines(bad)) == (1, 6, 3, 1, 2)
    assert work.fingerprint([good]) != work.fingerprint([bad])
    assert work.merge({"b": [1, 2], "a": [3]}) == {"a": 3, "b": 3}
