"""What may be stored of a user's values: JSON text, checked before it is sent, so that one task never fails a batch."""

from __future__ import annotations

import json
import re
from typing import Any

from harvest_core.errors import PayloadError

LIMIT = 2 * 1024 * 1024
"""Most bytes of JSON text that the arguments or the result of a task may take."""

_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_TEXT_LIMIT = 64 * 1024


def encode(value: Any, what: str, remedy: str = "") -> str:
    """Return value as JSON text that PostgreSQL's jsonb takes.

    Args:
        value: what the user gave.
        what: its name for messages, e.g. `arguments of 'send_mail'`.
        remedy: what else than passing other values helps where JSON does not know a type.

    Raises:
        PayloadError: it is not JSON, holds a NUL character or half a surrogate pair, or is over the limit.
    """
    text = json_text(value, what, remedy)
    if len(text) > LIMIT or (not text.isascii() and len(text.encode()) > LIMIT):
        msg = f"{what}: takes more than {LIMIT // 1024 // 1024} MB; store it elsewhere and pass a reference"
        raise PayloadError(msg)
    return text


def json_text(value: Any, what: str, remedy: str = "") -> str:
    """Return value as JSON text of any length, as `encode` does otherwise."""
    try:
        text = _ENCODER.encode(value)
    except (TypeError, ValueError) as error:
        reason = str(error)
        if isinstance(error, ValueError):  # Python's own words differ between versions
            circular = "ircular" in reason
            reason = "it contains itself" if circular else "it holds a number that is not finite, or too long"
            remedy = ""
        advice = f"pass text, finite numbers, lists and mappings with text keys{remedy and f', or {remedy}'}"
        msg = f"{what}: not JSON: {reason}; {advice}"
        raise PayloadError(msg) from None
    except RecursionError:
        msg = f"{what}: nested too deeply for JSON; pass a flatter value or a reference"
        raise PayloadError(msg) from None
    if "\\u0000" in text and _NUL.search(text):
        msg = (
            f"{what}: holds a NUL character, which PostgreSQL cannot store; remove it or encode the bytes, e.g. base64"
        )
        raise PayloadError(msg)
    if _SURROGATE.search(text):
        msg = f"{what}: holds half of a surrogate pair, which is no Unicode text; encode the bytes, e.g. base64"
        raise PayloadError(msg)
    return text


def storable_text(text: str) -> str:
    """Return free text (an error, a traceback) in a form that PostgreSQL stores, its middle cut where it is long."""
    clean = text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")
    if len(clean) <= _TEXT_LIMIT:
        return clean
    half = _TEXT_LIMIT // 2
    return f"{clean[:half]}\n… {len(clean) - _TEXT_LIMIT} characters left out …\n{clean[-half:]}"


def require_text_keys(value: Any, what: str) -> None:
    """Refuse keys that JSON would turn into text in silence; value has been encoded and so does not contain itself.

    Raises:
        PayloadError: a mapping in value has such a key.
    """
    waiting = [value]
    while waiting:  # without recursion, so that depth is no matter
        part = waiting.pop()
        if isinstance(part, dict):
            for key in part:
                if not isinstance(key, str):
                    msg = (
                        f"{what}: a mapping has a key of type {type(key).__name__}, which JSON would turn into text; "
                        "use text keys, or give the mapping its type in the hint, e.g. dict[int, str]"
                    )
                    raise PayloadError(msg)
            part = part.values()
        waiting += [item for item in part if isinstance(item, dict | list | tuple)]
