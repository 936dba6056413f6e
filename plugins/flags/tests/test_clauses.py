"""Which routes are refused, and in which words (rules FL2, FL3 and FL6)."""

import attrs
import pytest
from harvest_flags import Flags, FlagsConfig

from harvest_core.plugin import Route, Tick, Worker


def words(plugin, tick, trait):
    route = Route(1, "default", "activity", "build", {} if trait is ... else {"flags": trait})
    return [reason for clause in plugin.filter_clause(tick) for reason in clause.reasons(route)]


@pytest.mark.parametrize(
    ("config", "trait", "expected"),
    [
        (FlagsConfig(accepted=["macos", "linux"]), ["arm"], ["flags_not_accepted:[linux, macos]"]),
        (FlagsConfig(accepted=["linux"]), ..., ["flags_not_accepted:[linux]"]),
        (FlagsConfig(accepted=["linux"]), ["LINUX"], ["flags_not_accepted:[linux]"]),
        (FlagsConfig(accepted=["linux"]), ["arm", "linux"], []),
        (FlagsConfig(accepted=["linux"]), {"linux": None}, []),
        (FlagsConfig(accepted=["linux"]), "linux", []),
        (FlagsConfig(accepted=["linux"]), None, ["flags_not_accepted:[linux]"]),
        (FlagsConfig(accepted=["1"]), 1, ["flags_not_accepted:[1]"]),
        (FlagsConfig(accepted=["linux"]), [["linux"]], ["flags_not_accepted:[linux]"]),
        (FlagsConfig(forbidden=["gpu", "arm"]), ["arm", "gpu", "vip"], ["flag_forbidden:arm", "flag_forbidden:gpu"]),
        (FlagsConfig(forbidden=["gpu"]), "gpu", ["flag_forbidden:gpu"]),
        (FlagsConfig(forbidden=["gpu"]), "gpus", []),
        (FlagsConfig(forbidden=["gpu"]), False, []),
        (FlagsConfig(forbidden=["gpu"]), [1, "gpu"], ["flag_forbidden:gpu"]),
        (FlagsConfig(allowlist=["linux"]), ["kvm", "arm"], ["flag_not_allowlisted:arm", "flag_not_allowlisted:kvm"]),
        (FlagsConfig(allowlist=["linux"]), {"arm": 1}, ["flag_not_allowlisted:arm"]),
        (FlagsConfig(allowlist=["linux"]), "linux", ["flags_malformed:string"]),
        (FlagsConfig(allowlist=["linux"]), None, ["flags_malformed:null"]),
        (FlagsConfig(allowlist=["linux"]), 1.5, ["flags_malformed:number"]),
        (FlagsConfig(allowlist=["linux"]), True, ["flags_malformed:boolean"]),
        (FlagsConfig(allowlist=["linux"]), ["linux", 1, None, {}, [], True], [
            "flags_malformed:array", "flags_malformed:boolean", "flags_malformed:null", "flags_malformed:number",
            "flags_malformed:object",
        ]),
        (FlagsConfig(allowlist=[]), [], []),
        (FlagsConfig(allowlist=[]), {}, []),
        (FlagsConfig(allowlist=[]), ..., []),
        (FlagsConfig(allowlist=[]), ["vip"], ["flag_not_allowlisted:vip"]),
        (
            FlagsConfig(["linux"], ["gpu"], ["linux"]),
            ["gpu"],
            ["flags_not_accepted:[linux]", "flag_forbidden:gpu", "flag_not_allowlisted:gpu"],
        ),
    ],
)  # fmt: skip
def test_a_refusal_is_told_in_words(tick_of, config, trait, expected):
    """FL2, FL3, FL6: each set refuses for itself, and whatever raw SQL wrote is judged without an error."""
    plugin = Flags(config)
    assert words(plugin, tick_of(plugin), trait) == expected


def test_words_agree_with_an_oracle(cases, tick_of):
    """FL1-FL6: on 10,000 random cases there are words exactly where an independent oracle refuses."""
    for config, routes, verdicts in cases:
        plugin = Flags(config)
        clauses = plugin.filter_clause(tick_of(plugin)) or []
        assert [not any(clause.reasons(route) for clause in clauses) for route in routes] == verdicts
    assert 0.2 < sum(sum(verdicts) for _, _, verdicts in cases) / 10_000 < 0.8


def test_unconfigured_means_no_clause(tick_of):
    """K3: a plugin enabled with an empty configuration adds nothing to the claim."""
    assert Flags().filter_clause(tick_of(Flags())) is None


def test_the_text_is_constant(tick_of):
    """FL5: flags are bound as values and never become part of the SQL."""
    first, second = Flags(FlagsConfig(["a"], ["b"], [])), Flags(FlagsConfig(["{x}", "%"], ["';"], ["c", "d"]))
    texts = [[clause.sql for clause in plugin.filter_clause(tick_of(plugin))] for plugin in (first, second)]
    assert texts[0] == texts[1]
    assert [sorted(clause.values) for clause in first.filter_clause(tick_of(first))] == [
        ["accepted"],
        ["forbidden"],
        ["allowlist"],
    ]


def test_the_worker_of_the_tick_is_judged(tick_of):
    """Any process can explain any worker: the hook reads the facts, not the configuration around it."""
    other = Flags(FlagsConfig(accepted=["linux"]))
    assert words(Flags(), tick_of(other), ["arm"]) == ["flags_not_accepted:[linux]"]


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"flags": None},
        {"flags": []},
        {"flags": {"accepted": [], "forbidden": []}},
        {"flags": {"accepted": "linux", "forbidden": [], "allowlist": None}},
        {"flags": {"accepted": [], "forbidden": [1], "allowlist": None}},
        {"flags": {"accepted": [], "forbidden": [], "allowlist": {}}},
        {"flags": {"accepted": [], "forbidden": [], "allowlist": None, "required": []}},
    ],
)
def test_unreadable_facts_close_the_claim(facts):
    """A gate that cannot be judged is closed: a worker without facts in our form raises, and says what to do."""
    worker = attrs.evolve(Worker("1", "one", ("default",), frozenset()), facts=facts)
    with pytest.raises(ValueError, match="restart it") as caught:
        Flags().filter_clause(Tick(worker))
    assert str(caught.value) == (
        f"worker 'one' published no readable facts of flags: {facts.get('flags')!r}; "
        "restart it with this version of harvest-flags"
    )
