"""The laws of `PolicyContract` catch the policies that break them (P2)."""

import itertools
import re

import attrs
import pytest
from hypothesis import Phase, settings

from harvest_core import BuildError
from harvest_core.plugin import Clause, Plugin, Skip, Turn, hookimpl
from harvest_core.testing import PolicyContract


@attrs.frozen
class RegionConfig:
    serves: list[str] = attrs.field(factory=list)


@attrs.define(eq=False, slots=False)
class Region(Plugin):
    """Takes tasks of the regions it serves; keeps every law. Its children each break one."""

    slug = "region"
    config_class = RegionConfig
    enqueue_options = ("region",)
    config: RegionConfig = attrs.field(factory=RegionConfig)

    sql = "(r.traits ->> 'region') = any({serves}::text[]) is true"

    def stamp(self, values):
        return values["region"]

    def words(self, route, serves):
        trait = route.traits.get("region")
        return [] if isinstance(trait, str) and trait in serves else ["region_not_served"]

    def serves(self, tick):
        return tick.worker.facts["region"]["serves"]

    @hookimpl
    def publish(self, build):
        return {"serves": self.config.serves}

    @hookimpl
    def filter_clause(self, tick):
        serves = self.serves(tick)
        return [self.clause(tick, serves)] if serves else None

    def clause(self, tick, serves):
        return Clause(self.sql, {"serves": serves}, lambda route: self.words(route, serves))


class NamesValueInText(Region):
    def clause(self, tick, serves):
        text = " or ".join(f"(r.traits ->> 'region') is not distinct from '{region}'" for region in serves)
        return Clause(text.replace("''", "'"), {}, lambda route: self.words(route, serves))


class NamesValuesByNumber(Region):
    def clause(self, tick, serves):
        values = {f"region_{number}": region for number, region in enumerate(serves)}
        text = " or ".join(f"(r.traits ->> 'region') is not distinct from {{{name}}}::text" for name in values)
        return Clause(text, values, lambda route: self.words(route, serves))


class NamesTickInText(Region):
    def clause(self, tick, serves):
        return Clause(f"{self.sql} and {tick.free} > 0", {"serves": serves}, lambda route: self.words(route, serves))


class IsNull(Region):
    sql = "(r.traits ->> 'region') = any({serves}::text[])"


class IsVolatile(Region):
    sql = "(r.traits ->> 'region') = any({serves}::text[]) is true and random() < 2"


class HasNoWords(Region):
    def words(self, route, serves):
        return []


class HasWordsTooMany(Region):
    def words(self, route, serves):
        return ["region_not_served"]


class HasEmptyWords(Region):
    def words(self, route, serves):
        return [""] if super().words(route, serves) else []


class TrustsTheTrait(Region):
    def words(self, route, serves):
        return [] if route.traits["region"].lower() in serves else ["region_not_served"]


class JudgesItself(Region):
    def serves(self, tick):
        return self.config.serves


class Remembers(Region):
    counter = itertools.count()

    @hookimpl
    def build_skip_list(self, tick):
        return [Skip("work", (f"asked:{next(self.counter)}",))]


class WorksUnconfigured(Region):
    @hookimpl
    def filter_clause(self, tick):
        return [self.clause(tick, self.serves(tick))]


class SkipsUnconfigured(Region):
    @hookimpl
    def build_skip_list(self, tick):
        return [Skip("work", ("always",))]


class StampsASet(Region):
    def stamp(self, values):
        return {values["region"]}


class StampsAtRandom(Region):
    counter = itertools.count()

    def stamp(self, values):
        return next(self.counter)


class IsAsynchronous(Region):
    @hookimpl
    async def check_build(self, build): ...


class Orders(Region):
    @hookimpl
    def order_queues(self, tick):
        return self.serves(tick) and [Turn(queue, 0, tick.turns[queue], 1) for queue in tick.worker.queues]


@pytest.fixture(autouse=True)
def _quick_to_fail():
    """Let Hypothesis stop at the first failing case, and remember none: they fail on purpose."""
    before = settings.get_current_profile_name()
    settings.register_profile("quick_to_fail", phases=[Phase.generate], database=None)
    settings.load_profile("quick_to_fail")
    yield
    settings.load_profile(before)


def contract_of(policy):
    """Return a contract on a policy that serves one region."""

    class Contract(PolicyContract):
        enqueued = ({"region": "eu"}, {"region": "us"})

        def plugin(self):
            return policy(RegionConfig(["eu"]))

        def others(self):
            return []

    return Contract()


def try_law(contract, law, claim_runner):
    test = getattr(contract, f"test_{law}")
    return test(claim_runner) if "claim_runner" in test.__code__.co_varnames else test()


LAWS = [name.removeprefix("test_") for name in dir(PolicyContract) if name.startswith("test_")]


@pytest.mark.parametrize("law", LAWS)
def test_a_sound_policy_keeps_every_law(law, claim_runner):
    """P2: the policy that the others here derive from is sound."""
    try_law(contract_of(Region), law, claim_runner)


BROKEN = [
    (NamesValueInText, "the_clause_text_is_constant", AssertionError, "plugin 'region': its clauses vary with values"),
    (NamesValuesByNumber, "the_clause_text_is_constant", AssertionError, "its clauses vary with values"),
    (NamesTickInText, "the_clause_text_is_constant", AssertionError, "its clauses vary with the tick"),
    (IsNull, "the_probe_passes", AssertionError, "is NULL for the traits {}"),
    (IsNull, "words_stand_exactly_where_the_sql_refuses", AssertionError, "a clause is NULL for Route("),
    (IsVolatile, "the_probe_passes", AssertionError, "calls the volatile function random"),
    (
        HasNoWords,
        "words_stand_exactly_where_the_sql_refuses",
        AssertionError,
        "SQL says False, the words () for Route(",
    ),
    (
        HasWordsTooMany,
        "words_stand_exactly_where_the_sql_refuses",
        AssertionError,
        "SQL says True, the words ('region_",
    ),
    (HasEmptyWords, "words_stand_exactly_where_the_sql_refuses", AssertionError, "expected texts that are not empty"),
    (TrustsTheTrait, "words_stand_exactly_where_the_sql_refuses", KeyError, "region"),
    (
        JudgesItself,
        "hooks_judge_by_the_tick_alone",
        AssertionError,
        "its answers depend on the process they are given in",
    ),
    (Remembers, "hooks_judge_by_the_tick_alone", AssertionError, "asked twice about one tick it answers differently"),
    (WorksUnconfigured, "unconfigured_it_has_no_effect", AssertionError, "unconfigured it changes the claim's text"),
    (SkipsUnconfigured, "unconfigured_it_has_no_effect", AssertionError, "unconfigured it changes values"),
    (StampsASet, "stamps_are_json", TypeError, "Object of type set is not JSON serializable"),
    (StampsAtRandom, "stamps_are_json", AssertionError, "stamped {'region': 'eu'} as 0 and then as 1"),
    (IsAsynchronous, "the_build_accepts_it", BuildError, "plugin 'region': hook check_build: hooks are synchronous"),
]


@pytest.mark.parametrize(
    ("policy", "law", "kind", "message"), BROKEN, ids=lambda value: getattr(value, "__name__", None)
)
def test_a_law_catches_the_policy_that_breaks_it(policy, law, kind, message, claim_runner):
    """P2: what the law says is wrong is what is wrong."""
    with pytest.raises(kind, match=re.escape(message)):
        try_law(contract_of(policy), law, claim_runner)


def test_an_owner_of_the_order_builds_beside_another_one_if_it_is_named(claim_runner):
    """K4: the law on two owners is tried on a policy that is one."""
    for law in LAWS:
        try_law(contract_of(Orders), law, claim_runner)


def test_a_second_owner_is_what_that_law_looks_for(monkeypatch):
    """K4: where the build accepted two owners, the law would say so."""
    monkeypatch.setattr("harvest_core.build._owner_problems", lambda policies, chosen: [])
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        contract_of(Orders).test_a_second_owner_of_the_order_is_refused()


def test_a_kernel_without_parentheses_is_what_the_law_on_widening_looks_for(claim_runner, monkeypatch):
    """K4: where an OR in another plugin's clause could leak, the law would say so."""
    from harvest_core.claim import statement

    wrapped = statement._text

    def unwrapped(schema, clauses, pool, **form):
        text = "".join(f"\n    and \n{clause}\n" for clause in clauses)
        return wrapped(schema, ("here",), pool, **form).replace("\n    and (\nhere\n    )", text)

    monkeypatch.setattr(statement, "_text", unwrapped)
    with pytest.raises(AssertionError, match="plugin 'region': "):
        contract_of(Region).test_it_never_widens(claim_runner)


def test_a_contract_without_a_plugin_says_what_to_write():
    """P2: the one thing an author must give is asked for by name."""
    with pytest.raises(NotImplementedError) as caught:
        PolicyContract().test_the_build_accepts_it()
    assert str(caught.value) == "PolicyContract must define plugin(self), which returns a configured plugin"
