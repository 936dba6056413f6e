"""`harvest task cancel` and `retry`, `harvest queue`, the options of an enqueue: every answer as printed (O2)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys

import psycopg
import pytest

from harvest_core import Call, Harvest
from harvest_core.cli import main


@pytest.fixture
def harvest(tmp_path, monkeypatch, harvest_database, capsys):
    """Run a command where four tasks stand, and return its code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    for name in [name for name in os.environ if name.startswith("HARVEST_")]:
        monkeypatch.delenv(name)
    (tmp_path / "harvest.toml").write_text(f"[harvest]\ndsn = {json.dumps(harvest_database)}\n")

    async def prepare():
        async with Harvest({"harvest": {"dsn": harvest_database}}).client() as client:
            await client.enqueue_many(
                [Call(name, queue=queue, elsewhere=True) for queue, name in (("mail", "send"),) * 3 + (("b", "work"),)]
            )

    asyncio.run(prepare())
    capsys.readouterr()

    def run(*words):
        code = main(words)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def sql(harvest_database):
    with psycopg.connect(harvest_database, autocommit=True) as connection:
        connection.execute("set search_path to harvest")
        yield lambda text: connection.execute(text)


def usage(said):
    code, out, err = said
    assert (code, out) == (2, "")
    return err.partition("\nError: ")[2].rstrip()


def test_cancel(harvest, sql):
    """By id, by queue, by activity; with the reason; for people and for programs (K13)."""
    assert harvest("task", "cancel", "1", "--reason", "a typo") == (0, "1 task cancelled\n", "")
    assert sql("select id, error from finished").fetchall() == [(1, "a typo")]
    sql("update tasks set state = 'running', token = 1, worker_id = gen_random_uuid() where id = 2")
    said = harvest("task", "cancel", "--queue", "mail", "--activity", "send")
    assert said == (0, "1 task cancelled, 1 task asked to stop\n", "")
    code, out, _ = harvest("task", "cancel", "--activity", "work", "--json")
    assert (code, json.loads(out)) == (0, {"cancelled": 1, "asked": 0, "unknown": []})


UNKNOWN = "error: task 17 is not known: it was never enqueued here, or its retention has passed\n"


def test_ids_that_a_cancel_does_not_meet(harvest, sql):
    """Each is told with the reason, and the others are cancelled; one that is not known is a fault (O2)."""
    sql("update tasks set state = 'running', token = 1, worker_id = gen_random_uuid() where id = 2")
    harvest("task", "cancel", "1", "2")
    assert harvest("task", "cancel", "17", "1", "2", "3", "1") == (
        1,
        "1 task cancelled\n",
        "warning: task 1 is left as it is: it is cancelled already\n"
        "warning: task 2 is left as it is: it runs, and was asked to stop before\n" + UNKNOWN,
    )
    code, out, err = harvest("task", "cancel", "17", "--json")
    assert (code, json.loads(out), err) == (1, {"cancelled": 0, "asked": 0, "unknown": [17]}, UNKNOWN)
    assert harvest("task", "cancel", "4", "--queue", "mail") == (
        0,
        "0 tasks cancelled\n",
        "warning: task 4 is left as it is: it is of the queue 'b'\n",
    )
    assert harvest("task", "cancel", "4", "--activity", "send") == (
        0,
        "0 tasks cancelled\n",
        "warning: task 4 is left as it is: it is of the activity 'work'\n",
    )


def test_names_that_nothing_knows(harvest, sql):
    """Told with the nearest one that something knows; a queue may be paused before its first task (O2)."""
    said = "warning: no unfinished task, worker, activity or schedule in the database names the "
    queue, activity = f"{said}queue 'mial'; did you mean 'mail'?\n", f"{said}activity 'nope'\n"
    assert harvest("task", "cancel", "--queue", "mial") == (0, "0 tasks cancelled\n", queue)
    words = ("--queue", "mial", "--activity", "nope")
    assert harvest("task", "cancel", *words) == (0, "0 tasks cancelled\n", queue + activity)
    assert harvest("task", "retry", *words) == (0, "0 tasks put back\n", queue + activity)
    assert harvest("task", "cancel", "--queue", "b", "--activity", "send") == (0, "0 tasks cancelled\n", "")
    assert harvest("queue", "resume", "mial") == (0, "queue 'mial' was not paused\n", queue)
    assert harvest("queue", "pause", "mial") == (0, "queue 'mial' is paused\n", queue)
    assert harvest("queue", "resume", "mial") == (0, "queue 'mial' goes on\n", "")
    sql("delete from tasks")
    sql("delete from routes")
    assert harvest("queue", "pause", "mail") == (0, "queue 'mail' is paused\n", f"{said}queue 'mail'\n")
    sql(
        "insert into workers (id, name, queues, activities, concurrency, plugins, facts, live, ttl, host, pid) "
        "values (gen_random_uuid(), 'w', '{mail}', '{send}', 1, '{}', '{}', '{}', 30, 'h', 1)"
    )
    assert harvest("queue", "pause", "mail") == (0, "queue 'mail' is paused\n", "")
    assert harvest("task", "cancel", "--activity", "send") == (0, "0 tasks cancelled\n", "")


def test_names_on_a_sqlite_file(harvest):
    """B2: told as on PostgreSQL; tasks and schedules name them there."""
    file = ("--set", "harvest.dsn=sqlite:///tasks.db")
    harvest("task", "enqueue", "send", "--elsewhere", "--queue", "mail", *file)
    said = "warning: no unfinished task, worker, activity or schedule in the database names the queue 'mial'"
    assert harvest("queue", "pause", "mial", *file) == (
        0,
        "queue 'mial' is paused\n",
        f"{said}; did you mean 'mail'?\n",
    )
    assert harvest("queue", "pause", "mail", *file) == (0, "queue 'mail' is paused\n", "")
    assert harvest("task", "cancel", "17", *file) == (1, "0 tasks cancelled\n", UNKNOWN)


def test_retry(harvest, sql):
    """By id, state and time; named by its id a cancelled task goes back, too (K13)."""
    harvest("task", "cancel", "--queue", "mail")
    assert harvest("task", "retry", "--queue", "mail") == (0, "0 tasks put back\n", "")
    assert harvest("task", "retry", "1") == (0, "1 task put back\n", "")
    sql("update finished set state = 'failed'")
    assert harvest("task", "retry", "--activity", "send", "--since", "2100-01-01") == (0, "0 tasks put back\n", "")
    code, out, _ = harvest("task", "retry", "--since", "2026-01-01T08:00", "--queue", "mail", "--json")
    assert (code, json.loads(out)) == (0, {"retried": [2, 3], "unknown": []})


def test_ids_that_a_retry_does_not_meet(harvest, sql):
    """Each is told with the reason, and the others go back; one that is not known is a fault (O2)."""
    harvest("task", "cancel", "1", "2", "3")
    sql("update finished set state = 'completed' where id = 2")
    sql("update finished set key = 'k' where id = 3")
    sql("insert into keys (name, key, task_id) values ('send', 'k', 4)")
    assert harvest("task", "retry", "17", "1", "2", "3", "4") == (
        1,
        "1 task put back\n",
        "warning: task 2 is not put back: it is completed, and only failed and cancelled tasks can be put back\n"
        "warning: task 3 is not put back: another task has its key 'k'\n"
        "warning: task 4 is not put back: it is pending, and only failed and cancelled tasks can be put back\n"
        + UNKNOWN,
    )
    code, out, err = harvest("task", "retry", "17", "--json")
    assert (code, json.loads(out), err) == (1, {"retried": [], "unknown": [17]}, UNKNOWN)
    nothing = (0, "0 tasks put back\n")
    assert harvest("task", "retry", "3", "--state", "failed") == (
        *nothing,
        "warning: task 3 is not put back: it is cancelled, and --state says failed\n",
    )
    assert harvest("task", "retry", "3", "--since", "2100-01-01") == (
        *nothing,
        "warning: task 3 is not put back: it ended before --since\n",
    )
    assert harvest("task", "retry", "3", "--queue", "b") == (
        *nothing,
        "warning: task 3 is not put back: it is of the queue 'mail'\n",
    )


def test_a_bulk_action_without_a_filter(harvest, sql):
    """Refused with a code and a sentence, and nothing is changed (O2)."""
    said = harvest("task", "cancel", "--reason", "oops")
    assert usage(said) == "cancel of all tasks at once is refused: give IDs, --queue or --activity"
    said = harvest("task", "retry", "--state", "cancelled")
    assert usage(said) == "retry of all tasks at once is refused: give IDs, --queue, --activity or --since"
    code, out, _ = harvest("task", "cancel", "--json")
    assert (code, json.loads(out)["error"]["message"]) == (
        2,
        "cancel of all tasks at once is refused: give IDs, --queue or --activity",
    )
    assert usage(harvest("task", "retry", "--since", "yesterday")) == (
        "--since yesterday: expected a time such as 2026-12-01T08:00+00:00"
    )
    assert sql("select count(*) from tasks").fetchone() == (4,)


def test_queues(harvest, sql):
    """Listed with depth and age; paused and resumed (K13)."""
    sql("update tasks set scheduled_at = now() - interval '90 seconds' where id = 2")
    assert harvest("queue", "pause", "mail") == (0, "queue 'mail' is paused\n", "")
    assert harvest("queue", "pause", "empty")[:2] == (0, "queue 'empty' is paused\n")
    sql("update queues set paused_at = '2026-01-01 02:00Z'")
    code, out, _ = harvest("queue", "list")
    assert code == 0
    rows = [re.split(r"  +", line.rstrip()) for line in out.splitlines()]
    assert rows[0] == ["queue", "pending", "oldest", "paused since"]
    assert rows[1][:2] == ["b", "1"]
    assert rows[2] == ["empty", "0", "2026-01-01 02:00:00+00:00"]
    assert (rows[3][:2], rows[3][3]) == (["mail", "3"], "2026-01-01 02:00:00+00:00")
    assert 90.0 <= float(rows[3][2].removesuffix(" s")) < 120.0
    code, out, _ = harvest("queue", "list", "--json")
    found = {one["name"]: one for one in json.loads(out)}
    assert found["empty"] == {
        "name": "empty",
        "paused_at": "2026-01-01T02:00:00+00:00",
        "pending": 0,
        "oldest": 0.0,
    }
    assert harvest("queue", "resume", "mail") == (0, "queue 'mail' goes on\n", "")
    assert harvest("queue", "resume", "mail") == (0, "queue 'mail' was not paused\n", "")
    harvest("queue", "resume", "empty")
    sql("delete from tasks")
    assert harvest("queue", "list") == (0, "no queue has pending tasks, none is paused\n", "")


def test_the_options_of_an_enqueue(harvest, sql):
    """Each reaches its column; a taken key is said (K3)."""
    words = ("task", "enqueue", "work", "--elsewhere", "--key", "k", "--key-period", "1h", "--lane", "customer/7")
    words += ("--schedule-to-start", "5m", "--schedule-to-close", "2h")
    assert harvest(*words) == (0, "task 5 enqueued\n", "")
    row = "select t.lane, t.schedule_to_start, t.schedule_to_close, k.expires_at > now() + interval '59 min'"
    assert sql(f"{row} from tasks t join keys k on k.task_id = t.id").fetchall() == [
        ("customer/7", 300.0, 7200.0, True)
    ]
    assert harvest(*words) == (0, "task 5 of the key 'k' was there already\n", "")
    assert harvest(*words, "--on-conflict", "replace") == (
        0,
        "task 5 of the key 'k' was there already and is replaced\n",
        "",
    )
    code, out, err = harvest(*words, "--on-conflict", "raise")
    assert (code, out) == (1, "")
    assert err == "error: task 1 (work): its key is taken by task 5; nothing was written\n"
