"""Something async for callers without an event loop: opened at first need on a loop in a thread, used from any thread.

A fork leaves the loop and its connections to the parent; the child opens its own when it needs them. Refuses to be used
from its own loop, where a call would wait for itself.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Generic, TypeVar

from harvest_core.errors import HarvestError

T = TypeVar("T")
R = TypeVar("R")

_AT_EXIT = 2.0
"""Seconds that the process's end waits for each to close."""

_LAST_WORDS = 1.0
"""Seconds that cancelled calls get to cancel their statements on the server."""


class OnLoop(Generic[T]):
    """Runs coroutines of one async context manager, and opens it when it has to.

    Args:
        make: returns what is opened; called again after `close` and in a forked child.
    """

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._opened: _Opened[T] | None = None
        self._forgotten: weakref.finalize[..., OnLoop[T]] | None = None
        _everyone.add(self)

    def open(self) -> None:
        """Open it now rather than at first need."""
        with self._lock:
            self._at_hand()

    def run(self, work: Callable[[T], Coroutine[Any, Any, R]]) -> R:
        """Run a coroutine of it to its end, wait for that, and return or raise what came of it.

        Raises:
            HarvestError: it was closed meanwhile, or this is its own loop.
        """
        with self._lock:
            opened = self._at_hand()
            call = opened.begin(work(opened.it))
        return _outcome(call)

    def soon(self, work: Callable[[T], None]) -> None:
        """Have a plain function of it called on the loop, if it is open, and do not wait; safe in a signal handler."""
        if (opened := self._opened) is not None:
            with suppress(RuntimeError):  # its loop has closed meanwhile
                opened.loop.call_soon_threadsafe(work, opened.it)

    def close(self) -> None:
        """End calls under way and close it; a later call opens it anew."""
        with self._lock:
            opened = self._forget()
        if opened is not None:
            opened.close()
            opened.thread.join()

    def close_at_exit(self) -> None:
        """Close it, but not at any price."""
        if self._lock.acquire(timeout=_AT_EXIT):
            opened = self._forget()
            self._lock.release()
            if opened is not None:
                opened.close()
                opened.thread.join(_AT_EXIT)

    def after_fork(self) -> None:
        """Leave everything to the parent: what is shared with it must not even be closed here."""
        self._lock = threading.Lock()
        if (opened := self._forget()) is not None:
            _parents.append(opened)

    def _at_hand(self) -> _Opened[T]:
        if self._opened is None:
            self._opened = _Opened(self._make())
            self._forgotten = weakref.finalize(self, self._opened.close)
            self._forgotten.atexit = False
        return self._opened

    def _forget(self) -> _Opened[T] | None:
        if self._forgotten is not None:
            self._forgotten.detach()
        opened, self._opened, self._forgotten = self._opened, None, None
        return opened


class _Opened(Generic[T]):
    """A thread, its loop, and what was opened on it."""

    def __init__(self, manager: AbstractAsyncContextManager[T]) -> None:
        self._manager = manager
        self._begun: weakref.WeakSet[Coroutine[Any, Any, Any]] = weakref.WeakSet()
        self._end = asyncio.Event()
        started: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        self.thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(started)), name="harvest-loop", daemon=True
        )
        self.thread.start()
        self.loop = started.result()
        try:
            self.it: T = _outcome(self.begin(manager.__aenter__()))
        except BaseException:
            self.loop.call_soon_threadsafe(self._end.set)
            raise

    def begin(self, coroutine: Coroutine[Any, Any, R]) -> concurrent.futures.Future[R]:
        """Start a coroutine on the loop."""
        if threading.current_thread() is self.thread:
            coroutine.close()
            msg = "a blocking call on its own event loop would wait for itself; call it from another thread"
            raise HarvestError(msg)
        self._begun.add(coroutine)
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def close(self) -> None:
        """Cancel the calls under way, close what was opened, end the thread; do not wait for it."""
        asyncio.run_coroutine_threadsafe(self._close(), self.loop)

    async def _serve(self, started: concurrent.futures.Future[asyncio.AbstractEventLoop]) -> None:
        started.set_result(asyncio.get_running_loop())
        await self._end.wait()

    async def _close(self) -> None:
        calls = [task for task in asyncio.all_tasks() if task.get_coro() in self._begun]
        for call in calls:
            if not call.cancelling():  # an interrupted one is telling the server already
                call.cancel()
        if calls:
            await asyncio.wait(calls, timeout=_LAST_WORDS)
        try:
            await self._manager.__aexit__(None, None, None)
        finally:
            self._end.set()


def _outcome(call: concurrent.futures.Future[R]) -> R:
    try:
        return call.result()
    except concurrent.futures.CancelledError:
        msg = "closed while this call was under way: what it did is not known"
        raise HarvestError(msg) from None
    except BaseException:
        call.cancel()  # an interrupt came here, in the waiting thread
        raise
    finally:
        del call  # or an error would hold its own traceback


_everyone: weakref.WeakSet[OnLoop[Any]] = weakref.WeakSet()
_parents: list[_Opened[Any]] = []


def _after_fork() -> None:
    for each in list(_everyone):
        each.after_fork()


@atexit.register
def _at_exit() -> None:
    for each in list(_everyone):
        with suppress(Exception):  # e.g. no thread may start any more
            each.close_at_exit()


os.register_at_fork(after_in_child=_after_fork)
