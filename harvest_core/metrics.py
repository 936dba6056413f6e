"""The kernel's own metrics, in the registry of one build."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import attrs
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


@attrs.frozen
class QueueDepth:
    """Pending tasks of a queue: how many and the age of the oldest in seconds, with and without held ones."""

    pending: int
    oldest: float
    pending_without_held: int
    oldest_without_held: float


class KernelMetrics:
    """Counters and gauges that move with the worker."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.dispatched = Counter("harvest_queue_dispatched", "Tasks started, by queue.", ["queue"], registry=registry)
        self.finished = Counter(
            "harvest_tasks_finished", "Attempts ended here, by outcome.", ["outcome"], registry=registry
        )
        self.hook_errors = Counter(
            "harvest_hook_errors", "Hooks that raised or broke their law.", ["plugin", "hook"], registry=registry
        )
        self.refresh_errors = Counter(
            "harvest_refresh_errors", "Refreshes of plugins that raised.", ["plugin"], registry=registry
        )
        self.closed_routes = Gauge(
            "harvest_closed_routes", "Routes closed because a clause raises on them.", registry=registry
        )
        self.lost_claims = Counter(
            "harvest_lost_claims", "Outcomes that came after their claim was lost.", registry=registry
        )
        self.rescued = Counter("harvest_rescued", "Claims taken back, by cause.", ["cause"], registry=registry)
        self.listening = Gauge(
            "harvest_listening", "1 while notifications arrive; polling goes on either way.", registry=registry
        )
        self.database_errors = Counter(
            "harvest_database_errors", "Polls that found the database away.", registry=registry
        )
        self.broken_duties = Counter(
            "harvest_broken_duties",
            "Standing duties of the worker that broke and were begun anew.",
            ["duty"],
            registry=registry,
        )
        self.schedule_ticks = Counter(
            "harvest_schedule_ticks",
            "Ticks of schedules seen to here, by outcome: enqueued, overlap, missed, failed.",
            ["outcome"],
            registry=registry,
        )
        self.slots = Gauge("harvest_worker_slots", "Slots of this worker.", ["state"], registry=registry)


class DepthCollector(Collector):
    """Shows the newest sample of depths; registered only where a worker takes samples.

    Args:
        sample: returns the newest depths by queue.
    """

    def __init__(self, registry: CollectorRegistry, sample: Callable[[], Mapping[str, QueueDepth]]) -> None:
        self._sample = sample
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Return the four families."""
        depth = GaugeMetricFamily("harvest_queue_depth", "Pending tasks.", labels=["queue"])
        age = GaugeMetricFamily(
            "harvest_queue_oldest_pending_age_seconds", "Age of the oldest pending task.", labels=["queue"]
        )
        free_depth = GaugeMetricFamily(
            "harvest_queue_depth_without_held", "Pending tasks that no hold defers; scale by this.", labels=["queue"]
        )
        free_age = GaugeMetricFamily(
            "harvest_queue_oldest_pending_age_without_held_seconds",
            "Age of the oldest pending task that no hold defers; scale by this.",
            labels=["queue"],
        )
        for queue, found in self._sample().items():
            depth.add_metric([queue], found.pending)
            age.add_metric([queue], found.oldest)
            free_depth.add_metric([queue], found.pending_without_held)
            free_age.add_metric([queue], found.oldest_without_held)
        return [depth, age, free_depth, free_age]
