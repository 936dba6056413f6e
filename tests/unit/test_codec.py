"""The codec: which plugins are one, what is said where one fails, and that no such sentence holds a payload."""

import base64
import json
import zlib

import pytest

from harvest_core import Harvest
from harvest_core.errors import BuildError, PayloadError
from harvest_core.payload import LIMIT
from harvest_core.plugin import Plugin

SECRET = "s3cret"


class Zip(Plugin):
    slug = "zip"

    def encode_payload(self, data):
        return zlib.compress(data)

    def decode_payload(self, data):
        return zlib.decompress(data)


class Half(Plugin):
    slug = "half"

    def encode_payload(self, data):
        return data


class Other(Zip):
    slug = "other"

    async def decode_payload(self, data):
        return data


class Failing(Zip):
    slug = "failing"

    def encode_payload(self, data):
        raise ValueError(data)

    def decode_payload(self, data):
        raise ValueError(SECRET)


class Textual(Zip):
    slug = "textual"

    def encode_payload(self, data):
        return data.decode()

    def decode_payload(self, data):
        return b'"' + SECRET.encode() + b'"'


def payloads(*plugins):
    app = Harvest({"harvest": {"plugins": list(plugins)}})

    @app.activity
    def work(text: str, count: int = 1) -> str: ...

    return app.build().payloads


def envelope(by, data=b"{}"):
    return {"$harvest_codec": {"by": by, "data": base64.b64encode(data).decode()}}


def test_what_is_stored_is_json_that_sql_takes():
    """Arguments stay an array and an object, the result a value; nothing of the plaintext is left."""
    zipped = payloads(Zip)
    args, kwargs = zipped.stored_arguments("work", [SECRET], {"count": 2})
    result = zipped.stored_result("work", SECRET)
    assert args == "[]"
    assert json.loads(kwargs).keys() == json.loads(result).keys() == {"$harvest_codec"}
    assert zipped.arguments("work", [], json.loads(kwargs)) == ([SECRET], {"count": 2})
    assert zipped.result("work", json.loads(result)) == SECRET


def test_plain_payloads_stay_readable():
    """What was enqueued before the codec was enabled, or in SQL, runs as it always did."""
    assert payloads(Zip).arguments("work", ["a"], {}) == (["a"], {})
    assert payloads(Zip).result("work", "a") == "a"


def test_the_limit_counts_what_is_stored():
    """Text that a codec makes small may be long; without it the same text is too much."""
    text = "x" * (LIMIT + 1)
    assert len(payloads(Zip).stored_arguments("work", [text], {})[1]) < LIMIT / 100
    with pytest.raises(PayloadError, match="takes more than 2 MB"):
        payloads().stored_arguments("work", [text], {})


def test_codecs_that_do_not_fit_stop_the_build():
    """Two of them, half of one and an async one are problems, all told at once (rule B1)."""
    with pytest.raises(BuildError) as caught:
        payloads(Zip, Half, Other)
    assert [str(problem) for problem in caught.value.problems] == [
        "codec.half  plugin 'half': overrides one of encode_payload and decode_payload (define both)",
        "codec.async  plugin 'other': decode_payload is an async function (make it a plain function; what needs I/O, "
        "such as keys, belongs into refreshes())",
        "codec.two  harvest.plugins: plugins zip, half and other encode payloads; one may (disable the others)",
    ]


STORED = [
    (
        Zip,
        envelope("vault"),
        "encoded by the plugin 'vault', which is not enabled here; add it to plugins under [harvest]",
    ),
    (
        Zip,
        envelope("zip", b"no zlib"),
        "the plugin 'zip' cannot decode it: error; look at its keys and version, then retry the task",
    ),
    (
        Failing,
        envelope("failing"),
        "the plugin 'failing' cannot decode it: ValueError; look at its keys and version, then retry the task",
    ),
    (
        Textual,
        envelope("textual"),
        "what the plugin 'textual' decoded is not a list of arguments and an object",
    ),
    (Zip, {"$harvest_codec": 5}, "its envelope '$harvest_codec' is damaged; it needs the texts 'by' and 'data'"),
    (Zip, {"$harvest_codec": {"by": "zip"}}, "its envelope '$harvest_codec' is damaged; it needs the texts 'by' and "
     "'data'"),
    (Zip, envelope("zip", zlib.compress(b'[["s3cret", "s3cret"], {}]')), "count: expected a whole number, found text"),
]  # fmt: skip


@pytest.mark.parametrize(("plugin", "stored", "said"), STORED, ids=str)
def test_what_cannot_be_read(plugin, stored, said):
    """The sentence names the plugin and what to do, and holds neither payload nor the exception's own text."""
    with pytest.raises(PayloadError) as caught:
        payloads(plugin).arguments("work", [], stored)
    assert str(caught.value) == f"arguments of 'work': {said}"
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert SECRET not in str(caught.value)


def test_what_cannot_be_written():
    """A codec that fails refuses the call or the result; nothing is stored plain in its place."""
    for plugin, said in [
        (Failing, "the plugin 'failing' cannot encode it: ValueError; nothing was stored"),
        (Textual, "encode_payload of the plugin 'textual' returned str; expected bytes"),
    ]:
        with pytest.raises(PayloadError) as caught:
            payloads(plugin).stored_arguments("work", [SECRET], {})
        assert str(caught.value) == f"arguments of 'work': {said}"
        with pytest.raises(PayloadError) as caught:
            payloads(plugin).stored_result("work", SECRET)
        assert str(caught.value) == f"the result of 'work': {said}"


def test_a_refused_value_is_not_shown():
    """With a codec enabled, the words at the call and of a result leave the value out too: they may be stored."""
    with pytest.raises(PayloadError) as caught:
        payloads(Zip).stored_arguments("work", ["a", SECRET], {})
    assert str(caught.value) == "arguments of 'work': count: expected a whole number, found text"
    with pytest.raises(PayloadError) as caught:
        payloads(Zip).stored_result("work", 5)
    assert str(caught.value) == "the result of 'work': expected text, found a whole number"


def test_the_envelope_is_reserved():
    """A plain payload that looks like an encoded one would be read as one."""
    app = Harvest({})

    @app.activity
    def work(**more): ...

    with pytest.raises(PayloadError) as caught:
        app.build().payloads.stored_arguments("work", [], envelope("zip"))
    assert str(caught.value) == (
        "arguments of 'work': the key '$harvest_codec' alone marks an encoded payload and is reserved; use another"
    )
    with pytest.raises(PayloadError, match="the result of 'work': the key"):
        app.build().payloads.stored_result("work", envelope("zip"))
