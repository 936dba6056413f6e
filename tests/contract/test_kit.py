"""The kit's fakes, runners and databases (P2)."""

import psycopg
import pytest
from harvest_flags import Flags, FlagsConfig

from harvest_core import DatabaseUnavailableError
from harvest_core.plugin import Clause
from harvest_core.testing import FakeClock, FakeSignal, fake_build, fake_route, fake_tick, fake_worker

pytest_plugins = ["pytester"]


def test_a_fake_tick_carries_what_its_plugins_publish():
    """P2: facts have passed through JSON, and what a test gives goes over them."""
    flags = Flags(FlagsConfig(forbidden=["gpu"]))
    tick = fake_tick(flags, live={"other": 1}, waiting=["default"])
    assert tick.worker.facts == {"flags": {"accepted": [], "forbidden": ["gpu"], "allowlist": None}}
    assert (tick.free, tick.live, tick.turns, tick.waiting) == (1, {"other": 1}, {"default": 0}, {"default"})
    assert fake_worker(flags, facts={"flags": None}).facts == {"flags": None}
    assert [clause.values for clause in flags.filter_clause(tick)] == [{"forbidden": ["gpu"]}]


def test_a_fake_build_has_activities_with_options():
    """P2: `check_build` sees activities, queues and plugins."""
    build = fake_build(Flags(), activities={"train": {"requires": "gpu = true"}}, queues=["a", "b"])
    assert build.activities["train"].options == {"requires": "gpu = true"}
    assert (build.queues, build.plugins) == (("a", "b"), {"flags"})


def test_a_fake_clock_and_a_fake_signal_do_what_the_test_says():
    """P2: no test waits for time or for a meter."""
    clock, signal = FakeClock(5.0), FakeSignal(400)
    clock.advance(2.5)
    assert clock() == 7.5
    assert signal.read() == 400
    signal.error = OSError("no answer")
    with pytest.raises(OSError, match="no answer"):
        signal.read()
    assert signal.reads == 2


@pytest.mark.matrix
def test_a_clause_is_judged_in_order_of_the_routes(clause_runner):
    """P2: each route has its verdict, whatever its traits and ids are."""
    clause = Clause("r.traits ->> 'n' = {n} is true and r.id % 2 = 1", {"n": "1"}, list)
    routes = [fake_route(id=number, traits={"n": n}) for number, n in [(3, "1"), (1, "ü\"'\\"), (2, "1"), (1, "1")]]
    assert clause_runner.verdicts(clause, routes) == [True, False, False, True]
    assert clause_runner.verdict(clause, fake_route(traits={"n": 1}))


def test_a_null_verdict_names_clause_and_route(clause_runner):
    """P2: NULL is no verdict."""
    with pytest.raises(AssertionError) as caught:
        clause_runner.verdict(Clause("r.traits ->> 'n' = {n}", {"n": "1"}, list), fake_route())
    assert str(caught.value) == (
        "the clause \"r.traits ->> 'n' = {n}\" is NULL for "
        "Route(id=1, queue='default', kind='activity', name='work', traits={})"
    )


def test_a_clause_may_do_what_the_probe_refuses(clause_runner):
    """P2: the runner has no restrictions, so that SQL other than clauses can be tried; but one statement it is."""
    assert clause_runner.verdict(Clause("exists (select from pg_class)", {}, list), fake_route())
    with pytest.raises(psycopg.errors.SyntaxError):
        clause_runner.verdict(Clause("true); select (true", {}, list), fake_route())


def test_a_claim_runner_leaves_nothing_behind(claim_runner):
    """P2: what one case writes no other one sees."""
    assert claim_runner.taken([], fake_tick(), [fake_route(), fake_route(name="unknown")]) == {0}
    with psycopg.connect(claim_runner.dsn) as connection:
        for table in ("routes", "tasks", "workers"):
            assert connection.execute(f"select count(*) from harvest.{table}").fetchone() == (0,)


@pytest.mark.matrix
def test_databases_are_fresh_and_migrated(harvest_server, harvest_servers):
    """P2: each test has a database of its own, which is gone afterwards."""
    with harvest_servers.database(harvest_server) as one, harvest_servers.database(harvest_server) as other:
        with psycopg.connect(one) as connection:
            connection.execute("select harvest.enqueue('work')")
        with psycopg.connect(other) as connection:
            assert connection.execute("select count(*) from harvest.tasks").fetchone() == (0,)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(one)


def test_a_folder_without_a_postgresql_is_refused(harvest_servers, tmp_path):
    """P2: who names a folder is told what belongs there."""
    with pytest.raises(DatabaseUnavailableError) as caught:
        harvest_servers.dsn(str(tmp_path))
    assert str(caught.value) == (
        f"{tmp_path} holds no PostgreSQL that runs ([Errno 2] No such file or directory: '{tmp_path}/postgres'): "
        "name the folder of postgres and initdb"
    )


CHOICE = """
def test_choice(request, harvest_server):
    from harvest_core.testing.pytest_plugin import postgresql_choice
    assert postgresql_choice(request.config) == {expected!r}
    assert harvest_server.startswith({start!r})
"""


@pytest.mark.parametrize(
    ("option", "environment", "ini", "expected"),
    [
        ([], {"HARVEST_DSN": "postgresql://app/"}, "16", "postgresql://app/"),
        ([], {"HARVEST_TEST_DSN": "postgresql://test/", "HARVEST_DSN": "postgresql://app/"}, "", "postgresql://test/"),
        (["--harvest-postgresql=host=given"], {"HARVEST_TEST_DSN": "postgresql://test/"}, "", "host=given"),
        ([], {}, "host=ini", "host=ini"),
    ],
)
def test_which_postgresql_is_chosen(pytester, monkeypatch, option, environment, ini, expected):
    """P2: option, HARVEST_TEST_DSN, HARVEST_DSN, ini key, in this order; a DSN is taken as it is."""
    for name in ("HARVEST_TEST_DSN", "HARVEST_DSN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    pytester.makeini(f"[pytest]\nharvest_postgresql = {ini}\n")
    pytester.makepyfile(CHOICE.format(expected=expected, start=expected))
    pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:asyncio", *option).assert_outcomes(passed=1)
