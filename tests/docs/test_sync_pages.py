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
from shop.models import Order
from shop.orders import place_order

with connection.schema_editor() as editor:
    editor.create_model(Order)
print(place_order("ada@example.org").result(timeout=20))
"""
ASYNC = """
import asyncio, os
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from shop import Base, app, engine
from shop_async import place_order

async def main():
    Base.metadata.create_all(engine)
    there = create_async_engine(os.environ["HARVEST_DSN"].replace("postgresql://", "postgresql+psycopg://"))
    async with AsyncSession(there) as session, session.begin():
        task = await place_order(session, "bob@example.org")
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


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_short_and_all_code_of_it_runs(page):
    """P2: no block is prose, and a page is about one screen."""
    blocks = re.findall(r"```(?:python\n# \S+|console\n\$ .*)\n", PAGES[page])
    assert len(blocks) == PAGES[page].count("```") / 2
    assert len(PAGES[page].splitlines()) <= 80


@pytest.mark.parametrize("run", ["sync", "sqlalchemy"], indirect=True)
def test_the_commands_print_what_the_page_shows(run, request):
    """K9, K10: the page's program runs as printed."""
    page = PAGES[request.node.callspec.params["run"]]
    ((command, output),) = re.findall(r"```console\n\$ (.*?)\n(.*?)```", page, re.DOTALL)
    program, *arguments = shlex.split(command)
    assert program == "python"
    printed, errors = run(sys.executable, *arguments).communicate(timeout=60)
    assert (printed, errors) == (output, "")


@pytest.mark.parametrize("run", ["sqlalchemy"], indirect=True)
def test_the_async_session_of_the_page(run):
    """K9: the page's async variant enqueues in an AsyncSession's transaction."""
    printed, errors = run(sys.executable, "extra.py", text=ASYNC).communicate(timeout=60)
    assert (printed, errors) == ("mail to bob@example.org\n", "")


@pytest.mark.parametrize("run", ["django"], indirect=True)
def test_the_django_page_with_a_worker_of_its_own(run):
    """K9: an order placed in a Django process is confirmed by the worker that the page's command starts."""
    (command,) = re.findall(r"```console\n\$ (.*?)\n```", PAGES["django"])
    (run.folder / "shop/models.py").write_text(MODELS)
    (run.folder / "shop/settings.py").write_text(SETTINGS)
    program, *words = shlex.split(command)
    settings = {"DJANGO_SETTINGS_MODULE": "shop.settings"}
    worker = run(str(Path(sys.executable).with_name(program)), *words, **settings)
    try:
        printed, errors = run(sys.executable, "extra.py", text=MAIN, **settings).communicate(timeout=60)
    finally:
        worker.send_signal(signal.SIGTERM)
        _, told = worker.communicate(timeout=30)
    assert (printed, errors) == ("mail to ada@example.org\n", ""), told
    assert worker.returncode == 0, told
