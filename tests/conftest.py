"""The matrix: selected tests run on every PostgreSQL at hand."""

from __future__ import annotations

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
    """Run tests marked `matrix` on the embedded 18 and 16 and on Debian's; on the one chosen where one was chosen."""
    if metafunc.definition.get_closest_marker("matrix") is None:
        return
    chosen = postgresql_choice(metafunc.config)
    choices = ["18", "16", *(str(path) for path in sorted(ELSEWHERE.glob("*/bin")))]
    if metafunc.config.getoption("--harvest-postgresql") or chosen != metafunc.config.getini("harvest_postgresql"):
        choices = [chosen]
    names = [Path(choice).parent.name if choice.startswith("/") else choice for choice in choices]
    ids = [name if name.isdigit() else "chosen" for name in names]
    metafunc.parametrize("harvest_server", choices, ids=ids, indirect=True, scope="session")
