"""`Codec`: the one enabled plugin that encodes payloads, and the envelope in which its bytes stand in JSON.

No error here holds a payload or the text of a plugin's exception: what a codec hides may stand in either.
"""

from __future__ import annotations

import base64
import inspect
import json
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from harvest_core.errors import PayloadError, Problem
from harvest_core.plugin import Plugin

ENVELOPE = "$harvest_codec"
"""The only key of an object that is an encoded payload."""

_METHODS = ("encode_payload", "decode_payload")


@attrs.frozen
class Codec:
    """Encodes and decodes payloads by a plugin's two methods."""

    plugin: Plugin

    def encoded(self, text: str, what: str) -> dict[str, Any]:
        """Return the envelope of JSON text.

        Raises:
            PayloadError: the plugin raised, or gave something else than bytes.
        """
        slug = self.plugin.slug
        try:
            data = self.plugin.encode_payload(text.encode())
        except Exception as error:  # noqa: BLE001 - whatever a plugin raises is told with its name
            msg = f"{what}: the plugin {slug!r} cannot encode it: {type(error).__name__}; nothing was stored"
            raise PayloadError(msg) from None
        if not isinstance(data, bytes):
            msg = f"{what}: encode_payload of the plugin {slug!r} returned {type(data).__name__}; expected bytes"
            raise PayloadError(msg)
        return {ENVELOPE: {"by": slug, "data": base64.b64encode(data).decode()}}


def encoded_by(stored: object) -> str | None:
    """Return the slug of the plugin that encoded a stored object, "" in a damaged envelope, None of a plain value."""
    if not (isinstance(stored, Mapping) and set(stored) == {ENVELOPE}):
        return None
    inner = stored[ENVELOPE]
    return inner["by"] if isinstance(inner, Mapping) and isinstance(inner.get("by"), str) else ""


def decoded(codec: Codec | None, stored: Mapping[str, Any], what: str) -> Any:
    """Return the JSON value in an envelope.

    Raises:
        PayloadError: another plugin encoded it, the plugin raised, or what it gave is not JSON.
    """
    by, inner = encoded_by(stored), stored[ENVELOPE]
    if not by or not isinstance(inner.get("data"), str):
        msg = f"{what}: its envelope {ENVELOPE!r} is damaged; it needs the texts 'by' and 'data'"
        raise PayloadError(msg)
    if codec is None or codec.plugin.slug != by:
        msg = f"{what}: encoded by the plugin {by!r}, which is not enabled here; add it to plugins under [harvest]"
        raise PayloadError(msg)
    try:
        data = codec.plugin.decode_payload(base64.b64decode(inner["data"], validate=True))
        return json.loads(data.decode())
    except Exception as error:  # noqa: BLE001 - whatever a plugin raises is told with its name
        kind = type(error).__name__
        msg = f"{what}: the plugin {by!r} cannot decode it: {kind}; look at its keys and version, then retry the task"
        raise PayloadError(msg) from None


def codec_of(plugins: Iterable[Plugin]) -> tuple[Codec | None, list[Problem]]:
    """Return the codec among the enabled plugins, if any, and what is wrong with such plugins."""
    found = [plugin for plugin in plugins if any(_overrides(plugin, name) for name in _METHODS)]
    problems = []
    for plugin in found:
        where = f"plugin {plugin.slug!r}"
        if not all(_overrides(plugin, name) for name in _METHODS):
            message = f"overrides one of {' and '.join(_METHODS)}"
            problems.append(Problem("codec.half", where, message, "define both"))
        for name in _METHODS:
            if inspect.iscoroutinefunction(getattr(plugin, name)):
                hint = "make it a plain function; what needs I/O, such as keys, belongs into refreshes()"
                problems.append(Problem("codec.async", where, f"{name} is an async function", hint))
    if len(found) > 1:
        *others, last = [plugin.slug for plugin in found]
        message = f"plugins {', '.join(others)} and {last} encode payloads; one may"
        problems.append(Problem("codec.two", "harvest.plugins", message, "disable the others"))
    return (Codec(found[0]) if found else None), problems


def _overrides(plugin: Plugin, name: str) -> bool:
    return getattr(type(plugin), name) is not getattr(Plugin, name)
