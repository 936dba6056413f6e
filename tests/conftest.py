"""The matrix: selected tests run on every PostgreSQL at hand."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from harvest_core.testing.pytest_plugin import postgresql_choice

ELSEWHERE = Path("/usr/lib/postgresql")
"""Where Debian puts its PostgreSQLs."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    line = "matrix: run on every PostgreSQL at hand; the test uses harvest_server, or a fixture that does"
    config.addinivalue_line("markers", line)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests marked `matrix` on the embedded 18 and on Debian's 15; on the one chosen where one was chosen."""
    if metafunc.definition.get_closest_marker("matrix") is None:
        return
    chosen = postgresql_choice(metafunc.config)
    choices = ["18", *(str(path) for path in sorted(ELSEWHERE.glob("*/bin")))]
    if metafunc.config.getoption("--harvest-postgresql") or chosen != metafunc.config.getini("harvest_postgresql"):
        choices = [chosen]
    names = [Path(choice).parent.name if choice.startswith("/") else choice for choice in choices]
    ids = [name if name.isdigit() else "chosen" for name in names]
    metafunc.parametrize("harvest_server", choices, ids=ids, indirect=True, scope="session")


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Undo what a command run in this process does to the logs: a later test may read them."""
    loggers = [logging.getLogger(), logging.getLogger("harvest")]
    before = [(logger.level, logger.propagate, logger.disabled) for logger in loggers]
    yield
    for logger, (level, propagate, disabled) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.propagate, logger.disabled = propagate, disabled
