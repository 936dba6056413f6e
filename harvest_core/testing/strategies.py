"""Hypothesis strategies for what a policy judges: odd JSON, routes and ticks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs
from hypothesis import strategies as st

from harvest_core.model import Json, Route, Tick

_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4)


def json_values(words: Sequence[str] = ()) -> st.SearchStrategy[Json]:
    """Give any JSON that jsonb holds, in which the words come up often."""
    text = st.sampled_from(words) | _TEXT if words else _TEXT
    numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
    leaves: st.SearchStrategy[Json] = text | st.none() | st.booleans() | numbers
    return st.recursive(leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner), max_leaves=6)


def routes(
    queues: Sequence[str], activities: Sequence[str], workflows: Sequence[str], traits: Mapping[str, Sequence[Json]]
) -> st.SearchStrategy[Route]:
    """Give routes, of other queues and unknown names too.

    Args:
        queues: names that come up often, as do the next two.
        activities: names of activities.
        workflows: names of workflows.
        traits: for each plugin slug traits that come up often; any JSON stands in their place as well.
    """
    activity = st.tuples(st.just("activity"), st.sampled_from([*activities, *workflows, "unknown"]))
    workflow = st.tuples(st.just("workflow"), st.sampled_from([*workflows, "unknown"]))
    stamped = st.fixed_dictionaries({}, optional={slug: _trait(known) for slug, known in traits.items()})
    return st.builds(
        lambda queue, identity, stamps: Route(0, queue, identity[0], identity[1], stamps),
        st.sampled_from([*queues, "elsewhere"]),
        activity | activity | workflow,
        stamped,
    )


def ticks(tick: Tick) -> st.SearchStrategy[Tick]:
    """Give ticks of the same worker and live facts at other moments."""
    queues = tick.worker.queues
    return st.builds(
        lambda free, turns, waiting: attrs.evolve(tick, free=free, turns=turns, waiting=waiting),
        st.integers(1, 1000),
        st.fixed_dictionaries(dict.fromkeys(queues, st.integers(-(2**40), 0))),
        st.frozensets(st.sampled_from(queues)),
    )


def alterations(value: Json) -> Iterator[tuple[Json, Json]]:
    """Yield pairs of values like `value`, whose two members differ in texts, numbers and the lengths of lists only.

    Of each pair either all parts are altered or one alone, for a reader that refuses the others.
    """
    for path in _paths(value):
        yield _altered(value, path, 1), _altered(value, path, 2)


def words_in(value: Json) -> Iterator[str]:
    """Yield every text in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from value
        for item in value.values():
            yield from words_in(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from words_in(item)


def _trait(known: Sequence[Json]) -> st.SearchStrategy[Json]:
    words = sorted({word for trait in known for word in words_in(trait)})
    anything = json_values(words)
    return st.sampled_from(known) | anything if known else anything


def _paths(value: Json, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield path
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _paths(item, (*path, key))
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from _paths(item, (*path, position))


def _altered(value: Json, path: tuple[str | int, ...], step: int) -> Json:
    if not path:
        return _shifted(value, step)
    if isinstance(value, Mapping):
        return {key: _altered(item, path[1:], step) if key == path[0] else item for key, item in value.items()}
    if isinstance(value, list):
        return [_altered(item, path[1:], step) if n == path[0] else item for n, item in enumerate(value)]
    return value


def _shifted(value: Json, step: int) -> Json:
    if isinstance(value, str):
        return value + "'" * step
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return value + 1000 + step
    if isinstance(value, Mapping):
        return {key: _shifted(item, step) for key, item in value.items()}
    longer = [_shifted(item, step) for item in value]
    return longer + longer[:1] * step
