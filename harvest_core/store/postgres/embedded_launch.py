"""Take the server's lock, leave root behind, and turn into a PostgreSQL program.

Run by path and alone (`python -I -S`), so that it starts in milliseconds: it imports nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import sys
from contextlib import suppress

_DAC_OVERRIDE, _DAC_READ_SEARCH = 1, 2
_SET_KEEPCAPS, _SET_SECUREBITS, _AMBIENT, _AMBIENT_RAISE, _AMBIENT_CLEAR_ALL = 8, 28, 47, 2, 4
_NO_SETUID_FIXUP, _KEEP_CAPS = 1 << 2, 1 << 4
_VERSION_3 = 0x20080522


def main(lock: str, account: str, style: str, program: str, *arguments: str) -> None:
    """Become `program`, which holds `lock` as long as it or any of its children lives.

    Args:
        lock: path of a file; its flock is inherited by every process of the server, so that the kernel itself knows
            whether one is left, whatever became of process ids.
        account: `uid:gid` to run as, or empty to stay who we are.
        style: `detach` to leave the program to init, so that no starter has to reap it; `stay` to be it.
        program: absolute path of the binary.
        arguments: its arguments.
    """
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.set_inheritable(descriptor, True)  # noqa: FBT003 - the signature of the standard library
    if style == "detach" and os.fork():
        os._exit(0)
    if account:
        uid, gid = map(int, account.split(":"))
        _execute_as(uid, gid, [program, *arguments])
    os.execv(program, [program, *arguments])  # noqa: S606 - there is no shell on purpose


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def _execute_as(uid: int, gid: int, command: list[str]) -> None:
    """Become the account, but keep one capability: it must reach its data and the binaries through root's own folders.

    Reading and searching suffices where the binaries may be executed by all; else (or where a container withholds it)
    the right to pass every permission. The exec drops everything but the ambient set.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_SET_KEEPCAPS, 1, 0, 0, 0)
    # Without the fix-up access(2), with which PostgreSQL looks for its own programs, heeds the capability too. Where
    # this is withheld (it takes CAP_SETPCAP), all is well if the binaries lie open to all.
    libc.prctl(_SET_SECUREBITS, _NO_SETUID_FIXUP | _KEEP_CAPS, 0, 0, 0)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    header, sets = _Header(_VERSION_3, 0), (_Sets * 2)()
    libc.capget(ctypes.byref(header), sets)
    for capability in (_DAC_READ_SEARCH, _DAC_OVERRIDE):
        sets[0].effective = sets[0].inheritable = 1 << capability
        sets[1].effective = sets[1].inheritable = 0
        libc.prctl(_AMBIENT, _AMBIENT_CLEAR_ALL, 0, 0, 0)
        withheld = libc.capset(ctypes.byref(header), sets) or libc.prctl(_AMBIENT, _AMBIENT_RAISE, capability, 0, 0)
        if not withheld:
            with suppress(PermissionError):
                os.execv(command[0], command)  # noqa: S606 - there is no shell on purpose
    sys.exit(
        f"user id {uid} cannot reach {command[0]}, and root has no CAP_DAC_READ_SEARCH or CAP_DAC_OVERRIDE to lend it: "
        "run as a normal user"
    )


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError as error:
        sys.exit(f"cannot run {sys.argv[4]} as user id {sys.argv[2].split(':')[0] or os.geteuid()}: {error}")
