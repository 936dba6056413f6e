"""The kernel's side of the order, as plain counting: a simulator of its merge, without a database."""

from collections import Counter

import pytest
from harvest_weights import Weights, WeightsConfig

from harvest_core.plugin import Tick, Worker


class Kernel:
    """One worker's claims: picks the lowest (tier, turn) that has a task, and remembers where each queue stands.

    Where a queue stands is `start + tasks taken * step` of its last claim, relative to the newest turn, also for a
    queue of which nothing was taken. It waits where a task was left that the claim did not take, locked ones included.
    """

    def __init__(self, weights, tie=min):
        plugin = Weights(WeightsConfig(weights))
        facts = {"weights": plugin.publish(build=None)}
        self.worker = Worker("1", "one", tuple(weights), frozenset(), facts)
        self.plugin, self.tie = plugin, tie
        self.backlog = Counter()
        self.turns = dict.fromkeys(weights, 0)
        self.waiting = frozenset()

    def claim(self, free, held=()):
        """Return the queues of up to `free` tasks in the order taken; others hold the tasks of the queues `held`."""
        order = self.plugin.order_queues(Tick(self.worker, free, {}, self.turns, self.waiting))
        assert sorted(turn.queue for turn in order) == sorted(self.worker.queues)
        taken, picks, newest = Counter(), [], 0
        while len(picks) < free:
            heads = {}
            for turn in order:
                if turn.queue not in held and self.backlog[turn.queue] > taken[turn.queue]:
                    place = (turn.tier, turn.start + (taken[turn.queue] + 1) * turn.step)
                    heads.setdefault(place, []).append(turn.queue)
            if not heads:
                break
            place = min(heads)
            queue = self.tie(heads[place])
            taken[queue] += 1
            picks.append(queue)
            newest = max(newest, place[1])
        self.turns = {turn.queue: turn.start + taken[turn.queue] * turn.step - newest for turn in order}
        assert all(abs(turn) < 2**63 for turn in self.turns.values())
        self.backlog -= taken
        self.waiting = frozenset(self.backlog)
        return picks

    def run(self, tasks, free, held=lambda: ()):
        """Return the queues of the next `tasks` tasks, claimed `free` at a time."""
        picks = []
        while len(picks) < tasks:
            picks += self.claim(min(free, tasks - len(picks)), held())
        return picks


@pytest.fixture(scope="session")
def kernel_of():
    """Return the simulator's class: `kernel_of({"a": 1, "b": 3})`."""
    return Kernel
