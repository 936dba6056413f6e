"""What is SQLite's own: files that cannot serve, what it refuses, retention, and first opens in a crowd (B2)."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

import pytest

from harvest_core import (
    BackendError,
    BuildError,
    Call,
    DatabaseUnavailableError,
    EnqueueError,
    Harvest,
    ScheduleError,
    SchemaError,
)
from harvest_core.connect import connected
from harvest_core.store.postgres import tasks
from harvest_core.store.sqlite.database import SqliteDatabase

WHY = (
    'needs PostgreSQL, and harvest.dsn names the sqlite backend; the page "Backends and features" of '
    "Harvest's documentation says why"
)


def app_on(path, **tables):
    app = Harvest({"harvest": {"dsn": f"sqlite:///{path}"}} | tables)

    @app.activity
    async def work():
        pass

    return app


async def refused(path):
    with pytest.raises((DatabaseUnavailableError, SchemaError)) as caught:
        async with app_on(path).client():
            pass
    return str(caught.value)


def problems(app):
    with pytest.raises(BuildError) as caught:
        app.build()
    return [str(problem) for problem in caught.value.problems]


async def test_files_that_cannot_serve(tmp_path):
    """B2: a sentence each, with what to do: no folder, a folder, no database, another program's, a newer version."""
    missing = tmp_path / "nowhere" / "tasks.db"
    assert await refused(missing) == (
        f"the SQLite file {missing} cannot be made: there is no folder {missing.parent}; make it first"
    )
    assert await refused(tmp_path) == (
        f"harvest.dsn names {tmp_path}, which is a folder; name a file in it, such as tasks.db"
    )
    text = tmp_path / "letter.txt"
    text.write_text("Dear Ada, " * 1000)
    assert await refused(text) == (
        f"the SQLite file {text} cannot be used: file is not a database; name another file in harvest.dsn"
    )
    assert text.read_text().startswith("Dear Ada, ")
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("create table letters (id)")
    assert await refused(other) == f"the SQLite file {other} is another program's; name another file in harvest.dsn"
    newer = tmp_path / "newer.db"
    async with app_on(newer).client():
        pass
    with closing(sqlite3.connect(newer)) as connection:
        connection.execute("pragma user_version = 2")
    assert await refused(newer) == f"the SQLite file {newer} is at version 2, and this Harvest knows 1; upgrade"


async def test_a_file_that_is_read_only(tmp_path, monkeypatch):
    """B2: told at the start, not at the first write; opened read-only, since root may write whatever the mode says."""
    path = tmp_path / "tasks.db"
    async with app_on(path).client():
        pass
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda _, **rest: connect(f"file:{path}?mode=ro", uri=True, **rest))
    assert await refused(path) == (
        f"the SQLite file {path} cannot be used: attempt to write a readonly database; "
        "make the file and its folder writable"
    )


async def test_a_file_whose_lock_another_holds(tmp_path, monkeypatch):
    """K12: a lock held for too long is told as trouble that passes, and what was asked can be asked again."""
    path = tmp_path / "tasks.db"
    monkeypatch.setattr("harvest_core.store.sqlite.database._PATIENCE", 0.05)
    app = app_on(path)
    async with app.client() as client:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("begin immediate")
            with pytest.raises(DatabaseUnavailableError, match="database is locked; another process has held its lock"):
                await client.enqueue("work")
            connection.execute("rollback")
        assert (await client.enqueue("work")).id == 1


@pytest.mark.parametrize(
    ("dsn", "fault"),
    [
        (
            "sqlite://tasks.db",
            "names no file: three slashes stand before a path, four before one that begins at the root",
        ),
        ("sqlite:///", "names no file: three slashes stand before a path, four before one that begins at the root"),
        (
            "sqlite:///:memory:",
            "a database in memory is seen by one process alone, and client and worker would each have their own",
        ),
        ("sqlite:///tasks.db?mode=ro", "takes a path alone, without ? and options"),
    ],
)
def test_a_dsn_that_names_no_file(dsn, fault):
    """B1, B2: the build refuses it."""
    app = Harvest({"harvest": {"dsn": dsn}})
    assert problems(app) == [f"backend.no-file  harvest.dsn: {fault} (write sqlite:///tasks.db)"]


def test_what_the_build_refuses(tmp_path):
    """B2: limits that nobody would enforce, each named with the page that says why."""
    app = app_on(tmp_path / "tasks.db", worker={"prefetch": 5})

    @app.activity(schedule_to_start="1m", schedule_to_close="1h")
    async def late():
        pass

    hint = "(take it out, or use PostgreSQL)"
    assert problems(app) == [
        f"backend.missing-feature  activity 'late': schedule_to_close {WHY} {hint}",
        f"backend.missing-feature  activity 'late': schedule_to_start {WHY} {hint}",
        f"backend.missing-feature  worker.prefetch: prefetch {WHY} {hint}",
    ]


async def test_what_a_call_refuses(tmp_path):
    """B2: nothing is written, and the sentence names the option and the page."""
    async with app_on(tmp_path / "tasks.db").client() as client:
        for option, value, said in (
            ("lane", "customer/7", "lane"),
            ("schedule_to_start", "1m", "schedule_to_start"),
            ("schedule_to_close", "1m", "schedule_to_close"),
        ):
            with pytest.raises(EnqueueError) as caught:
                await client.enqueue("work", **{option: value})
            assert str(caught.value) == f"enqueue of 'work': {said} {WHY}"
        for options, said in (
            ({"key_period": "1h"}, "key_period"),
            ({"on_conflict": "replace"}, "on_conflict replace"),
        ):
            with pytest.raises(EnqueueError) as caught:
                await client.enqueue_many([Call("work"), Call("work", key="a", **options)])
            assert str(caught.value) == f"enqueue of 'work': {said} {WHY}"
        with pytest.raises(BackendError) as caught:
            await client.enqueue("work", connection=object())
        assert str(caught.value) == f"connection= {WHY}"
        with pytest.raises(BackendError) as caught:
            client.claimer()
        assert str(caught.value) == f"a claimer {WHY}"
        with pytest.raises(ScheduleError) as caught:
            await client.put_schedule("tick", "work", every="1h", overlap="buffer_one")
        assert str(caught.value) == f'overlap="buffer_one" {WHY}'
        with pytest.raises(BackendError) as caught:
            await client.database.fetch("select 1")
        assert str(caught.value) == f"this {WHY}"
        assert await client.queues() == []


async def test_retention(tmp_path):
    """K13: a finished task goes once its retention has passed; an unfinished one stays."""
    app, now = app_on(tmp_path / "tasks.db"), [1_000_000]
    async with app.client() as client:
        done, kept = await client.enqueue("work"), await client.enqueue("work", delay="1h")
        async with app.worker() as worker:
            await worker.run_once()
        database = SqliteDatabase(tmp_path / "tasks.db", lambda: now[0])
        await database.open()
        ended = (await done.status()).finished_at.timestamp()
        for seconds, gone in ((3599, 0), (3601, 1), (360_000, 0)):
            now[0] = round((ended + seconds) * 1e6)
            assert await tasks.prune_finished(database, 3600.0) == gone
        await database.close()
        assert (await kept.status()).state == "scheduled"


async def test_many_open_a_new_file_at_once(tmp_path):
    """B1: whoever comes first makes the tables, the others find them."""
    app = app_on(tmp_path / "tasks.db")

    async def enqueue():
        async with connected(app.build()), app.client() as client:
            return (await client.enqueue("work")).id

    assert sorted(await asyncio.gather(*(enqueue() for _ in range(12)))) == list(range(1, 13))
