"""The hold and its signal as Prometheus sees them (rules C7, C9), computed at each scrape."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import attrs
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from harvest_cost_hold.holds import Hold
from harvest_cost_hold.signal import Reading


@attrs.frozen
class HoldCollector(Collector):
    """Reads what a claim would see, so that a value gone stale shows even while no claim is made.

    Args:
        look: gives the signal's reading, each activity's hold, and the seconds by which they were judged.
    """

    look: Callable[[], tuple[Reading, Mapping[str, Hold], float]]

    def collect(self) -> Iterator[Metric]:
        """Yield the two gauges, the signal's two counters, and two counters by activity."""
        reading, holds, now = self.look()
        holding = any(hold.since is not None for hold in holds.values())
        number = reading.value if isinstance(reading.value, float) else math.nan
        yield GaugeMetricFamily("harvest_cost_hold", "1 while activities are held.", int(holding))
        yield GaugeMetricFamily("harvest_cost_signal", "The cost signal; NaN while there is no number.", number)
        ignored = "Signal values that were ignored: not finite, of a wrong type, or set beside another source."
        yield CounterMetricFamily("harvest_cost_signal_ignored", ignored, reading.ignored)
        failed = "Reads of the signal source that raised."
        yield CounterMetricFamily("harvest_cost_signal_failed_reads", failed, reading.failed)
        begun = CounterMetricFamily("harvest_cost_holds", "Holds that began.", labels=["activity"])
        held = CounterMetricFamily("harvest_cost_hold_seconds", "Seconds spent holding.", labels=["activity"])
        for name, hold in holds.items():
            begun.add_metric([name], hold.count)
            held.add_metric([name], hold.seconds(now))
        yield from (begun, held)

    def describe(self) -> Iterator[Metric]:
        """Yield the same, by which a registry refuses a second collector of these names."""
        return self.collect()
