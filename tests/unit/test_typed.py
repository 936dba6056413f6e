"""What a type hint makes of a value, both ways, and every sentence by which it refuses one (Bad input: payloads)."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar
from uuid import UUID

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvest_core import Harvest
from harvest_core.errors import BuildError, EnqueueError, PayloadError
from harvest_core.payload import encode
from harvest_core.payloads import Payloads
from harvest_core.typed.form import RefusedError
from harvest_core.typed.hints import Hints

if TYPE_CHECKING:
    from somewhere import Unseen

T = TypeVar("T")
UserId = NewType("UserId", int)


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@attrs.frozen
class Node:
    name: str
    kids: list[Node] = attrs.field(factory=list)


@attrs.frozen
class Item:
    price: Decimal
    amount: int = attrs.field(default=1, validator=attrs.validators.ge(1))


@dataclasses.dataclass
class Box(Generic[T]):
    inside: T
    more: list[T]


@dataclasses.dataclass
class NumberBox(Box[int]):
    label: str


class Row(TypedDict):
    key: int
    cost: NotRequired[Decimal]


class Pair(NamedTuple):
    left: int
    right: Decimal


# Whole seconds, as time zones have: fromisoformat reads an offset below one second as none.
OFFSETS = st.integers(-23 * 3600, 23 * 3600).map(lambda seconds: timezone(timedelta(seconds=seconds)))
MOMENTS = st.datetimes(timezones=st.just(UTC) | OFFSETS)
TEXT = st.text(max_size=5)
NODES = st.deferred(lambda: st.builds(Node, TEXT, st.lists(NODES, max_size=2)))
ITEMS = st.builds(Item, st.decimals(allow_nan=False), st.integers(min_value=1))
BOXES = st.builds(NumberBox, st.integers(), st.lists(st.integers(), max_size=2), TEXT)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
VALUES: dict[Any, st.SearchStrategy] = {
    int: st.integers(),
    bool: st.booleans(),
    str: TEXT,
    float: FLOATS,
    None: st.none(),
    bytes: st.binary(),
    datetime: MOMENTS,
    date: st.dates(),
    time: st.times(),
    timedelta: st.timedeltas(timedelta(days=-90_000), timedelta(days=90_000)),
    UUID: st.uuids(),
    Decimal: st.decimals(allow_nan=False),
    Path: st.just(Path("a/b")),
    Colour: st.sampled_from(Colour),
    Level: st.sampled_from(Level),
    UserId: st.integers(),
    Annotated[int, "whole"]: st.integers(),
    Literal["a", 1, None]: st.sampled_from(["a", 1, None]),
    Literal[True, 0]: st.sampled_from([True, 0]),
    list[Decimal]: st.lists(st.decimals(allow_nan=False), max_size=3),
    Sequence[int]: st.lists(st.integers(), max_size=3).map(tuple),
    tuple[int, ...]: st.lists(st.integers(), max_size=3).map(tuple),
    tuple[int, Colour]: st.tuples(st.integers(), st.sampled_from(Colour)),
    set[UUID]: st.sets(st.uuids(), max_size=3),
    frozenset[date]: st.frozensets(st.dates(), max_size=3),
    dict[int, str]: st.dictionaries(st.integers(), TEXT, max_size=3),
    Mapping[Colour, Level]: st.dictionaries(st.sampled_from(Colour), st.sampled_from(Level)),
    dict[UUID, Item]: st.dictionaries(st.uuids(), ITEMS, max_size=2),
    Node: NODES,
    Item: ITEMS,
    Box[Box[int]]: st.builds(Box, st.builds(Box, st.integers(), st.just([1])), st.just([])),
    NumberBox: BOXES,
    Row: st.fixed_dictionaries({"key": st.integers()}, optional={"cost": st.decimals(allow_nan=False)}),
    Pair: st.builds(Pair, st.integers(), st.decimals(allow_nan=False)),
    int | None: st.integers() | st.none(),
    int | float | bool | str: st.integers() | st.floats(-1e15, 1e15) | st.booleans() | TEXT,
    Node | Item | NumberBox | list[int] | None: NODES | ITEMS | BOXES | st.lists(st.integers()) | st.none(),
    datetime | Node: MOMENTS | NODES,
    list: st.lists(st.integers(), max_size=3),
    dict[str, Any]: st.dictionaries(TEXT, st.integers(), max_size=3),
}


@given(st.data())
@pytest.mark.parametrize("hint", VALUES, ids=str)
def test_a_value_comes_back_as_it_was(hint, data):
    """Every kind of value passes through JSON text unchanged, its class included."""
    value = data.draw(VALUES[hint])
    form = Hints().form(hint)
    back = form.into(json.loads(json.dumps(form.out(value))))
    assert (type(back), back) == (type(value), value)


def refusals(hint, value):
    """Return what is said of a Python value, and of the same value met as JSON."""
    form, said = Hints().form(hint), []
    for way in (form.out, form.into):
        try:
            way(value)
            said.append(None)
        except RefusedError as error:
            said.append(error.text(showing=True))
    return said


WRONG = [
    (int, "8", "expected a whole number, found '8' (text)"),
    (int, True, "expected a whole number, found True (boolean)"),
    (int, 2.9, "expected a whole number, found 2.9 (number)"),
    (int, None, "expected a whole number, found None"),
    (bool, 1, "expected true or false, found 1 (whole number)"),
    (str, 5, "expected text, found 5 (whole number)"),
    (float, "1.5", "expected a number, found '1.5' (text)"),
    (float, True, "expected a number, found True (boolean)"),
    (float, float("nan"), "expected a finite number, found nan (number)"),
    (None, 0, "expected None, found 0 (whole number)"),
    (Literal[1, 2], True, "expected one of 1, 2, found True (boolean)"),
    (list[int], [1, "x"], "[1]: expected a whole number, found 'x' (text)"),
    (dict[str, int], {"a": "x"}, "['a']: expected a whole number, found 'x' (text)"),
    (int | list[str], "a" * 200, f"expected a whole number or a list, found '{'a' * 78}… (text)"),
    (Row, {}, "Row needs the key 'key'"),
    (Row, {"key": 1, "colour": 2}, "Row has no such key: 'colour'"),
]


@pytest.mark.parametrize(("hint", "value", "said"), WRONG, ids=str)
def test_nothing_is_converted(hint, value, said):
    """A value of another type is refused both at the call and in the database, in the same words."""
    assert refusals(hint, value) == [said, said]


AT_THE_CALL = [
    (Decimal, "1.5", "expected a Decimal, found '1.5' (text)"),
    (UUID, "x", "expected a UUID, found 'x' (text)"),
    (
        datetime,
        datetime(2026, 1, 1),
        "expected a datetime with a time zone, found one without; give it one, e.g. datetime.now(UTC)",
    ),
    (date, datetime(2026, 1, 1, tzinfo=UTC), "expected a date, found a datetime"),
    (timedelta, 5, "expected a timedelta, found 5 (whole number)"),
    (
        timedelta,
        timedelta(days=999_999_999, microseconds=1),
        "expected a timedelta that a number of seconds holds exactly, to the microsecond, found a timedelta",
    ),
    (Colour, "red", "expected a Colour, found 'red' (text)"),
    (set[int], [1], "expected a set, found a list"),
    (Sequence[str], "abc", "expected a list or tuple, found 'abc' (text)"),
    (tuple[int, int], (1,), "expected 2 items, found 1"),
    (Node, Item(Decimal(1)), "expected a Node, found an Item"),
    (Node, Node("a", [Node("b", [Node(5)])]), "kids[0].kids[0].name: expected text, found 5 (whole number)"),
    (Node | Item, {"name": "a"}, "expected a Node or an Item, found an object"),
    (dict[int, str], {"1": "a"}, "['1']: expected a whole number, found '1' (text)"),
]


@pytest.mark.parametrize(("hint", "value", "said"), AT_THE_CALL, ids=str)
def test_a_wrong_value_at_the_call(hint, value, said):
    """The value given, not something near it: the words lead to the place."""
    assert refusals(hint, value)[0] == said


IN_THE_DATABASE = [
    (Decimal, 1.5, "expected text that is a decimal number, found 1.5 (number)"),
    (UUID, "x", "expected text that is a UUID, found 'x' (text)"),
    (
        datetime,
        "2026-01-01T00:00:00",
        "expected text that is an ISO 8601 time with an offset, found '2026-01-01T00:00:00' (text)",
    ),
    (date, "2026-13-01", "expected text that is an ISO 8601 date, found '2026-13-01' (text)"),
    (time, "25:00", "expected text that is an ISO 8601 time of day, found '25:00' (text)"),
    (timedelta, 1e300, "expected a number of seconds, found 1e+300 (number)"),
    (bytes, "*", "expected text that is base64, found '*' (text)"),
    (Path, 5, "expected text that is a path, found 5 (whole number)"),
    (Colour, "blue", "expected one of 'red', 'green', found 'blue' (text)"),
    (Level, True, "expected one of 1, 2, found True (boolean)"),
    (set[int], {}, "expected a list, found an object"),
    (set[Node], [{"name": "a"}], "expected a set, whose items can be hashed, found a list"),
    (dict[int, str], {"01": "a"}, "['01']: expected a key that is a whole number"),
    (Item, {}, "Item needs the key 'price'"),
    (Item, {"price": "1", "cost": 1}, "Item has no such key: 'cost'"),
    (Item, {"price": "1", "amount": 0}, "Item refuses it with ValueError: 'amount' must be >= 1: 0"),
    (Item, [], "expected an object, found a list"),
    (Node | Item, {"name": "a"}, "expected an object whose '$type' is one of 'Node', 'Item'"),
    (
        list[Item],
        [{"price": "1"}, {"price": "x"}],
        "[1].price: expected text that is a decimal number, found 'x' (text)",
    ),
]


@pytest.mark.parametrize(("hint", "value", "said"), IN_THE_DATABASE, ids=str)
def test_wrong_json_in_the_database(hint, value, said):
    """What another version or raw SQL wrote is refused in words that lead to the place."""
    assert refusals(hint, value)[1] == said


@pytest.mark.parametrize("hint", [Item, dict[int, str], list[int] | None, Colour], ids=str)
def test_a_secret_stays_one(hint):
    """Of a payload that a codec hides, the words tell names of the program and kinds, and no data."""
    for value in ({"price": "s3cret"}, {"s3cret": 1}, {"price": "1", "s3cret": 5}, ["s3cret"], "s3cret"):
        with pytest.raises(RefusedError) as caught:
            Hints().form(hint).into(value)
        assert "s3cret" not in caught.value.text(showing=False)


NO_HINT = [
    (complex, "which has no form in JSON; use attrs classes, dataclasses, typed dicts, enums, lists, tuples, sets, "
     "mappings, text, numbers, bytes, dates and times, UUID, Decimal, paths and unions of these, or Any for plain "
     "JSON"),
    (datetime | str, "in which a datetime and text look alike in JSON; use one of them, or a class that says which it "
     "is"),
    (Row | Item, "in which a typed dict stands beside another class; a dict does not say which it is: use a dataclass"),
    (dict[bool, int], "with keys of true or false, which an object cannot hold; its keys are text, whole numbers or "
     "written so"),
    (Literal[b"x"], "whose values are not all text, whole numbers, booleans and None"),
    (attrs.make_class("Odd", ["attrs"]), "in which Odd has a field 'attrs', a name that cattrs keeps for "
     "itself; rename it"),
    (enum.Enum("Odd", {"A": 1.5}), "an enum whose values are not all text or whole numbers"),
]  # fmt: skip


@pytest.mark.parametrize(("hint", "said"), NO_HINT, ids=str)
def test_hints_without_a_form_are_problems(hint, said):
    """A hint that could not be read back exactly stops the build, with the place and what to do (rule B1)."""
    app = Harvest({})

    def work(value): ...

    work.__annotations__ = {"value": hint}
    app.activity(work)
    with pytest.raises(BuildError) as caught:
        app.build()
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("hint.no-form", "activity 'work'")
    assert problem.message.startswith("parameter 'value' has the hint ")
    assert problem.message.endswith(f", {said}")


def test_two_classes_of_one_name_are_a_problem():
    """The tag is the name of the class; where two have one, the union has no form."""
    other = attrs.make_class("Node", {"x": attrs.field(type=int)})
    with pytest.raises(Exception, match="in which two classes have one name, by which they are told apart in JSON"):
        Hints().form(Node | other)


def test_fields_keep_their_names():
    """Private fields, aliases, converters and fields that are no argument come back as the class made them (cattrs)."""

    @attrs.define
    class Kept:
        _private: int
        cost: Decimal = attrs.field(converter=Decimal)
        total: Decimal = attrs.field(init=False)

        def __attrs_post_init__(self):
            self.total = self.cost * 2

    form = Hints().form(Kept)
    assert form.out(Kept(1, "1.5")) == {"_private": 1, "cost": "1.5"}
    assert form.into({"_private": 1, "cost": "1.5"}) == Kept(1, "1.5")


def test_a_name_that_exists_for_type_checkers_alone_is_a_problem():
    """It is told at the build, with activity, parameter and reason, and never at the import (rule B1)."""
    app = Harvest({})

    @app.activity
    def work(good: int, seen: Unseen) -> list[Unseen]: ...

    with pytest.raises(BuildError) as caught:
        app.build()
    hint = "import the name at run time and not under TYPE_CHECKING alone, or hint Any for plain JSON"
    assert [str(problem) for problem in caught.value.problems] == [
        f"hint.unresolved  activity 'work': {subject}, which cannot be resolved: name 'Unseen' is not defined ({hint})"
        for subject in ("parameter 'seen' has the hint Unseen", "the result has the hint list[Unseen]")
    ]


def test_a_field_that_cannot_be_resolved_is_a_problem_too():
    """The same goes for the fields of a class, and a failed class leaves nothing half-made behind."""

    @dataclasses.dataclass
    class Holder:
        item: Unseen

    hints = Hints()
    for _ in range(2):
        with pytest.raises(NameError):
            hints.form(Holder)


def test_what_has_a_default_may_have_any_hint():
    """A parameter that tests inject, such as a clock, is no payload; nor is a parameter without a hint, or Any."""
    app = Harvest({})

    @app.activity
    def work(plain, anything: Any, clock: complex = 1j, **more: object): ...

    stored = app.build().payloads.stored_arguments("work", [1, "x"], {"z": [None]})
    assert stored == ('[1,"x"]', '{"z":[null]}')


def call(function, *args, **kwargs):
    app = Harvest({})
    app.activity(name="work")(function)
    payloads = app.build().payloads
    texts = payloads.stored_arguments("work", args, kwargs)
    return payloads.arguments("work", *map(json.loads, texts))


def test_every_way_to_pass_an_argument():
    """By position, by name, and into *args and **kwargs: each by its hint, and the words say which."""

    def work(first: Decimal, /, second: date, *rest: UserId, only: bytes, **more: Colour): ...

    given = (Decimal("1.50"), date(2026, 1, 1), 5, 6), {"only": b"\0", "first": Colour.RED}
    args, kwargs = call(work, *given[0], **given[1])
    assert (tuple(args), kwargs) == given
    for args, kwargs, said in [
        ((1, date(2026, 1, 1)), {"only": b""}, "first: expected a Decimal, found 1 (whole number)"),
        ((Decimal(1),), {"second": 1, "only": b""}, "second: expected a date, found 1 (whole number)"),
        ((Decimal(1), date.max, 1, "x"), {"only": b""}, "rest[1]: expected a whole number, found 'x' (text)"),
        ((Decimal(1), date.max), {"only": b"", "first": 1}, "first: expected a Colour, found 1 (whole number)"),
    ]:
        with pytest.raises(PayloadError) as caught:
            call(work, *args, **kwargs)
        assert str(caught.value) == f"arguments of 'work': {said}"
    with pytest.raises(EnqueueError, match="arguments of 'work': missing a required argument: 'second'"):
        call(work, Decimal(1))


def test_keys_that_json_would_change_are_refused():
    """A whole number as a key comes back as text, which nobody asked for; a hint keeps it what it is."""

    def plain(value): ...

    def typed(value: dict[int, str]): ...

    for value in ({1: "a"}, [{"a": ({None: 1},)}], {True: 1}):
        with pytest.raises(PayloadError, match="which JSON would turn into text"):
            call(plain, value)
    with pytest.raises(PayloadError) as caught:
        call(plain, {1: "a"})
    assert str(caught.value) == (
        "arguments of 'work': a mapping has a key of type int, which JSON would turn into text; use text keys, or give "
        "the mapping its type in the hint, e.g. dict[int, str]"
    )
    assert call(typed, {1: "a"}) == ([{1: "a"}], {})


def test_a_type_that_json_does_not_know_wants_a_hint():
    """Where the app has the activity the message says so; nothing here knows another app's."""

    def work(price, **more): ...

    app = Harvest({})
    app.activity(work)

    said = (
        "work': not JSON: Object of type Decimal is not JSON serializable; pass text, finite numbers, lists and "
        "mappings with text keys"
    )
    hint = ", or name the type in the parameter's type hint"
    with pytest.raises(PayloadError) as caught:
        call(work, Decimal(1))
    assert str(caught.value) == f"arguments of '{said}{hint}"
    with pytest.raises(PayloadError) as caught:
        call(work, 1, at=[Decimal(1)])
    assert str(caught.value) == f"keyword arguments of '{said}{hint}"
    with pytest.raises(PayloadError) as caught:
        Payloads().stored_arguments("work", [Decimal(1)], {})
    assert str(caught.value) == f"arguments of '{said}"
    with pytest.raises(PayloadError) as caught:
        app.build().payloads.stored_result("work", Decimal(1))
    assert str(caught.value) == f"the result of '{said}, or name the type in the hint of what the function returns"


def test_arguments_of_another_version():
    """A missing argument in the database is a sentence, as a wrong one is."""
    app = Harvest({})

    @app.activity
    def work(a: int, b: int): ...

    with pytest.raises(PayloadError) as caught:
        app.build().payloads.arguments("work", [1], {})
    assert str(caught.value) == (
        "arguments of 'work': missing a required argument: 'b'; the task was enqueued for another version of the "
        "activity, or by hand"
    )


def test_a_value_that_holds_itself_is_refused():
    """A circle among typed objects is refused in words, not followed."""
    node = Node("a")
    node.kids.append(node)

    def work(node: Node): ...

    with pytest.raises(PayloadError) as caught:
        call(work, node)
    assert str(caught.value) == (
        "arguments of 'work': nested too deeply for its type hints, or it contains itself; pass a flatter value"
    )


def test_encode_leaves_other_json_alone():
    """Published facts and heartbeats keep their old rule: keys become text."""
    assert encode({1: 2}, "it") == '{"1":2}'
