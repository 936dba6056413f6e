"""One claim's way to its outcome, without a database (K8, K10)."""

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvest_core.errors import NonRetryableError
from harvest_core.model import Activity, Retry, Route, Worker
from harvest_core.store.postgres.tasks import Claim, Finished, Released, Retried
from harvest_core.worker.context import CurrentTask, current_task
from harvest_core.worker.dispatcher import Dispatcher, retry_wait

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def claim_of(attempt=1, max_attempts=5, args=(), kwargs=None, **limits):
    limits = {"start_to_close": None, "heartbeat": None} | limits
    return Claim(
        route=Route(1, "default", "activity", "work"),
        id=7,
        token=1,
        attempt=attempt,
        max_attempts=max_attempts,
        priority=0,
        scheduled_at=NOW,
        enqueued_at=NOW,
        args=list(args),
        kwargs=kwargs or {},
        turn=0,
        **limits,
    )


async def outcome_of(function, claim=None, *, retry=Retry(jitter=0), middleware=(), share=0.0, stopped=False):  # noqa: B008
    claim = claim or claim_of()

    async def beat(claim, details):
        return True

    with ThreadPoolExecutor(2) as threads:
        dispatcher = Dispatcher({"work": Activity("work", function, retry=retry)}, middleware, threads, lambda: share)
        task = CurrentTask(claim, Worker("w", "w", (), frozenset()), {}, beat, asyncio.get_running_loop())
        running = asyncio.ensure_future(dispatcher.run(claim, task))
        if stopped:
            await asyncio.sleep(0)
            task.stopped = True
            running.cancel()
        return await asyncio.wait_for(running, 10)


# ------------------------------------------------------------------------------------------------ waits


@given(
    st.integers(1, 10_000),
    st.floats(0, 1),
    st.floats(0, 100),
    st.floats(1, 10),
    st.floats(0, 1e5),
    st.floats(0, 1),
)
def test_the_wait_is_within_its_bounds(attempt, share, initial, factor, maximum, jitter):
    """Whatever attempt it was, the wait is drawn from [wait * (1 - jitter), wait], and wait is at most the maximum."""
    retry = Retry(initial=initial, factor=factor, maximum=maximum, jitter=jitter)
    longest = retry_wait(retry, attempt, 0.0)
    assert 0 <= longest <= maximum
    assert longest * (1 - jitter) <= retry_wait(retry, attempt, share) * (1 + 1e-9)
    assert retry_wait(retry, attempt, share) <= longest


def test_the_wait_grows_and_is_capped():
    """Without jitter the waits are initial, initial * factor, … up to the maximum."""
    retry = Retry(initial=1, factor=2, maximum=10, jitter=0)
    assert [retry_wait(retry, attempt, 0.5) for attempt in range(1, 7)] == [1, 2, 4, 8, 10, 10]


# ------------------------------------------------------------------------------------------------ outcomes


async def test_a_result_is_json_text():
    """What an async activity returns is kept as JSON."""

    async def work(a, b=0):
        return {"sum": a + b}

    assert await outcome_of(work, claim_of(args=[1], kwargs={"b": 2})) == Finished("completed", '{"sum":3}')


async def test_a_plain_function_runs_in_a_thread_with_its_task():
    """A plain function is an activity too, off the loop, and finds its task (K10)."""
    import threading

    def work():
        return [threading.current_thread() is threading.main_thread(), current_task().id]

    assert await outcome_of(work) == Finished("completed", "[false,7]")


async def test_whatever_an_async_activity_raises_is_a_failed_attempt():
    """Nothing that user code raises escapes the judgement, or its task would stay claimed (K8)."""

    class Fatal(BaseException):
        pass

    for error in (ValueError("no"), SystemExit("no"), StopIteration("no"), Fatal("no")):

        async def work(error=error):
            raise error

        outcome = await outcome_of(work)
        assert isinstance(outcome, Retried)
        assert outcome.wait == 1.0
        assert "in work" in outcome.traceback


async def test_whatever_a_plain_activity_raises_is_a_failed_attempt():
    """So it is in a thread, where `next()` of an empty iterator would otherwise leave the attempt hanging (K10)."""
    for error in (ValueError("no"), SystemExit("no"), StopIteration("no"), KeyboardInterrupt("no")):

        def work(error=error):
            raise error

        outcome = await outcome_of(work)
        assert isinstance(outcome, Retried)
        assert f"{type(error).__name__}: no" in outcome.error
        assert "in work" in outcome.traceback


async def test_the_last_attempt_fails_the_task():
    """With no attempt left a failure is the end, its error and traceback kept."""

    async def work():
        raise ValueError("no")

    outcome = await outcome_of(work, claim_of(attempt=5, max_attempts=5))
    assert (outcome.state, outcome.error) == ("failed", "ValueError: no")
    assert "raise ValueError" in outcome.traceback


class RefusedError(NonRetryableError):
    pass


@pytest.mark.parametrize(
    "error", [NonRetryableError("no"), RefusedError("no"), KeyError("gone"), ZeroDivisionError("0")]
)
async def test_non_retryable_errors_fail_at_once(error):
    """NonRetryableError, its subclasses and the types an activity names are not tried again."""

    async def work():
        raise error

    outcome = await outcome_of(work, retry=Retry(non_retryable=(LookupError, ArithmeticError)))
    assert outcome.state == "failed"


@pytest.mark.parametrize(
    "result",
    [object(), float("nan"), "a\x00", "\ud800", "x" * (2 * 1024 * 1024)],
    ids=["object", "nan", "nul", "half pair", "large"],
)
async def test_a_result_that_cannot_be_stored_fails_at_once(result):
    """Trying again would give the same result, so the task fails and its error names the result (Bad input)."""

    async def work():
        return result

    outcome = await outcome_of(work)
    assert outcome.state == "failed"
    assert outcome.error.startswith("PayloadError: the result of 'work': ")


async def test_an_error_that_cannot_be_printed():
    """An exception whose own text raises is still a failed attempt."""

    class UnspeakableError(Exception):
        def __str__(self):
            raise RuntimeError("cannot say")

    async def work():
        raise UnspeakableError

    outcome = await outcome_of(work)
    assert isinstance(outcome, Retried)
    assert outcome.error == "UnspeakableError: its text cannot be shown"


async def test_an_error_text_that_postgresql_would_refuse():
    """NUL and half pairs in an error's text are escaped, so that the outcome can be written."""

    async def work():
        raise ValueError("a\x00\ud800")

    outcome = await outcome_of(work)
    assert outcome.error == "ValueError: a\\x00\\ud800"
    assert "\x00" not in outcome.traceback


async def test_a_stopped_run_is_given_back():
    """Cancelled by the worker: released, the attempt not used (K12)."""

    async def work():
        await asyncio.Event().wait()

    assert await outcome_of(work, stopped=True) == Released()


async def test_an_activity_that_cancels_itself_failed():
    """CancelledError from the activity itself is a failed attempt, not a release."""

    async def work():
        raise asyncio.CancelledError

    assert (await outcome_of(work)).error == "CancelledError: the activity cancelled itself"


async def test_a_stopped_run_that_ended_anyway_keeps_its_result():
    """Who swallows the cancellation and returns has finished."""

    async def work():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "done"

    assert await outcome_of(work, stopped=True) == Finished("completed", '"done"')


# ------------------------------------------------------------------------------------------------ limits


async def test_start_to_close_ends_an_async_attempt():
    """The time of one attempt is bounded; the error says by what."""

    async def work():
        await asyncio.Event().wait()

    outcome = await outcome_of(work, claim_of(start_to_close=0.02))
    assert outcome.error == "TimeoutError: start_to_close of 0.02 s has passed"


async def test_start_to_close_ends_a_plain_attempt_and_tells_it():
    """A thread cannot be stopped; its attempt ends all the same, and it sees `cancelled`."""
    import threading

    seen = threading.Event()

    def work():
        while not current_task().cancelled:
            pass
        seen.set()

    outcome = await outcome_of(work, claim_of(start_to_close=0.02))
    assert outcome.error == "TimeoutError: start_to_close of 0.02 s has passed"
    assert seen.wait(5)


async def test_a_missing_heartbeat_ends_the_attempt():
    """No heartbeat within its limit is a failed attempt of its own name."""

    async def work():
        await asyncio.Event().wait()

    outcome = await outcome_of(work, claim_of(start_to_close=60.0, heartbeat=0.02))
    assert outcome.error == "TimeoutError: no heartbeat for 0.02 s"


async def test_heartbeats_extend_the_attempt():
    """Each heartbeat starts the limit anew, so that work longer than the limit ends well."""
    beats = []

    async def work():
        for _ in range(5):
            await asyncio.sleep(0.04)
            await current_task().heartbeat({"n": len(beats)})
            beats.append(1)
        return len(beats)

    assert await outcome_of(work, claim_of(heartbeat=0.1)) == Finished("completed", "5")


async def test_a_timeout_of_the_activity_itself_is_its_own():
    """A TimeoutError that the activity raised is not told as a limit of ours."""

    async def work():
        raise TimeoutError("the printer")

    assert (await outcome_of(work, claim_of(start_to_close=60.0))).error == "TimeoutError: the printer"


# ------------------------------------------------------------------------------------------------ middleware


async def test_middleware_surrounds_the_attempt_outermost_first():
    """The first one declared is the outermost; each sees the task and the result."""
    said = []

    def layer(name):
        async def around(task, call_next):
            said.append(f"{name} in {task.id}")
            result = await call_next()
            said.append(f"{name} out")
            return result + 1

        return around

    async def work():
        return 0

    assert await outcome_of(work, middleware=[layer("a"), layer("b")]) == Finished("completed", "2")
    assert said == ["a in 7", "b in 7", "b out", "a out"]


async def test_middleware_that_raises_failed_the_attempt():
    """Trouble in middleware is trouble of the attempt, retried likewise."""

    async def around(task, call_next):
        raise RuntimeError("no tracing")

    async def work():
        return 0

    assert (await outcome_of(work, middleware=[around])).error == "RuntimeError: no tracing"


async def test_context_reaches_a_plain_function():
    """What middleware sets in context variables is seen in the thread."""
    request = contextvars.ContextVar("request")

    async def around(task, call_next):
        request.set("r1")
        return await call_next()

    assert await outcome_of(lambda: request.get(), middleware=[around]) == Finished("completed", '"r1"')
