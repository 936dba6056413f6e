"""Payloads from the call through the database to the activity and back: by type hints, and through a codec."""

import logging
import zlib
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import cycle

import attrs
import pytest

from harvest_core import Call, NonRetryableError, current_task
from harvest_core.errors import PayloadError, TaskFailedError
from harvest_core.plugin import Plugin


@attrs.frozen
class Order:
    id: int
    price: Decimal
    at: datetime


class Zip(Plugin):
    """Compresses payloads."""

    slug = "zip"

    def encode_payload(self, data):
        return zlib.compress(data)

    def decode_payload(self, data):
        return zlib.decompress(data)


class Xor(Plugin):
    """A toy that hides payloads as encryption does."""

    slug = "vault"
    key = b"a key of the toy"

    def encode_payload(self, data):
        return bytes(left ^ right for left, right in zip(data, cycle(self.key), strict=False))

    decode_payload = encode_payload


def shop(kernel, *plugins):
    app = kernel.app(plugins=plugins)
    app.seen = []

    @app.activity
    async def sell(order: Order, *, later: timedelta = timedelta(0)) -> Order:
        app.seen.append(order)
        return attrs.evolve(order, price=order.price * 2, at=order.at + later)

    @app.activity
    def count(n: int) -> int:
        app.seen.append(n)
        return str(n)  # a lie, told at the end

    @app.activity
    def spill(text: str) -> None:
        raise NonRetryableError(text)

    @app.activity
    def echo(*args, **kwargs):
        app.seen.append((args, kwargs))
        return [list(args), kwargs]

    return app


ORDER = Order(7, Decimal("12.50"), datetime(2026, 5, 1, 12, tzinfo=UTC))


async def work(app):
    async with app.worker() as worker:
        await worker.run_once()


async def test_typed_from_end_to_end(kernel):
    """The activity gets what the call gave, and the caller what the activity returned, of the same classes."""
    app = shop(kernel)
    async with app.client() as client:
        task = await client.enqueue("sell", ORDER, kwargs={"later": timedelta(days=1)})
        status = await task.status()
        assert status.args == [{"id": 7, "price": "12.50", "at": "2026-05-01T12:00:00+00:00"}]
        await work(app)
        assert app.seen == [ORDER]
        assert await task.result() == Order(7, Decimal("25.00"), datetime(2026, 5, 2, 12, tzinfo=UTC))
        assert (await task.status()).result["price"] == "25.00"


async def test_a_wrong_call_writes_nothing(kernel):
    """One argument that does not match its hint refuses the whole batch, before anything is written (K7, Bad input)."""
    app = shop(kernel)
    async with app.client() as client:
        with pytest.raises(PayloadError) as caught:
            await client.enqueue_many([Call("count", (1,)), Call("count", ("2",))])
        assert str(caught.value) == "arguments of 'count': n: expected a whole number, found '2' (text)"
    assert await kernel.states() == {}


async def test_a_wrong_payload_fails_its_task_alone(kernel):
    """What raw SQL or an older version wrote fails once, with the place in words; the rest runs (Bad input)."""
    app = shop(kernel)
    wrong = [
        ("count", '["8"]', "n: expected a whole number, found '8' (text)"),
        ("count", "[true]", "n: expected a whole number, found True (boolean)"),
        ("sell", '[{"id": 1, "price": 2, "at": "2026-05-01T12:00:00Z"}]', "order.price: expected text that is a "
         "decimal number, found 2 (whole number)"),
        ("count", "[]", "missing a required argument: 'n'; the task was enqueued for another version of the activity, "
         "or by hand"),
    ]  # fmt: skip
    ids = [(await kernel.enqueue(name, args=args))[0] for name, args, _ in wrong]
    await kernel.enqueue("echo", args="[1]")
    await work(app)
    async with app.client() as client:
        for task_id, (name, _, said) in zip(ids, wrong, strict=True):
            status = await client.status(task_id)
            assert (status.state, status.attempt) == ("failed", 1)
            assert status.error == f"PayloadError: arguments of '{name}': {said}"
    assert app.seen == [((1,), {})]


async def test_a_result_that_does_not_match(kernel):
    """It fails the task with a sentence; a result another version wrote is an error where it is read."""
    app = shop(kernel)
    async with app.client() as client:
        task = await client.enqueue("count", 5)
        await work(app)
        with pytest.raises(TaskFailedError, match="the result of 'count': expected a whole number, found '5'"):
            await task.result()
        other = await client.enqueue("echo", 1)
        await work(app)
        await kernel.sql("update finished set name = 'count' where id = %s", [other.id])
        with pytest.raises(PayloadError) as caught:
            await other.result()
        assert str(caught.value) == "the result of 'count': expected a whole number, found a list"


async def test_payloads_of_another_app_stay_json(kernel):
    """Of an activity that only another app has nothing is known, so nothing is judged."""
    async with kernel.app().client() as client:
        task = await client.enqueue("count", "x", elsewhere=True)
        assert (await task.status()).args == ["x"]


@pytest.mark.parametrize("plugin", [Zip, Xor])
async def test_nothing_of_a_payload_is_readable(kernel, plugin):
    """With a codec the database holds neither arguments nor result, and both sides see no difference."""
    app = shop(kernel, plugin)
    secret = "grandmother's recipe"
    async with app.client() as client:
        task = await client.enqueue("echo", secret, kwargs={"note": secret})
        before = await kernel.one("select t::text from tasks t")
        await work(app)
        assert await task.result() == [[secret], {"note": secret}]
        status = await task.status()
    after = await kernel.one("select f::text from finished f")
    for text in (before, after):
        assert "grandmother" not in text
        assert plugin.slug in text
    assert (status.args, set(status.kwargs), set(status.result)) == ([], {"$harvest_codec"}, {"$harvest_codec"})


async def test_a_wrong_encoded_payload_leaks_nothing(kernel, caplog):
    """A payload that the codec hides and the hints refuse fails in words without it, in the table and in the log."""
    app = shop(kernel, Xor)
    hidden = kernel.app(plugins=[Xor])
    caplog.set_level(logging.INFO)
    async with hidden.client() as client:
        task = await client.enqueue("count", "grandmother", elsewhere=True)
        await work(app)
        status = await task.status()
    assert (status.state, status.attempt) == ("failed", 1)
    assert status.error == "PayloadError: arguments of 'count': n: expected a whole number, found text"
    assert "grandmother" not in await kernel.one("select f::text from finished f") + caplog.text


async def test_a_worker_without_the_codec(kernel):
    """The task fails at once in words that name the plugin; plain payloads go on running there, and on the other."""
    with_codec, without = shop(kernel, Xor), shop(kernel)
    async with with_codec.client() as client:
        task = await client.enqueue("echo", 1)
    await kernel.enqueue("echo", args="[2]")
    await work(without)
    await kernel.enqueue("echo", args="[3]")
    await work(with_codec)
    async with without.client() as client:
        status = await client.status(task.id)
    assert (status.state, status.attempt) == ("failed", 1)
    assert status.error == (
        "PayloadError: arguments of 'echo': encoded by the plugin 'vault', which is not enabled here; add it to "
        "plugins under [harvest]"
    )
    assert (without.seen, with_codec.seen) == ([((2,), {})], [((3,), {})])


async def test_errors_and_heartbeats_are_not_encoded(kernel):
    """The page on codecs says so: what an activity writes into its errors and heartbeats, operators read."""
    app = shop(kernel, Xor)

    @app.activity
    async def beats(text: str):
        await current_task().heartbeat(text)
        raise NonRetryableError(await kernel.one("select details::text from tasks where id = %s", [current_task().id]))

    async with app.client() as client:
        spilled, beaten = [await client.enqueue(name, "open") for name in ("spill", "beats")]
        await work(app)
        assert (await spilled.status()).error == "NonRetryableError: open"
        assert (await beaten.status()).error == 'NonRetryableError: "open"'
