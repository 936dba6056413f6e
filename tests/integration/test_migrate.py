"""Migrations and the schema's name (design: Store; B1)."""

import asyncio

import psycopg
import pytest

from harvest_core import Call, Harvest
from harvest_core.errors import SchemaError
from harvest_core.store.postgres import migrate
from harvest_core.store.postgres.database import Database

AWKWARD = "order"
"""A schema name that SQL reserves: every place that forgets to quote it fails."""


@pytest.fixture
async def database(harvest_database):
    opened = []

    async def open_(schema):
        database = Database(harvest_database, schema)
        await database.open()
        opened.append(database)
        return database

    yield open_
    for database in opened:
        await database.close()


@pytest.mark.matrix
async def test_twice_is_once(database):
    """The second run finds nothing to do and changes nothing."""
    fresh = await database("fresh")
    assert await migrate.version(fresh) == 0
    assert await migrate.migrate(fresh) == [name for _, name, _ in migrate.MIGRATIONS]
    assert await migrate.migrate(fresh) == []
    assert await migrate.version(fresh) == migrate.NEWEST


@pytest.mark.matrix
async def test_several_processes_at_once(database):
    """Five start on an empty database together: one migrates, the others wait for it, none fails."""
    databases = [await database("fresh") for _ in range(5)]
    await asyncio.gather(*(migrate.require_newest(one) for one in databases))
    rows = await databases[0].fetch("select version from {schema}.migrations")
    assert rows == [(number,) for number, _, _ in migrate.MIGRATIONS]


async def test_an_interrupted_migration_leaves_nothing(database, monkeypatch):
    """A migration that fails half way is rolled back, and the next run begins anew."""
    fresh = await database("fresh")
    broken = [(number, name, f"{text}; select 1/0") for number, name, text in migrate.MIGRATIONS[:1]]
    with monkeypatch.context() as patch:
        patch.setattr(migrate, "MIGRATIONS", tuple(broken))
        with pytest.raises(psycopg.errors.DivisionByZero):
            await migrate.migrate(fresh)
    assert await migrate.version(fresh) == 0
    await migrate.require_newest(fresh)


async def test_a_schema_that_is_behind_is_refused_with_the_command(harvest_database, monkeypatch):
    """It is not migrated behind anyone's back: another version may be at work on it (B1)."""
    monkeypatch.setattr(migrate, "NEWEST", migrate.NEWEST + 1)
    with pytest.raises(SchemaError) as caught:
        async with Harvest({"harvest": {"dsn": harvest_database}}).client():
            pass
    assert str(caught.value) == (
        f"schema 'harvest' is at version {migrate.NEWEST - 1}, this Harvest needs {migrate.NEWEST}; "
        "run: harvest db migrate"
    )


async def test_a_schema_that_is_ahead_is_refused(harvest_database, database):
    """A newer schema may mean other things by the same names."""
    newer = await database("harvest")
    await newer.fetch("insert into {schema}.migrations (version, name) values (9999, 'future') returning 1")
    for opened in (
        Harvest({"harvest": {"dsn": harvest_database}}).client(),
        Harvest({"harvest": {"dsn": harvest_database}}).worker(),
    ):
        with pytest.raises(SchemaError) as caught:
            async with opened:
                pass
        assert str(caught.value) == (
            f"schema 'harvest' is at version 9999, newer than the {migrate.NEWEST} this Harvest knows; "
            "upgrade harvest-core here, or point the DSN at another database"
        )


@pytest.mark.matrix
async def test_another_schema_name_works_throughout(harvest_database):
    """Everything runs in a schema whose name must be quoted, beside the other one, which stays empty."""
    app = Harvest(
        {
            "harvest": {"dsn": harvest_database, "schema": AWKWARD},
            "worker": {"poll_interval": "1h", "shutdown_grace": "5s"},
        }
    )
    attempts = []

    @app.activity(max_attempts=2)
    async def work(number: int):
        attempts.append(number)
        if number == 1 and attempts.count(1) == 1:
            raise ValueError("once")
        return number

    async with app.client() as client, app.worker() as worker:
        loop = asyncio.ensure_future(worker.run())
        database = client.database
        while not (await database.fetch("select bool_or(asleep) from {schema}.workers"))[0][0]:
            await asyncio.sleep(0.01)
        made = await client.enqueue_many([Call(work, (number,), key=str(number)) for number in range(3)])
        await client.set_setting("a", 1)
        await client.pause_queue("other")
        assert [await task.result(timeout=10) for task in (made[0], made[2])] == [0, 2]
        await database.fetch("update {schema}.tasks set scheduled_at = now() returning 1")
        await database.fetch(f"select pg_notify('{AWKWARD}', 'default')")
        assert await made[1].result(timeout=10) == 1
        worker.stop()
        await loop
    with psycopg.connect(harvest_database) as connection:
        tables = connection.execute(
            "select relname from pg_class where relnamespace = 'harvest'::regnamespace and relkind = 'r'"
        )
        for (table,) in tables.fetchall():
            if table != "migrations":
                count = connection.execute(f"select count(*) from harvest.{table}").fetchone()[0]
                assert (table, count) == (table, 0)


async def test_a_migration_touches_nothing_outside_its_schema(harvest_database, database):
    """No object appears in public or any other schema."""
    await migrate.migrate(await database("fresh"))
    with psycopg.connect(harvest_database) as connection:
        for catalogue, column in (
            ("pg_class", "relnamespace"),
            ("pg_proc", "pronamespace"),
            ("pg_type", "typnamespace"),
        ):
            count = connection.execute(f"select count(*) from {catalogue} where {column} = 'public'::regnamespace")
            assert count.fetchone() == (0,)
