"""What limits say of a build and of a tick."""

from __future__ import annotations

import pytest
from harvest_limits import Limit, Limits, LimitsConfig, SharedLimit

from harvest_core import Harvest
from harvest_core.plugin import Budget, BuildError, LaneLimit, Skip
from harvest_core.testing import fake_build, fake_tick, fake_worker


def problems_of(tables, *, local=()):
    """Return what a build of `send_mail` says of a table."""
    app = Harvest({"harvest": {"plugins": ["limits"]}, "plugins": {"limits": tables}})
    app.activity(name="send_mail")(print)
    for name in local:
        app.local_activity(name=name)(print)
    try:
        return [str(warning) for warning in app.build().warnings]
    except BuildError as error:
        return [str(problem) for problem in error.problems]


RATE = 'expected a whole number above 0 and a period, such as "10/m" (s, m, h or d)'
WHOLE = "expected a whole number from 1 to 2147483647 (to stop a queue for a while, pause it)"


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ({"activities": {"send_mail": {"concurrency": 10, "rate": "100/m"}}}, []),
        (
            {"activities": {"send_mail": {}}},
            [
                "limits.no-limit  plugins.limits.activities.send_mail: it has neither concurrency nor rate, "
                'so it limits nothing (set concurrency = 10, rate = "100/m", or both)'
            ],
        ),
        (
            {"activities": {"send_mail": {"concurrency": 0}}},
            [f"limits.concurrency  plugins.limits.activities.send_mail.concurrency: 0 is no limit; {WHOLE}"],
        ),
        (
            {"lanes": {"customer": {"concurrency": -1}}},
            [f"limits.concurrency  plugins.limits.lanes.customer.concurrency: -1 is no limit; {WHOLE}"],
        ),
        *(
            (
                {"activities": {"send_mail": {"rate": rate}}},
                [f"limits.rate  plugins.limits.activities.send_mail.rate: {rate!r} is no rate; {RATE}"],
            )
            for rate in ("0/m", "-1/m", "10", "10/w", "1.5/s", "10 / m", "")
        ),
        (
            {"activities": {"sendmail": {"concurrency": 1}}},
            [
                "limits.unknown-activity  plugins.limits.activities.sendmail: 'sendmail' is no activity of this app, "
                "so nothing of it is limited here (did you mean 'send_mail'?)"
            ],
        ),
        (
            {"activities": {"resize": {"concurrency": 1}}},
            [
                "limits.local-activity  plugins.limits.activities.resize: 'resize' is a local activity and runs "
                "inline, where nothing can limit it (make it an activity)"
            ],
        ),
        (
            {"shared": {"api": {"concurrency": 1}}},
            [
                "limits.no-activities  plugins.limits.shared.api: it names no activities, so it limits nothing "
                '(list them: activities = ["a", "b"])'
            ],
        ),
        (
            {"lanes": {"customer/7": {"concurrency": 1}}},
            [
                "limits.lane-name  plugins.limits.lanes.customer/7: 'customer/7' is no name of lanes; expected what "
                'stands before the first slash of a lane ("customer" limits customer/7, customer/8 and so on)'
            ],
        ),
        (
            {"lanes": {" ": {"concurrency": 1}}},
            [
                "limits.lane-name  plugins.limits.lanes. : ' ' is no name of lanes; expected what "
                'stands before the first slash of a lane ("customer" limits customer/7, customer/8 and so on)'
            ],
        ),
    ],
)
def test_every_fault_of_a_build(tables, expected) -> None:
    """Each fault names its key and what to do; only an unknown activity is no more than a warning."""
    assert problems_of(tables, local=["resize"]) == expected


def test_skips_are_budgets() -> None:
    """A limit is a skip with a budget, which is no hold: below its bound it refuses nothing."""
    config = LimitsConfig(
        {"send_mail": Limit(10, "100/m"), "call": Limit(rate="5/s")},
        {"api": SharedLimit(3, None, ["send_mail", "call", "call"])},
    )
    shared = {"reasons": ("limited:shared api, concurrency 3",), "at_most": Budget("limits:shared:api", 3)}
    mail = Budget("limits:send_mail", 10, 100, 60.0)
    assert Limits().build_skip_list(fake_tick(Limits(config))) == [
        Skip("send_mail", ("limited:concurrency 10, 100/m",), at_most=mail),
        Skip("call", ("limited:5/s",), at_most=Budget("limits:call", None, 5, 1.0)),
        Skip("send_mail", **shared),
        Skip("call", **shared),
    ]
    assert Limits().build_skip_list(fake_tick(Limits())) is None


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (None, "they do not say what is limited"),
        ({"activities": {}}, "they do not say what is limited"),
        ({"activities": {"a": 3}, "shared": {}}, "3 is no limit"),
        ({"activities": {"a": {"concurrency": None, "rate": "9"}}, "shared": {}}, f"'9' is no rate; {RATE}"),
        ({"activities": {}, "shared": {"api": {"concurrency": 3, "rate": None}}}, None),
    ],
)
def test_unreadable_facts_close_the_gate(facts, why) -> None:
    """A worker whose limits cannot be read claims nothing, and is told so."""
    worker = fake_worker(name="w1", facts={"limits": facts})
    with pytest.raises(ValueError, match="published no readable facts") as caught:
        Limits().build_skip_list(fake_tick(worker=worker))
    if why is not None:
        assert str(caught.value).startswith("worker 'w1' published no readable facts of limits: ")
        assert str(caught.value).endswith(f" ({why}); restart it with this version of harvest-limits")


def test_lanes_and_facts() -> None:
    """A lane keeps its one at a time unless a concurrency is given; facts are the whole configuration."""
    config = LimitsConfig(lanes={"customer": Limit(2, "5/m"), "order": Limit(rate="1/s")})
    assert Limits(config).lanes() == [
        LaneLimit("customer", 2, 5, 60.0),
        LaneLimit("order", 1, 1, 1.0),
    ]
    assert Limits(config).publish(fake_build()) == {
        "activities": {},
        "shared": {},
        "lanes": {"customer": {"concurrency": 2, "rate": "5/m"}, "order": {"concurrency": None, "rate": "1/s"}},
    }
