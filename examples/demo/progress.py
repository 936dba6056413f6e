"""What is known of the run so far, read from the effect log alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
from plan import INDEX, PER_FILE, Shard, merge_planned
from report import Effect, Planned, Rules


@attrs.define
class Progress:
    """Grows with each batch of effects.

    Args:
        planned: the tasks enqueued so far.
        rules: which activities are held.
        effects: the log so far.
        started: dispatches by worker and queue.
        ended: finished tasks by activity.
        results: result by activity and subject of the tasks that ended.
        running: start lines of tasks that have not ended, by task id.
    """

    planned: list[Planned]
    rules: Rules = attrs.field(factory=Rules)
    effects: list[Effect] = attrs.field(factory=list)
    started: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    ended: Counter[str] = attrs.field(factory=Counter)
    results: dict[tuple[str, str], Any] = attrs.field(factory=dict)
    running: dict[str, Effect] = attrs.field(factory=dict)

    def add(self, effects: Iterable[Effect]) -> None:
        """Take in what the workers logged since the last look."""
        for effect in effects:
            self.effects.append(effect)
            if effect.effect == "start":
                self.started[effect.worker, effect.queue] += 1
                self.running[effect.task] = effect
            else:
                self.ended[effect.activity] += 1
                self.results[effect.key] = effect.result
                self.running.pop(effect.task, None)

    @property
    def complete(self) -> bool:
        """True when every planned task has ended."""
        return len(self.results) >= len(self.planned)

    @property
    def files_done(self) -> float:
        """The part of the tasks on single files that has ended, 0 to 1."""
        total = sum(planned.activity in PER_FILE for planned in self.planned)
        return sum(self.ended[name] for name in PER_FILE) / total

    @property
    def held_waiting(self) -> int:
        """Held tasks that have not started."""
        total = sum(planned.activity in self.rules.held for planned in self.planned)
        started = sum(effect.activity in self.rules.held for effect in self.running.values())
        return total - started - sum(self.ended[name] for name in self.rules.held)

    def of_queue(self, queue: str) -> tuple[int, int]:
        """Return how many tasks of queue have started, and how many there are."""
        started = sum(count for (_, name), count in self.started.items() if name == queue)
        return started, sum(planned.queue == queue for planned in self.planned)


@attrs.define
class Merges:
    """Which merges are due: one for each shard whose files are done, one for the index when all shards are."""

    cut: Sequence[Shard]
    planned: dict[str, Planned] = attrs.field(factory=dict)

    def due(self, results: Mapping[tuple[str, str], Any]) -> list[tuple[str, dict[str, list[int]]]]:
        """Return name and numbers of each merge that can be enqueued now and was not returned before."""
        new = [(shard.name, numbers) for shard in self.cut if (numbers := self._of_shard(shard, results))]
        totals = [results[key] for shard in self.cut if (key := ("merge", shard.name)) in results]
        if INDEX not in self.planned and len(totals) == len(self.cut):
            new.append((INDEX, {name: [total[name] for total in totals] for name in self.cut[0].per_file}))
        self.planned |= {name: merge_planned(name) for name, _ in new}
        return new

    def _of_shard(self, shard: Shard, results: Mapping[tuple[str, str], Any]) -> dict[str, list[int]] | None:
        if shard.name in self.planned or any(
            (name, path) not in results for name in shard.per_file for path in shard.paths
        ):
            return None
        return {name: [results[name, path] for path in shard.paths] for name in shard.per_file}
