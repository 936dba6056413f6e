"""The pytest plugin: a real PostgreSQL and runners of clauses and claims, as fixtures.

Imports the core inside its fixtures only, so that a coverage measurement that starts after it misses nothing, and that
whoever uses no fixture pays nothing. Switch it off with `-p no:harvest`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harvest_core.testing.claim_runner import ClaimRunner
    from harvest_core.testing.clause_runner import ClauseRunner
    from harvest_core.testing.servers import Servers

_OPTION = "--harvest-postgresql"
_MEANING = (
    "PostgreSQL for the tests: 18 or 16 for the embedded ones, or a folder with postgres and initdb, "
    "such as /usr/lib/postgresql/15/bin"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the choice of PostgreSQL, as an option and as a key of the ini file."""
    over = f"{_MEANING}; goes over HARVEST_TEST_DSN, HARVEST_DSN and the ini key harvest_postgresql"
    parser.getgroup("harvest").addoption(_OPTION, metavar="CHOICE", help=over)
    parser.addini("harvest_postgresql", f"{_MEANING}; the embedded 18 unless given", default="18")


def postgresql_choice(config: pytest.Config) -> str:
    """Return which PostgreSQL the tests use: the option, HARVEST_TEST_DSN, HARVEST_DSN, the ini key, else 18."""
    option: str | None = config.getoption(_OPTION)
    dsn = os.environ.get("HARVEST_TEST_DSN") or os.environ.get("HARVEST_DSN")
    return option or dsn or str(config.getini("harvest_postgresql"))


@pytest.fixture(scope="session")
def harvest_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Give the session's PostgreSQL servers, for tests that need more than the chosen one."""
    from harvest_core.testing.servers import Servers

    servers = Servers(tmp_path_factory.mktemp)
    yield servers
    servers.close()


@pytest.fixture(scope="session")
def harvest_server(request: pytest.FixtureRequest, harvest_servers: Servers) -> str:
    """Give the DSN of the chosen PostgreSQL; parametrize it indirectly, with choices, to run a test on several."""
    return harvest_servers.dsn(getattr(request, "param", None) or postgresql_choice(request.config))


@pytest.fixture
def harvest_database(harvest_server: str, harvest_servers: Servers) -> Iterator[str]:
    """Give the DSN of a fresh database with a migrated schema `harvest`; it is dropped at the end."""
    with harvest_servers.database(harvest_server) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def clause_runner(harvest_server: str) -> Iterator[ClauseRunner]:
    """Give a runner of one clause over routes, on a real database."""
    import psycopg

    from harvest_core.testing.clause_runner import ClauseRunner

    with psycopg.connect(harvest_server, autocommit=True) as connection:
        yield ClauseRunner(connection)


@pytest.fixture(scope="session")
def claim_runner(harvest_server: str, harvest_servers: Servers) -> Iterator[ClaimRunner]:
    """Give a runner of whole claims over routes, on a database of its own; nothing stays written."""
    from harvest_core.testing.claim_runner import ClaimRunner

    with harvest_servers.database(harvest_server) as dsn, ClaimRunner.on(dsn) as runner:
        yield runner
