"""What a build says of the configuration (rule FL4), and what a worker publishes."""

import pytest
from harvest_flags import Flags, FlagsConfig


def problems_of(*config):
    return [
        ("warning " if problem.warning else "") + str(problem)
        for problem in Flags(FlagsConfig(*config)).check_build(build=None)
    ]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            (["linux"], [], ["arm"]),
            (
                "warning flags.admits-nothing  plugins.flags.accepted: shares no flag with allowlist, so no task is "
                "admitted (add one of linux to allowlist)"
            ),
        ),
        (
            (["linux"], [], []),
            (
                "warning flags.admits-nothing  plugins.flags.allowlist: is empty while accepted is not, so no task is "
                "admitted (add one of linux to it, or remove it)"
            ),
        ),
        (
            (["linux", "macos"], ["macos", "linux"], None),
            (
                "warning flags.admits-nothing  plugins.flags.forbidden: covers every accepted flag, so no task is "
                "admitted (remove one of linux, macos from it)"
            ),
        ),
        (
            (["linux", "macos"], ["linux"], ["linux", "arm"]),
            (
                "warning flags.admits-nothing  plugins.flags.forbidden: covers every accepted flag, so no task is "
                "admitted (remove one of linux from it)"
            ),
        ),
        (
            ([""], [], None),
            (
                "flags.malformed-flag  plugins.flags.accepted: flag '' is empty (no task can carry it; remove it or "
                "write it out)"
            ),
        ),
        (
            ([], ["a\0"], None),
            (
                "flags.malformed-flag  plugins.flags.forbidden: flag 'a\\x00' is a text with a NUL character, which "
                "PostgreSQL cannot store (no task can carry it; remove it or write it out)"
            ),
        ),
        (
            ([], [], ["\udc00"]),
            (
                "flags.malformed-flag  plugins.flags.allowlist: flag '\\udc00' is a text with half of a surrogate "
                "pair, which UTF-8 cannot encode (no task can carry it; remove it or write it out)"
            ),
        ),
    ],
)
def test_a_faulty_configuration_is_told(config, expected):
    """FL4: sets that together admit nothing warn; a flag that no task can carry is a fault."""
    assert problems_of(*config) == [expected]


@pytest.mark.parametrize(
    "config",
    [(), (["linux", "macos"], ["macos"], ["linux"]), ([], ["gpu"], []), (["linux"], ["gpu"], ["linux", "kvm"])],
)
def test_a_partial_overlap_is_fine(config):
    """FL4: one common flag is enough, and without accepted there is nothing to overlap."""
    assert problems_of(*config) == []


def test_every_malformed_flag_is_told_at_once():
    """B1: all faults, not only the first."""
    assert len(problems_of(["", "a\0"], [""], ["\udc00"])) == 4


def test_a_worker_publishes_its_whole_configuration():
    """A hook judges by the facts, so they hold all three sets, sorted and distinct, and an unset allowlist."""
    assert Flags(FlagsConfig(["b", "a", "b"], ["gpu"])).publish(build=None) == {
        "accepted": ["a", "b"],
        "forbidden": ["gpu"],
        "allowlist": None,
    }
