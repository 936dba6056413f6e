"""The cost hold: names in the claim's skip list while a signal is high (rules C1-C5, C7-C9).

Adds no SQL and never touches a task: a held one stays pending, its attempt unused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import attrs
from prometheus_client import CollectorRegistry

from harvest_core.plugin import (
    Budget,
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
from harvest_cost_hold.config import CostHoldConfig, starts_and_period
from harvest_cost_hold.holds import Holds
from harvest_cost_hold.metrics import HoldCollector
from harvest_cost_hold.signal import Signal
from harvest_cost_hold.source import resolve

SETTING_KEY = "cost_signal"


@attrs.define(eq=False, slots=False)
class CostHold(Plugin):
    """Holds activities while the signal is above their threshold, and lets their backlog start at a rate afterwards.

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
    _holds: Holds = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.signal = Signal(self.clock, settable=not self.config.is_read)
        self._holds = Holds(self.config, self.signal, self.clock)

    @hookimpl
    def build_skip_list(self, tick: Tick) -> Sequence[Skip] | None:
        """Name the held and released activities of `tick.worker`, from what it published and observed.

        Raises:
            ValueError: the worker has activities to hold, but its facts do not say whether and how it holds them.
        """
        facts = tick.worker.facts.get(self.slug)
        names = _names(facts)
        if not isinstance(facts, Mapping) or not names:
            return None
        match tick.live.get(self.slug):
            case {"holding": bool(holding), "why": str(why), **more}:
                # What follows is absent where it adds nothing, and from workers of a version that had none.
                held = more.get("held", dict.fromkeys(names, why) if holding else {})
                released = more.get("released", {})
                if isinstance(held, Mapping) and isinstance(released, Mapping):
                    return [*_skips(names, facts, held, released)] or None
        msg = f"worker {tick.worker.name!r} has activities to hold, but its live facts are {tick.live.get(self.slug)!r}"
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
        """Return `{"holding": bool, "value": number or None, "why": words}` and what these three leave open.

        With thresholds also `"held": {activity: why}`, in a release `"released": {activity: seconds since its end}`.
        A verdict given as a bool is no number: its value is None. It changes only when the verdict or the value does,
        because every change is written to the worker's row; staleness and the time since an end are told in steps of
        ten seconds, rounded down: so nothing that was due before the end passes for younger.
        """
        reading, holds, now = self._holds.look()
        held = {name: hold.why for name, hold in holds.items() if hold.since is not None}
        whys = [*held.values(), *(hold.why for hold in holds.values()), "no activities to hold"]
        value = None if isinstance(reading.value, bool) else reading.value
        facts: dict[str, Json] = {"holding": bool(held), "value": value, "why": whys[0]}
        if self.config.thresholds:
            facts["held"] = held
        ended = {name: hold.released(now) for name, hold in holds.items()} if self.config.release_rate else {}
        if released := {name: since // 10 * 10 for name, since in ended.items() if since is not None}:
            facts["released"] = released
        return facts

    @hookimpl
    def metrics(self, registry: CollectorRegistry) -> None:
        """Register the gauges and counters of C7 and C9."""
        registry.register(HoldCollector(self._holds.look))

    def refreshes(self) -> Sequence[Refresh]:
        """Return the read that the source needs: periodic, or before each claim for one given in code.

        Raises:
            BuildError: the source that the build found is gone.
        """
        if not self.config.names and not self.config.is_read:
            return ()
        refresh, named = self.config.refresh, isinstance(self.config.source, str)
        if not self.config.gives_verdicts:
            setting = frozenset({SETTING_KEY})
            return (Refresh(lambda now: self.signal.receive(now.get(SETTING_KEY)), every=refresh, settings=setting),)
        source = resolve(self.config.source)
        if isinstance(source, Problem):
            raise BuildError([source])
        return (Refresh(lambda _settings: self.signal.read(source), every=refresh if named else 0.0),)


def _names(facts: Json) -> Sequence[str]:
    """Return the activities to hold that a worker published; a worker without this plugin published none."""
    match facts:
        case None:
            return ()
        case {"activities": [*names]} if all(isinstance(name, str) for name in names):
            return list(dict.fromkeys(map(str, names)))
        case _:
            msg = f"the published facts {facts!r} do not list the activities to hold"
            raise ValueError(msg)


def _skips(
    names: Sequence[str], facts: Mapping[str, Any], held: Mapping[str, Any], released: Mapping[str, Any]
) -> Iterator[Skip]:
    """Yield what refuses tasks of each activity; the kernel checks values that another worker's facts brought in."""
    oldest, rate, recheck = facts.get("max_hold"), facts.get("release_rate"), facts.get("recheck", 5.0)
    for name in names:
        if name in held:
            yield Skip(name, (f"{CostHold.slug}:{held[name]}",), hold=True, unless_older=oldest, recheck=recheck)
        # What max_hold lets through is a backlog too.
        if rate is not None and (name in released or (name in held and oldest is not None)):
            starts, period = starts_and_period(rate)
            budget = Budget(f"{CostHold.slug}:{name}", starts=starts, period=period)
            reasons, younger = (f"{CostHold.slug}_release:{rate}",), released.get(name)
            yield Skip(name, reasons, hold=True, at_most=budget, unless_younger=younger, recheck=recheck)
