"""From every released schema to this version: the same schema at the end, with the version before still at work."""

import asyncio
import re
import uuid
from pathlib import Path

import psycopg
import pytest
from psycopg.types.json import Jsonb

from harvest_core.errors import SchemaError
from harvest_core.store.postgres import migrate
from harvest_core.store.postgres.database import Database

STATEMENTS = sorted(Path(__file__).with_name("released").glob("*.statements"))
COMING = "alter type {schema}.task_state add value 'coming'; alter table {schema}.tasks add column coming text"
"""What a migration may do; the functions are replaced behind it."""


def load(dsn: str, released: Path) -> None:
    """Make the schema as a version left it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("drop schema harvest cascade")
        connection.execute(released.read_text())


class Old:
    """A process of an earlier version: its statements, prepared from the first time on as its pool did."""

    def __init__(self, dsn: str, statements: Path) -> None:
        self.dsn, self.id = dsn, str(uuid.uuid4())
        self.texts = dict(re.findall(r"^## (\w+)\n(.*?)(?=\n\n## |\n*\Z)", statements.read_text(), re.DOTALL | re.M))

    async def __aenter__(self):
        self.connection = await psycopg.AsyncConnection.connect(self.dsn, autocommit=True, prepare_threshold=1)
        return self

    async def __aexit__(self, *_):
        await self.connection.close()

    async def run(self, name, values=None):
        """Run a statement and return its rows."""
        cursor = await self.connection.execute(self.texts[name].encode(), values)
        return await cursor.fetchall() if cursor.pgresult.nfields else []

    async def register(self):
        """Register and publish."""
        row = {"id": self.id, "name": "old", "queues": ["default"], "activities": ["work"], "concurrency": 4}
        more = {"plugins": [], "facts": Jsonb({}), "live": Jsonb({}), "ttl": 3600.0, "host": "here", "pid": 1}
        await self.run("register", row | more)

    async def enqueue(self, count, queue=None, key=None):
        """Enqueue and return the ids."""
        none = [None] * count
        columns = ("priority", "scheduled_at", "delay", "max_attempts", "start_to_close", "heartbeat")
        given = {"name": ["work"] * count, "args": ["[1]"] * count, "kwargs": ["{}"] * count, "traits": ["{}"] * count}
        given |= {"queue": [queue] * count, "key": [key, *none[1:]], "notify": True}
        return [row[0] for row in await self.run("enqueue_many", dict.fromkeys(columns, none) | given)]

    async def claim(self, free, queue="default"):
        """Claim and return ids and tokens."""
        lanes = {"queues": [queue], "lanes": [1], "tiers": [0], "starts": [0], "steps": [0]}
        who = {"activities": ["work"], "workflows": [], "worker": self.id, "free": free}
        rows = await self.run("claim", lanes | who)
        assert rows[0][1] is True, "registered"
        return [(row[2], row[3]) for row in rows if row[2] is not None]

    async def finish(self, claims):
        """Finish claims and return what was written."""
        ids, tokens = [task for task, _ in claims], [token for _, token in claims]
        none = [None] * len(claims)
        texts = {"states": ["completed"] * len(claims), "results": ["1"] * len(claims)}
        rows = await self.run("finish", {"ids": ids, "tokens": tokens, "errors": none, "tracebacks": none} | texts)
        assert {row[0] for row in rows} == set(ids)
        return ids

    async def cycle(self, number):
        """Do once what a client and a worker do all day; return the ids enqueued and those finished."""
        made = await self.enqueue(6, key=f"{self.id}-{number}")
        assert len(set(made)) == 6
        await self.run("publish_activities", ["work", "default", 0, 5, 1.0, 2.0, 3600.0, 0.25, None, number + 100.0])
        assert await self.run("beat", {"id": self.id, "live": Jsonb({"n": number}), "age": 0.0}) == [(1,)]
        claims = await self.claim(5)
        done = await self.finish(claims[:2])
        for task, token in claims[2:3]:
            values = {"ids": [task], "tokens": [token], "waits": [0.0], "errors": ["e"], "tracebacks": [None]}
            assert await self.run("retry", values) == [(task,)]
        for task, token in claims[3:4]:
            assert await self.run("release", {"ids": [task], "tokens": [token]}) == [(task,)]
        for task, token in claims[4:]:
            assert await self.run("heartbeat", {"id": task, "token": token, "details": "{}"}) == [(True,)]
            done += await self.finish([(task, token)])
        await self.run("release_unknown", {"worker": self.id, "known": []})
        await self.run("promote", [1000])
        assert (await self.run("rescue", [1000, 1.0]))[0][0] == 0
        await self.run("extend_finished", [7])
        await self.run("mark", {"id": self.id, "asleep": number % 2 == 0, "draining": None})
        for task in made[:1]:
            assert len(await self.run("status", {"id": task})) == 1
        assert len(await self.run("live_workers")) == 2
        await self.run("depths")
        await self.run("write_setting", ["k", str(number)])
        await self.run("read_settings")
        await self.run("pause_queue", ["side"])
        assert await self.claim(1, "side") == []
        await self.run("resume_queue", ["side"])
        return made, done


@pytest.mark.matrix
@pytest.mark.parametrize("coming", [False, True], ids=["as released", "with a change to come"])
@pytest.mark.parametrize("version", [path.stem for path in STATEMENTS])
async def test_the_version_before_goes_on(harvest_database, version, coming, monkeypatch):
    """Two old processes enqueue, claim, finish, retry, release, beat, promote and rescue while the schema changes.

    Their prepared statements outlive the replacement of the functions below them.
    """
    released = Path(__file__).with_name("released")
    load(harvest_database, released / f"{version}.sql")
    if coming:
        monkeypatch.setattr(migrate, "MIGRATIONS", (*migrate.MIGRATIONS, (9999, "9999_coming", COMING)))
        monkeypatch.setattr(migrate, "NEWEST", 9999)
    texts, migrated, made, done = released / f"{version}.statements", asyncio.Event(), [], []

    async def work(old):
        number = after = 0
        while after < 5:
            enqueued, finished = await old.cycle(number)
            made.extend(enqueued)
            done.extend(finished)
            number, after = number + 1, after + migrated.is_set()
            if number == 3:
                warm.release()

    warm, database = asyncio.Semaphore(0), Database(harvest_database)
    async with Old(harvest_database, texts) as first, Old(harvest_database, texts) as second:
        await first.register()
        await second.register()
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(work(first))
            group.create_task(work(second))
            await warm.acquire()
            await warm.acquire()
            await database.open()
            await migrate.migrate(database)
            await migrate.require_newest(database)
            migrated.set()
        async with asyncio.timeout(30):
            while (await first.run("promote", [1000]))[0] != (0, None) or (claims := await first.claim(100)):
                done.extend(await first.finish(claims))
                claims = []
        assert sorted(done) == sorted(made), "each task ended once"
        await first.enqueue(1)
        assert len(await second.claim(1)) == 1
        await second.run("remove", [second.id])
        assert await first.run("rescue", [1000, 1.0]) == [(1, 0)]
    await database.close()


async def test_a_held_table_is_waited_for_without_holding_up_others(harvest_database, monkeypatch):
    """A long transaction that enqueues: the migration steps back each time, tells it at last, and runs once it ends."""
    monkeypatch.setattr(migrate, "_PATIENCE", migrate._PATIENCE.replace("5s", "50ms"))
    newest = migrate.NEWEST
    monkeypatch.setattr(migrate, "MIGRATIONS", (*migrate.MIGRATIONS, (9999, "9999_coming", COMING)))
    monkeypatch.setattr(migrate, "NEWEST", 9999)
    pauses = []

    async def sleep(span):
        pauses.append(span)

    database = Database(harvest_database)
    await database.open()
    async with await psycopg.AsyncConnection.connect(harvest_database) as user:
        await user.execute("select harvest.enqueue('work')")
        with pytest.raises(SchemaError) as caught:
            await migrate.migrate(database, sleep)
        assert str(caught.value) == (
            "schema 'harvest' was not migrated to version 9999: another transaction has held one of its tables for a "
            "minute; end what enqueues in a long transaction, then run: harvest db migrate"
        )
        assert pauses == [1.0] * 12
        assert await migrate.version(database) == newest

        async def committing(span):
            await user.commit()

        assert await migrate.migrate(database, committing) == ["9999_coming"]
    await database.close()
