"""Enqueueing on a connection of the caller's: in his transaction, whatever his settings, or refused (K9)."""

import asyncio
import threading
from types import SimpleNamespace

import psycopg
import pytest
from psycopg.types.json import set_json_loads

from harvest_core import Call, Harvest
from harvest_core.errors import EnqueueError, HarvestError, KeyTakenError, PayloadError, SchemaError

PATIENCE = 15.0


@pytest.fixture
def app(harvest_database):
    app = Harvest({"harvest": {"dsn": harvest_database}, "worker": {"poll_interval": "60s"}})

    @app.activity
    def work(text: str) -> str:
        return text

    return app


@pytest.fixture(params=["sync", "async"])
def world(request, app, harvest_database):
    """Give one world's connect, enqueue and call of a connection's method, as plain functions."""
    if request.param == "sync":
        client = app.sync_client()
        yield SimpleNamespace(
            name="sync",
            kind=psycopg.Connection,
            client=client,
            connect=lambda **options: psycopg.connect(harvest_database, **options),
            enqueue=client.enqueue,
            many=client.enqueue_many,
            call=lambda function, *args: function(*args),
        )
        assert client._client._opened is None, "a client that enqueues on others' connections opens none"
        return
    with asyncio.Runner() as runner:
        client = app.client()

        def run(function, *args, **options):
            async def inside():
                return await function(*args, **options)

            return runner.run(inside())

        yield SimpleNamespace(
            name="async",
            kind=psycopg.AsyncConnection,
            client=client,
            connect=lambda **options: run(psycopg.AsyncConnection.connect, harvest_database, **options),
            enqueue=lambda *args, **options: run(client.enqueue, *args, **options),
            many=lambda *args, **options: run(client.enqueue_many, *args, **options),
            call=run,
        )


@pytest.fixture
def lend(world):
    """Give a connection of the world, closed at the end."""
    opened = []

    def connect(**options):
        opened.append(world.connect(**options))
        return opened[-1]

    yield connect
    for connection in opened:
        world.call(connection.close)


def texts(dsn):
    """Return what the committed tasks have as their argument."""
    with psycopg.connect(dsn) as connection:
        return [row[0] for row in connection.execute("select args->>0 from harvest.tasks order by id")]


# ------------------------------------------------------------------------------------------------ the transaction


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_the_callers_transaction_decides(end, world, lend, harvest_database):
    """Committed means enqueued, rolled back means never; the client opens no connection of its own (K9)."""
    caller = lend()
    task = world.enqueue("work", "a", connection=caller)
    many = world.many(
        [Call("work", ("b",)), Call("work", ("c",), key="k"), Call("work", ("d",), key="k")], connection=caller
    )
    assert task.created
    assert [one.created for one in many] == [True, True, False]
    assert many[1].id == many[2].id
    assert world.many([], connection=caller) == []
    assert texts(harvest_database) == []
    world.call(getattr(caller, end))
    assert texts(harvest_database) == (["a", "b", "c"] if end == "commit" else [])


def test_a_savepoint_of_the_caller_decides_too(world, lend, harvest_database):
    """What is rolled back to a savepoint was not enqueued; the rest was."""
    caller = lend()
    world.enqueue("work", "kept", connection=caller)
    world.call(caller.execute, "savepoint mine")
    world.enqueue("work", "undone", connection=caller)
    world.call(caller.execute, "rollback to savepoint mine")
    world.call(caller.commit)
    assert texts(harvest_database) == ["kept"]


def test_in_autocommit_it_is_there_at_once(world, lend, harvest_database):
    """A connection in autocommit has no transaction to wait for."""
    world.enqueue("work", "a", connection=lend(autocommit=True))
    assert texts(harvest_database) == ["a"]


def test_a_refused_task_leaves_the_transaction_as_it_was(world, lend, harvest_database):
    """What the client refuses never reaches the server: the caller goes on."""
    caller = lend()
    world.enqueue("work", "a", connection=caller)
    with pytest.raises(PayloadError):
        world.many([Call("work", ("b",)), Call("work", ("\x00",))], connection=caller)
    world.enqueue("work", "c", connection=caller)
    world.call(caller.commit)
    assert texts(harvest_database) == ["a", "c"]


def test_a_sleeping_worker_wakes_at_the_commit(world, lend, app, harvest_database, until_asleep):
    """A worker that looks by itself once a minute runs the task at once, but not before the commit (K11)."""
    caller = lend()
    worker = app.sync_worker()
    with worker, app.sync_client() as looking:
        thread = threading.Thread(target=worker.run)
        thread.start()
        with psycopg.connect(harvest_database, autocommit=True) as watch:
            watch.execute("listen harvest")
            until_asleep()
            task = world.enqueue("work", "a", connection=caller)
            assert list(watch.notifies(timeout=0)) == []
            world.call(caller.commit)
            assert looking.result(task.id, timeout=PATIENCE) == "a"
        worker.stop()
        thread.join()


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_taken_key_fails_the_transaction_and_says_so(autocommit, world, lend, harvest_database):
    """PostgreSQL found it, so a transaction is spoilt as by any error; in autocommit nothing is. A savepoint helps."""
    caller = lend(autocommit=autocommit)
    first = world.enqueue("work", "a", key="k", connection=caller)
    if not autocommit:
        world.call(caller.execute, "savepoint mine")
    with pytest.raises(KeyTakenError) as caught:
        world.enqueue("work", "b", key="k", on_conflict="raise", connection=caller)
    rest = (
        ", and the transaction has failed: roll back to a savepoint set before this enqueue, or all of it, as a commit "
        "now would without an error. SQLAlchemy: fetch the connection inside session.begin_nested(); Django: enqueue "
        "inside a nested atomic()"
    )
    rest = "" if autocommit else rest
    assert str(caught.value) == f"task 1 (work): its key is taken by task {first.id}; nothing was written{rest}"
    if not autocommit:
        world.call(caller.execute, "rollback to savepoint mine")
        world.call(caller.commit)
    assert texts(harvest_database) == ["a"]


# ------------------------------------------------------------------------------------------------ strange connections


class OwnCursor(psycopg.Cursor):
    def execute(self, *args, **options):
        raise AssertionError("the caller's cursors are his")


class OwnAsyncCursor(psycopg.AsyncCursor):
    async def execute(self, *args, **options):
        raise AssertionError("the caller's cursors are his")


def refuse(*_):
    raise AssertionError("the caller's JSON is his")


@pytest.mark.parametrize("what", ["rows", "cursor", "raw", "client", "loads", "integers", "serializable", "path"])
def test_the_callers_settings_do_not_matter(what, world, lend, harvest_database):
    """Row and cursor factories, JSON and number loaders, isolation and search path are the caller's own."""
    asynchronous = world.name == "async"
    factories = {
        "cursor": OwnAsyncCursor if asynchronous else OwnCursor,
        "raw": psycopg.AsyncRawCursor if asynchronous else psycopg.RawCursor,
        "client": psycopg.AsyncClientCursor if asynchronous else psycopg.ClientCursor,
    }
    caller = lend(row_factory=psycopg.rows.dict_row) if what == "rows" else lend()
    if what in factories:
        caller.cursor_factory = factories[what]
    if what == "loads":
        set_json_loads(refuse, caller)
    if what == "integers":
        caller.adapters.register_loader("int8", psycopg.types.string.TextLoader)
    if what == "serializable":
        level = psycopg.IsolationLevel.SERIALIZABLE
        world.call(caller.set_isolation_level, level) if asynchronous else setattr(caller, "isolation_level", level)
    if what == "path":
        world.call(caller.execute, "set search_path to nowhere")
    task = world.enqueue("work", 'é"\\', connection=caller, delay="1h", priority=3)
    assert isinstance(task.id, int)
    world.call(caller.commit)
    assert texts(harvest_database) == ['é"\\']


def test_in_a_pipeline(app, harvest_database):
    """In pipeline mode, in both worlds, it sends what is before it and waits for its own answer."""
    client = app.sync_client()
    with psycopg.connect(harvest_database) as caller, caller.pipeline():
        caller.execute("select 1")
        first = client.enqueue("work", "a", connection=caller)
        caller.execute("select 1")
        assert client.enqueue("work", "b", connection=caller).id > first.id

    async def inside():
        async with await psycopg.AsyncConnection.connect(harvest_database) as caller, caller.pipeline():
            await caller.execute("select 1")
            assert (await app.client().enqueue("work", "c", connection=caller)).created

    asyncio.run(inside())
    assert texts(harvest_database) == ["a", "b", "c"]


# ------------------------------------------------------------------------------------------------ refusals


def test_a_closed_connection_is_refused(world, lend, harvest_database):
    """It is told, and no other connection is taken in its place."""
    caller = lend()
    world.call(caller.close)
    with pytest.raises(EnqueueError) as caught:
        world.enqueue("work", "a", connection=caller)
    assert str(caught.value) == "the given connection is closed; enqueue while it is open"
    assert texts(harvest_database) == []


def test_a_failed_transaction_is_refused(world, lend, harvest_database):
    """A transaction that can only be rolled back takes no task; afterwards it does."""
    caller = lend()
    with pytest.raises(psycopg.errors.DivisionByZero):
        world.call(caller.execute, "select 1/0")
    with pytest.raises(EnqueueError) as caught:
        world.enqueue("work", "a", connection=caller)
    assert str(caught.value) == (
        "the transaction of the given connection has failed and can only be rolled back; do that, then enqueue"
    )
    world.call(caller.rollback)
    world.enqueue("work", "b", connection=caller)
    world.call(caller.commit)
    assert texts(harvest_database) == ["b"]


def test_a_database_without_the_schema_is_told(world, harvest_server):
    """A connection to somewhere else names the database it leads to."""

    def enqueue_there(caller):
        with pytest.raises(SchemaError) as caught:
            world.enqueue("work", "a", connection=caller)
        return str(caught.value)

    connect = world.kind.connect
    caller = world.call(connect, harvest_server)
    message = enqueue_there(caller)
    world.call(caller.close)
    name = psycopg.conninfo.conninfo_to_dict(harvest_server)["dbname"]
    assert message == (
        f"the given connection leads to the database {name!r}, where there is no schema 'harvest' yet; "
        "run harvest db migrate on it, or give a connection to the app's database"
    )


def test_a_schema_of_another_version_is_told(world, lend, harvest_database):
    """What is there but lacks the function is not at this version, and PostgreSQL's own words say what it lacks."""
    with psycopg.connect(harvest_database, autocommit=True) as connection:
        connection.execute("drop schema harvest cascade; create schema harvest")
    with pytest.raises(SchemaError) as caught:
        world.enqueue("work", "a", connection=lend())
    name = psycopg.conninfo.conninfo_to_dict(harvest_database)["dbname"]
    head = f"the given connection leads to the database {name!r}, where the schema 'harvest' is not at this version "
    assert str(caught.value).startswith(f"{head}(function harvest.enqueue_many(")
    assert str(caught.value).endswith(
        "does not exist); run harvest db migrate on it, or give a connection to the app's database"
    )


def test_errors_of_the_server_stay_psycopgs(world, lend):
    """What a caller's retry loop looks for, e.g. a read-only or serialization failure, reaches it as it is."""
    caller = lend()
    world.call(caller.execute, "set transaction read only")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        world.enqueue("work", "a", connection=caller)


def stranger(module, name):
    return type(name, (), {"__module__": module})()


SQL = "select harvest.enqueue(…) in SQL does the same for any driver"
STRANGERS = {
    ("sync", "sqlalchemy.orm.session", "Session"): (
        "connection is sqlalchemy's Session, not psycopg's Connection; that is inside of it: "
        "session.connection().connection.driver_connection"
    ),
    ("async", "sqlalchemy.ext.asyncio.session", "AsyncSession"): (
        "connection is sqlalchemy's AsyncSession, not psycopg's AsyncConnection; that is inside of it: "
        "(await (await session.connection()).get_raw_connection()).driver_connection"
    ),
    ("sync", "django.utils.connection", "ConnectionProxy"): (
        "connection is django's ConnectionProxy, not psycopg's Connection; that is inside of it: "
        "django.db.connection.connection"
    ),
    ("async", "django.utils.connection", "ConnectionProxy"): (
        "connection is django's ConnectionProxy, not psycopg's AsyncConnection; Django's connections block: "
        "use app.sync_client() and django.db.connection.connection"
    ),
    ("sync", "psycopg2.extensions", "connection"): (
        "connection is psycopg2's connection, not psycopg's Connection; use psycopg 3, in SQLAlchemy as "
        f"postgresql+psycopg, for Django by installing it; {SQL}"
    ),
    ("async", "asyncpg.connection", "Connection"): (
        f"connection is asyncpg's Connection, not psycopg's AsyncConnection; {SQL}"
    ),
}


@pytest.mark.parametrize("who", STRANGERS, ids=lambda who: "-".join(who[0::2]))
def test_what_is_no_psycopg_connection_is_refused(who, app):
    """The message says where the psycopg connection is to be found, or what to do without."""
    name, module, kind = who
    with pytest.raises(EnqueueError) as caught:
        _enqueue(app, name, stranger(module, kind))
    assert str(caught.value) == STRANGERS[who]


def _enqueue(app, name, connection):
    if name == "sync":
        app.sync_client().enqueue("work", "a", connection=connection)
    else:
        asyncio.run(app.client().enqueue("work", "a", connection=connection))


def test_the_other_worlds_connection_is_refused(app, harvest_database):
    """A blocking connection would stop the loop, an async one belongs to its loop: each names the right client."""
    with psycopg.connect(harvest_database) as caller, pytest.raises(EnqueueError) as caught:
        _enqueue(app, "async", caller)
    assert str(caught.value) == (
        "connection is psycopg's Connection, not psycopg's AsyncConnection; it blocks: give it to app.sync_client(), "
        "which uses it in your thread and transaction"
    )

    async def inside():
        async with await psycopg.AsyncConnection.connect(harvest_database) as caller:
            app.sync_client().enqueue("work", "a", connection=caller)

    with pytest.raises(EnqueueError) as caught:
        asyncio.run(inside())
    assert str(caught.value) == (
        "connection is psycopg's AsyncConnection, not psycopg's Connection; its event loop drives it: "
        "await app.client()'s enqueue on that loop"
    )


async def test_a_client_that_is_not_open_looks_at_nothing(app, harvest_database):
    """Enqueueing on the caller's connection needs no open client; a look at the task does, and says so."""
    async with await psycopg.AsyncConnection.connect(harvest_database) as caller:
        task = await app.client().enqueue("work", "a", connection=caller)
    with pytest.raises(HarvestError) as caught:
        await task.status()
    assert str(caught.value) == "the client is not open; use it as: async with app.client() as client"
