"""The `harvest` script as users run it: real processes on a real database (rules O2, K12, O3)."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from harvest_core import Harvest

HARVEST = Path(sys.executable).with_name("harvest")
APP = """
import asyncio, logging, threading, time
from pathlib import Path
from harvest_core import Harvest

app = Harvest.from_toml("harvest.toml")
log = logging.getLogger("app")

@app.activity
async def double(x):
    return x * 2

@app.activity(max_attempts=1)
def bad(text):
    raise ValueError(text)

@app.activity(requires="gpu = true")
async def render(x, size=1):
    return [x, size]

@app.activity
async def wait_for(path):
    log.info("waiting")
    while not Path(path).exists():
        await asyncio.sleep(0.01)
    return "seen"

@app.activity
async def forever():
    log.info("waiting")
    await asyncio.Event().wait()

@app.activity
def stuck():
    log.info("waiting")
    threading.Event().wait()

@app.activity
async def blocked():
    log.info("waiting")
    time.sleep(3600)
"""
STARTED = r"worker .* started: "


class Running:
    """A `harvest` process whose standard error is read line by line as it comes."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [HARVEST, *words], cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.said = ""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stderr:
            self.lines.put(line)
        self.lines.put(None)

    def until(self, pattern: str) -> re.Match[str]:
        """Wait for a line and return its match."""
        while (line := self.lines.get(timeout=20)) is not None:
            self.said += line
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"no line {pattern!r} came; it said:\n{self.said}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> tuple[int, str]:
        """Wait for the end and return exit code and standard output."""
        code = self.process.wait(timeout=20)
        return code, self.process.stdout.read()


class Project:
    """A folder with an app and its configuration."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.folder, self.dsn = folder, dsn
        self.workers: list[Running] = []
        (folder / "app.py").write_text(APP)
        head = f'[harvest]\napp = "app:app"\ndsn = {json.dumps(dsn)}\nplugins = ["capabilities", "flags"]\n'
        (folder / "harvest.toml").write_text(f'{head}[worker]\npoll_interval = "50ms"\n')

    def worker(self, *words: str) -> Running:
        running = Running(self.folder, "worker", "run", *words)
        self.workers.append(running)
        return running

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [HARVEST, *words], cwd=self.folder, env=environment(), capture_output=True, text=True, timeout=30
        )

    def json(self, *words: str) -> object:
        ran = self.run(*words, "--json")
        assert (ran.returncode, ran.stderr) == (0, "")
        return json.loads(ran.stdout)

    def enqueue(self, name: str, *args: object) -> int:
        """Enqueue as another process would."""

        async def enqueued() -> int:
            async with Harvest({"harvest": {"dsn": self.dsn}}).client() as client:
                return (await client.enqueue(name, *args, elsewhere=True)).id

        return asyncio.run(enqueued())

    def result(self, task_id: int) -> object:
        async def awaited() -> object:
            async with Harvest({"harvest": {"dsn": self.dsn}}).client() as client:
                return await client.result(task_id, timeout=20)

        return asyncio.run(awaited())

    def task(self, task_id: int) -> tuple[str, int]:
        """Return state and attempt."""
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(
                "select state::text, attempt from harvest.tasks where id = %(id)s "
                "union all select state::text, attempt from harvest.finished where id = %(id)s",
                {"id": task_id},
            ).fetchone()

    def workers_known(self) -> int:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute("select count(*) from harvest.workers").fetchone()[0]


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HARVEST_")}
    return kept | {"PYTHONWARNINGS": "error::RuntimeWarning"}


@pytest.fixture
def project(tmp_path: Path, harvest_database: str) -> Iterator[Project]:
    made = Project(tmp_path, harvest_database)
    yield made
    for worker in made.workers:
        if worker.process.poll() is None:
            worker.process.kill()
        worker.process.communicate()


def test_a_worker_runs_what_another_process_enqueues(project: Project) -> None:
    """Enqueue, run, show and explain by command line alone, metrics on loopback, a plugin's option, a clean end."""
    worker = project.worker("--metrics-port", "0", "--json", "--queue", "default", "--set", "worker.name=atlas")
    started = worker.until(
        r"INFO harvest: worker atlas \((\S+)\) started: queues default; concurrency 20; plugins capabilities, flags; "
        r"database (\S+); metrics (http://127.0.0.1:\d+/metrics)$"
    )

    doubled = project.json("task", "enqueue", "double", "21", "--priority", "3", "--with", 'flags=["vip"]')
    assert project.result(doubled["id"]) == 42
    shown = project.json("task", "show", str(doubled["id"]))
    expected = {"state": "completed", "result": 42, "attempt": 1, "priority": 3, "traits": {"flags": ["vip"]}}
    assert {key: shown[key] for key in expected} == expected
    assert shown["worker_id"] == started[1]

    first = project.json("task", "enqueue", "render", '"é"', "--kwargs", '{"size": 2}', "--key", "k", "--delay", "0s")
    again = project.json("task", "enqueue", "render", '"é"', "--key", "k")
    assert (first["created"], again) == (True, {"id": first["id"], "created": False})
    explained = project.run("explain", str(first["id"]))
    assert re.sub(r"\d+\.\d s ago", "N s ago", explained.stdout) == (
        f"task {first['id']} (render, queue default): none of 1 live workers may take it: "
        "1 x unsatisfied_requirement:gpu=true\n\n"
        f"worker atlas ({started[1]}): may not take it; 20 free slots; judged by facts of N s ago\n"
        "  kernel        allows\n"
        "  capabilities  refuses: unsatisfied requirement: gpu=true\n"
        "  flags         allows\n"
    )

    other = project.worker("--label=gpu=true", "app:app", "--set", "worker.name=birch")
    other.until("worker birch .* metrics off$")
    assert project.result(first["id"]) == ["é", 2]

    metrics = urllib.request.urlopen(started[3], timeout=10).read().decode()
    assert 'harvest_queue_dispatched_total{queue="default"} 1.0' in metrics

    worker.signal(signal.SIGTERM)
    code, out = worker.ended()
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, [line["event"] for line in lines]) == (0, ["started", "stopped"])
    assert lines[0] | {"database": "", "metrics": ""} == {
        "event": "started",
        "id": started[1],
        "name": "atlas",
        "queues": ["default"],
        "concurrency": 20,
        "plugins": ["capabilities", "flags"],
        "database": "",
        "metrics": "",
    }
    other.signal(signal.SIGINT)
    assert other.ended() == (0, "")
    assert project.workers_known() == 0


def test_a_failed_task_is_shown_readably(project: Project) -> None:
    """Error and traceback stand there as lines; markup, wide letters and control characters of the data are inert."""
    project.worker("app:app").until(STARTED)
    text = "[red]naïve[/red] 日本 \x1b[31m"
    task_id = project.enqueue("bad", text)
    line = project.workers[0].until(r"WARNING harvest: task \d+ \(bad\) failed at attempt 1: (.*)$")
    assert line[1] == "ValueError: [red]naïve[/red] 日本 \\u001b[31m"

    worker = project.workers[0]
    worker.signal(signal.SIGTERM)
    worker.ended()
    shown = project.run("task", "show", str(task_id)).stdout.splitlines()
    assert "state         failed" in shown
    assert 'args          ["[red]naïve[/red] 日本 \\u001b[31m"]' in shown
    assert "error         ValueError: [red]naïve[/red] 日本 \\u001b[31m" in shown
    assert "traceback     Traceback (most recent call last):" in shown
    assert shown[-1].strip() == "ValueError: [red]naïve[/red] 日本 \\u001b[31m"


def test_sigterm_lets_running_tasks_finish(project: Project, tmp_path: Path) -> None:
    """The first signal stops claiming and waits for what runs (K12)."""
    worker = project.worker()
    running, door = project.enqueue("wait_for", str(tmp_path / "door")), tmp_path / "door"
    worker.until("waiting")
    worker.signal(signal.SIGTERM)
    worker.until("SIGTERM: running tasks get 30 s to finish; a second signal stops at once")
    later = project.enqueue("double", 1)
    door.touch()
    assert worker.ended()[0] == 0
    assert project.task(running) == ("completed", 1)
    assert project.task(later) == ("pending", 0)


def test_a_second_signal_stops_at_once(project: Project) -> None:
    """A second signal does not wait for the grace; what ran is given back with its attempt restored (K12)."""
    worker = project.worker()
    running = project.enqueue("forever")
    worker.until("waiting")
    worker.signal(signal.SIGTERM)
    worker.until("SIGTERM: ")
    worker.signal(signal.SIGINT)
    worker.until("SIGINT again: stopping at once")
    assert worker.ended()[0] == 0
    assert project.task(running) == ("pending", 0)


def test_a_plain_function_that_will_not_end_does_not_keep_the_process(project: Project) -> None:
    """A thread cannot be cancelled: its task is given back, and the process leaves without it (K12)."""
    worker = project.worker("--set", "worker.shutdown_grace=0s", "--json")
    running = project.enqueue("stuck")
    worker.until("waiting")
    worker.signal(signal.SIGTERM)
    worker.until("WARNING harvest: 1 plain function did not end; leaving without")
    code, out = worker.ended()
    assert (code, json.loads(out.splitlines()[-1])) == (0, {"event": "stopped"})
    assert worker.lines.get(timeout=20) is None  # it was not ended by force
    assert project.task(running) == ("pending", 0)


def test_a_blocked_loop_does_not_keep_the_process(project: Project) -> None:
    """An async activity that blocks the loop cannot be cancelled either: the process ends by force, with code 1."""
    worker = project.worker("--set", "worker.shutdown_grace=0s")
    project.enqueue("blocked")
    worker.until("waiting")
    worker.signal(signal.SIGTERM)
    worker.until("harvest: not everything ended in time; the process ends now")
    assert worker.ended()[0] == 1


def test_a_signal_while_it_starts_ends_it(project: Project) -> None:
    """A worker whose database does not answer yet obeys a signal too."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        worker = project.worker("--set", f"harvest.dsn=postgresql://u@127.0.0.1:{silent.getsockname()[1]}/x")
        connection, _ = silent.accept()
        worker.signal(signal.SIGTERM)
        worker.until("INFO harvest: stopped before it had started")
        assert worker.ended()[0] == 0
        connection.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_embedded_server_is_held_for_other_programs(tmp_path: Path, number: signal.Signals) -> None:
    """Its DSN, password included, is printed; it stops with its last user, unless --hold keeps it until a signal."""
    (tmp_path / "harvest.toml").write_text("")
    dsn = ["db", "dsn", "--json"]
    words = {"cwd": tmp_path, "env": environment(), "capture_output": True, "text": True, "timeout": 60}
    brief = subprocess.run([HARVEST, *dsn], **words)
    told = json.loads(brief.stdout)
    assert (brief.returncode, told["embedded"], brief.stderr) == (
        0,
        True,
        "note: this embedded PostgreSQL runs only while a process of Harvest uses it, such as a worker; "
        "--hold keeps it running\n",
    )
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(told["dsn"])
    holding = Running(tmp_path, *dsn, "--hold")
    try:
        assert json.loads(holding.process.stdout.readline()) == told
        with psycopg.connect(told["dsn"]) as connection:
            assert connection.execute("select 1").fetchone() == (1,)
    finally:
        holding.signal(number)
    assert holding.ended() == (0, "")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(told["dsn"])


def test_a_reader_that_has_left_is_no_crash(project: Project) -> None:
    """`harvest … | head` prints no traceback."""
    reader, writer = os.pipe()
    os.close(reader)
    ran = subprocess.run(
        [HARVEST, "config", "get"], cwd=project.folder, env=environment(), stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)
    assert (ran.returncode, ran.stderr) == (1, b"")


def test_any_terminal_can_show_any_text(project: Project) -> None:
    """A terminal without the letters gets escapes, not a crash."""
    ran = subprocess.run(
        [HARVEST, "config", "get", "日本"],
        cwd=project.folder,
        env=environment() | {"PYTHONIOENCODING": "latin-1"},
        capture_output=True,
    )
    assert (ran.returncode, ran.stderr) == (
        1,
        b"error: no runtime setting '\\u65e5\\u672c' is set; set are: none\n",
    )
