"""The hold and its signal as Prometheus sees them (rule C7), computed at each scrape."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import attrs
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from harvest_core.plugin import Json
from harvest_cost_hold.signal import Signal


@attrs.frozen
class HoldCollector(Collector):
    """Reads the facts a claim would see, so that a value gone stale shows even while no claim is made.

    Args:
        observe: gives the live facts.
        signal: counts what was ignored and what failed.
    """

    observe: Callable[[], Mapping[str, Json]]
    signal: Signal

    def collect(self) -> Iterator[Metric]:
        """Yield the two gauges and the two counters."""
        facts, reading = self.observe(), self.signal.reading()
        value = facts["value"]
        number = value if isinstance(value, float) else math.nan
        yield GaugeMetricFamily("harvest_cost_hold", "1 while activities are held.", int(facts["holding"] is True))
        yield GaugeMetricFamily("harvest_cost_signal", "The cost signal; NaN while there is no number.", number)
        ignored = "Signal values that were ignored: not finite, of a wrong type, or set beside another source."
        yield CounterMetricFamily("harvest_cost_signal_ignored", ignored, reading.ignored)
        failed = "Reads of the signal source that raised."
        yield CounterMetricFamily("harvest_cost_signal_failed_reads", failed, reading.failed)

    def describe(self) -> Iterator[Metric]:
        """Yield the same, by which a registry refuses a second collector of these names."""
        return self.collect()
