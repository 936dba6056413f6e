"""The pages on several apps, on PgBouncer and on upgrades do what they say."""

import asyncio
import configparser
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import psycopg
import pytest

from harvest_core import Harvest
from harvest_core.testing.pooler import PROGRAM, pgbouncer

PAGES = Path(__file__).parents[2] / "docs" / "how-to"


def blocks(page: str) -> dict[str, str]:
    """Return the marked blocks of a page by language."""
    text = (PAGES / page).read_text(encoding="utf-8")
    return dict(re.findall(r"<!-- test: [\w-]+ -->\n```(\w+)\n(.*?)```", text, re.DOTALL))


def test_two_apps_run_as_printed(tmp_path, harvest_database):
    """Each in a schema of its own: one's worker does not see the other's task, and an enqueue by SQL crosses over."""
    text = blocks("several-apps.md")["python"]
    assert text.count("postgresql://localhost/app") == 2
    (tmp_path / "two_apps.py").write_text(text.replace("postgresql://localhost/app", harvest_database))
    done = subprocess.run([sys.executable, "two_apps.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "sent to ada@example.org | pending\n", done.stderr
    page = (PAGES / "several-apps.md").read_text(encoding="utf-8")
    assert f"`python two_apps.py` prints `{done.stdout.strip()}`" in page
    (statement,) = re.findall(r"`(select mail\..*?)`", page)
    with psycopg.connect(harvest_database) as connection:
        assert connection.execute(statement).fetchone() == (2,)


@pytest.mark.skipif(not PROGRAM.exists(), reason="needs Debian's package pgbouncer")
def test_the_pooler_is_configured_as_printed(tmp_path, harvest_database):
    """PgBouncer with the page's settings, Harvest with the page's keys: a task runs."""
    found = blocks("pgbouncer.md")
    settings = configparser.ConfigParser()
    settings.read_string(found["ini"])
    assert settings["pgbouncer"]["pool_mode"] == "transaction"
    table = tomllib.loads(found["toml"])
    with pgbouncer(tmp_path, harvest_database, **settings["pgbouncer"]) as dsn:
        app = Harvest(table | {"harvest": table["harvest"] | {"dsn": dsn}})

        @app.activity
        async def double(number):
            return number * 2

        async def run():
            async with app.client() as client, app.worker() as worker:
                task = await client.enqueue(double, 4)
                await worker.run_once()
                return await task.result(timeout=5)

        assert asyncio.run(run()) == 8


def test_the_commands_of_an_upgrade_run(tmp_path, harvest_database):
    """Every command of the page, on a schema of the first version."""
    with psycopg.connect(harvest_database, autocommit=True) as connection:
        connection.execute("drop schema harvest cascade")
        connection.execute((Path(__file__).parents[1] / "integration/released/0.1.0.sql").read_text())
    commands = re.findall(r"\$ (harvest .*)", (PAGES / "upgrade.md").read_text(encoding="utf-8"))
    assert len(commands) == 3
    for command in commands:
        program, *words = shlex.split(command)
        done = subprocess.run(
            [Path(sys.executable).with_name(program), *words],
            cwd=tmp_path,
            env={**os.environ, "HARVEST_DSN": harvest_database},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), command
        assert done.stdout
