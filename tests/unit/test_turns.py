"""The memory of the queue order between two claims (W2)."""

from hypothesis import given
from hypothesis import strategies as st

from harvest_core.claim.turns import first_turns, next_turns
from harvest_core.model import Turn

QUEUES = st.lists(st.sampled_from("abcdef"), min_size=1, unique=True)


def test_a_new_worker_starts_level():
    """Before the first claim every queue stands at 0."""
    assert first_turns(["a", "b"]) == {"a": 0, "b": 0}


def test_without_an_order_nothing_moves():
    """Where no plugin owns the order, turns keep no memory."""
    assert next_turns({"a": -3}, None, [("a", 5)]) == {"a": -3}


def test_turns_are_relative_to_the_newest():
    """Each queue keeps its last turn, measured from the newest of all."""
    planned = [Turn("a", 0, 0, 3), Turn("b", 0, 0, 1)]
    assert next_turns({"a": 0, "b": 0}, planned, [("b", 1), ("b", 2), ("a", 3)]) == {"a": 0, "b": -1}


def test_a_queue_that_got_nothing_keeps_the_start_it_was_given():
    """Credit that its owner took from an idle queue does not come back with the next tick."""
    planned = [Turn("a", 0, -1, 1), Turn("b", 0, -3, 3)]
    assert next_turns({"a": -1, "b": -90}, planned, [("a", 0), ("a", 1)]) == {"a": 0, "b": -4}


@given(QUEUES, st.data())
def test_never_positive_and_order_kept(queues, data):
    """No queue is ahead of the newest turn, and the order among the queues is that of their turns."""
    planned = [Turn(q, 0, data.draw(st.integers(-100, 0)), data.draw(st.integers(0, 9))) for q in queues]
    taken, stands = [], {turn.queue: turn.start for turn in planned}
    for turn in planned:
        for _ in range(data.draw(st.integers(0, 5))):
            stands[turn.queue] += turn.step
            taken.append((turn.queue, stands[turn.queue]))
    taken.sort(key=lambda pair: pair[1])
    after = next_turns({}, planned, taken)
    assert after.keys() == stands.keys()
    assert all(turn <= 0 for turn in after.values())
    assert all((after[a] <= after[b]) == (stands[a] <= stands[b]) for a in queues for b in queues)
