"""Two apps in one database by two schemas: nothing of one reaches the other."""

import asyncio

import psycopg
import pytest
from psycopg import sql

from harvest_core import Harvest
from harvest_core.store.postgres import migrate, tasks
from harvest_core.store.postgres.database import Database

SCHEMAS = ("shop", "order")
"""The second must be quoted everywhere."""


@pytest.fixture
async def databases(harvest_database):
    """Give a migrated database for each schema."""
    opened = [Database(harvest_database, schema) for schema in SCHEMAS]
    for database in opened:
        await database.open()
        await migrate.migrate(database)
    yield opened
    for database in opened:
        await database.close()


def catalogue(dsn, schema):
    """Return everything in a schema, with the moment of its last change as the catalogue keeps it."""
    with psycopg.connect(dsn) as connection:
        return [
            connection.execute(
                f"select {name}, xmin::text from {table} where {space} = quote_ident(%s)::regnamespace order by oid",
                [schema],
            ).fetchall()
            for table, name, space in (
                ("pg_class", "relname", "relnamespace"),
                ("pg_proc", "proname", "pronamespace"),
                ("pg_type", "typname", "typnamespace"),
            )
        ]


@pytest.mark.matrix
async def test_tasks_notifications_pauses_and_settings_stay_apart(harvest_database, databases):
    """The same names and keys in both: each worker runs its own tasks, and hears of its own alone."""
    apps, seen = [], []
    for schema in SCHEMAS:
        app = Harvest(
            {
                "harvest": {"dsn": harvest_database, "schema": schema},
                "worker": {"poll_interval": "1h", "shutdown_grace": "5s"},
            }
        )

        @app.activity
        async def work(number, schema=schema):
            seen.append((schema, number))
            return schema

        apps.append((app, work))
    (first, one), (second, other) = apps
    async with first.client() as shop, second.client() as big, first.worker() as worker, second.worker() as rival:
        loops = [asyncio.ensure_future(process.run()) for process in (worker, rival)]
        for database in databases:
            while (await database.fetch("select bool_and(asleep) from {schema}.workers")) != [(True,)]:
                await asyncio.sleep(0.01)
        await big.pause_queue("default")
        await big.set_setting("a", 1)
        assert await shop.settings() == {}
        task, held = await shop.enqueue(one, 1, key="k"), await big.enqueue(other, 2, key="k")
        assert (task.created, held.created) == (True, True)
        assert await task.result(timeout=10) == "shop"
        assert (await held.status()).state == "pending"
        assert await big.resume_queue("default")
        assert await held.result(timeout=10) == "order"
        assert seen == [("shop", 1), ("order", 2)]
        for process in (worker, rival):
            process.stop()
        await asyncio.gather(*loops)


async def test_a_notification_goes_by_the_schema(harvest_database, databases):
    """Each has its channel: a listener of one hears nothing of the other."""
    async with await psycopg.AsyncConnection.connect(harvest_database, autocommit=True) as listening:
        await listening.execute('listen "shop"')
        for database in reversed(databases):
            await database.fetch("select {schema}.set_setting(%s, '1')", [database.schema])
        heard = [note.payload async for note in listening.notifies(timeout=5, stop_after=1)]
        assert heard == ["setting:shop"]


async def test_one_migrates_while_the_other_works(harvest_database, databases, monkeypatch):
    """A migration of one is under way and holds its locks; the other enqueues, extends, cleans and migrates."""
    shop, big = databases
    before = catalogue(harvest_database, "order")
    async with await psycopg.AsyncConnection.connect(harvest_database) as migrating:
        await migrating.execute(sql.SQL(migrate._LOCK).format(**migrate._names("shop")))
        await migrating.execute("select shop.extend_finished(0)")
        await migrating.execute("alter table shop.tasks add column coming text")
        async with asyncio.timeout(10):
            await big.fetch("select {schema}.enqueue('work')")
            assert await tasks.extend_finished(big, 7) == 0
            assert await tasks.remove_idle_routes(big) == 0
            assert catalogue(harvest_database, "order") == before
            monkeypatch.setattr(migrate, "MIGRATIONS", (*migrate.MIGRATIONS, (9999, "9999_coming", "select 1")))
            monkeypatch.setattr(migrate, "NEWEST", 9999)
            assert await migrate.migrate(big) == ["9999_coming"]
            assert await tasks.extend_finished(big, 8) == 1
        await migrating.rollback()
    before = catalogue(harvest_database, "order")
    assert await migrate.migrate(shop) == ["9999_coming"]
    assert catalogue(harvest_database, "order") == before
    days = (
        "select count(*) from pg_class where relname like 'finished~_2%%' escape '~' and relkind = 'r' "
        "and relnamespace = %s::text::regnamespace"
    )
    assert [(await one.fetch(days, [one.quoted]))[0][0] for one in databases] == [8, 9]
