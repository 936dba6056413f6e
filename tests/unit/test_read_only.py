"""Facts and ticks cannot be changed; a copy of them is an ordinary value."""

import copy
import pickle
from typing import Any

import pytest

from harvest_core.model import Tick, Worker


@pytest.fixture
def worker() -> Worker:
    return Worker("1", "box", ("q",), frozenset(), {"flags": {"forbidden": ["gpu"], "allowlist": None}})


@pytest.mark.parametrize(
    "change",
    [
        lambda facts: facts.clear(),
        lambda facts: facts["flags"].update(forbidden=[]),
        lambda facts: facts["flags"]["forbidden"].clear(),
        lambda facts: facts["flags"]["forbidden"].append("x"),
        lambda facts: facts["flags"].__setitem__("forbidden", []),
        lambda facts: facts["flags"]["forbidden"].__setitem__(0, "x"),
        lambda facts: facts.pop("flags"),
    ],
)
def test_every_change_raises(worker: Worker, change: Any) -> None:
    """No hook changes what another one judges by (K4)."""
    with pytest.raises(TypeError, match="facts and ticks are read-only"):
        change(worker.facts)
    assert worker.facts == {"flags": {"forbidden": ["gpu"], "allowlist": None}}


def test_turns_and_live_facts_too(worker: Worker) -> None:
    """A tick is as read-only as the worker in it."""
    tick: Any = Tick(worker, live={"x": {"holding": True}}, turns={"q": 0})
    with pytest.raises(TypeError):
        tick.turns["q"] = 5
    with pytest.raises(TypeError):
        tick.live["x"]["holding"] = False


def test_copies_are_ordinary_values(worker: Worker) -> None:
    """A worker can be copied and handed to another process; what arrives is a plain dict."""
    copied: Any = copy.deepcopy(worker.facts)
    copied["flags"]["forbidden"].append("x")
    assert pickle.loads(pickle.dumps(worker)) == worker
