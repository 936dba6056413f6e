"""A cost signal read from an HTTP endpoint that answers JSON; its address comes from the environment.

Refuses other schemes than http and https, answers over 64 KiB, and values that are neither a number nor a bool.
"""

from __future__ import annotations

import json
import math
import os
import time
import urllib.request
from collections.abc import Callable
from typing import Any

__all__ = ["read"]

LIMIT = 64 * 1024
URL, POINTER, TIMEOUT = "SIGNAL_HTTP_JSON_URL", "SIGNAL_HTTP_JSON_POINTER", "SIGNAL_HTTP_JSON_TIMEOUT"


def read() -> float | bool:
    """Return the value that the endpoint has now.

    Raises:
        ValueError: a variable is missing or wrong, or the answer does not hold a number or a bool at the pointer.
        OSError: the endpoint cannot be reached, answers an error, or takes longer than the timeout.
    """
    answer = _fetch(_url(), _timeout())
    pointer = os.environ.get(POINTER, "")
    value = _at(json.loads(answer), pointer)
    if not isinstance(value, bool | int | float):
        msg = f"the answer holds a {type(value).__name__} at {POINTER}={pointer!r}; expected a number, true or false"
        raise ValueError(msg)
    return value


def _url() -> str:
    url = os.environ.get(URL, "")
    if not url.lower().startswith(("http://", "https://")):
        msg = f"{URL} {'is no web address' if url else 'is not set'}; it must begin with http:// or https://"
        raise ValueError(msg)
    return url


def _timeout() -> float:
    text = os.environ.get(TIMEOUT, "5")
    try:
        timeout = float(text)
    except ValueError:
        timeout = 0.0
    if not math.isfinite(timeout) or timeout <= 0:
        msg = f"{TIMEOUT} is {text!r}; expected a number of seconds above 0"
        raise ValueError(msg)
    return timeout


def _opener() -> urllib.request.OpenerDirector:
    # Not build_opener: it also opens ftp, and a redirect from http may lead there.
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


def _fetch(url: str, timeout: float, clock: Callable[[], float] = time.monotonic) -> bytes:
    """Return the body; the socket's timeout alone would let a server that drips bytes go on for ever."""
    deadline = clock() + timeout
    request = urllib.request.Request(url, headers={"Accept": "application/json"})  # noqa: S310 - _url admits http only
    body = bytearray()
    with _opener().open(request, timeout=timeout) as response:
        while chunk := response.read1(LIMIT + 1 - len(body)):
            body += chunk
            if len(body) > LIMIT:
                msg = f"the answer is over {LIMIT} bytes; point {URL} at a smaller one"
                raise ValueError(msg)
            if clock() > deadline:
                msg = f"the answer took longer than {timeout:g} s"
                raise TimeoutError(msg)
        # A connection that breaks off must not turn 520 into 52.
        if len(body) < int(response.headers.get("Content-Length", 0)):
            msg = f"the answer broke off after {len(body)} bytes"
            raise ConnectionError(msg)
    return bytes(body)


def _at(document: Any, pointer: str) -> Any:
    """Return what document holds at pointer (RFC 6901)."""
    if pointer and not pointer.startswith("/"):
        msg = f"{POINTER} is {pointer!r}; a JSON Pointer begins with a slash, such as '/data/0/price'"
        raise ValueError(msg)
    found = document
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            msg = f"the answer has no {key!r} on the way to {POINTER}={pointer!r}"
            raise ValueError(msg)
    return found
