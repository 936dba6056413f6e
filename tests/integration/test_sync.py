"""The sync client and worker: twins of the async ones, from any thread, across forks and interrupts (K10)."""

import asyncio
import gc
import inspect
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from harvest_core import (
    Call,
    ClaimedTask,
    Claimer,
    Client,
    Harvest,
    SyncClaimedTask,
    SyncClaimer,
    SyncClient,
    SyncTask,
    SyncWorker,
    Task,
    Worker,
)
from harvest_core.errors import (
    DatabaseUnavailableError,
    HarvestError,
    PayloadError,
    TaskFailedError,
    TaskNotFoundError,
    UnknownActivityError,
)
from harvest_core.testing.servers import run_async

PATIENCE = 15.0


@pytest.fixture
def app(harvest_database):
    """Give an app of plain functions; no test of this module but one has an event loop."""
    app = Harvest({"harvest": {"dsn": harvest_database}, "worker": {"poll_interval": "50ms"}})

    @app.activity
    def add(a: int, b: int) -> int:
        return a + b

    @app.activity(max_attempts=1)
    def fails():
        raise ValueError("no")

    return app


def loops():
    """Return the threads of sync clients that live."""
    return [thread for thread in threading.enumerate() if thread.name == "harvest-loop"]


def until(condition, why):
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end, f"{why} did not come to hold"
        time.sleep(0.01)
    return found


def sessions(dsn):
    """Return how many connections of clients the database has."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        text = (
            "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'harvest'"
        )
        return connection.execute(text).fetchone()[0]


# ------------------------------------------------------------------------------------------------ the twins


PAIRS = [
    (Client, SyncClient),
    (Task, SyncTask),
    (Worker, SyncWorker),
    (Claimer, SyncClaimer),
    (ClaimedTask, SyncClaimedTask),
]
ASYNC_ONLY = {Client: {"database"}, Worker: {"identity"}, Task: {"id", "created"}}
"""What is no call: a database for coroutines, a value that runs ahead of who asks, plain fields."""


@pytest.mark.parametrize(("original", "twin"), PAIRS, ids=lambda cls: cls.__name__)
def test_every_public_method_has_its_twin(original, twin):
    """A method that is added to one and not to the other fails here, and so does a parameter or a type (K10)."""
    names = {name for name in vars(original) if not name.startswith("_")} - ASYNC_ONLY.get(original, set())
    assert names <= set(vars(twin))
    for name in names:
        ours, theirs = (inspect.signature(getattr(cls, name)) for cls in (twin, original))
        assert [_shape(one) for one in ours.parameters.values()] == [_shape(one) for one in theirs.parameters.values()]
        returned = str(theirs.return_annotation)
        expected = re.sub(r"\b(Task|Claimer|ClaimedTask)\b", r"Sync\1", returned.replace("AsyncIterator", "Iterator"))
        assert ours.return_annotation == expected
        assert not inspect.iscoroutinefunction(getattr(twin, name))
        assert getattr(twin, name).__doc__


def _shape(parameter):
    return parameter.name, parameter.kind, parameter.default, str(parameter.annotation).replace("AsyncC", "C")


def test_what_an_application_needs(app):
    """Enqueue, look, wait, pause, settings and work, without an event loop (K9, K10)."""
    with app.sync_client() as client, app.sync_worker() as worker:
        task = client.enqueue("add", 2, 3, priority=7)
        assert isinstance(task, SyncTask)
        assert task.created
        assert client.enqueue_many([]) == []
        many = client.enqueue_many([Call("add", (n, n)) for n in range(3)], notify=False)
        client.pause_queue("default")
        worker.run_once()
        assert (task.status().state, task.status().priority) == ("pending", 7)
        assert client.resume_queue("default")
        worker.run_once()
        assert task.result(timeout=5) == 5
        assert [one.result("5s") for one in many] == [0, 2, 4]
        assert client.status(task.id) == task.status()
        assert client.result(task.id) == 5
        version = client.set_setting("site", {"a": 1})
        assert (client.settings()["site"].value, client.settings()["site"].version) == ({"a": 1}, version)
    assert loops() == []


def test_a_worker_runs_until_it_is_stopped(app):
    """`run` blocks its thread; `stop` comes from another one, also before the first and after the last (K10, K12)."""
    worker = app.sync_worker()
    worker.stop()
    with app.sync_client() as client, worker, ThreadPoolExecutor(1) as pool:
        running = pool.submit(worker.run)
        assert client.enqueue("add", 1, 1).result(timeout=PATIENCE) == 2
        assert not running.done()
        worker.stop()
        assert running.result(PATIENCE) is None
    worker.stop()
    assert loops() == []


def test_errors_keep_their_type_and_tell_one_story(app):
    """The same classes and messages as the async client's, with no second exception in their traceback."""
    with app.sync_client() as client, app.sync_worker() as worker:
        failing = client.enqueue("fails")
        worker.run_once()
        waiting = client.enqueue("add", 1, 1)
        for call, kind in [
            (lambda: client.enqueue("ad", 1, 2), UnknownActivityError),
            (lambda: client.enqueue("add", 1, "\x00"), PayloadError),
            (lambda: client.status(0), TaskNotFoundError),
            (lambda: failing.result(), TaskFailedError),
            (lambda: waiting.result(timeout=0.05), TimeoutError),
        ]:
            with pytest.raises(kind) as caught:
                call()
            text = "".join(traceback.format_exception(caught.value))
            assert type(caught.value) is kind
            assert "During handling" not in text
            assert "direct cause" not in text
            assert text.count("Traceback") == 1


# ------------------------------------------------------------------------------------------------ opening and closing


def test_it_opens_at_first_need_and_again_after_close(app, harvest_database):
    """A client of a module costs nothing until it is used; what is closed is given back (K10)."""
    client = app.sync_client()
    assert (loops(), sessions(harvest_database)) == ([], 0)
    client.close()
    first = client.enqueue("add", 1, 1)
    assert len(loops()) == 1
    client.close()
    client.close()
    assert loops() == []
    until(lambda: sessions(harvest_database) == 0, "all connections closed")
    assert first.status().state == "pending"
    assert len(loops()) == 1
    client.close()


def test_activities_may_be_declared_after_the_client(harvest_database):
    """A client that stands beside its app in a module is there before the modules with the activities are."""
    app = Harvest({"harvest": {"dsn": harvest_database}})
    client = app.sync_client()
    late = app.activity(name="late")(print)
    with psycopg.connect(harvest_database, autocommit=True) as caller:
        assert client.enqueue(late, connection=caller).id < client.enqueue(late).id
    client.close()


def test_a_client_that_nobody_holds_closes_itself(app, harvest_database):
    """Neither a thread nor a connection outlives it; a handle on a task keeps it."""
    task = app.sync_client().enqueue("add", 1, 1)
    gc.collect()
    assert task.status().state == "pending"
    del task
    gc.collect()
    until(lambda: not loops(), "the end of the thread")
    until(lambda: sessions(harvest_database) == 0, "all connections closed")


def test_a_database_that_is_away_is_told_and_tried_again(app, harvest_database):
    """Opening that fails leaves no thread, and the next call tries anew."""
    away = Harvest({"harvest": {"dsn": "postgresql://nobody@127.0.0.1:1/none"}}).sync_client()
    for _ in range(2):
        with pytest.raises(DatabaseUnavailableError, match=r"127\.0\.0\.1:1/none cannot be used"):
            away.settings()
    with pytest.raises(DatabaseUnavailableError), away:
        pass
    until(lambda: not loops(), "the end of the threads")


def test_many_threads_share_one_client(app):
    """The first calls of eight threads at once open it once, and each gets its own answers (K10)."""
    client = app.sync_client()
    start = threading.Barrier(8)

    def use(number):
        start.wait()
        tasks = [client.enqueue("add", number, n) for n in range(10)]
        return [task.status().args for task in tasks] == [[number, n] for n in range(10)]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(8)))
    assert len(loops()) == 1
    client.close()


def test_close_ends_the_calls_of_other_threads(app):
    """Whoever waits is told in a sentence, and nobody waits for ever."""
    client = app.sync_client()
    task = client.enqueue("add", 1, 1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(task.result)
        opened = client._client._opened
        until(lambda: any(call.get_coro() in opened._begun for call in asyncio.all_tasks(opened.loop)), "the wait")
        client.close()
        with pytest.raises(HarvestError) as caught:
            waiting.result(PATIENCE)
    assert str(caught.value) == "closed while this call was under way: what it did is not known"
    assert loops() == []


async def test_inside_a_running_event_loop(app):
    """It blocks that loop for the moment, and does not wait for it."""
    client = app.sync_client()
    assert client.enqueue("add", 1, 1).status().state == "pending"
    client.close()


def test_on_its_own_loop_it_refuses(app):
    """A call that could never end says so."""
    client = app.sync_client()

    async def inside(driven):
        return client.settings()

    with pytest.raises(HarvestError) as caught:
        client._drive(inside)
    assert str(caught.value) == (
        "a blocking call on its own event loop would wait for itself; call it from another thread"
    )
    client.close()


# ------------------------------------------------------------------------------------------------ interrupts and forks


def test_an_interrupt_gives_the_call_up(app):
    """Ctrl-C in a wait ends the wait, on the loop as well, and the client can be used on."""
    with app.sync_client() as client:
        task = client.enqueue("add", 1, 1)
        opened = client._client._opened
        before = _tasks(opened)

        def interrupt():
            until(lambda: _tasks(opened) > before, "the wait")
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            task.result()
        thread.join()
        until(lambda: _tasks(opened) == before, "the end of the wait on the loop")
        assert task.status().state == "pending"


def _tasks(opened):
    return len(asyncio.all_tasks(opened.loop))


def program(text, dsn, **options):
    """Start a program that has an app and a client, and that tells of a loop that outlives its end."""
    start = """
        import asyncio, atexit, os, sys, threading

        @atexit.register
        def last():
            for thread in threading.enumerate():
                if thread.name == "harvest-loop":
                    thread.join(2)
                    print("a loop outlives the program" if thread.is_alive() else "", end="", file=sys.stderr)

        from harvest_core import Harvest
        app = Harvest({"harvest": {"dsn": os.environ["DSN"]}})
        app.activity(name="work")(print)
        client = app.sync_client()
    """
    return subprocess.Popen(
        [
            sys.executable,
            "-X",
            "dev",
            "-W",
            "ignore:This process:DeprecationWarning",
            "-c",
            textwrap.dedent(start) + textwrap.dedent(text),
        ],
        env={**os.environ, "DSN": dsn},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_ctrl_c_ends_the_process(harvest_database):
    """A process that waits for a result ends at SIGINT, with the one traceback that everybody knows."""
    process = program(
        """
        task = client.enqueue("work")
        loop = client._client._opened.loop

        def tell():
            while "Task.result" not in str(asyncio.all_tasks(loop)):
                pass
            print("waits", flush=True)

        threading.Thread(target=tell, daemon=True).start()
        task.result()
        """,
        harvest_database,
    )
    assert process.stdout.readline() == "waits\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGINT
    assert errors.count("Traceback") == 1
    assert errors.endswith("KeyboardInterrupt\n")


def test_ctrl_c_gives_a_workers_tasks_back(harvest_database):
    """A worker in a script that is interrupted leaves its task to others, and ends at once (K12)."""
    process = program(
        """
        @app.activity
        async def endless():
            print("runs", flush=True)
            await asyncio.sleep(3600)

        task = client.enqueue(endless)
        try:
            with app.sync_worker() as worker:
                worker.run()
        except KeyboardInterrupt:
            print(task.status().state, task.status().worker_id)
        """,
        harvest_database,
    )
    assert process.stdout.readline() == "runs\n"
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=PATIENCE)
    assert (output, process.returncode) == ("pending None\n", 0), errors


def test_a_signal_handler_may_stop_a_worker(app):
    """`stop` takes no lock, and `run` in the main thread returns."""
    with app.sync_worker() as worker, app.sync_client() as client:
        before = signal.signal(signal.SIGUSR1, lambda *_: worker.stop())
        task = client.enqueue("add", 1, 1)

        def stop():
            task.result(timeout=PATIENCE)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

        thread = threading.Thread(target=stop)
        thread.start()
        assert worker.run() is None
        thread.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("end", ["pass", "sys.exit(3)", "del client"])
def test_a_process_ends_without_close(end, harvest_database):
    """An open client of a module holds no process up, and nothing is written to standard error."""
    process = program(f"client.enqueue('work')\n{end}", harvest_database)
    _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (3 if "3" in end else 0, "")


def test_a_forked_child_opens_its_own(harvest_database):
    """Prefork servers: parent and children use one client of a module, each on connections of its own (K10)."""
    process = program(
        """
        import signal
        mine = client.enqueue("work")
        children = []
        for number in range(3):
            if (child := os.fork()) == 0:
                signal.alarm(15)
                assert mine.status().state == "pending"
                client.enqueue_many([])
                assert client.enqueue("work").id != mine.id
                sys.exit(0)
            children.append(child)
        print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
        assert mine.status().state == "pending"
        client.enqueue("work")
        client.close()
        """,
        harvest_database,
    )
    output, errors = process.communicate(timeout=2 * PATIENCE)
    assert (output, errors, process.returncode) == ("[0, 0, 0]\n", "", 0)
    with psycopg.connect(harvest_database) as connection:
        assert connection.execute("select count(*) from harvest.tasks").fetchone()[0] == 5


def test_a_fork_while_another_thread_opens(harvest_database):
    """A lock that was held at the fork by a thread that the child does not have holds nobody up there."""
    process = program(
        """
        import signal
        client._client._lock.acquire()
        if os.fork() == 0:
            signal.alarm(15)
            client.enqueue("work")
            client.close()
            sys.exit(0)
        print(os.waitstatus_to_exitcode(os.wait()[1]))
        client._client._lock.release()
        """,
        harvest_database,
    )
    assert process.communicate(timeout=PATIENCE) == ("0\n", "")


def test_two_loops_do_not_share(app):
    """`run_async`, the async client and the sync one work beside each other in one process."""

    async def enqueue():
        async with app.client() as client:
            return (await client.enqueue("add", 1, 1)).id

    with app.sync_client() as client:
        assert client.status(run_async(enqueue())).state == "pending"
