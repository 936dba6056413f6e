"""The law of composition over random sets and orders of plugins, real and generated: narrow, never widen (K4)."""

import functools
import re
from collections.abc import Sequence

import pytest
from harvest_capabilities import Capabilities, CapabilitiesConfig
from harvest_cost_hold import CostHold, CostHoldConfig
from harvest_flags import Flags, FlagsConfig
from harvest_weights import Weights, WeightsConfig
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harvest_core.plugin import Clause, Plugin, Skip, Turn, hookimpl
from harvest_core.testing import fake_route, fake_tick, fake_worker
from harvest_core.testing.strategies import routes

QUEUES = ("a", "b", "c")
ACTIVITIES = {"work": {}, "render": {"requires": "gpu = true"}, "ship": {"requires": "region in [eu]"}, "train": {}}
WORKFLOWS = frozenset({"order"})
NAMES = [*ACTIVITIES, *WORKFLOWS, "unknown"]

queue, name = st.sampled_from(QUEUES), st.sampled_from(NAMES)
TEMPLATES = [
    ("r.queue = {q} or r.name = {n}", {"q": queue, "n": name}),
    ("r.name <> {n} and r.kind = 'activity' or r.queue in ('a', {q})", {"n": name, "q": queue}),
    ("name <> {n}", {"n": name}),
    ("queue <> {q}  -- or everything", {"q": queue}),
    ("true", {}),
    ("false", {}),
    ("r.traits <> '{{}}'", {}),
    ("length(r.name) % {m}::integer <> 1", {"m": st.integers(1, 4)}),
    ("r.name not like {p}", {"p": st.sampled_from(["%r%", "w_rk", "\\%", ""])}),
    ("(r.traits ->> 'g') is distinct from {x}::text", {"x": st.none() | st.sampled_from(["", "vip"])}),
    (
        "case jsonb_typeof(r.traits -> 'g') when 'number' then (r.traits ->> 'g')::numeric > {x}::int else true end",
        {"x": st.integers(-5, 5)},
    ),
]


class Generated(Plugin):
    """Says what it was told to say."""

    def __init__(self, slug: str, skips: Sequence[str], clauses: Sequence[tuple[str, dict]]) -> None:
        self.slug, self.skips, self.clauses = slug, skips, clauses

    @hookimpl
    def build_skip_list(self, tick):
        return [Skip(name, (f"{self.slug}:told",)) for name in self.skips]

    @hookimpl
    def filter_clause(self, tick):
        return [Clause(text, values, lambda route: []) for text, values in self.clauses]

    def __repr__(self) -> str:
        return f"<{self.slug} skips={self.skips} clauses={self.clauses}>"


class Ordering(Generated):
    """Owns the order of the queues, too."""

    def __init__(self, turns: Sequence[tuple[int, int, int]], **said) -> None:
        super().__init__("ordering", **said)
        self.turns = turns

    @hookimpl
    def order_queues(self, tick):
        return [Turn(name, *turn) for name, turn in zip(tick.worker.queues, self.turns, strict=True)]


@st.composite
def clauses(draw):
    """Return up to two clauses, their values named apart."""
    found = []
    for position, (text, values) in enumerate(draw(st.lists(st.sampled_from(TEMPLATES), max_size=2))):
        renamed = re.sub(r"(?<!\{)\{(\w+)\}", rf"{{\1_{position}}}", text)
        found.append((renamed, {f"{key}_{position}": draw(value) for key, value in values.items()}))
    return found


said = {"skips": st.lists(name, max_size=2), "clauses": clauses()}
turn = st.tuples(st.integers(0, 2), st.integers(-9, 9), st.integers(0, 3))
flags = st.lists(st.sampled_from(["vip", "gpu", "arm"]), max_size=2)


def held(activities: list[str]) -> CostHold:
    hold = CostHold(CostHoldConfig(400.0, activities))
    hold.signal.set(520.0)
    return hold


real = [
    st.builds(Flags, st.builds(FlagsConfig, flags, flags, st.none() | flags)),
    st.builds(
        lambda labels: Capabilities(CapabilitiesConfig(labels)),
        st.fixed_dictionaries({}, optional={"gpu": st.just("true"), "region": st.sampled_from(["eu", "us"])}),
    ),
    st.builds(held, st.lists(st.sampled_from(list(ACTIVITIES)), max_size=2)),
]
generated = [
    st.builds(functools.partial(Generated, slug), **said) for slug in ("first", "first_second", "second", "third")
]
owners = [
    st.builds(lambda weights: Weights(WeightsConfig(weights)), st.dictionaries(queue, st.integers(0, 3))),
    st.builds(Ordering, st.tuples(turn, turn, turn), **said),
]


@st.composite
def plugin_sets(draw):
    """Return plugins in some order, at most one of them an owner of the order of queues."""
    chosen = draw(st.lists(st.sampled_from([*real, *generated]), max_size=4, unique=True))
    if draw(st.booleans()):
        chosen.append(draw(st.sampled_from(owners)))
    return draw(st.permutations([draw(strategy) for strategy in chosen]))


some_routes = st.lists(
    routes(QUEUES, list(ACTIVITIES), list(WORKFLOWS), {"flags": [["vip"], ["gpu", "vip"], [], "arm"], "g": ["vip", 3]}),
    min_size=1,
    max_size=12,
)


@pytest.mark.matrix
def test_no_set_and_no_order_of_plugins_widens_the_claim(claim_runner):
    """K4, K5, K7: what a set allows is what each of its members allows, of what the kernel alone allows; in any order.

    In WHERE every clause says what it says as a column, also where some routes are closed.
    """

    @settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(plugin_sets(), some_routes, st.data())
    def law(plugins, asked, data):
        tick = fake_tick(*plugins, worker=worker_of(plugins))
        closed = sorted(data.draw(st.sets(st.integers(0, len(asked) - 1), max_size=2), label="closed"))
        everything = claim_runner.taken([], tick, asked, workflows=WORKFLOWS)
        assert everything == {place for place, route in enumerate(asked) if known(route)}

        judged = claim_runner.judge(plugins, tick, asked, workflows=WORKFLOWS)
        together = frozenset(place for place, one in enumerate(judged) if one.taken)
        alone = [claim_runner.taken([plugin], tick, asked, workflows=WORKFLOWS) for plugin in plugins]
        assert together == everything.intersection(*alone)

        skipped = skipped_by(plugins, tick)
        for one in judged:
            allowed = known(one.route) and (one.route.kind == "workflow" or one.route.name not in skipped)
            assert None not in one.verdicts
            assert one.taken == (allowed and all(one.verdicts))

        narrower = claim_runner.taken(plugins[::-1], tick, asked, workflows=WORKFLOWS, closed=closed)
        assert narrower == together - set(closed)

    law()


def test_a_skip_that_names_a_workflow_has_no_effect(claim_runner):
    """K5: the skip list filters activities only."""
    plugins = [Generated("first", ["order", "work"], [])]
    asked = [fake_route(queue="a", kind="workflow", name="order"), fake_route(queue="a", name="work")]
    tick = fake_tick(*plugins, worker=worker_of(plugins))
    assert claim_runner.taken(plugins, tick, asked, workflows=WORKFLOWS) == {0}


@pytest.mark.parametrize("column", ["id", "queue", "kind", "name", "traits"])
def test_a_column_needs_no_prefix_in_the_claim_as_in_the_probe(column, claim_runner):
    """K4: what the probe lets pass the claim can run; no other relation of the claim has a column of `r`."""
    plugins = [Generated("first", [], [(f"{column} is not null", {})])]
    tick = fake_tick(*plugins, worker=worker_of(plugins))
    assert claim_runner.taken(plugins, tick, [fake_route(queue="a", name="work")]) == {0}


def worker_of(plugins):
    declared = {option for plugin in plugins for option in plugin.activity_options}
    activities = {
        name: {key: value for key, value in options.items() if key in declared} for name, options in ACTIVITIES.items()
    }
    worker = fake_worker(*plugins, activities=activities, queues=QUEUES)
    return type(worker)(worker.id, worker.name, worker.queues, worker.activities | WORKFLOWS, worker.facts)


def known(route) -> bool:
    names = ACTIVITIES if route.kind == "activity" else WORKFLOWS
    return route.queue in QUEUES and route.name in names


def skipped_by(plugins, tick) -> set[str]:
    return {
        skip.activity
        for plugin in plugins
        if hasattr(plugin, "build_skip_list")
        for skip in plugin.build_skip_list(tick) or ()
    }
