"""The sample signal against a real server on loopback."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import entry_points
from urllib.error import HTTPError, URLError

import pytest
from harvest_cost_hold import CostHold, CostHoldConfig
from harvest_signal_http_json import _fetch, read

from harvest_core.plugin import BuildView


class Endpoint:
    """A server that answers what the test says, and holds its answer while `gate` is closed."""

    def __init__(self) -> None:
        self.status, self.body = 200, b"{}"
        self.headers: dict[str, str] = {}
        self.gate, self.asked = threading.Event(), threading.Event()
        self.gate.set()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                endpoint.asked.set()
                endpoint.gate.wait(30)
                self.send_response(endpoint.status)
                for name, value in ({"Content-Length": str(len(endpoint.body))} | endpoint.headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(endpoint.body)

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/price"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    served = Endpoint()
    thread = threading.Thread(target=served.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("SIGNAL_HTTP_JSON_URL", served.url)
    monkeypatch.delenv("SIGNAL_HTTP_JSON_POINTER", raising=False)
    monkeypatch.delenv("SIGNAL_HTTP_JSON_TIMEOUT", raising=False)
    yield served
    served.gate.set()
    served.server.shutdown()
    thread.join()
    served.server.server_close()


@pytest.mark.parametrize(
    ("body", "pointer", "value"),
    [
        (b"520", "", 520),
        (b"true", "", True),
        (b'{"data": [{"intensity": {"actual": 263.5}}]}', "/data/0/intensity/actual", 263.5),
        (b'{"a/b": {"m~n": {"": false}}}', "/a~1b/m~0n/", False),
    ],
)
def test_value_at_pointer(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, body: bytes, pointer: str, value: float
) -> None:
    """A number or a bool is found by its JSON Pointer, escapes included (C3)."""
    endpoint.body = body
    monkeypatch.setenv("SIGNAL_HTTP_JSON_POINTER", pointer)
    assert repr(read()) == repr(value)


@pytest.mark.parametrize(
    ("body", "pointer", "message"),
    [
        (
            b'{"price": "520"}',
            "/price",
            "the answer holds a str at SIGNAL_HTTP_JSON_POINTER='/price'; expected a number, true or false",
        ),
        (
            b'{"prices": [1]}',
            "/prices/1",
            "the answer has no '1' on the way to SIGNAL_HTTP_JSON_POINTER='/prices/1'",
        ),
        (b"[1]", "/-1", "the answer has no '-1' on the way to SIGNAL_HTTP_JSON_POINTER='/-1'"),
        (
            b'{"price": 1}',
            "price",
            "SIGNAL_HTTP_JSON_POINTER is 'price'; a JSON Pointer begins with a slash, such as '/data/0/price'",
        ),
        (b"<html>", "", "Expecting value: line 1 column 1 (char 0)"),
        (b"1" * 65537, "", "the answer is over 65536 bytes; point SIGNAL_HTTP_JSON_URL at a smaller one"),
    ],
)
def test_bad_answer(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, body: bytes, pointer: str, message: str
) -> None:
    """An answer without a usable value raises and says why (C3)."""
    endpoint.body = body
    monkeypatch.setenv("SIGNAL_HTTP_JSON_POINTER", pointer)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("URL", "", "SIGNAL_HTTP_JSON_URL is not set; it must begin with http:// or https://"),
        ("URL", "file:///etc/passwd", "SIGNAL_HTTP_JSON_URL is no web address; it must begin with http:// or https://"),
        ("TIMEOUT", "soon", "SIGNAL_HTTP_JSON_TIMEOUT is 'soon'; expected a number of seconds above 0"),
        ("TIMEOUT", "inf", "SIGNAL_HTTP_JSON_TIMEOUT is 'inf'; expected a number of seconds above 0"),
    ],
)
def test_bad_environment(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, variable: str, text: str, message: str
) -> None:
    """A missing or wrong variable is named, and nothing is asked."""
    monkeypatch.setenv(f"SIGNAL_HTTP_JSON_{variable}", text)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read()
    assert str(caught.value) == message
    assert not endpoint.asked.is_set()


def test_server_error(endpoint: Endpoint) -> None:
    """An error status raises, whatever the body holds."""
    endpoint.status, endpoint.body = 503, b"100"
    with pytest.raises(HTTPError, match="503"):
        read()


def test_redirect_to_another_scheme(endpoint: Endpoint) -> None:
    """A redirect cannot lead out of http and https."""
    endpoint.status, endpoint.headers = 302, {"Location": "ftp://127.0.0.1/price"}
    with pytest.raises(URLError, match="unknown url type: ftp"):
        read()


def test_broken_off_answer(endpoint: Endpoint) -> None:
    """Half a number is not a number: 52 of 520 raises."""
    endpoint.body, endpoint.headers = b"52", {"Content-Length": "3"}
    with pytest.raises(ConnectionError) as caught:
        read()
    assert str(caught.value) == "the answer broke off after 2 bytes"


def test_silent_server(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer is given up after the timeout."""
    endpoint.gate.clear()
    monkeypatch.setenv("SIGNAL_HTTP_JSON_TIMEOUT", "0.05")
    with pytest.raises(TimeoutError):
        read()
    assert endpoint.asked.is_set()


def test_dripping_server(endpoint: Endpoint) -> None:
    """A server that keeps sending a little is given up after the timeout, too."""
    endpoint.body = b"520"
    times = iter([0.0, 5.1])
    with pytest.raises(TimeoutError) as caught:
        _fetch(endpoint.url, 5.0, clock=lambda: next(times))
    assert str(caught.value) == "the answer took longer than 5 s"


def test_installed_as_http_json() -> None:
    """The distribution offers the signal under its name in `harvest.signals` (C3)."""
    (point,) = entry_points(group="harvest.signals", name="http_json")
    assert point.load() is read


def test_cost_hold_reads_it(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """`source = "http_json"` holds while its value is high and keeps the last one while it fails (C1, C3)."""
    monkeypatch.setenv("SIGNAL_HTTP_JSON_POINTER", "/price")
    hold = CostHold(CostHoldConfig(source="http_json", defer_threshold=400.0, activities=["train_model"]))
    assert [problem for problem in hold.check_build(BuildView({}, ())) if not problem.warning] == []
    (refresh,) = hold.refreshes()
    endpoint.body = b'{"price": 520}'
    refresh.run({})
    assert hold.observe()["why"] == "signal 520.0 > 400.0"
    endpoint.body = b'{"price": 100}'
    refresh.run({})
    assert hold.observe()["why"] == "signal 100.0 <= 400.0"
    endpoint.status = 500
    with pytest.raises(HTTPError):
        refresh.run({})
    assert hold.observe()["why"] == "signal 100.0 <= 400.0 (last read failed: HTTPError)"
