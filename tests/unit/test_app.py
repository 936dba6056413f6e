"""What is wrong with declared activities is told by `build`, all of it at once, and never by the decorator (B1)."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from harvest_core import BuildError, Call, EnqueueError, Harvest, LocalActivityError, Retry
from harvest_core.plugin import Clause, Plugin, Tick


def problems(app: Harvest) -> list[str]:
    """Return the problems of a build, as told."""
    with pytest.raises(BuildError) as caught:
        app.build()
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"priority": "high"},
            "activity.priority  activity 'x': priority is 'high'; expected a whole number of 32 bits",
        ),
        (
            {"priority": 2**40},
            f"activity.priority  activity 'x': priority is {2**40}; expected a whole number of 32 bits",
        ),
        (
            {"max_attempts": "3"},
            "activity.max_attempts  activity 'x': max_attempts is '3'; expected a whole number, at least 1",
        ),
        (
            {"max_attempts": 0},
            "activity.max_attempts  activity 'x': max_attempts is 0; expected a whole number, at least 1",
        ),
        ({"queue": " "}, "activity.queue  activity 'x': queue is ' '; expected text that is not blank"),
        ({"queue": None}, "activity.queue  activity 'x': queue is None; expected text that is not blank"),
        ({"queue": "a\x00"}, "activity.queue  activity 'x': queue is 'a\\x00'; expected text that is not blank"),
        (
            {"retry": Retry(initial=float("nan"))},
            "activity.retry  activity 'x': retry has initial nan; expected a number from 0 to 3e+08",
        ),
        (
            {"retry": Retry(non_retryable=ValueError)},  # type: ignore[arg-type]
            "activity.retry  activity 'x': retry has non_retryable <class 'ValueError'>; "
            "expected a tuple of exception types",
        ),
        (
            {"start_to_close": "10 minutes"},
            "activity.start_to_close  activity 'x': start_to_close '10 minutes' is not a length of time such as "
            '"500ms", "5s", "10m", "2h" or "1d"',
        ),
        (
            {"requires": "gpu = true"},
            "activity.unknown-option  activity 'x': no enabled plugin declares the option 'requires', so nobody would "
            "enforce it (enable the plugin that brings it, or take the option out)",
        ),
    ],
)
def test_a_faulty_declaration_is_a_problem_of_the_build(options: dict[str, Any], told: str) -> None:
    """Each message says what was found and what is allowed (B1, CAP3)."""
    app = Harvest({})
    app.activity(name="x", **options)(lambda: None)
    assert problems(app) == [told]


def test_all_faults_are_told_at_once() -> None:
    """Configuration, declarations and doubles stand in one error (B1)."""
    app = Harvest({"worker": {"concurency": 3}})
    app.activity(name="x", priority="high")(lambda: None)  # type: ignore[arg-type]
    app.activity(name="x")(lambda: None)
    assert len(problems(app)) == 3


def test_a_local_activity_called_outside_a_workflow_raises() -> None:
    """It runs inline in a workflow, and says so anywhere else."""
    app = Harvest({})

    @app.local_activity(name="resize")
    def resize(path: str) -> str:
        return path

    with pytest.raises(LocalActivityError) as caught:
        resize("x")
    assert str(caught.value) == (
        "local activity 'resize' was called outside a workflow; it runs only inside one: "
        "make it an activity, or call a plain function"
    )


def test_backends_that_lack_a_feature_fail_the_build() -> None:
    """B2: cost hold and flags on SQLite name plugin, feature and backend; weights fit."""
    app = Harvest({"harvest": {"dsn": "sqlite:///tasks.db", "plugins": ["cost_hold", "flags", "weights"]}})
    hint = '(use PostgreSQL, or disable the plugin; see the page "Backends and features" of Harvest\'s documentation)'
    assert problems(app) == [
        "backend.missing-feature  plugin 'cost_hold': needs the feature skip_list, which the sqlite backend lacks "
        f"{hint}",
        "backend.missing-feature  plugin 'flags': needs the feature route_clauses, which the sqlite backend lacks "
        f"{hint}",
    ]
    Harvest({"harvest": {"dsn": "sqlite:///tasks.db", "plugins": ["weights"]}}).build()


def test_a_local_activity_cannot_be_held() -> None:
    """C5, whole: plugin, key and reason are named."""
    app = Harvest(
        {
            "harvest": {"plugins": ["cost_hold"]},
            "plugins": {"cost_hold": {"defer_threshold": 400.0, "activities": ["resize"]}},
        }
    )
    app.local_activity(name="resize")(lambda: None)
    with pytest.raises(BuildError) as caught:
        app.build()
    assert str(caught.value) == (
        "cannot build: 1 problem\n  cost_hold.local-activity  plugins.cost_hold.activities: 'resize' is a local "
        "activity and runs inline; a hold cannot defer it"
    )


def test_a_hook_without_its_mark_is_a_problem() -> None:
    """A policy that is never asked because a decorator was forgotten would be switched off in silence."""

    class Forgot(Plugin):
        slug = "forgot"

        def filter_clause(self, tick: Tick) -> list[Clause]:
            return []

    assert problems(Harvest({"harvest": {"plugins": [Forgot()]}})) == [
        "plugin.unmarked-hook  plugin 'forgot': filter_clause is named like a hook but not marked as one, "
        "so it would never be asked (put @hookimpl on it, or give it another name)"
    ]


def test_a_plugin_cannot_take_an_option_of_the_kernel() -> None:
    """`queue=` of an enqueue is the kernel's."""

    class Takes(Plugin):
        slug = "takes"
        enqueue_options = ("queue",)

    assert problems(Harvest({"harvest": {"plugins": [Takes()]}})) == [
        "plugin.option-twice  harvest.plugins: the kernel and takes both declare the enqueue option 'queue' "
        "(disable one of them)"
    ]


def test_what_is_no_activity_cannot_be_called_for() -> None:
    """The commonest slip, a function without its decorator, has words."""

    def plain() -> None: ...

    with pytest.raises(EnqueueError, match=r"is no activity: decorate the function with @app.activity, or pass a name"):
        Call(plain)  # type: ignore[arg-type]


def test_generators_and_nameless_callables_are_faults() -> None:
    """What nobody would run through, and what has no name, is told at build."""
    app = Harvest({})

    @app.activity
    def steps() -> Iterator[int]:
        yield 1

    app.activity(partial(print))
    assert problems(app) == [
        "activity.function  activity 'steps': function is a generator, which nobody would run through; return a value",
        "activity.name  activity '': name is ''; expected text that is not blank",
    ]
