"""`PolicyContract`: the laws that every policy keeps, as a test class for its author to derive from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harvest_core.app import Harvest
from harvest_core.build import Build
from harvest_core.claim.planner import plan, refuses_all
from harvest_core.claim.statement import claim_statement
from harvest_core.errors import BuildError, HookError
from harvest_core.model import Json, Route, Skip, Tick, Turn
from harvest_core.plugin import Plugin, hookimpl
from harvest_core.policies import Policies
from harvest_core.probe import probe
from harvest_core.registry import installed, resolve
from harvest_core.store.postgres.database import Database
from harvest_core.testing.claim_runner import SCHEMA, ClaimRunner
from harvest_core.testing.fakes import fake_tick, fake_worker
from harvest_core.testing.rival import Rival
from harvest_core.testing.servers import run_async
from harvest_core.testing.strategies import alterations, routes, ticks, words_in

_T = TypeVar("_T")
_WORKFLOW = "contract_workflow"


class PolicyContract:
    """The laws of a policy (rules K3, K4, B1, P2), on a real PostgreSQL where SQL is concerned.

    Derive a class from it whose name begins with `Test`, and give it a plugin:

        class TestContract(PolicyContract):
            enqueued = ({"region": "eu"}, {"region": "us"})

            def plugin(self) -> Region:
                return Region(RegionConfig(serves=["eu"]))

    Attributes:
        activities: the activities of the build, each with its activity options.
        queues: the queues that the worker polls.
        enqueued: options that calls of `client.enqueue` give to the plugin's `stamp`; best some that it lets through
            and some that it refuses.
        examples: how many random cases each law is tried on.
    """

    activities: ClassVar[Mapping[str, Mapping[str, Any]]] = {"work": {}, "other": {}}
    queues: ClassVar[Sequence[str]] = ("default", "second")
    enqueued: ClassVar[Sequence[Mapping[str, Any]]] = ()
    examples: ClassVar[int] = 25

    def plugin(self) -> Plugin:
        """Return a new plugin, configured so that it refuses something."""
        msg = f"{type(self).__name__} must define plugin(self), which returns a configured plugin"
        raise NotImplementedError(msg)

    def unconfigured(self) -> Plugin:
        """Return a new plugin as an empty table configures it."""
        cls = type(self.plugin())
        return cls(cls.config_class())

    def others(self) -> Sequence[Plugin]:
        """Return the plugins it is tried beside: unless overridden every other installed one, unconfigured."""
        own = self.plugin().slug
        classes, _ = resolve([found.name for found in installed() if not found.fault and found.name != own])
        return [cls(cls.config_class()) for cls in classes.values()]

    # ------------------------------------------------------------------------------------------------- building

    def test_the_build_accepts_it(self) -> None:
        """It builds configured, unconfigured, and beside all others; facts and live facts are JSON (B1, B3)."""
        for plugins in ([self.plugin()], [self.unconfigured()], self._beside()):
            build = self._build(plugins)
            build.policies.facts(build.view)
            build.policies.live()

    def test_a_second_owner_of_the_order_is_refused(self) -> None:
        """Two plugins that order the queues do not build, unless the configuration names one (K4)."""
        plugin = self.plugin()
        if not _owns_the_order(plugin):
            return
        with pytest.raises(BuildError) as caught:
            self._build([plugin, _Orderer()])
        codes = [problem.code for problem in caught.value.problems]
        self._hold(codes == ["order.two-owners"], f"beside another owner of the order the build said {codes}")
        self._build([plugin, _Orderer()], order_owner=plugin.slug)

    def test_stamps_are_json(self) -> None:
        """What the enqueue options become can be stored, and depends on them alone (FL1 and its like)."""
        plugin = self.plugin()
        for options in self.enqueued:
            unknown = set(options) - set(plugin.enqueue_options)
            self._hold(not unknown, f"{sorted(unknown)} is not among its enqueue_options")
            first, second = (json.dumps(each.stamp(options), allow_nan=False) for each in (plugin, self.plugin()))
            self._hold(first == second, f"stamped {options} as {first} and then as {second}")

    # --------------------------------------------------------------------------------------------- the claim's text

    def test_unconfigured_it_has_no_effect(self) -> None:
        """An empty table leaves the claim byte for byte what it is without policies, values included (K3).

        The activities have no activity options here: `requires` on one is a configuration too.
        """
        plugin = self.unconfigured()
        worker = fake_worker(plugin, activities=tuple(self.activities), queues=self.queues)

        def law(tick: Tick) -> None:
            with_it = claim_statement(plan(_policies(plugin), tick), SCHEMA)
            without = claim_statement(plan(_policies(), tick), SCHEMA)
            self._hold(with_it.text == without.text, f"unconfigured it changes the claim's text:\n{with_it.text}")
            self._hold(with_it.values == without.values, f"unconfigured it changes values: {with_it.values}")

        self._try(ticks(fake_tick(plugin, worker=worker)), law)

    def test_the_clause_text_is_constant(self) -> None:
        """Only values vary, so that the claim stays prepared: with no tick, and with no fact of the same shape (K4)."""
        plugin = self.plugin()
        tick = self._tick(plugin)
        expected = _texts(plugin, tick)

        def law(moment: Tick) -> None:
            found = _texts(plugin, moment)
            self._hold(found == expected, f"its clauses vary with the tick: {expected} and {found}")

        self._try(ticks(tick), law)
        for one, other in _like(tick, plugin.slug):
            texts = _texts_unless_refused(plugin, one), _texts_unless_refused(plugin, other)
            if None not in texts:
                self._hold(texts[0] == texts[1], f"its clauses vary with values: {texts[0]} and {texts[1]}")

    def test_the_probe_passes(self, claim_runner: ClaimRunner) -> None:
        """Each clause stands alone, reads `r` alone, calls nothing volatile, is never NULL (bounded cost)."""
        plugin = self.plugin()
        problems = run_async(probe(Database(claim_runner.dsn), _policies(plugin), self._tick(plugin)))
        self._hold(not problems, "\n".join(map(str, problems)))

    # --------------------------------------------------------------------------------------------------- verdicts

    def test_hooks_judge_by_the_tick_alone(self) -> None:
        """Asked twice, or asked of another process's plugin, the hooks say the same: explain depends on it."""
        plugin, stranger = self.plugin(), self.unconfigured()

        def law(tick: Tick) -> None:
            first = _answers(plugin, tick)
            self._hold(_answers(plugin, tick) == first, "asked twice about one tick it answers differently")
            said = _answers(stranger, tick)
            self._hold(said == first, f"its answers depend on the process they are given in: {first} and {said}")

        self._try(ticks(self._tick(plugin)), law)

    def test_words_stand_exactly_where_the_sql_refuses(self, claim_runner: ClaimRunner) -> None:
        """Reasons are given where a clause is false, and only there; in WHERE it says what it says as a column (O3)."""
        plugin = self.plugin()
        tick = self._tick(plugin)

        def law(drawn: list[Route]) -> None:
            skips = _policies(plugin).skips_of(plugin.slug, tick)
            skipped = {skip.activity for skip in skips if refuses_all(skip)}
            partly = {
                skip.activity for skip in skips
            } - skipped  # which of its tasks is the claim's affair, not the route's
            samples = [Route(0, self.queues[0], "activity", next(iter(self.activities)), t) for t in self._samples()]
            for judged in claim_runner.judge([plugin], tick, [*drawn, *samples], workflows=frozenset({_WORKFLOW})):
                for verdict, words in zip(judged.verdicts, judged.words, strict=True):
                    self._hold(verdict is not None, f"a clause is NULL for {judged.route}")
                    self._hold(verdict is not bool(words), f"SQL says {verdict}, the words {words} for {judged.route}")
                    self._hold(
                        all(isinstance(word, str) and word for word in words),
                        f"gives {words!r} as its words for {judged.route}; expected texts that are not empty",
                    )
                expected = self._claimable(judged.route, skipped) and all(judged.verdicts)
                agrees = judged.taken == expected or (judged.route.name in partly and not judged.taken)
                self._hold(agrees, f"the claim's WHERE and its columns disagree on {judged}")

        self._try(st.lists(self._routes(plugin), min_size=1, max_size=12), law)

    def test_it_never_widens(self, claim_runner: ClaimRunner) -> None:
        """Alone and beside others, in any order, what may be claimed is what each of them allows (K4)."""
        own = self.plugin()
        others = [*self._beside()[1:], Rival(self.queues[-1], next(iter(self.activities)))]
        tick = self._tick(own, *others)
        drawn = st.tuples(
            st.permutations([own, *others]), ticks(tick), st.lists(self._routes(own, *others), min_size=1, max_size=12)
        )

        def law(case: tuple[list[Plugin], Tick, list[Route]]) -> None:
            order, moment, asked = case
            everything, alone, beside, together = (
                claim_runner.taken(plugins, moment, asked, workflows=frozenset({_WORKFLOW}))
                for plugins in ([], [own], others, order)
            )
            self._hold(alone <= everything, f"alone it widens the claim by {_named(asked, alone - everything)}")
            # Of an activity under a cap the claim takes the best that is left: which, depends on what others refuse.
            capped = _capped(order, moment)
            some = {place for place, route in enumerate(asked) if route.kind == "activity" and route.name in capped}
            if some:
                whole = [plugin for plugin in others if not _capped([plugin], moment)]
                beside_whole = claim_runner.taken(whole, moment, asked, workflows=frozenset({_WORKFLOW}))
                wider = together - beside_whole
                self._hold(not wider, f"beside others it widens the claim by {_named(asked, wider)}")
            wider, differs = together - beside - some, (together ^ (alone & beside)) - some
            self._hold(not wider, f"beside others it widens the claim by {_named(asked, wider)}")
            self._hold(
                not differs,
                f"in the order {[plugin.slug for plugin in order]} the claim differs from what each plugin allows: "
                f"{_named(asked, differs)}",
            )

        self._try(drawn, law)

    # ---------------------------------------------------------------------------------------------------- helpers

    def _try(self, cases: st.SearchStrategy[_T], law: Callable[[_T], None]) -> None:
        # Not as a decorator: the cases depend on the subclass. Without a deadline: slow machines break no law.
        limits = settings(max_examples=self.examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        limits(given(cases)(law))()

    def _hold(self, kept: object, otherwise: str) -> None:
        if not kept:
            msg = f"plugin {self.plugin().slug!r}: {otherwise}"
            raise AssertionError(msg)

    def _beside(self) -> list[Plugin]:
        """Return the plugin and the others, without those that would be a second owner of the order."""
        kept = [self.plugin()]
        for other in self.others():
            if not (_owns_the_order(other) and any(map(_owns_the_order, kept))):
                kept.append(other)
        return kept

    def _build(self, plugins: Sequence[Plugin], **harvest: Any) -> Build:
        app = Harvest({"harvest": {"plugins": list(plugins), **harvest}, "worker": {"queues": list(self.queues)}})
        declared = {option for plugin in plugins for option in plugin.activity_options}
        for name, options in self.activities.items():
            known = {option: value for option, value in options.items() if option in declared}
            app.activity(name=name, **known)(lambda: None)
        return app.build()

    def _tick(self, *plugins: Plugin) -> Tick:
        worker = fake_worker(*plugins, activities=self.activities, queues=self.queues)
        names = worker.activities | {_WORKFLOW}
        return fake_tick(*plugins, worker=attrs.evolve(worker, activities=names))

    def _routes(self, *plugins: Plugin) -> st.SearchStrategy[Route]:
        traits = {plugin.slug: [*plugin.sample_traits()] for plugin in plugins}
        own = plugins[0]
        traits[own.slug] += [trait for options in self.enqueued if (trait := own.stamp(options)) is not None]
        traits[own.slug] += sorted(set(words_in(self._tick(own).worker.facts.get(own.slug))))
        return routes(self.queues, list(self.activities), [_WORKFLOW], traits)

    def _samples(self) -> list[Mapping[str, Json]]:
        plugin = self.plugin()
        stamped = [plugin.stamp(options) for options in self.enqueued]
        return [{}, *({plugin.slug: trait} for trait in [*plugin.sample_traits(), *stamped])]

    def _claimable(self, route: Route, skipped: set[str]) -> bool:
        names = set(self.activities) - skipped if route.kind == "activity" else {_WORKFLOW}
        return route.queue in self.queues and route.name in names


def _capped(plugins: Sequence[Plugin], moment: Tick) -> set[str]:
    """Return the activities that some of these plugins refuse in part."""
    skips = [skip for plugin in plugins for skip in _policies(plugin).skips_of(plugin.slug, moment)]
    return {skip.activity for skip in skips if not refuses_all(skip)}


@attrs.define(eq=False, slots=False)
class _Orderer(Plugin):
    """Orders queues as they come, for want of another plugin that does."""

    slug = "contract_orderer"

    @hookimpl
    def order_queues(self, tick: Tick) -> Sequence[Turn]:
        return [Turn(queue, tier, 0, 0) for tier, queue in enumerate(tick.worker.queues)]


def _policies(*plugins: Plugin) -> Policies:
    return Policies.of({plugin.slug: plugin for plugin in plugins})


def _owns_the_order(plugin: Plugin) -> bool:
    return _policies(plugin).owner is not None


def _texts(plugin: Plugin, tick: Tick) -> list[str]:
    return [clause.sql for clause in _policies(plugin).clauses_of(plugin.slug, tick)]


def _texts_unless_refused(plugin: Plugin, tick: Tick) -> list[str] | None:
    try:
        return _texts(plugin, tick)
    except HookError:
        return None


def _answers(plugin: Plugin, tick: Tick) -> tuple[list[Skip], list[tuple[str, dict[str, Any]]], list[Turn] | None]:
    policies = _policies(plugin)
    turns = policies.turns(tick)
    clauses = [(clause.sql, dict(clause.values)) for clause in policies.clauses_of(plugin.slug, tick)]
    return list(policies.skips_of(plugin.slug, tick)), clauses, None if turns is None else list(turns)


def _like(tick: Tick, slug: str) -> list[tuple[Tick, Tick]]:
    """Return pairs of ticks that differ in the values, not in the shape, of the plugin's facts or live facts."""

    def with_facts(facts: Json) -> Tick:
        return attrs.evolve(tick, worker=attrs.evolve(tick.worker, facts={**tick.worker.facts, slug: facts}))

    def with_live(live: Json) -> Tick:
        return attrs.evolve(tick, live={**tick.live, slug: live})

    facts = alterations(tick.worker.facts.get(slug))
    live = alterations(tick.live.get(slug))
    return [(with_facts(one), with_facts(other)) for one, other in facts] + [
        (with_live(one), with_live(other)) for one, other in live
    ]


def _named(asked: Sequence[Route], positions: frozenset[int]) -> list[Route]:
    return [asked[position] for position in sorted(positions)]
