"""What may be stored of a user's values, judged before it is sent (Bad input: payloads and results)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvest_core.errors import PayloadError
from harvest_core.payload import LIMIT, encode, storable_text

AWKWARD = st.text(alphabet=["\\", "u", "0", '"', "\x00", "a", "\n", "é", "\ud800"], max_size=12)
VALUES = st.recursive(
    AWKWARD | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(AWKWARD, inner, max_size=3),
    max_leaves=8,
)


def texts_of(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from texts_of(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts_of(item)


@given(VALUES)
def test_refuses_nul_and_half_pairs_and_nothing_else(value):
    """A NUL or half a pair anywhere is refused; what only looks like one (a backslash and u0000) is not."""
    bad = any("\x00" in text or "\ud800" in text for text in texts_of(value))
    try:
        text = encode(value, "it")
    except PayloadError:
        assert bad
    else:
        assert not bad
        assert json.loads(text) == value


def test_refuses_what_is_not_json():
    """An object of a class is refused in words that say what to pass."""
    with pytest.raises(PayloadError) as caught:
        encode({"when": {1, 2}}, "arguments of 'mail'")
    assert str(caught.value) == (
        "arguments of 'mail': not JSON: Object of type set is not JSON serializable; "
        "pass text, finite numbers, lists and mappings with text keys"
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [float("-inf")]}, b"bytes", {(1, 2): 3}], ids=repr)
def test_refuses_values_without_json(value):
    """Non-finite numbers, bytes, odd keys and endless numbers are not JSON."""
    with pytest.raises(PayloadError, match="it: not JSON: "):
        encode(value, "it")


def test_refuses_an_endless_number():
    """A whole number longer than Python itself would print is refused in words."""
    with pytest.raises(PayloadError, match="it: not JSON: it holds a number that is not finite, or too long"):
        encode(10**5000, "it")


def test_refuses_a_circle():
    """A list that holds itself is refused, not followed."""
    circle = []
    circle.append(circle)
    with pytest.raises(PayloadError, match="it: not JSON: it contains itself; "):
        encode(circle, "it")


def test_refuses_depth():
    """Nesting that a parser would give up on is refused in words."""
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(PayloadError) as caught:
        encode(deep, "it")
    assert str(caught.value) == "it: nested too deeply for JSON; pass a flatter value or a reference"


def test_refuses_nul():
    """A NUL is refused in words that say what to do."""
    with pytest.raises(PayloadError) as caught:
        encode(["a\x00b"], "it")
    assert str(caught.value) == (
        "it: holds a NUL character, which PostgreSQL cannot store; remove it or encode the bytes, e.g. base64"
    )


def test_refuses_half_a_pair():
    """Half a surrogate pair is refused in words that say what to do."""
    with pytest.raises(PayloadError) as caught:
        encode("\udfff", "it")
    assert str(caught.value) == (
        "it: holds half of a surrogate pair, which is no Unicode text; encode the bytes, e.g. base64"
    )


def test_the_limit_counts_bytes_and_is_inclusive():
    """2 MB of JSON text pass, one byte more does not, and characters count by their bytes."""
    assert len(encode("x" * (LIMIT - 2), "it")) == LIMIT
    with pytest.raises(PayloadError) as caught:
        encode("x" * (LIMIT - 1), "it")
    assert str(caught.value) == "it: takes more than 2 MB; store it elsewhere and pass a reference"
    with pytest.raises(PayloadError, match="takes more than 2 MB"):
        encode("é" * (LIMIT // 2), "it")


@given(st.text() | AWKWARD)
def test_storable_text_is_storable(text):
    """An error's text loses only what PostgreSQL cannot store."""
    stored = storable_text(text)
    assert "\x00" not in stored
    stored.encode()
    if "\x00" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text):
        assert stored == text


def test_long_text_loses_its_middle():
    """A huge traceback keeps its beginning and its end, where the cause stands."""
    stored = storable_text("first" + "x" * 1_000_000 + "last")
    assert stored.startswith("first")
    assert stored.endswith("last")
    assert "\n… 934473 characters left out …\n" in stored
    assert len(stored) < 66_000
