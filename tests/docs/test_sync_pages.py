"""The how-to pages on the sync client, SQLAlchemy and Django do what they say, as they stand."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = {
    page: (Path(__file__).parents[2] / f"docs/how-to/{page}.md").read_text()
    for page in ("sync", "sqlalchemy", "django")
}

MODELS = """
from django.db import models

class Order(models.Model):
    address = models.CharField(max_length=100)

    class Meta:
        app_label = "shop"
"""
SETTINGS = """
import os
from psycopg.conninfo import conninfo_to_dict

parts = conninfo_to_dict(os.environ["DATABASE_URL"])
names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
engine = {"ENGINE": "django.db.backends.postgresql"}
DATABASES = {"default": engine | {key: parts.get(name, "") for key, name in names.items()}}
"""
MAIN = """
import django
django.setup()

from django.db import connection
from django.db import transaction
from shop.models import Order
from shop.orders import confirm_once, place_order
from shop.tasks import client

with connection.schema_editor() as editor:
    editor.create_model(Order)
print(place_order("ada@example.org").result(timeout=20))
client.pause_queue("default")
with transaction.atomic():
    order = Order.objects.create(address="bob@example.org")
    print(confirm_once(order.id), confirm_once(order.id))
print(Order.objects.count())
"""
ONCE = """
from sqlalchemy import func, select
from shop import Base, Order, Session, confirm_once, engine

Base.metadata.create_all(engine)
with Session(engine) as session, session.begin():
    order = Order(address="ada@example.org")
    session.add(order)
    session.flush()
    print(confirm_once(session, order.id), confirm_once(session, order.id))
with Session(engine) as session:
    print(session.scalar(select(func.count(Order.id))))
"""
ASYNC = """
import asyncio, os
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from shop import Base, Order, app, engine
from shop_async import enqueue_confirm

async def main():
    Base.metadata.create_all(engine)
    there = create_async_engine(os.environ["HARVEST_DSN"].replace("postgresql://", "postgresql+psycopg://"))
    async with AsyncSession(there) as session, session.begin():
        order = Order(address="bob@example.org")
        session.add(order)
        await session.flush()
        task = await enqueue_confirm(session, order.id)
    await there.dispose()
    async with app.worker() as worker, app.client() as client:
        await worker.run_once()
        print(await client.result(task.id, timeout=10))

asyncio.run(main())
"""


@pytest.fixture
def run(tmp_path, harvest_database, request):
    """Write a page's files, and give what runs a program beside them."""
    page = PAGES[request.param]
    for name, text in re.findall(r"```python\n# (\S+)\n(.*?)```", page, re.DOTALL):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    python = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "PYTHONPATH": python, "HARVEST_DSN": harvest_database, "DATABASE_URL": harvest_database}

    def start(*words, **more):
        (tmp_path / "extra.py").write_text(more.pop("text", ""))
        return subprocess.Popen(
            words, cwd=tmp_path, env=environ | more, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    start.folder = tmp_path
    return start


def shell(line, folder, **more):
    """Start a line as a reader types it who has no HARVEST_ variables, in a session of its own."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HARVEST_")} | more
    environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environ["PATH"]])
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(["bash", "-c", line], cwd=folder, env=environ, start_new_session=True, **pipes)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_short_and_all_code_of_it_runs(page):
    """P2: no block is prose, and a page is about one screen."""
    blocks = re.findall(r"```(?:python\n# \S+|console\n\$ .*)\n", PAGES[page])
    assert len(blocks) == PAGES[page].count("```") / 2
    assert len(PAGES[page].splitlines()) <= 95


@pytest.mark.parametrize("run", ["sync"], indirect=True)
def test_the_commands_print_what_the_page_shows(run, request):
    """K10: the page's program runs as printed."""
    page = PAGES[request.node.callspec.params["run"]]
    ((command, output),) = re.findall(r"```console\n\$ (.*?)\n(.*?)```", page, re.DOTALL)
    program, *arguments = shlex.split(command)
    assert program == "python"
    printed, errors = run(sys.executable, *arguments).communicate(timeout=60)
    assert (printed, errors) == (output, "")


def test_the_sqlalchemy_page_from_nothing(tmp_path):
    """K9: without a server, a database or a schema, what the page has typed leads to what it prints."""
    page = PAGES["sqlalchemy"]
    (second,) = re.findall(r"`(touch .*?)`", page)
    export, *lines = re.findall(r"^\$ (.*)$", page, re.MULTILINE)
    assert export.startswith("export HARVEST_DSN=")
    for name, text in re.findall(r"```python\n# (\S+)\n(.*?)```", page, re.DOTALL):
        (tmp_path / name).write_text(text)
    (tmp_path / "second").mkdir()
    holding = shell(second, tmp_path / "second")
    try:
        dsn = holding.stdout.readline().strip()
        assert dsn, holding.communicate(timeout=60)[1]
        for line in lines:
            typed = shell(line, tmp_path, HARVEST_DSN=dsn)
            printed, errors = typed.communicate(timeout=60)
            assert (typed.returncode, errors) == (0, ""), line
        assert f"```console\n$ {line}\n{printed}```" in page
    finally:
        os.killpg(holding.pid, signal.SIGTERM)
        holding.communicate(timeout=60)


@pytest.mark.parametrize("run", ["sqlalchemy"], indirect=True)
def test_a_taken_key_and_the_order_that_is_kept(run):
    """K9: the page's savepoint leaves the order; the second confirmation is refused and nothing else is lost."""
    printed, errors = run(sys.executable, "extra.py", text=ONCE).communicate(timeout=60)
    assert (printed, errors) == ("True False\n1\n", "")


@pytest.mark.parametrize("run", ["sqlalchemy"], indirect=True)
def test_the_async_session_of_the_page(run):
    """K9: the page's async variant enqueues in an AsyncSession's transaction."""
    printed, errors = run(sys.executable, "extra.py", text=ASYNC).communicate(timeout=60)
    assert (printed, errors) == ("mail to bob@example.org\n", "")


@pytest.mark.parametrize("run", ["django"], indirect=True)
def test_the_django_page_with_a_worker_of_its_own(run):
    """K9: an order placed in a Django process is confirmed by the worker that the page's command starts."""
    ((migrate, command),) = re.findall(r"```console\n\$ (.*?)\n\$ (.*?)\n```", PAGES["django"])
    (run.folder / "shop/models.py").write_text(MODELS)
    (run.folder / "shop/settings.py").write_text(SETTINGS)
    settings = {"DJANGO_SETTINGS_MODULE": "shop.settings"}
    program, *words = shlex.split(migrate)
    _, told = run(str(Path(sys.executable).with_name(program)), *words, **settings).communicate(timeout=60)
    assert told == ""
    program, *words = shlex.split(command)
    worker = run(str(Path(sys.executable).with_name(program)), *words, **settings)
    try:
        printed, errors = run(sys.executable, "extra.py", text=MAIN, **settings).communicate(timeout=60)
    finally:
        worker.send_signal(signal.SIGTERM)
        _, told = worker.communicate(timeout=30)
    assert (printed, errors) == ("mail to ada@example.org\nTrue False\n2\n", ""), told
    assert worker.returncode == 0, told
