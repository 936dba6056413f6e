"""`harvest schedule`: what it prints and what it does (O2, K13)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys

import psycopg
import pytest

from harvest_core import Harvest
from harvest_core.cli import main


@pytest.fixture
def harvest(tmp_path, monkeypatch, harvest_database, capsys):
    """Run a command where two schedules stand, and return its code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    for name in [name for name in os.environ if name.startswith("HARVEST_")]:
        monkeypatch.delenv(name)
    (tmp_path / "harvest.toml").write_text(f"[harvest]\ndsn = {json.dumps(harvest_database)}\n")

    async def prepare():
        async with Harvest({"harvest": {"dsn": harvest_database}}).client() as client:
            await client.put_schedule("nightly", "work", 1, cron="0 3 * * *", timezone="Europe/Berlin", elsewhere=True)
            await client.put_schedule("often", "work", every="5m", elsewhere=True)

    asyncio.run(prepare())
    capsys.readouterr()

    def run(*words):
        code = main(["schedule", *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_list_pause_resume_and_delete(harvest, harvest_database):
    """People see what an operator asks first: when it ticks, whether it does, and what came of the last one."""
    with psycopg.connect(harvest_database, autocommit=True) as connection:
        connection.execute(
            "update harvest.schedules set next_at = '2100-01-01 02:00Z', last_at = '2026-01-01 02:00Z', "
            "last_task_id = 17, error = 'no' where name = 'nightly'"
        )
    assert harvest("pause", "often") == (0, "schedule 'often' is paused\n", "")
    code, out, _ = harvest("list")
    assert code == 0
    assert [re.split(r"  +", line) for line in out.splitlines()] == [
        ["name", "activity", "when", "state", "next", "last", "last task"],
        [
            "nightly",
            "work",
            "0 3 * * * Europe/Berlin",
            "active; no",
            "2100-01-01 02:00:00+00:00",
            "2026-01-01 02:00:00+00:00",
            "17",
        ],
        ["often", "work", "every 300 s", "paused"],
    ]
    assert harvest("resume", "often") == (0, "schedule 'often' goes on\n", "")
    assert harvest("resume", "often") == (0, "schedule 'often' was not paused\n", "")
    assert harvest("delete", "often") == (0, "schedule 'often' is deleted\n", "")
    assert harvest("delete", "nightly") == (0, "schedule 'nightly' is deleted\n", "")
    assert harvest("list") == (0, "there is no schedule\n", "")


def test_trigger(harvest):
    """It enqueues a task now, and says why where the overlap policy lets none in."""
    assert harvest("trigger", "nightly") == (0, "task 1 enqueued\n", "")
    message = "schedule 'nightly': an earlier task of it is unfinished, and its overlap policy lets no other in"
    assert harvest("trigger", "nightly") == (1, "", f"error: {message}\n")
    assert harvest("trigger", "nigtly") == (1, "", "error: no schedule 'nigtly': did you mean 'nightly'?\n")


def test_json(harvest):
    """Programs get plain values."""
    (nightly, often) = json.loads(harvest("list", "--json")[1])
    assert {key: nightly[key] for key in ("name", "cron", "every", "timezone", "args", "state", "overlap")} == {
        "name": "nightly",
        "cron": "0 3 * * *",
        "every": None,
        "timezone": "Europe/Berlin",
        "args": [1],
        "state": "active",
        "overlap": "skip",
    }
    assert often["every"] == 300.0
    assert json.loads(harvest("pause", "often", "--json")[1]) == {"name": "often", "paused": True}
    resumed = {"name": "often", "paused": False, "resumed": True}
    assert json.loads(harvest("resume", "often", "--json")[1]) == resumed
    assert json.loads(harvest("trigger", "often", "--json")[1]) == {"name": "often", "id": 1}
    assert json.loads(harvest("delete", "often", "--json")[1]) == {"name": "often", "deleted": True}
