"""A real PgBouncer for a test: Debian's program in a folder of its own, on a free port, in transaction mode."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from harvest_core.store.postgres import embedded

PROGRAM = Path("/usr/sbin/pgbouncer")


@contextmanager
def pgbouncer(folder: Path, dsn: str, **settings: str) -> Iterator[str]:
    """Give a DSN that reaches the database of `dsn` through a pooler; it is ended by its process id.

    Args:
        folder: an empty folder.
        dsn: the database.
        settings: keys of the section `[pgbouncer]`.
    """
    target, port = conninfo_to_dict(dsn), _free_port()
    server = " ".join(f"{key}={target[key]}" for key in ("host", "port", "user", "password") if target.get(key))
    name = target["dbname"]
    options = {
        "listen_addr": "127.0.0.1",
        "listen_port": str(port),
        "unix_socket_dir": "",
        "auth_type": "any",
        "pool_mode": "transaction",
        "default_pool_size": "3",
        "server_login_retry": "1",
        "logfile": str(folder / "pgbouncer.log"),
        **settings,
    }
    lines = [f"{key} = {value}" for key, value in options.items()]
    text = "\n".join(["[databases]", f"{name} = dbname={name} {server}", "[pgbouncer]", *lines, ""])
    configuration = folder / "pgbouncer.ini"
    configuration.write_text(text)
    account = _account(str(target.get("host") or ""))
    if account is not None:
        os.chown(folder, *account)
        os.chown(configuration, *account)
    # The launcher of the embedded server leaves root behind, but not the way through root's own folders.
    launcher = Path(embedded.__file__).with_name("embedded_launch.py")
    who = "{}:{}".format(*account) if account else ""
    process = subprocess.Popen(  # noqa: S603 - our own launcher and one program
        [sys.executable, "-I", "-S", launcher, folder / "lock", who, "stay", PROGRAM, "-q", configuration],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    through = make_conninfo("", host="127.0.0.1", port=port, dbname=name, user=target.get("user"))
    try:
        _wait_until_it_answers(process, through, folder / "pgbouncer.log")
        yield through
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _wait_until_it_answers(process: subprocess.Popen[bytes], dsn: str, log: Path) -> None:
    end, refusal = time.monotonic() + 20, ""
    while process.poll() is None and time.monotonic() < end:
        try:
            psycopg.connect(dsn, connect_timeout=5).close()
        except psycopg.OperationalError as error:
            refusal = str(error)
            time.sleep(0.02)
        else:
            return
    said = log.read_text() if log.exists() else ""
    msg = f"{PROGRAM} does not answer: {refusal} {said}"
    raise RuntimeError(msg)


def _account(socket_folder: str) -> tuple[int, int] | None:
    """Return whom to run it as because we are root: who owns the server's socket, else postgres or nobody."""
    if os.geteuid() != 0:
        return None
    if socket_folder.startswith("/"):
        found = Path(socket_folder).stat()
        if found.st_uid:
            return found.st_uid, found.st_gid
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    return None


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
