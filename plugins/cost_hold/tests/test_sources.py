"""Where the signal comes from, and what its silence means (rule C3)."""

from __future__ import annotations

import json
import math
import sys
import threading
from decimal import Decimal
from fractions import Fraction

import pytest
from harvest_cost_hold import CostHold, CostHoldConfig
from hypothesis import given
from hypothesis import strategies as st

from harvest_core.plugin import Setting


def run(hold, **settings):
    """Run the one read of hold, as the kernel would."""
    (refresh,) = hold.refreshes()
    refresh.run(settings)


def state(hold):
    facts = hold.observe()
    return facts["holding"], facts["why"]


def test_set_from_code(make_hold, clock) -> None:
    """With no source the signal is low until it is set, high strictly above the threshold, and never stale (C1, C3)."""
    hold = make_hold()
    assert hold.observe() == {"holding": False, "value": None, "why": "signal has no value yet"}
    hold.signal.set(520)
    clock.now += 86_400.5
    assert hold.observe() == {"holding": True, "value": 520.0, "why": "signal 520.0 > 400.0"}
    hold.signal.set(400.0)
    assert hold.observe() == {"holding": False, "value": 400.0, "why": "signal 400.0 <= 400.0"}


@pytest.mark.parametrize("value", [Decimal("520.5"), Fraction(1041, 2)])
def test_set_takes_other_numbers(make_hold, value) -> None:
    """Any real number is a number, and becomes a float, which JSON holds."""
    hold = make_hold()
    hold.signal.set(value)
    assert json.dumps(hold.observe()["value"]) == "520.5"


@pytest.mark.parametrize(
    ("value", "kind"), [("520", "str"), (True, "bool"), (None, "NoneType"), (1j, "complex"), ([520.0], "list")]
)
def test_set_refuses_what_is_no_number(make_hold, value, kind) -> None:
    """A value of a wrong type from code is the caller's mistake, and is told there."""
    hold = make_hold()
    message = (
        f"signal.set() takes a number, not a value of type {kind}; a verdict is given by a source that returns a bool"
    )
    with pytest.raises(TypeError) as caught:
        hold.signal.set(value)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (10**400, "a value of type int"),
        (Decimal("sNaN"), "a value of type Decimal"),
    ],
)
def test_set_ignores_what_is_not_finite(make_hold, value, shown) -> None:
    """NaN and infinities change no verdict, are counted, and are told until a good value comes (C1)."""
    hold = make_hold()
    hold.signal.set(520.0)
    hold.signal.set(value)
    assert state(hold) == (True, f"signal 520.0 > 400.0 (last value ignored: {shown})")
    assert hold.signal.reading().ignored == 1
    hold.signal.set(100.0)
    assert state(hold) == (False, "signal 100.0 <= 400.0")


@given(values=st.lists(st.floats()), threshold=st.floats(allow_nan=False, allow_infinity=False))
def test_last_finite_value_decides(values, threshold) -> None:
    """Whatever floats are set, the last finite one decides, and the facts pass through JSON (C1)."""
    hold = CostHold(CostHoldConfig(defer_threshold=threshold, activities=["train_model"]), clock=lambda: 0.0)
    for value in values:
        hold.signal.set(value)
    finite = [value for value in values if math.isfinite(value)]
    facts = json.loads(json.dumps(hold.observe(), allow_nan=False))
    assert facts["holding"] == bool(finite and finite[-1] > threshold)
    assert facts["value"] == (finite[-1] if finite else None)
    assert hold.signal.reading().ignored == len(values) - len(finite)


def test_last_arrival_wins(make_hold) -> None:
    """With no source, code and the runtime setting overrule each other; an unchanged setting did not arrive (C3)."""
    hold = make_hold()
    run(hold)
    assert state(hold) == (False, "signal has no value yet")
    hold.signal.set(520.0)
    run(hold, cost_signal=Setting(100.0, version=7))
    assert state(hold) == (False, "signal 100.0 <= 400.0")
    hold.signal.set(520.0)
    run(hold, cost_signal=Setting(100.0, version=7))
    assert state(hold) == (True, "signal 520.0 > 400.0")
    run(hold, cost_signal=Setting(100.0, version=8))
    assert state(hold) == (False, "signal 100.0 <= 400.0")


def test_setting_is_read_every_refresh_and_on_change(make_hold) -> None:
    """The setting is followed by a refresh that its change also starts, with no source and with `setting` (C4)."""
    for source in (None, "setting"):
        (refresh,) = make_hold(source=source, refresh=7.0).refreshes()
        assert (refresh.every, refresh.settings) == (7.0, {"cost_signal"})


def test_setting_alone(make_hold, clock) -> None:
    """`source = "setting"` is high until the first value and again when it was not read for stale_after (C3)."""
    hold = make_hold(source="setting")
    assert state(hold) == (True, "signal has no value yet")
    run(hold)
    assert state(hold) == (True, "signal has no value yet")
    hold.signal.set(100.0)
    assert state(hold) == (True, "signal has no value yet")
    assert hold.signal.reading().ignored == 1
    run(hold, cost_signal=Setting(100, version=1))
    assert state(hold) == (False, "signal 100.0 <= 400.0")
    clock.now += 60.0
    assert state(hold) == (False, "signal 100.0 <= 400.0")
    clock.now += 15.5
    assert hold.observe() == {"holding": True, "value": 100.0, "why": "signal stale for more than 70 s"}
    run(hold, cost_signal=Setting(100, version=1))
    assert hold.observe() == {"holding": False, "value": 100.0, "why": "signal 100.0 <= 400.0"}


@pytest.mark.parametrize("source", [None, "setting"])
@pytest.mark.parametrize("value", ["520", True, None, [520], {"value": 520}])
def test_setting_of_a_wrong_type(make_hold, source, value) -> None:
    """A setting that is no number is ignored, counted and told once, and the last value stays (C3)."""
    hold = make_hold(source=source)
    run(hold, cost_signal=Setting(100, version=1))
    with pytest.raises(ValueError, match="cost_signal") as caught:
        run(hold, cost_signal=Setting(value, version=2))
    kind = type(value).__name__
    assert str(caught.value) == (
        f"the runtime setting cost_signal is a value of type {kind}, not a finite number, and is ignored; "
        "set it with `harvest config set cost_signal 520`"
    )
    run(hold, cost_signal=Setting(value, version=2))
    assert hold.signal.reading().ignored == 1
    assert state(hold) == (False, f"signal 100.0 <= 400.0 (last value ignored: a value of type {kind})")


def test_setting_of_a_wrong_type_is_no_read(make_hold, clock) -> None:
    """Reading a bad setting does not keep the last value fresh (C3)."""
    hold = make_hold(source="setting")
    run(hold, cost_signal=Setting(100, version=1))
    with pytest.raises(ValueError, match="cost_signal"):
        run(hold, cost_signal=Setting("low", version=2))
    clock.now += 61.0
    run(hold, cost_signal=Setting("low", version=2))
    assert state(hold) == (True, "signal stale for more than 60 s (last value ignored: a value of type str)")


class Meter:
    """An object with `read()`."""

    def __init__(self, value) -> None:
        self.value = value

    def read(self):
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value


def test_code_is_read_before_each_claim(make_hold) -> None:
    """A function and an object with `read()` are called before each claim, which waits 50 ms at most (C2, C3)."""
    for source in (lambda: 520.0, Meter(520.0)):
        hold = make_hold(source=source)
        assert state(hold) == (True, "signal has no value yet")
        (refresh,) = hold.refreshes()
        assert (refresh.every, refresh.patience, refresh.settings) == (0, 0.05, frozenset())
        refresh.run({})
        assert state(hold) == (True, "signal 520.0 > 400.0")


@pytest.mark.parametrize("threshold", [None, 400.0])
def test_bool_is_the_verdict(make_hold, threshold) -> None:
    """A bool decides by itself, with and without a threshold (C3)."""
    meter = Meter(value=True)
    hold = make_hold(source=meter, defer_threshold=threshold)
    run(hold)
    assert hold.observe() == {"holding": True, "value": None, "why": "signal says high"}
    meter.value = False
    run(hold)
    assert hold.observe() == {"holding": False, "value": None, "why": "signal says low"}


def test_no_threshold_is_never_high(make_hold) -> None:
    """Without a threshold no number is high, from whatever source (C1)."""
    hold = make_hold(defer_threshold=None)
    hold.signal.set(1e300)
    assert state(hold) == (False, "no defer_threshold")
    assert state(make_hold(defer_threshold=None, source="setting")) == (False, "no defer_threshold")
    hold = make_hold(defer_threshold=None, source=lambda: 1e300)
    run(hold)
    assert state(hold) == (False, "no defer_threshold")


def test_source_that_fails(make_hold, clock) -> None:
    """A source that raises keeps its last value up to stale_after, then counts as high, visibly (C3).

    The text of its error stays out of the facts, which the whole fleet can read.
    """
    meter = Meter(100.0)
    hold = make_hold(source=meter)
    run(hold)
    meter.value = ConnectionError("https://user:secret@meter")
    clock.now += 60.0
    with pytest.raises(ConnectionError):
        run(hold)
    assert state(hold) == (False, "signal 100.0 <= 400.0 (last read failed: ConnectionError)")
    clock.now += 1.0
    assert state(hold) == (True, "signal stale for more than 60 s (last read failed: ConnectionError)")
    assert hold.signal.reading().failed == 1
    meter.value = 100.0
    run(hold)
    assert state(hold) == (False, "signal 100.0 <= 400.0")


@pytest.mark.parametrize("threshold", [None, 400.0])
def test_source_that_never_answered(make_hold, threshold) -> None:
    """A source that failed from the start is high: nothing says that the signal is low (C3)."""
    hold = make_hold(source=Meter(OSError("no meter")), defer_threshold=threshold)
    with pytest.raises(OSError, match="no meter"):
        run(hold)
    assert state(hold) == (True, "signal has no value yet (last read failed: OSError)")


@pytest.mark.parametrize(("value", "shown"), [(math.nan, "nan"), ("520", "a value of type str")])
def test_source_that_returns_nonsense(make_hold, clock, value, shown) -> None:
    """What is neither a finite number nor a bool is ignored and counted, and is no fresh read (C1, C3)."""
    meter = Meter(100.0)
    hold = make_hold(source=meter)
    run(hold)
    meter.value = value
    clock.now += 61.0
    with pytest.raises(ValueError, match="the signal source returned") as caught:
        run(hold)
    assert str(caught.value) == (
        f"the signal source returned {shown}, neither a finite number nor a bool; it is ignored"
    )
    assert state(hold) == (True, f"signal stale for more than 60 s (last value ignored: {shown})")
    assert (hold.signal.reading().ignored, hold.signal.reading().failed) == (1, 0)


def test_late_source_blocks_nothing(make_hold) -> None:
    """While a read is under way the claim sees the last value, and the new one once it is there (C3)."""
    reading, answer = threading.Event(), threading.Event()
    values = iter([100.0, 520.0])

    def slow() -> float:
        value = next(values)
        if value == 520.0:
            reading.set()
            assert answer.wait(30)
        return value

    hold = make_hold(source=slow)
    run(hold)
    thread = threading.Thread(target=run, args=(hold,))
    thread.start()
    assert reading.wait(30)
    assert state(hold) == (False, "signal 100.0 <= 400.0")
    answer.set()
    thread.join()
    assert state(hold) == (True, "signal 520.0 > 400.0")


@pytest.fixture
def busy_switching():
    """Let threads interrupt each other as often as the interpreter can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def test_set_from_many_threads(make_hold, busy_switching) -> None:
    """`set` may be called from any thread at once: no count is lost."""
    hold = make_hold()
    start = threading.Barrier(8)

    def feed() -> None:
        start.wait(30)
        for _ in range(500):
            hold.signal.set(math.nan)
            hold.signal.set(520.0)

    threads = [threading.Thread(target=feed) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert hold.signal.reading().ignored == 4000
    assert hold.observe()["value"] == 520.0
