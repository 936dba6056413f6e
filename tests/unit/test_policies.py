"""Hooks behind one face: attributed, checked, and composed so that a plan only narrows (K4, K5)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvest_core.claim.planner import plan
from harvest_core.claim.statement import claim_statement, clause_text, verdict_statement
from harvest_core.errors import HookError
from harvest_core.model import Budget, Clause, LaneLimit, Skip, Tick, Turn, Worker
from harvest_core.plugin import Plugin, hookimpl
from harvest_core.policies import Attributed, Policies, implementation_problems

NAMES = ["a", "b", "c", "d"]
TICK = Tick(Worker("w", "w", ("x", "y"), frozenset(NAMES)), 5)


class Fixed(Plugin):
    """Answers with what the test gave it."""

    slug = "fixed"
    skips = clauses = None

    @hookimpl
    def build_skip_list(self, tick):
        return self.skips

    @hookimpl
    def filter_clause(self, tick):
        return self.clauses


class Ordering(Plugin):
    slug = "ordering"
    turns = None

    @hookimpl
    def order_queues(self, tick):
        return self.turns


def fixed(**answers):
    made = Fixed()
    for name, answer in answers.items():
        setattr(made, name, answer)
    return made


def clause(text="r.id > {least}", **values):
    return Clause(text, values or {"least": 0}, lambda route: ())


# ------------------------------------------------------------------------------------------------ composition


@given(st.lists(st.lists(st.sampled_from([*NAMES, "unknown"]), max_size=4), max_size=5), st.randoms())
def test_skip_lists_unite_and_order_does_not_matter(lists, random):
    """Whatever plugins skip, in whatever order they stand, the plan is the worker's names without all of them (K4)."""
    plugins = {f"p{n}": fixed(skips=[Skip(name, ["held"]) for name in names]) for n, names in enumerate(lists)}
    shuffled = list(plugins.items())
    random.shuffle(shuffled)
    planned = plan(Policies.of(plugins), TICK)
    assert set(planned.activities) == set(NAMES) - {name for names in lists for name in names}
    assert plan(Policies.of(dict(shuffled)), TICK).activities == planned.activities


def test_a_skip_never_reaches_a_workflow():
    """A workflow of a skipped name stays in the plan, and is no activity (K5)."""
    planned = plan(Policies.of({"p": fixed(skips=[Skip("a", ["held"])])}), TICK, workflows=frozenset({"a", "b"}))
    assert (planned.activities, planned.workflows) == (("c", "d"), ("a", "b"))


def test_every_answer_is_attributed_to_its_plugin():
    """Pluggy reverses results and drops None: each answer carries its own plugin's slug all the same (K4)."""
    plugins = {
        "one": fixed(skips=[Skip("a", ["x"])], clauses=[clause("r.id > 1 + {least}")]),
        "none": fixed(),
        "two": fixed(skips=[Skip("b", ["y"])], clauses=[clause("r.id > 2 + {least}")]),
    }
    planned = plan(Policies.of(plugins), TICK)
    assert [(slug, skip.activity) for slug, skip in planned.skips] == [("one", "a"), ("two", "b")]
    assert [(found.plugin, found.clause.sql) for found in planned.clauses] == [
        ("one", "r.id > 1 + {least}"),
        ("two", "r.id > 2 + {least}"),
    ]


def test_two_plugins_of_one_class_keep_their_own_answers():
    """Equal objects are two plugins: they compare by identity."""
    plugins = {"one": fixed(skips=[Skip("a", ["x"])]), "two": fixed(skips=[Skip("b", ["x"])])}
    policies = Policies.of(plugins)
    assert [skip.activity for skip in policies.skips_of("one", TICK)] == ["a"]
    assert [skip.activity for skip in policies.skips_of("two", TICK)] == ["b"]


def test_only_keeps_what_is_named():
    """The policies of a worker that has fewer plugins: no answer of the others, no owner among them."""
    ordering = Ordering()
    ordering.turns = [Turn("x", 0, 0, 1), Turn("y", 0, 0, 1)]
    policies = Policies.of({"p": fixed(skips=[Skip("a", ["x"])]), "ordering": ordering})
    assert policies.owner == "ordering"
    fewer = policies.only(["p", "unknown"])
    assert (list(fewer.plugins), fewer.owner, fewer.turns(TICK)) == (["p"], None, None)
    assert policies.only([]).skips(TICK) == ()


def test_silent_plugins_leave_the_statement_as_it_is():
    """None and empty lists add no byte and no value (K3)."""
    bare = claim_statement(plan(Policies.of({}), TICK), '"harvest"')
    silent = Policies.of({"p": fixed(), "q": fixed(skips=[], clauses=[]), "ordering": Ordering()})
    assert claim_statement(plan(silent, TICK), '"harvest"') == bare


# ------------------------------------------------------------------------------------------------ answers


BAD_ANSWERS = {
    "no list": ({"skips": {"a": 1}}, "build_skip_list: returned dict; expected a list or tuple of Skip"),
    "a generator": ({"skips": (skip for skip in ())}, "returned generator; expected a list or tuple of Skip"),
    "a name": ({"skips": ["a"]}, "returned 'a' in its list; expected Skip"),
    "no name": ({"skips": [Skip("", ["x"])]}, "a skip names the activity ''; expected its name"),
    "no reason": ({"skips": [Skip("a", [])]}, "the skip of 'a' gives no reason; every refusal has words"),
    "a blank reason": ({"skips": [Skip("a", [""])]}, "the skip of 'a' gives no reason; every refusal has words"),
    "a budget of no time": (
        {"skips": [Skip("a", ["x"], at_most=Budget("p:a", starts=1, period=1e-9))]},
        "the budget 'p:a' has period 1e-09; expected seconds, at least 0.001",
    ),
    "no text": ({"clauses": [clause(" ")]}, "filter_clause: a clause has no text"),
    "a missing value": (
        {"clauses": [clause("r.id = {a} or r.id = {least}")]},
        "uses ['a'] without a value of that name",
    ),
    "an unused value": ({"clauses": [clause("true")]}, "does not use the values ['least']"),
    "odd braces": ({"clauses": [clause("r.id = {}")]}, "{} is not a value's name; write literal braces as {{ and }}"),
    "an open brace": ({"clauses": [clause("r.id = {")]}, "'r.id = {'"),
    "one name twice": (
        {"clauses": [clause(), clause()]},
        "two clauses use one value name; names were ['least', 'least']",
    ),
}


@pytest.mark.parametrize("case", list(BAD_ANSWERS))
def test_a_bad_answer_names_plugin_and_hook(case):
    """Every returned value is checked; a bad one names the plugin and the hook, and nothing is planned (K4)."""
    answers, detail = BAD_ANSWERS[case]
    with pytest.raises(HookError) as caught:
        plan(Policies.of({"good": fixed(), "p": fixed(**answers)}), TICK)
    assert caught.value.plugin == "p"
    assert str(caught.value).startswith("plugin 'p', hook ")
    assert detail in str(caught.value)


@pytest.mark.parametrize(
    ("turns", "detail"),
    [
        ([Turn("x", 0, 0, 1)], "the turns name the queues ['x']; each polled queue must stand there once: ['x', 'y']"),
        ([Turn("x", 0, 0, 1)] * 2 + [Turn("y", 0, 0, 1)], "the turns name the queues ['x', 'x', 'y']"),
        ([Turn("x", 0, 0, 1), Turn("z", 0, 0, 1)], "the turns name the queues ['x', 'z']"),
        ([Turn("x", 0, 0, 1), Turn("y", 0, 0, -1)], "the turn of queue 'y' has the negative step -1"),
        ([Turn("x", 0, 0, 1), Turn("y", 0, 0.5, 1)], "the turn of queue 'y' holds 0.5; expected a whole number within"),
        (
            [Turn("x", 0, 0, 1), Turn("y", True, 0, 1)],
            "the turn of queue 'y' holds True; expected a whole number within",
        ),
        ([Turn("x", 0, 0, 1), Turn("y", 0, 2**63, 1)], "expected a whole number within 48 bits"),
        ([Turn("x", 0, 0, 2**50), Turn("y", 0, 0, 1)], "expected a whole number within 48 bits"),
        ([Turn("x", 2**31, 0, 1), Turn("y", 0, 0, 1)], "expected a whole number within 31 bits"),
    ],
)
def test_a_bad_order_names_plugin_and_hook(turns, detail):
    """Each polled queue once, whole numbers: anything else closes the claim (K4)."""
    ordering = Ordering()
    ordering.turns = turns
    with pytest.raises(HookError) as caught:
        plan(Policies.of({"ordering": ordering}), TICK)
    assert (caught.value.plugin, caught.value.hook) == ("ordering", "order_queues")
    assert detail in caught.value.detail


class Lanes(Plugin):
    slug = "lanes"
    limits = ()

    def lanes(self):
        return self.limits


@pytest.mark.parametrize(
    ("limits", "detail"),
    [
        ([LaneLimit("")], "the lane name '' is none; expected what stands before the first slash of a lane"),
        ([LaneLimit("a/b")], "the lane name 'a/b' is none; expected what stands before the first slash of a lane"),
        ([LaneLimit("a", None)], "the lane name 'a' has neither concurrency nor starts; give one of them"),
        ([LaneLimit("a", 0)], "the lane name 'a' has concurrency 0; expected a whole number of 31 bits, at least 1"),
        ([LaneLimit("a", starts=0)], "the lane name 'a' has starts 0; expected a whole number of 31 bits, at least 1"),
        (
            [LaneLimit("a", None, 1, float("nan"))],
            "the lane name 'a' has period nan; expected seconds, at least 0.001",
        ),
        ([LaneLimit("a"), LaneLimit("a", 2)], "the lane name 'a' is limited twice"),
    ],
)
def test_a_bad_lane_limit_names_its_plugin(limits, detail):
    """A limit that could not be kept is told to the worker that brings it, before it is written (K4)."""
    lanes = Lanes()
    lanes.limits = limits
    with pytest.raises(HookError) as caught:
        Policies.of({"lanes": lanes}).lanes()
    assert str(caught.value) == f"plugin 'lanes', hook lanes: {detail}"


def test_facts_pass_through_json():
    """What is published and observed is what another process would read: tuples are lists, keys are text."""

    class Publishing(Plugin):
        slug = "publishing"

        @hookimpl
        def publish(self, build):
            return {"a": (1, 2), "b": {3: None}}

        @hookimpl
        def observe(self):
            return {"nan": float("nan")}

    policies = Policies.of({"publishing": Publishing()})
    assert policies.facts(None) == {"publishing": {"a": [1, 2], "b": {"3": None}}}
    with pytest.raises(HookError, match="hook observe: returned what cannot be stored: not JSON"):
        policies.live()


# ------------------------------------------------------------------------------------------------ text


def test_a_clause_becomes_bound_text():
    """Values are bound under the plugin's name, percent signs doubled, double braces single; no value in the text."""
    found = Attributed("flags", clause("r.name like '%{{x}}' and r.traits ?| {some}::text[]", some=["'; drop"]))
    assert clause_text(found) == "r.name like '%%{x}' and r.traits ?| %(flags__some)s::text[]"


def test_two_plugins_may_use_one_value_name():
    """Each plugin's values have its own prefix."""
    plugins = {"p": fixed(clauses=[clause(least=1)]), "q": fixed(clauses=[clause(least=2)])}
    statement = claim_statement(plan(Policies.of(plugins), TICK), '"harvest"')
    assert (statement.values["p__least"], statement.values["q__least"]) == (1, 2)


def test_the_text_stays_the_same_while_values_change():
    """So that the statement stays prepared."""
    texts = {
        claim_statement(plan(Policies.of({"p": fixed(clauses=[clause(least=n)])}), TICK), '"harvest"').text
        for n in range(5)
    }
    assert len(texts) == 1


def test_verdicts_are_the_same_clauses_as_columns():
    """`explain` selects the very text that the claim puts into WHERE (design: One predicate)."""
    found = Attributed("p", clause())
    assert clause_text(found) in verdict_statement([found], '"harvest"').text
    assert verdict_statement([found], '"harvest"', [1]).values == {"routes": [1], "p__least": 0}


def test_a_sound_plugin_has_no_implementation_problem():
    """The plugins of this file are sound, so that what the others find is theirs."""
    assert implementation_problems(Fixed()) == implementation_problems(Ordering()) == []


def test_what_is_deprecated_warns_with_the_plugins_name(monkeypatch):
    """P3: a hook or an argument that goes, and an older contract, are warnings of the build; the plugin works on."""
    from harvest_core import Harvest, hookspecs

    class Old(Plugin):
        slug = "old"

        @hookimpl
        def publish(self, build):
            return {}

    marks = dict(hookspecs.publish.harvest_spec)
    marks |= {
        "warn_on_impl": DeprecationWarning("use observe"),
        "warn_on_impl_args": {"build": DeprecationWarning("x")},
    }
    monkeypatch.setattr(hookspecs.publish, "harvest_spec", marks)
    monkeypatch.setattr(hookspecs, "HOOK_API", 2)
    with pytest.warns(DeprecationWarning, match="use observe"):
        build = Harvest({"harvest": {"plugins": [Old()]}}).build()
    assert [str(warning) for warning in build.warnings] == [
        "plugin.old-hook-api  plugin 'old': was written for hook API 1; it works, and the present one is 2 "
        "(upgrade the plugin)",
        "plugin.deprecated  plugin 'old': hook publish goes with the next hook API: use observe",
        "plugin.deprecated  plugin 'old': hook publish, argument build goes with the next hook API: x",
    ]
    assert "old" in build.policies.plugins
