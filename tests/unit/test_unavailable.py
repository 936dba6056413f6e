"""What is said of a database that is away, from the words of the driver."""

from __future__ import annotations

import psycopg
import pytest

from harvest_core.store.postgres.database import unavailable

REFUSED = (
    'connection failed: connection to server at "{}", port 5432 failed: Connection refused\n'
    "\tIs the server running on that host and accepting TCP/IP connections?"
)
FIRST, SECOND = REFUSED.format("::1"), REFUSED.format("127.0.0.1")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            FIRST,
            'connection failed: connection to server at "::1", port 5432 failed: Connection refused',
        ),
        (
            f"{SECOND}\nMultiple connection attempts failed. All failures were:\n"
            f"- host: a: {FIRST}\n- host: b: {SECOND}",
            'connection failed: connection to server at "127.0.0.1", port 5432 failed: Connection refused; '
            "Multiple connection attempts failed. All failures were: "
            'host: a: connection failed: connection to server at "::1", port 5432 failed: Connection refused; '
            'host: b: connection failed: connection to server at "127.0.0.1", port 5432 failed: Connection refused',
        ),
        ("failed to resolve host 'x': [Errno -2]  Name unknown", "failed to resolve host 'x': [Errno -2] Name unknown"),
    ],
    ids=["one address", "several", "no address"],
)
def test_the_drivers_lines_become_one(said, told):
    """O2: a sentence, parts apart, without a question that the advice behind it answers."""
    assert str(unavailable("postgresql://localhost/shop", psycopg.OperationalError(said))) == (
        f"the database at localhost:5432/shop cannot be used: {told}; "
        "check that it runs and that the DSN (HARVEST_DSN) is right"
    )
