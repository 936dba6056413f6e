"""The claim's text, pinned: with no policy, and with policies that are enabled but not configured (K3)."""

from pathlib import Path

import pytest
from harvest_capabilities import Capabilities
from harvest_cost_hold import CostHold
from harvest_flags import Flags, FlagsConfig
from harvest_limits import Limits
from harvest_weights import Weights

from harvest_core.claim.planner import plan
from harvest_core.claim.statement import claim_statement
from harvest_core.policies import Policies
from harvest_core.testing import fake_tick, fake_worker
from harvest_core.testing.claim_runner import SCHEMA

GOLDEN = Path(__file__).with_name("golden") / "claim.sql"


def claim_of(*plugins):
    worker = fake_worker(*plugins, activities=("b", "a"), queues=("second", "first"))
    policies = Policies.of({plugin.slug: plugin for plugin in plugins})
    return claim_statement(plan(policies, fake_tick(*plugins, worker=worker, free=7)), SCHEMA)


def test_the_text_without_policies_is_the_golden_one():
    """K3: one statement over all polled queues. Where a change of it is meant, change the file with it."""
    assert claim_of().text == GOLDEN.read_text(encoding="utf-8")


def test_its_values():
    """K3: without an order all polled queues are one lane; names are sorted, so that equal sets are equal values."""
    assert claim_of().values == {
        "queues": ["second", "first"],
        "lanes": [1, 1],
        "tiers": [0],
        "starts": [0],
        "steps": [0],
        "activities": ["a", "b"],
        "workflows": [],
        "worker": "00000000-0000-4000-8000-000000000001",
        "free": 7,
    }


@pytest.mark.parametrize(
    "plugins",
    [
        [Capabilities()],
        [Flags()],
        [Weights()],
        [CostHold()],
        [Limits()],
        [Capabilities(), Flags(), Weights(), CostHold(), Limits()],
    ],
    ids=["capabilities", "flags", "weights", "cost_hold", "limits", "all"],
)
def test_policies_without_configuration_change_no_byte(plugins):
    """K3: enabled with an empty table, each of the five and all of them leave text and values as they are."""
    assert claim_of(*plugins) == claim_of()


def test_a_policy_that_has_something_to_say_adds_its_clause_alone():
    """K3, K4: a clause is one more segment in parentheses of its own; the rest of the text stays."""
    text, flagged = claim_of().text, claim_of(Flags(FlagsConfig(forbidden=["gpu"]))).text
    segment = "\n    and (\n(r.traits -> 'flags' ?| %(flags__forbidden)s::text[]) is not true\n    )"
    assert flagged.replace(segment, "") == text
    assert flagged.count(segment) == 1
