"""Preferred workers and shared slots in whole claims on a database (CAP6, W6)."""

from __future__ import annotations

import pytest
from harvest_capabilities import Capabilities, CapabilitiesConfig
from harvest_weights import Weights, WeightsConfig

from harvest_core.plugin import Peer
from harvest_core.testing import ClaimRunner, fake_route, fake_tick, fake_worker

ASKS = {"render": {"prefers": "gpu exists"}, "send": {}}


@pytest.mark.parametrize(("wait", "taken"), [(10.0, {1}), (0.0, {0, 1})])
def test_a_lesser_worker_leaves_young_tasks_to_a_free_preferred_one(claim_runner: ClaimRunner, wait, taken):
    """CAP6: new tasks are left alone for prefer_wait, other activities not; with no wait all are taken."""
    policy = Capabilities(CapabilitiesConfig(prefer_wait=wait))
    gpu = fake_worker(Capabilities(CapabilitiesConfig({"gpu": "1"})), activities=ASKS)
    lesser = fake_worker(policy, activities=ASKS)
    routes = [fake_route(name="render"), fake_route(name="send")]
    for free, expected in ((1, taken), (0, {0, 1})):
        tick = fake_tick(policy, worker=lesser, peers=[Peer(gpu, free)])
        assert claim_runner.taken([policy], tick, routes) == expected


def test_a_claim_leaves_a_slot_for_an_idle_queue(claim_runner: ClaimRunner):
    """W6: of six free slots two light queues take the five that are not kept for the heavy one (sidekiq#5741)."""
    policy = Weights(WeightsConfig({"mail": 8}, by="slots"))
    worker = fake_worker(policy, queues=("export", "report", "mail"))
    routes = [fake_route(queue=queue, traits={"n": n}) for n in range(3) for queue in ("export", "report")]
    busy = {"export": 9, "report": 7, "mail": 0}
    tick = fake_tick(policy, worker=worker, free=6, busy=busy, waiting=["export", "report"])
    taken = claim_runner.taken([policy], tick, routes)  # it asks for as many tasks as there are routes
    assert [sum(routes[n].queue == queue for n in taken) for queue in ("export", "report")] == [2, 3]
