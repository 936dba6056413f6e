"""The client: what it refuses before anything is written, and what it hands back (K7, K9, Bad input)."""

import asyncio
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from harvest_core import Call, Harvest
from harvest_core.errors import (
    DatabaseUnavailableError,
    EnqueueError,
    HarvestError,
    LocalActivityError,
    PayloadError,
    TaskFailedError,
    TaskNotFoundError,
    UnknownActivityError,
)


@pytest.fixture
def app(kernel):
    app = kernel.app()

    @app.activity(priority=2, max_attempts=3)
    async def send_mail(to, *, subject=""):
        return [to, subject]

    @app.activity(max_attempts=1)
    async def fails():
        raise ValueError("no")

    @app.local_activity
    def resize(path: str): ...

    return app


# ------------------------------------------------------------------------------------------------ enqueue


async def test_one_task_with_everything(kernel, app):
    """Queue, priority, delay, key and the activity's own keywords arrive; what is left out comes from the activity."""
    async with app.client() as client:
        task = await client.enqueue(
            "send_mail", "x@example.org", kwargs={"subject": "é"}, queue="mail", priority=-1, key="k", delay="1h"
        )
        found = await task.status()
    assert (found.state, found.queue, found.name, found.kind) == ("scheduled", "mail", "send_mail", "activity")
    assert (found.priority, found.max_attempts, found.key) == (-1, 3, "k")
    assert (found.args, found.kwargs) == (["x@example.org"], {"subject": "é"})
    assert timedelta(minutes=59) < found.scheduled_at - found.enqueued_at <= timedelta(hours=1)
    assert (found.attempt, found.result, found.error, found.finished) == (0, None, None, False)


async def test_an_aware_time_is_kept(kernel, app):
    """`scheduled_at` is the moment itself; a delay adds to it."""
    moment = datetime(2100, 1, 1, tzinfo=UTC)
    async with app.client() as client:
        first = await client.enqueue("send_mail", "a", scheduled_at=moment)
        second = await client.enqueue("send_mail", "a", scheduled_at=moment, delay="1m")
        assert (await first.status()).scheduled_at == moment
        assert (await second.status()).scheduled_at == moment + timedelta(minutes=1)


async def test_ten_thousand_in_one_call(kernel, app):
    """10,000 calls are one statement, all or none, their handles in order (K9)."""
    async with app.client() as client:
        made = await client.enqueue_many([Call("send_mail", (str(number),)) for number in range(10_000)])
        assert len({task.id for task in made}) == 10_000
        assert all(task.created for task in made)
        for number in (0, 4711, 9_999):
            assert (await made[number].status()).args == [str(number)]
        with pytest.raises(PayloadError):
            await client.enqueue_many([Call("send_mail", ("a",)), Call("send_mail", ("\x00",))])
        assert await client.enqueue_many([]) == []
    assert await kernel.states() == {"pending": 10_000}


async def test_a_keyed_duplicate_is_the_existing_task(kernel, app):
    """The handle says whether the task is new (K9)."""
    async with app.client() as client:
        first = await client.enqueue("send_mail", "a", key="k")
        second = await client.enqueue("send_mail", "b", key="k")
        assert (first.created, second.created, second.id) == (True, False, first.id)
        assert (await second.status()).args == ["a"]
        rows = await client.enqueue_many([Call("send_mail", ("c",), key=key) for key in ("k", "new", "new")])
        assert [task.created for task in rows] == [False, True, False]
        assert (rows[0].id, rows[1].id) == (first.id, rows[2].id)


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_inside_the_callers_transaction(kernel, app, end):
    """The tasks are the caller's until he commits; row factory and pipeline of his connection do not matter (K9)."""
    caller = await kernel.connection(autocommit=False, row_factory=psycopg.rows.dict_row)
    async with app.client() as client:
        await client.enqueue("send_mail", "a", connection=caller)
        await client.enqueue_many([Call("send_mail", ("b",))] * 2, connection=caller)
        assert await kernel.states() == {}
        await getattr(caller, end)()
    assert await kernel.states() == ({"pending": 3} if end == "commit" else {})


async def test_notify_false_tells_nobody(kernel, app):
    """Per call and per app (K11)."""
    listener = await kernel.connection()
    await listener.execute("listen harvest")
    await kernel.claimer("send_mail")
    await kernel.sql("update workers set asleep = true")
    silent = Harvest({"harvest": {"dsn": kernel.dsn, "notify": False}})
    async with app.client() as client, silent.client() as quiet:
        await client.enqueue("send_mail", "a", notify=False)
        await quiet.enqueue("send_mail", "a", elsewhere=True)
        await quiet.enqueue("send_mail", "a", elsewhere=True, queue="other", notify=True)
        await client.enqueue("send_mail", "a")
    await kernel.sql("select pg_notify('harvest', 'end')")
    heard = []
    async for notification in listener.notifies(timeout=5):
        heard.append(notification.payload)
        if notification.payload == "end":
            break
    assert heard == ["default", "end"]


# ------------------------------------------------------------------------------------------------ refusals


async def test_an_unknown_activity_is_refused_with_a_near_match(kernel, app):
    """A name the app does not know writes nothing, unless another app has it (K7)."""
    async with app.client() as client:
        with pytest.raises(UnknownActivityError) as caught:
            await client.enqueue("send_mial", "a")
        assert str(caught.value) == (
            "this app has no activity 'send_mial' (did you mean 'send_mail'?); "
            "pass elsewhere=True where another app has it"
        )
        with pytest.raises(UnknownActivityError, match=r"\(it has send_mail, fails\); pass elsewhere"):
            await client.enqueue("xyz")
        assert await kernel.states() == {}
        await client.enqueue("xyz", 1, elsewhere=True)
    assert await kernel.states() == {"pending": 1}


REFUSALS = {
    "positional": ({}, (), "arguments of 'send_mail': missing a required argument: 'to'"),
    "keyword": (
        {"kwargs": {"subjekt": "x"}},
        ("a",),
        "arguments of 'send_mail': got an unexpected keyword argument 'subjekt'",
    ),
    "option": (
        {"prioriti": 1},
        ("a",),
        (
            "enqueue of 'send_mail': no option 'prioriti' (did you mean 'priority'?); "
            "the activity's own keywords go through kwargs="
        ),
    ),
    "priority": (
        {"priority": 2**31},
        ("a",),
        "enqueue of 'send_mail': priority is 2147483648; expected a whole number from -2147483648 to 2147483647",
    ),
    "priority bool": (
        {"priority": True},
        ("a",),
        "enqueue of 'send_mail': priority is True; expected a whole number from -2147483648 to 2147483647",
    ),
    "attempts": (
        {"max_attempts": 0},
        ("a",),
        "enqueue of 'send_mail': max_attempts is 0; expected a whole number from 1 to 2147483647",
    ),
    "queue": (
        {"queue": " "},
        ("a",),
        "enqueue of 'send_mail': queue is ' '; expected text that is not blank, without NUL",
    ),
    "key nul": (
        {"key": "a\x00"},
        ("a",),
        "enqueue of 'send_mail': key is 'a\\x00'; expected text that is not blank, without NUL",
    ),
    "key": (
        {"key": "x" * 10_000_000},
        ("a",),
        "enqueue of 'send_mail': key takes more than 1024 bytes; use a digest of it",
    ),
    "naive time": (
        {"scheduled_at": datetime(2030, 1, 1)},
        ("a",),
        (
            "enqueue of 'send_mail': scheduled_at is datetime.datetime(2030, 1, 1, 0, 0); "
            "expected a datetime with a time zone"
        ),
    ),
}


async def test_what_the_client_refuses(kernel, app):
    """Bad options and arguments are refused in words before anything is written (Bad input)."""
    async with app.client() as client:
        for options, arguments, message in REFUSALS.values():
            with pytest.raises(EnqueueError) as caught:
                await client.enqueue("send_mail", *arguments, **options)
            assert str(caught.value) == message
    assert await kernel.states() == {}


ODD = [
    {"delay": "5"},
    {"delay": -1},
    {"delay": float("nan")},
    {"delay": 1e300},
    {"start_to_close": 0},
    {"start_to_close": "0s"},
    {"heartbeat": 0},
    {"heartbeat": "soon"},
    {"queue": "\ud800"},
    {"queue": "a\x00"},
    {"key": "\ud800"},
    {"queue": "q" * 5000},
    {"queue": 5},
    {"scheduled_at": "2030-01-01T00:00:00Z"},
]


async def test_odd_options_are_errors_of_ours(kernel, app):
    """Whatever an option holds, the error is one of ours and says which option it was; nothing is written."""
    async with app.client() as client:
        for options in ODD:
            with pytest.raises(EnqueueError, match=f"enqueue of 'send_mail': {next(iter(options))}"):
                await client.enqueue("send_mail", "a", **options)
    assert await kernel.states() == {}


PAYLOADS = [
    (object(), "not JSON: Object of type object"),
    (float("inf"), "not JSON: it holds a number that is not finite"),
    ("a\x00", "holds a NUL character"),
    ({"a\x00": 1}, "holds a NUL character"),
    ("\ud800", "holds half of a surrogate pair"),
    ("x" * 2 * 1024 * 1024, "takes more than 2 MB"),
]


async def test_payloads_that_cannot_be_stored(kernel, app):
    """Refused before anything is written, positional or keyword, with words that say what to do (Bad input)."""
    async with app.client() as client:
        for payload, why in PAYLOADS:
            with pytest.raises(PayloadError, match=f"^arguments of 'send_mail': {why}"):
                await client.enqueue("send_mail", payload)
            with pytest.raises(PayloadError, match=f"^keyword arguments of 'send_mail': {why}"):
                await client.enqueue("send_mail", "a", kwargs={"subject": payload})
    assert await kernel.states() == {}


async def test_a_local_activity_is_never_enqueued(kernel, app):
    """It runs inline in a workflow; calling it outside one raises too."""
    async with app.client() as client:
        with pytest.raises(LocalActivityError) as caught:
            await client.enqueue("resize", "x")
    assert str(caught.value) == "'resize' is a local activity: it runs inline in a workflow and is never enqueued"


# ------------------------------------------------------------------------------------------------ results


async def test_results_and_failures(kernel, app):
    """A result comes back as it was; a failure raises with the last error; the wait is bounded."""
    async with app.client() as client:
        good, bad = await client.enqueue("send_mail", "a", kwargs={"subject": "s"}), await client.enqueue("fails")
        for timeout in ("10ms", 0.01):
            with pytest.raises(TimeoutError) as caught:
                await good.result(timeout=timeout)
            assert str(caught.value) == f"task {good.id} is pending after 0.01 s (attempt 0); it goes on"
        async with app.worker() as worker:
            await worker.run_once()
        assert await good.result() == ["a", "s"]
        with pytest.raises(TaskFailedError) as failed:
            await bad.result(timeout=1)
        assert str(failed.value) == f"task {bad.id} (fails) failed at attempt 1: ValueError: no"


async def test_an_unknown_task(kernel, app):
    """An id that was never given is told so."""
    async with app.client() as client:
        with pytest.raises(TaskNotFoundError) as caught:
            await client.result(4711, timeout=1)
    assert str(caught.value) == "task 4711 is not known: it was never enqueued here, or its retention has passed"


async def test_a_client_that_is_not_open(app):
    """Used outside `async with`, it says how to use it."""
    with pytest.raises(HarvestError) as caught:
        await app.client().enqueue("send_mail", "a")
    assert str(caught.value) == "the client is not open; use it as: async with app.client() as client"


async def test_settings_have_rising_versions_and_are_told(kernel, app):
    """A setting's version rises with every change and is never used again; listeners hear its key."""
    listener = await kernel.connection()
    await listener.execute("listen harvest")
    async with app.client() as client:
        first = await client.set_setting("cost_signal", 520)
        second = await client.set_setting("cost_signal", 520.5)
        found = await client.settings()
        assert second > first
        assert (found["cost_signal"].value, found["cost_signal"].version) == (520.5, second)
        with pytest.raises(PayloadError, match="setting 'x': not JSON"):
            await client.set_setting("x", object())
    async for notification in listener.notifies(timeout=5, stop_after=1):
        assert notification.payload == "setting:cost_signal"


# ------------------------------------------------------------------------------------------------ database away


async def test_a_database_that_is_away_at_start(unused_tcp_port):
    """A client and a worker say where it was expected, why, and what to do, and show no password (Bad input)."""
    dsn = f"postgresql://harvest:s3cret@127.0.0.1:{unused_tcp_port}/harvest"
    app = Harvest({"harvest": {"dsn": dsn}})
    for opened in (app.client(), app.worker()):
        with pytest.raises(DatabaseUnavailableError) as caught:
            async with opened:
                pass
        message = str(caught.value)
        assert message.startswith(f"the database at 127.0.0.1:{unused_tcp_port}/harvest cannot be used: ")
        assert "Connection refused" in message
        assert message.endswith("; check that it runs and that the DSN (HARVEST_DSN) is right")
        shown = caught.value
        while shown is not None:
            assert "s3cret" not in f"{shown!r} {shown}"
            shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)


async def test_a_password_is_not_in_the_error_of_a_bad_dsn():
    """A DSN that cannot be read is told without its password."""
    app = Harvest({"harvest": {"dsn": "postgresql://harvest:s3cret@host:notaport/x"}})
    with pytest.raises(HarvestError) as caught:
        async with app.client():
            pass
    assert "s3cret" not in str(caught.value)


async def test_a_client_survives_a_cut_connection(kernel, app):
    """After its connections were cut a call may fail in words, and a later one succeeds; nothing is half written."""
    async with app.client() as client:
        await client.enqueue("send_mail", "a")
        await kernel.sql(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
            "and application_name = 'harvest'"
        )

        async def succeeds():
            try:
                return await client.enqueue("send_mail", "b")
            except DatabaseUnavailableError:
                return None

        await kernel.until(succeeds, "a call that succeeds")
    assert await kernel.one("select count(*) from tasks where args = '[\"b\"]'") == 1


async def test_many_clients_at_once(kernel, app):
    """More callers than connections: all are served (pool of 4)."""
    async with app.client() as client:
        await asyncio.gather(*(client.enqueue("send_mail", str(number)) for number in range(100)))
    assert await kernel.states() == {"pending": 100}
