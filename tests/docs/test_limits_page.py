"""The how-to page on limits does what it says, on a database."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import psycopg
import pytest

from harvest_core import Harvest
from harvest_core.operate.explain import explain
from harvest_core.store.postgres import tasks
from harvest_core.store.postgres.database import Database

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "limits.md").read_text(encoding="utf-8")
STATES = "select lane, state::text, count(*) from harvest.tasks group by 1, 2 order by 1, 2"


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Write every block of the page to the file that its first line names, and stand there."""
    for name, content in re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / name).write_text(content, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_program_prints_what_the_page_shows(folder, harvest_database):
    """Every block is a file or the command; it builds without a warning and prints what is shown (P2)."""
    ((program, output),) = re.findall(r"```console\n\$ python (\S+)\n(.*?)```", PAGE, re.DOTALL)
    assert len(list(folder.iterdir())) + 1 == PAGE.count("```") / 2
    environ = {**os.environ, "HARVEST_DSN": harvest_database, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    result = subprocess.run([sys.executable, program], env=environ, capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr) == (output, "")
    said = "from app import app; print(*app.build().warnings)"
    result = subprocess.run([sys.executable, "-c", said], env=environ, capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr) == ("\n", "")


async def test_the_lanes_fill_as_the_page_says(folder, harvest_database, monkeypatch):
    """Two of customer/7, one of customer/8 and one of order/1 may run; a held head holds up its lane (P2)."""
    monkeypatch.setenv("HARVEST_DSN", harvest_database)
    namespace: dict = {}
    exec((folder / "app.py").read_text(encoding="utf-8"), namespace)
    app = namespace["app"]
    async with app.client() as client, app.worker() as worker:
        for lane in ("customer/7", "customer/7", "customer/8", "order/1", "order/1"):
            await client.enqueue("fetch", "x", lane=lane)
        async with await psycopg.AsyncConnection.connect(harvest_database, autocommit=True) as connection:
            await _promoted(harvest_database)
            assert await (await connection.execute(STATES)).fetchall() == [
                ("customer/7", "pending", 2),
                ("customer/8", "pending", 1),
                ("order/1", "blocked", 1),
                ("order/1", "pending", 1),
            ]
        await asyncio.wait_for(worker.run_once(), 20)
        await _a_held_head(client, worker, harvest_database)


async def _promoted(dsn):
    database = Database(dsn)
    await database.open()
    await tasks.promote(database)
    await database.close()


async def _a_held_head(client, worker, dsn):
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await client.enqueue("send_mail", "x", lane="order/2", queue="nobody")
        sibling = await client.enqueue("fetch", "x", lane="order/2")
        await asyncio.wait_for(worker.run_once(), 20)
        rows = await (await connection.execute(STATES)).fetchall()
        assert rows == [("order/2", "blocked", 1), ("order/2", "pending", 1)]
        better = await client.enqueue("fetch", "x", lane="order/2", priority=1)
        await asyncio.wait_for(worker.run_once(), 20)
        assert [(await task.status()).state for task in (better, sibling)] == ["completed", "blocked"]


async def test_explain_names_a_spent_limit(folder, harvest_database):
    """A task over its limit is told so in the words that the plugin's README gives."""
    tables = {"limits": {"activities": {"work": {"concurrency": 10, "rate": "1/h"}}}}
    app = Harvest({"harvest": {"dsn": harvest_database, "plugins": ["limits"]}, "plugins": tables})
    app.activity(name="work")(lambda: None)
    async with app.client() as client, app.worker() as worker:
        _, over = [await client.enqueue("work") for _ in range(2)]
        await asyncio.wait_for(worker.run_once(), 20)
        database = Database(harvest_database)
        await database.open()
        found = await explain(database, app.build().policies, over.id)
        await database.close()
        assert found.summary == "none of 1 live workers may take it: 1 x limited:concurrency 10, 1/h"


def test_the_readme_builds():
    """The plugin's own table is accepted without a warning (B4)."""
    text = (ROOT / "plugins" / "limits" / "README.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    app = Harvest(tomllib.loads(block))
    for name in ("send_mail", "fetch", "push"):
        app.activity(name=name)(print)
    assert not app.build().warnings
