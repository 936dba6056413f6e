"""Django users enqueue inside transaction.atomic (K9, K10)."""

import threading
from contextlib import nullcontext, suppress

import django
import pytest
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict

from harvest_core import Harvest
from harvest_core.errors import EnqueueError, KeyTakenError

PATIENCE = 15.0


@pytest.fixture(scope="module")
def shop():
    """Set Django up once in this process, with one model; each test gives it a database."""
    settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql"}}, USE_TZ=True)
    django.setup()
    from django.db import models

    class Order(models.Model):
        address = models.CharField(max_length=100, unique=True)

        class Meta:
            app_label = "shop"

    return Order


@pytest.fixture(params=[False, True], ids=["client-binding", "server-binding"])
def order(request, shop, harvest_database):
    """Give the model, with its table in a fresh database; both of Django's ways to bind parameters."""
    from django.db import connection

    parts = conninfo_to_dict(harvest_database)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    connection.settings_dict.update({key: parts.get(name, "") for key, name in names.items()})
    connection.settings_dict["OPTIONS"] = {"server_side_binding": request.param}
    with connection.schema_editor() as editor:
        editor.create_model(shop)
    yield shop
    connection.close()


@pytest.fixture
def app(harvest_database):
    app = Harvest({"harvest": {"dsn": harvest_database}, "worker": {"poll_interval": "60s"}})

    @app.activity
    def confirm(order: int) -> str: ...

    return app


def waiting():
    """Return the committed tasks' first arguments, as another thread's connection sees them."""
    from django.db import connection

    found = []

    def look():
        with connection.cursor() as cursor:
            cursor.execute("select args->>0 from harvest.tasks order by id")
            found.extend(int(row[0]) for row in cursor.fetchall())
        connection.close()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found


def test_atomic_takes_order_and_task_together(order, app):
    """Both are there after the block, and none where it raised; the client opens no connection."""
    from django.db import connection, transaction

    client = app.sync_client()
    with transaction.atomic():
        made = order.objects.create(address="ada@example.org")
        task = client.enqueue("confirm", made.id, connection=connection.connection)
        assert waiting() == []
    assert waiting() == [made.id]
    with suppress(ZeroDivisionError), transaction.atomic():
        other = order.objects.create(address="bob@example.org")
        client.enqueue("confirm", other.id, connection=connection.connection)
        raise ZeroDivisionError
    assert waiting() == [made.id]
    assert order.objects.count() == 1
    assert client._client._opened is None
    assert client.enqueue("confirm", 9, connection=connection.connection, delay="1h", priority=2).id > task.id
    assert waiting() == [made.id, 9]
    assert task.status().args == [made.id]
    client.close()


def test_an_inner_atomic_that_fails_takes_its_tasks_along(order, app):
    """A savepoint that Django rolls back undoes the enqueue in it, and only that."""
    from django.db import IntegrityError, connection, transaction

    client = app.sync_client()
    with transaction.atomic():
        order.objects.create(address="ada@example.org")
        client.enqueue("confirm", 1, connection=connection.connection)
        with suppress(IntegrityError), transaction.atomic():
            client.enqueue("confirm", 2, connection=connection.connection)
            order.objects.create(address="ada@example.org")
        client.enqueue("confirm", 3, connection=connection.connection)
    assert waiting() == [1, 3]


@pytest.mark.parametrize("nested", [True, False])
def test_a_taken_key_spares_the_order_in_a_nested_block(nested, order, app):
    """A nested atomic() is a savepoint at once; without it the commit is a rollback, as the error warns."""
    from django.db import connection, transaction

    client = app.sync_client()
    client.enqueue("confirm", 1, key="k", connection=connection.connection)
    with transaction.atomic():
        order.objects.create(address="ada@example.org")
        with pytest.raises(KeyTakenError, match=r"enqueue inside a nested atomic\(\)$"):  # noqa: SIM117
            with transaction.atomic() if nested else nullcontext():
                client.enqueue("confirm", 2, key="k", on_conflict="raise", connection=connection.connection)
    assert order.objects.count() == (1 if nested else 0)
    assert waiting() == [1]


def test_a_block_that_has_failed_takes_no_task(order, app):
    """An error that was caught inside the block has spoilt it: PostgreSQL would turn its commit into a rollback."""
    from django.db import IntegrityError, connection, transaction

    with transaction.atomic():
        order.objects.create(address="ada@example.org")
        with pytest.raises(IntegrityError):
            order.objects.create(address="ada@example.org")
        with pytest.raises(EnqueueError, match="has failed and can only be rolled back"):
            app.sync_client().enqueue("confirm", 1, connection=connection.connection)
        transaction.set_rollback(True)
    assert waiting() == []


def test_the_commit_wakes_a_worker_that_finds_the_row(order, app, until_asleep):
    """A worker's plain function uses the ORM in its thread, and finds what was committed with its task (K11)."""
    from django.db import connection, transaction

    @app.activity
    def address(number: int) -> str:
        try:
            return order.objects.get(id=number).address
        finally:
            connection.close()

    with app.sync_worker() as worker, app.sync_client() as client:
        thread = threading.Thread(target=worker.run)
        thread.start()
        until_asleep()
        with transaction.atomic():
            made = order.objects.create(address="ada@example.org")
            task = client.enqueue(address, made.id, connection=connection.connection)
        assert task.result(timeout=PATIENCE) == "ada@example.org"
        worker.stop()
        thread.join()


def test_djangos_own_objects_are_refused(order, app):
    """The proxy and the wrapper behind it: each is told where the psycopg connection is."""
    from django.db import connection, connections

    for given, name in ((connection, "ConnectionProxy"), (connections["default"], "DatabaseWrapper")):
        with pytest.raises(EnqueueError) as caught:
            app.sync_client().enqueue("confirm", 1, connection=given)
        assert str(caught.value) == (
            f"connection is django's {name}, not psycopg's Connection; that is inside of it: "
            "django.db.connection.connection"
        )
