"""Run one claim to its outcome: middleware around the activity, its time limit, and the judgement of a failure.

Touches no table; what it returns is written by the finisher.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import random
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

import attrs

from harvest_core.errors import NonRetryableError, PayloadError
from harvest_core.model import Activity, Retry
from harvest_core.payload import storable_text
from harvest_core.payloads import Payloads
from harvest_core.store.postgres.tasks import Claim, Finished, Outcome, Released, Retried
from harvest_core.worker.context import CurrentTask, _current

_log = logging.getLogger("harvest")


@attrs.frozen
class Dispatcher:
    """Runs claims.

    Args:
        activities: the worker's activities by name.
        middleware: what runs around every attempt, outermost first.
        threads: where plain functions run.
        random: a number from 0 to 1, for jitter.
        payloads: how arguments are read and results are stored.
    """

    activities: Mapping[str, Activity]
    middleware: Sequence[Callable[..., Any]]
    threads: Executor
    random: Callable[[], float] = random.random
    payloads: Payloads = attrs.field(factory=Payloads)
    _coroutines: frozenset[str] = attrs.field(init=False)

    @_coroutines.default
    def _(self) -> frozenset[str]:
        return frozenset(
            name for name, activity in self.activities.items() if inspect.iscoroutinefunction(activity.function)
        )

    async def run(self, claim: Claim, task: CurrentTask) -> Outcome:
        """Run a claim. A run that this worker stopped is given back with its attempt restored."""
        if claim.fault:
            return Finished("failed", error=claim.fault)
        activity = self.activities[claim.route.name]
        token = _current.set(task)
        whole = beats = None
        try:
            if claim.start_to_close is None and claim.heartbeat is None:
                result = await self._through_middleware(activity, claim, task, 0)
            else:
                whole, beats = asyncio.timeout(claim.start_to_close), asyncio.timeout(claim.heartbeat)
                task.lease = beats
                async with whole, beats:
                    result = await self._through_middleware(activity, claim, task, 0)
            return Finished("completed", result=self.payloads.stored_result(activity.name, result))
        except asyncio.CancelledError as error:
            if task.stopped:
                return Released()
            if task.asked_to_stop:
                return Finished("cancelled")
            text = "CancelledError: the activity cancelled itself"
            return failure(activity.retry, claim, error, text, self.random())
        except (KeyboardInterrupt, GeneratorExit):
            raise  # the process or its loop ends; others rescue the task
        except BaseException as error:  # noqa: BLE001 - whatever else an activity raises is an outcome
            if task.asked_to_stop:
                return Finished("cancelled")
            text = sentence_of(error)
            if whole is not None and beats is not None and (whole.expired() or beats.expired()):
                task.cancelled = True
                limit = f"start_to_close of {claim.start_to_close} s has passed"
                text = f"TimeoutError: {limit if whole.expired() else f'no heartbeat for {claim.heartbeat} s'}"
            return failure(activity.retry, claim, error, text, self.random())
        finally:
            _current.reset(token)

    async def _through_middleware(self, activity: Activity, claim: Claim, task: CurrentTask, depth: int) -> Any:
        if depth < len(self.middleware):
            return await self.middleware[depth](
                task, lambda: self._through_middleware(activity, claim, task, depth + 1)
            )
        args, kwargs = self.payloads.arguments(activity.name, claim.args, claim.kwargs)
        if activity.name in self._coroutines:
            return await activity.function(*args, **kwargs)
        return await self._in_thread(activity.function, args, kwargs, task)

    async def _in_thread(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], task: CurrentTask
    ) -> Any:
        context = contextvars.copy_context()

        def work() -> Any:
            try:
                return context.run(function, *args, **kwargs)
            except (StopIteration, KeyboardInterrupt, GeneratorExit) as error:
                # A future cannot carry the first, and the others would end the loop.
                msg = f"{function.__name__} raised {type(error).__name__}: {error}"
                raise RuntimeError(msg) from error

        running = asyncio.get_running_loop().run_in_executor(self.threads, work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            # A thread cannot be stopped: it is told, and its slot stays taken until it ends (see `CurrentTask.thread`).
            task.cancelled = True
            if task.asked_to_stop and not task.stopped:
                return await self._after_cancellation(running, task)
            task.thread = running
            raise

    async def _after_cancellation(self, running: asyncio.Future[Any], task: CurrentTask) -> Any:
        """Wait for a thread that was asked to stop: it may complete, and until it ends its task runs."""
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            task.thread = running
            raise


def failure(
    retry: Retry, claim: Claim, error: BaseException | None, text: str, share: float, *, final: bool = False
) -> Outcome:
    """Return what a failed attempt comes to: another one, or the end.

    Args:
        retry: the activity's policy.
        claim: the attempt.
        error: what was raised, if anything.
        text: the error in words.
        share: a random number from 0 to 1, for jitter.
        final: True for no further attempt, whatever the policy says.
    """
    text, name = storable_text(text), claim.route.name
    lines = None if error is None else storable_text("".join(traceback.format_exception(error)))
    final = final or isinstance(error, (NonRetryableError, PayloadError, *retry.non_retryable))
    if final or claim.attempt >= claim.max_attempts:
        _log.warning("task %s (%s) failed at attempt %s: %s", claim.id, name, claim.attempt, text[:500])
        return Finished("failed", error=text, traceback=lines)
    wait = retry_wait(retry, claim.attempt, share)
    _log.info("task %s (%s) will be tried again in %.1f s: %s", claim.id, name, wait, text[:500])
    return Retried(wait, text, lines)


def retry_wait(retry: Retry, attempt: int, share: float) -> float:
    """Return the seconds to wait after a failed attempt.

    Args:
        retry: the activity's policy.
        attempt: the attempt that failed, from 1.
        share: a random number from 0 to 1.
    """
    try:
        wait = min(retry.initial * retry.factor ** (attempt - 1), retry.maximum)
    except OverflowError:
        wait = retry.maximum
    return wait * (1 - retry.jitter * share)


def sentence_of(error: BaseException) -> str:
    """Return an error in words, as a task keeps it."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an error whose own text raises is a failure all the same
        return f"{type(error).__name__}: its text cannot be shown"
