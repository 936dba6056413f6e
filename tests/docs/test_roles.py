"""The page on roles does what it says: each role may do its work, and is refused the others'."""

import asyncio
import re
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from harvest_core import Harvest, MissingRightError
from harvest_core.errors import SchemaError
from harvest_core.store.postgres import migrate, tasks
from harvest_core.store.postgres.database import Database

PAGE = (Path(__file__).parents[2] / "docs/how-to/roles.md").read_text(encoding="utf-8")
SQL = dict(re.findall(r"<!-- test: ([\w-]+) -->\n```sql\n(.*?)```", PAGE, re.DOTALL))
ROLES = ("harvest_owner", "harvest_worker", "harvest_client", "harvest_reader")
COMING = "create table {schema}.coming (id bigint); create sequence {schema}.comings"


def drop_roles(connection):
    """Leave no role behind: they are the whole server's."""
    for role in reversed(ROLES):
        if connection.execute("select from pg_roles where rolname = %s", [role]).rowcount:
            connection.execute(f"drop owned by {role} cascade")
            connection.execute(f"drop role {role}")


@pytest.fixture
def roles(harvest_database):
    """Give a function from a role to its DSN, on a database in which the first part of the page has been run."""
    with psycopg.connect(harvest_database, autocommit=True) as connection:
        connection.execute("drop schema harvest cascade")
        drop_roles(connection)
        connection.execute(SQL["roles-once"])
        for role in ROLES:
            connection.execute(f"alter role {role} password 'secret'")
        yield lambda role: make_conninfo(harvest_database, user=f"harvest_{role}", password="secret")
        drop_roles(connection)


async def migrated(dsn):
    database = Database(dsn)
    await database.open()
    await migrate.migrate(database)
    await database.close()


async def granted(roles):
    """Do what follows on the page."""
    await migrated(roles("owner"))
    with psycopg.connect(roles("owner"), autocommit=True) as connection:
        connection.execute(SQL["roles"])


def app_as(dsn, **harvest):
    """Return an app of a role; its policy brings a clause."""
    worker = {"poll_interval": "50ms", "shutdown_grace": "5s"}
    app = Harvest({"harvest": {"dsn": dsn, "plugins": ["flags"]} | harvest, "worker": worker})

    @app.activity(max_attempts=2)
    async def work(number):
        return number

    return app, work


@pytest.mark.matrix
async def test_each_role_does_its_work(roles):
    """A client enqueues, also under REPEATABLE READ and with a key, a worker runs and looks after, a reader sees."""
    await granted(roles)
    (app, work), (behind, _), (looking, _) = (app_as(roles(role)) for role in ("client", "worker", "reader"))
    async with app.client() as client, behind.worker() as worker, looking.client() as reader:
        loop = asyncio.ensure_future(worker.run())
        made = [await client.enqueue(work, number, key=str(number), flags={"vip"}) for number in range(3)]
        async with await psycopg.AsyncConnection.connect(roles("client")) as own:
            await own.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
            made.append(await client.enqueue(work, 3, flags={"vip"}, connection=own))
        for number, task in enumerate(made):
            assert await reader.result(task.id, timeout=20) == number
        worker.stop()
        await loop
    database = Database(roles("worker"))
    await database.open()
    assert (await tasks.rescue(database)).orphaned == 0
    assert await tasks.remove_idle_routes(database) == 1
    assert await tasks.extend_finished(database, 9) == 2
    await database.close()


REFUSED = [
    ("client", "select args from harvest.tasks"),
    ("client", "select result from harvest.finished"),
    ("client", "select host from harvest.workers"),
    ("client", "delete from harvest.tasks"),
    ("client", "update harvest.finished set priority = 9"),
    ("client", "select harvest.pause_queue('default')"),
    ("client", "select harvest.set_setting('a', '1')"),
    ("client", "insert into harvest.finished select"),
    ("client", "create table harvest.mine ()"),
    ("reader", "select harvest.enqueue('work')"),
    ("reader", "insert into harvest.tasks (id) values (1)"),
    ("reader", "update harvest.tasks set priority = 9"),
    ("reader", "delete from harvest.finished"),
    ("reader", "select nextval('harvest.tokens')"),
    ("reader", "create table harvest.mine ()"),
    ("worker", "create table harvest.mine ()"),
    ("worker", "drop table harvest.tasks"),
    ("worker", "alter table harvest.tasks add column mine text"),
    ("worker", "truncate harvest.tasks"),
    ("worker", "insert into harvest.migrations (version, name) values (99, 'mine')"),
    ("worker", "drop function harvest.promote"),
    ("worker", "drop schema harvest cascade"),
]


async def test_each_role_is_refused_what_it_must_not_do(roles):
    """Least privilege, statement by statement; what runs with its owner's rights is the worker's alone."""
    await granted(roles)
    for role, statement in REFUSED:
        denied = pytest.raises(psycopg.errors.InsufficientPrivilege)
        with psycopg.connect(roles(role), autocommit=True) as connection, denied:
            connection.execute(statement)
    with psycopg.connect(roles("owner"), autocommit=True) as connection:
        definers = "select oid from pg_proc where prosecdef and pronamespace = 'harvest'::regnamespace"
        for role, may in (("client", False), ("reader", False), ("worker", True)):
            text = f"select oid::regproc, has_function_privilege('harvest_{role}', oid, 'execute') from ({definers}) d"
            assert {rights for _, rights in connection.execute(text).fetchall()} == {may}, role


async def test_what_a_later_version_adds_is_granted(roles, monkeypatch):
    """A table of the next migration is the worker's and the reader's; functions wait for the page to be run again."""
    await granted(roles)
    monkeypatch.setattr(migrate, "MIGRATIONS", (*migrate.MIGRATIONS, (9999, "9999_coming", COMING)))
    monkeypatch.setattr(migrate, "NEWEST", 9999)
    await migrated(roles("owner"))
    with psycopg.connect(roles("owner"), autocommit=True) as connection:
        for role, right, may in (
            ("worker", "insert", True),
            ("worker", "delete", True),
            ("reader", "select", True),
            ("reader", "insert", False),
            ("client", "select", False),
        ):
            text = "select has_table_privilege(%s, 'harvest.coming', %s)"
            assert connection.execute(text, [f"harvest_{role}", right]).fetchone() == (may,), (role, right)
        connection.execute("create function harvest.coming() returns int language sql as 'select 1'")
        for role, may in (("worker", True), ("client", False), ("reader", False)):
            text = "select has_function_privilege(%s, 'harvest.coming()', 'execute')"
            assert connection.execute(text, [f"harvest_{role}"]).fetchone() == (may,), role
        connection.execute(SQL["roles"])


async def test_a_missing_right_is_named(roles, harvest_database):
    """Before the grants and beyond them: a sentence with the role and what it may not do."""
    with psycopg.connect(harvest_database, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute("drop schema harvest")
    with pytest.raises(SchemaError) as caught:
        async with app_as(roles("worker"))[0].worker():
            pass
    assert str(caught.value) == (
        "schema 'harvest' has not been made yet, and role 'harvest_worker' may not make it "
        f"(permission denied for database {name}); let the schema's owner run: harvest db migrate"
    )
    with psycopg.connect(harvest_database, autocommit=True) as connection:
        connection.execute("create schema harvest authorization harvest_owner")
    await migrated(roles("owner"))
    with pytest.raises(MissingRightError) as denied:
        async with app_as(roles("worker"))[0].worker():
            pass
    assert str(denied.value) == (
        "role 'harvest_worker' lacks a right: permission denied for schema harvest; "
        'the page "Give each program the rights it needs" of Harvest\'s documentation says what a role is granted'
    )
    await granted(roles)
    with pytest.raises(
        MissingRightError, match="role 'harvest_reader' lacks a right: permission denied for table workers"
    ):
        async with app_as(roles("reader"))[0].worker():
            pass


async def test_a_running_worker_waits_for_its_right(roles, caplog):
    """A right that goes is told, and once it is back the work goes on."""
    await granted(roles)
    (app, work), (behind, _) = app_as(roles("client")), app_as(roles("worker"))
    with psycopg.connect(roles("owner"), autocommit=True) as owner:
        async with app.client() as client, behind.worker() as worker:
            owner.execute("revoke update on harvest.tasks from harvest_worker")
            loop = asyncio.ensure_future(worker.run())
            await client.enqueue(work, 1)
            said = "nothing is claimed: role 'harvest_worker' lacks a right: permission denied for table tasks"
            async with asyncio.timeout(20):
                while not any(record.message.startswith(said) for record in caplog.records):
                    await asyncio.sleep(0.02)
                owner.execute("grant update on harvest.tasks to harvest_worker")
                while owner.execute("select count(*) from harvest.finished").fetchone() == (0,):
                    await asyncio.sleep(0.02)
            worker.stop()
            await loop
