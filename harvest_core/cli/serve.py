"""Run a worker as a process: signals stop it, and nothing keeps it longer than its grace and two seconds (rule K12)."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from prometheus_client import CollectorRegistry, start_http_server

from harvest_core.build import Build
from harvest_core.errors import HarvestError
from harvest_core.model import Worker as Identity
from harvest_core.worker.worker import Worker

_AFTER_GRACE = 1.9
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_log = logging.getLogger("harvest")


class MetricsPortError(HarvestError):
    """Metrics cannot be served on the port that was asked for."""


@contextmanager
def metrics_served(registry: CollectorRegistry, port: int | None) -> Iterator[str | None]:
    """Serve a registry on loopback and give its address; None where no port is given.

    Raises:
        MetricsPortError: the port cannot be had.
    """
    if port is None:
        yield None
        return
    try:
        server, _ = start_http_server(port, addr="127.0.0.1", registry=registry)
    except OSError as error:
        msg = (
            f"metrics cannot be served on 127.0.0.1:{port}: {error.strerror}; "
            "choose another --metrics-port, or 0 for a free one"
        )
        raise MetricsPortError(msg) from None
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()


def serve(build: Build, started: Callable[[Identity], None], *, sample_depths: bool) -> None:
    """Run a worker until SIGTERM or SIGINT. Called in the main thread.

    Args:
        build: what it runs on.
        started: called once it is registered.
        sample_depths: True to show the depth of queues among its metrics.

    Raises:
        HarvestError: it could not start.
    """
    deadline = Deadline()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        asyncio.run(_serve(build, started, deadline, sample_depths=sample_depths))
    except asyncio.CancelledError:
        _log.info("stopped before it had started")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def leave_stuck_threads() -> None:
    """Leave without the exit's wait for threads where a plain function will not end; its task was given back."""
    end = time.monotonic() + 0.2
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("harvest-activity")]
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    stuck = sum(thread.is_alive() for thread in threads)
    if stuck:
        _log.warning("%s plain function%s did not end; leaving without", stuck, "" if stuck == 1 else "s")
        logging.shutdown()
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(0)


class Deadline:
    """Ends the process by force when an announced time has passed: threads and blocked loops cannot be cancelled.

    Attributes:
        code: exit code of a forced end; 0 once nothing is left undone.
    """

    def __init__(self) -> None:
        self.code = 1
        self._orders: queue.SimpleQueue[float] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="harvest-deadline", daemon=True).start()

    def within(self, seconds: float) -> None:
        """End the process after so many seconds; a later call replaces this one. Safe in a signal handler."""
        self._orders.put(seconds)  # SimpleQueue is re-entrant; locks and events are not

    def _run(self) -> None:
        wait: float | None = None
        while True:
            try:
                wait = self._orders.get(timeout=wait)
            except queue.Empty:
                os.write(2, b"harvest: not everything ended in time; the process ends now\n")
                os._exit(self.code)


async def _serve(build: Build, started: Callable[[Identity], None], deadline: Deadline, *, sample_depths: bool) -> None:
    worker = Worker(build, sample_depths=sample_depths)
    signals = _Signals(worker, build.config.worker.shutdown_grace, deadline)
    for number in _SIGNALS:
        signal.signal(number, signals.received)
    async with worker:
        signals.opened = True
        started(worker.identity)
        await worker.run()
    _log.info("worker %s stopped", worker.identity.name)
    deadline.code = 0


class _Signals:
    """Turns signals into the worker's stop. Plain handlers: the loop's own never run while an activity blocks it."""

    def __init__(self, worker: Worker, grace: float, deadline: Deadline) -> None:
        self._worker, self._grace, self._deadline = worker, grace, deadline
        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
        self._count = 0
        self.opened = False

    def received(self, number: int, _frame: FrameType | None) -> None:
        """Take a signal; called between any two instructions of the main thread, so it only passes word."""
        self._count += 1
        self._deadline.within((self._grace if self._count == 1 else 0.0) + _AFTER_GRACE)
        with suppress(RuntimeError):  # the loop is closed: the process is at its end anyway
            self._loop.call_soon_threadsafe(self._stop, signal.Signals(number).name, self._count)

    def _stop(self, name: str, count: int) -> None:
        if not self.opened:
            if self._main is not None:
                self._main.cancel()
        elif count == 1:
            _log.info("%s: running tasks get %g s to finish; a second signal stops at once", name, self._grace)
        else:
            _log.info("%s again: stopping at once", name)
        self._worker.stop()
