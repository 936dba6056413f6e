"""What a task may carry (rules FL1 and FL6)."""

import pytest
from harvest_flags import Flags

from harvest_core.plugin import EnqueueError


@pytest.mark.parametrize(
    "given",
    [
        {"vip", "eu"},
        frozenset({"vip", "eu"}),
        ["vip", "eu", "vip"],
        ("vip", "eu"),
        {"vip": None, "eu": 0},
    ],
)
def test_every_python_form_becomes_the_same_list(given):
    """FL6: a set, list or mapping is stamped sorted and distinct; a mapping's values are ignored."""
    assert Flags().stamp({"flags": given}) == ["eu", "vip"]


@pytest.mark.parametrize("values", [{}, {"flags": None}, {"flags": []}, {"flags": set()}, {"flags": {}}])
def test_nothing_is_untagged(values):
    """FL1: none means untagged, which is no trait at all."""
    assert Flags().stamp(values) is None


def test_flags_keep_their_case():
    """FL1: matching is exact, so flags that differ in case are two."""
    assert Flags().stamp({"flags": {"linux", "LINUX"}}) == ["LINUX", "linux"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("vip", "flags='vip' is a str; give a set of texts such as {'vip'}"),
        (3, "flags=3 is a int; give a set of texts such as {'vip'}"),
        (True, "flags=True is a bool; give a set of texts such as {'vip'}"),
        (b"vip", "flags=b'vip' is a bytes; give a set of texts such as {'vip'}"),
        (["vip", 3], "flag 3 is a int, not a text; give a set of texts such as {'vip'}"),
        ([["vip"]], "flag ['vip'] is a list, not a text; give a set of texts such as {'vip'}"),
        ({None: 1}, "flag None is a NoneType, not a text; give a set of texts such as {'vip'}"),
        ([""], "flag '' is empty; give a set of texts such as {'vip'}"),
        (
            ["a\0"],
            (
                "flag 'a\\x00' is a text with a NUL character, which PostgreSQL cannot store; "
                "give a set of texts such as {'vip'}"
            ),
        ),
        (
            ["\ud83d"],
            (
                "flag '\\ud83d' is a text with half of a surrogate pair, which UTF-8 cannot encode; "
                "give a set of texts such as {'vip'}"
            ),
        ),
        (
            [str(number) for number in range(33)],
            "33 distinct flags are more than the 32 a task may carry; give fewer",
        ),
    ],
)
def test_anything_else_is_refused_in_a_sentence(given, sentence):
    """FL6: the Python API refuses what is no set of flags, and FL1's limit is 32."""
    with pytest.raises(EnqueueError) as caught:
        Flags().stamp({"flags": given})
    assert str(caught.value) == sentence


def test_the_limit_counts_distinct_flags():
    """FL1: duplicates have no effect, on the limit either."""
    assert len(Flags().stamp({"flags": [str(number % 32) for number in range(99)]})) == 32
