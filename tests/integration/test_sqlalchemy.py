"""SQLAlchemy users enqueue inside their own session, sync and async (K9, K10)."""

import threading
from contextlib import suppress

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from harvest_core import Harvest
from harvest_core.errors import EnqueueError, KeyTakenError

PATIENCE = 15.0


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    address: Mapped[str]


@pytest.fixture
def url(harvest_database):
    """Give the database as SQLAlchemy names it, with the table of orders."""
    url = harvest_database.replace("postgresql://", "postgresql+psycopg://")
    engine = sqlalchemy.create_engine(url)
    Base.metadata.create_all(engine)
    engine.dispose()
    return url


@pytest.fixture
def engine(url):
    engine = sqlalchemy.create_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture
def app(harvest_database, engine):
    app = Harvest({"harvest": {"dsn": harvest_database}, "worker": {"poll_interval": "60s"}})

    @app.activity
    def confirm(order: int) -> str | None:
        with Session(engine) as session:
            return session.scalar(sqlalchemy.select(Order.address).where(Order.id == order))

    return app


def counts(engine):
    """Return how many orders and how many tasks are committed."""
    with engine.connect() as connection:
        text = "select (select count(*) from orders), (select count(*) from harvest.tasks)"
        return tuple(connection.exec_driver_sql(text).one())


def ours(session):
    return session.connection().connection.driver_connection


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_session_takes_order_and_task_together(end, engine, app):
    """Both are there after the commit, none after a rollback; the client opens no connection."""
    client = app.sync_client()
    with Session(engine) as session:
        session.add(order := Order(address="ada@example.org"))
        session.flush()
        client.enqueue("confirm", order.id, connection=ours(session))
        assert counts(engine) == (0, 0)
        getattr(session, end)()
    assert counts(engine) == ((1, 1) if end == "commit" else (0, 0))
    assert client._client._opened is None


def test_an_enqueue_alone_is_committed_with_the_session(engine, app):
    """A session that did nothing else has begun all the same: its commit is the task's."""
    client = app.sync_client()
    with Session(engine) as session, session.begin():
        client.enqueue("confirm", 1, connection=ours(session))
        assert counts(engine) == (0, 0)
    assert counts(engine) == (0, 1)
    with engine.begin() as connection:
        client.enqueue("confirm", 2, connection=connection.connection.driver_connection)
    assert counts(engine) == (0, 2)
    with Session(engine) as session:
        client.enqueue("confirm", 3, connection=ours(session))
    assert counts(engine) == (0, 2)


def test_a_nested_transaction_that_fails_takes_its_tasks_along(engine, app):
    """A savepoint that SQLAlchemy rolls back undoes the enqueue in it, and only that."""
    client = app.sync_client()
    with Session(engine) as session, session.begin():
        client.enqueue("confirm", 1, connection=ours(session))
        with suppress(sqlalchemy.exc.IntegrityError), session.begin_nested():
            client.enqueue("confirm", 2, connection=ours(session))
            session.add(Order(id=7, address=None))
        client.enqueue("confirm", 3, connection=ours(session))
    with engine.connect() as connection:
        text = "select args->0 from harvest.tasks order by id"
        assert connection.exec_driver_sql(text).scalars().all() == [1, 3]


@pytest.mark.parametrize("fetched", ["inside", "outside"])
def test_a_taken_key_spares_the_order_where_the_connection_is_fetched_inside(fetched, engine, app):
    """SQLAlchemy sends SAVEPOINT when the connection is fetched: from outside, the commit is a rollback, as we warn."""
    client = app.sync_client()
    client.enqueue("confirm", 1, key="k", delay="1h")
    with Session(engine) as session, session.begin():
        session.add(Order(address="ada@example.org"))
        session.flush()
        before = ours(session)

        def again():
            with session.begin_nested():
                raw = ours(session) if fetched == "inside" else before
                client.enqueue("confirm", 2, key="k", on_conflict="raise", connection=raw)

        with pytest.raises(KeyTakenError, match=r"fetch the connection inside session\.begin_nested\(\)"):
            again()
    assert counts(engine) == ((1, 1) if fetched == "inside" else (0, 1))
    client.close()


def test_the_commit_wakes_a_worker_that_finds_the_row(engine, app, until_asleep):
    """A worker that looks once a minute by itself runs the task at the commit and sees the order (K11)."""
    client = app.sync_client()
    with app.sync_worker() as worker, client:
        thread = threading.Thread(target=worker.run)
        thread.start()
        until_asleep()
        with Session(engine) as session:
            session.add(order := Order(address="ada@example.org"))
            session.flush()
            task = client.enqueue("confirm", order.id, connection=ours(session))
            session.commit()
        assert task.result(timeout=PATIENCE) == "ada@example.org"
        worker.stop()
        thread.join()


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_an_async_session_takes_order_and_task_together(end, url, engine, app):
    """The same with AsyncSession and the async client, which need not be open."""
    client = app.client()
    asynchronous = create_async_engine(url)
    async with AsyncSession(asynchronous) as session:
        session.add(order := Order(address="ada@example.org"))
        await session.flush()
        raw = await (await session.connection()).get_raw_connection()
        await client.enqueue("confirm", order.id, connection=raw.driver_connection)
        assert counts(engine) == (0, 0)
        await getattr(session, end)()
    await asynchronous.dispose()
    assert counts(engine) == ((1, 1) if end == "commit" else (0, 0))


def test_sqlalchemys_own_objects_are_refused(engine, app):
    """Session, connection and pooled connection: each is told where the psycopg connection is."""
    client = app.sync_client()
    with Session(engine) as session:
        for given in (session, session.connection(), session.connection().connection, engine):
            with pytest.raises(EnqueueError) as caught:
                client.enqueue("confirm", 1, connection=given)
            assert str(caught.value) == (
                f"connection is sqlalchemy's {type(given).__name__}, not psycopg's Connection; that is inside of it: "
                "session.connection().connection.driver_connection"
            )


async def test_sqlalchemys_async_objects_are_refused(url, engine, app):
    """The same for the async ones; a sync session's connection names the sync client."""
    asynchronous = create_async_engine(url)
    async with AsyncSession(asynchronous) as session:
        connection = await session.connection()
        for given in (session, connection, await connection.get_raw_connection()):
            with pytest.raises(EnqueueError, match=r"inside of it: \(await \(await session\.connection\(\)\)\.get_raw"):
                await app.client().enqueue("confirm", 1, connection=given)
    await asynchronous.dispose()
    with Session(engine) as session, pytest.raises(EnqueueError, match=r"give it to app\.sync_client\(\)"):
        await app.client().enqueue("confirm", 1, connection=ours(session))
