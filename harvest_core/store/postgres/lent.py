"""A connection that a caller lends for an enqueue: one that cannot serve is refused before anything is sent."""

from __future__ import annotations

from typing import TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from harvest_core.errors import EnqueueError

C = TypeVar("C", psycopg.Connection, psycopg.AsyncConnection)

_WRONG_WORLD = {
    psycopg.Connection: "it blocks: give it to app.sync_client(), which uses it in your thread and transaction",
    psycopg.AsyncConnection: "its event loop drives it: await app.client()'s enqueue on that loop",
}
_INSIDE = {
    psycopg.Connection: {
        "sqlalchemy": "that is inside of it: session.connection().connection.driver_connection",
        "django": "that is inside of it: django.db.connection.connection",
    },
    psycopg.AsyncConnection: {
        "sqlalchemy": "that is inside of it: "
        "(await (await session.connection()).get_raw_connection()).driver_connection",
        "django": "Django's connections block: use app.sync_client() and django.db.connection.connection",
    },
}


def lent(connection: object, kind: type[C], schema: str) -> C:
    """Return the connection, which is of that kind, open, and in no failed transaction.

    Args:
        connection: what the caller passed.
        kind: what this client can use.
        schema: named to those whose driver cannot serve.

    Raises:
        EnqueueError: it cannot serve; the message says how to get one that can.
    """
    if not isinstance(connection, kind):
        advice = _advice(connection, kind, schema)
        msg = f"connection is {_name(type(connection))}, not psycopg's {kind.__name__}; {advice}"
        raise EnqueueError(msg)
    if connection.closed:
        msg = "the given connection is closed; enqueue while it is open"
        raise EnqueueError(msg)
    if connection.info.transaction_status is TransactionStatus.INERROR:
        msg = "the transaction of the given connection has failed and can only be rolled back; do that, then enqueue"
        raise EnqueueError(msg)
    return connection


def _advice(connection: object, kind: type[C], schema: str) -> str:
    for other, advice in _WRONG_WORLD.items():
        if isinstance(connection, other):
            return advice
    driver = type(connection).__module__.partition(".")[0]
    in_sql = f"select {schema}.enqueue(…) in SQL does the same for any driver"
    if inside := _INSIDE[kind].get(driver):
        return inside
    if driver == "psycopg2":
        return f"use psycopg 3, in SQLAlchemy as postgresql+psycopg, for Django by installing it; {in_sql}"
    return in_sql


def _name(cls: type) -> str:
    return f"{cls.__module__.partition('.')[0]}'s {cls.__name__}"
