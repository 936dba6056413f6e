"""The cost hold: names in the claim's skip list while a signal is high (rules C1-C5, C7, C8).

Adds no SQL and never touches a task: a held one stays pending, its attempt unused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import attrs
from prometheus_client import CollectorRegistry

from harvest_core.plugin import (
    BuildError,
    BuildView,
    Feature,
    Json,
    Plugin,
    Problem,
    Refresh,
    Skip,
    Tick,
    hookimpl,
)
from harvest_cost_hold.check import problems
from harvest_cost_hold.config import CostHoldConfig
from harvest_cost_hold.metrics import HoldCollector
from harvest_cost_hold.signal import Reading, Signal
from harvest_cost_hold.source import resolve

SETTING_KEY = "cost_signal"


@attrs.define(eq=False, slots=False)
class CostHold(Plugin):
    """Holds `config.activities` while the signal is above `config.defer_threshold`.

    Args:
        config: the table `[plugins.cost_hold]`.
        clock: monotonic seconds, by which values grow stale.

    Attributes:
        signal: takes values from code, `signal.set(520.0)`, before and after the build.
    """

    slug: ClassVar[str] = "cost_hold"
    config_class: ClassVar[type[CostHoldConfig]] = CostHoldConfig
    needs: ClassVar[frozenset[Feature]] = frozenset({Feature.SKIP_LIST})

    config: CostHoldConfig = attrs.field(factory=CostHoldConfig)
    clock: Callable[[], float] = attrs.field(default=time.monotonic, kw_only=True)
    signal: Signal = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.signal = Signal(self.clock, settable=not self.config.is_read)

    @hookimpl
    def build_skip_list(self, tick: Tick) -> Sequence[Skip] | None:
        """Name the held activities of `tick.worker`, from what it published and observed.

        Raises:
            ValueError: the worker has activities to hold, but its facts do not say whether it holds them.
        """
        names = _held_names(tick.worker.facts.get(self.slug))
        if not names:
            return None
        match tick.live.get(self.slug):
            case {"holding": False}:
                return None
            case {"holding": True, "why": str(why)}:
                return [Skip(name, (f"cost_hold:{why}",), hold=True) for name in names]
            case live:
                msg = f"worker {tick.worker.name!r} has activities to hold, but its live facts are {live!r}"
                raise ValueError(msg)

    @hookimpl
    def check_build(self, build: BuildView) -> Sequence[Problem]:
        """Return every fault of the configuration; imports the installed signal it names, and reads nothing."""
        return list(problems(self.config, build))

    @hookimpl
    def publish(self, build: BuildView) -> Mapping[str, Json]:  # noqa: ARG002 - the hook's own form
        """Return the whole configuration."""
        return self.config.facts()

    @hookimpl
    def observe(self) -> Mapping[str, Json]:
        """Return `{"holding": bool, "value": number or None, "why": words}`.

        A verdict given as a bool is no number: its value is None. It changes only when the verdict or the value does,
        because every change is written to the worker's row; staleness is told in steps of ten seconds.
        """
        reading = self.signal.reading()
        holding, why = _judge(self.config, reading)
        return {
            "holding": holding,
            "value": None if isinstance(reading.value, bool) else reading.value,
            "why": f"{why} ({reading.trouble})" if reading.trouble else why,
        }

    @hookimpl
    def metrics(self, registry: CollectorRegistry) -> None:
        """Register the gauges and counters of C7."""
        registry.register(HoldCollector(self.observe, self.signal))

    def refreshes(self) -> Sequence[Refresh]:
        """Return the read that the source needs: periodic, or before each claim for one given in code.

        Raises:
            BuildError: the source that the build found is gone.
        """
        if not self.config.activities and not self.config.is_read:
            return ()
        refresh, named = self.config.refresh, isinstance(self.config.source, str)
        if not self.config.gives_verdicts:
            setting = frozenset({SETTING_KEY})
            return (Refresh(lambda now: self.signal.receive(now.get(SETTING_KEY)), every=refresh, settings=setting),)
        source = resolve(self.config.source)
        if isinstance(source, Problem):
            raise BuildError([source])
        return (Refresh(lambda _settings: self.signal.read(source), every=refresh if named else 0.0),)


def _held_names(facts: Json) -> Sequence[str]:
    """Return the names a worker published; a worker without this plugin published none."""
    match facts:
        case None:
            return ()
        case {"activities": [*names]} if all(isinstance(name, str) for name in names):
            return list(dict.fromkeys(map(str, names)))
        case _:
            msg = f"the published facts {facts!r} do not list the activities to hold"
            raise ValueError(msg)


def _judge(config: CostHoldConfig, reading: Reading) -> tuple[bool, str]:
    """Return whether the signal is high and why, in the words of explain (rules C1, C3)."""
    value, threshold = reading.value, config.defer_threshold
    if not config.activities:
        return False, "no activities to hold"
    if threshold is None and not config.gives_verdicts:
        return False, "no defer_threshold"
    if value is None:
        # A source that is read fails closed; code that never called set() has said nothing.
        return config.is_read, "signal has no value yet"
    if config.is_read and reading.age > config.stale_after:
        return True, f"signal stale for more than {int(reading.age) // 10 * 10} s"
    if isinstance(value, bool):
        return value, f"signal says {'high' if value else 'low'}"
    if threshold is None:
        return False, "no defer_threshold"
    high = value > threshold
    return high, f"signal {value} {'>' if high else '<='} {float(threshold)}"
