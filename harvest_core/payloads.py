"""`Payloads`: a task's arguments and result between Python and what the database stores, for one build.

On the way out: type hints, then JSON text, then the codec, then the limit; on the way in the same backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import attrs

from harvest_core.codec import ENVELOPE, Codec, decoded, encoded_by
from harvest_core.errors import EnqueueError, PayloadError, Problem
from harvest_core.model import Activity
from harvest_core.payload import encode, json_text, require_text_keys
from harvest_core.typed.form import RefusedError
from harvest_core.typed.hints import Hints
from harvest_core.typed.signature import Signature, signature_of

T = TypeVar("T")


@attrs.frozen
class Payloads:
    """What is known of the payloads of a build.

    Args:
        signatures: by name, of the activities this app has; the payloads of others are plain JSON.
        codec: the plugin that encodes payloads, or None.
    """

    signatures: Mapping[str, Signature] = attrs.field(factory=dict)
    codec: Codec | None = None

    @classmethod
    def of(cls, activities: Mapping[str, Activity], codec: Codec | None) -> tuple[Payloads, list[Problem]]:
        """Read the type hints of activities; return a problem for each that cannot be kept."""
        hints, signatures, problems = Hints(), {}, []
        for name, activity in activities.items():
            signature, found = signature_of(activity, hints)
            problems += found
            if signature is not None:
                signatures[name] = signature
        return cls(signatures, codec), problems

    def stored_arguments(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, str]:
        """Return the JSON texts that stand for a call's arguments: an array and an object.

        Raises:
            EnqueueError: the activity takes no such arguments.
            PayloadError: one does not match its hint, or they cannot be stored.
        """
        what = f"arguments of {name!r}"
        signature = self.signatures.get(name)
        if signature is None:
            args, kwargs = list(args), dict(kwargs)
        else:
            try:
                args, kwargs = self._judged(lambda: signature.out(args, kwargs), what, showing=self.codec is None)
            except TypeError as error:
                msg = f"{what}: {error}"
                raise EnqueueError(msg) from None
        remedy = "" if signature is None else "name the type in the parameter's type hint"
        if self.codec is None:
            _refuse_reserved(kwargs, what)
            return _plain_text(args, what, remedy), _plain_text(kwargs, f"keyword arguments of {name!r}", remedy)
        return "[]", self._encoded([args, kwargs], what, self.codec, remedy)

    def arguments(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments for which a task's stored JSON stands.

        Raises:
            PayloadError: they cannot be decoded, or do not match the activity as it is here.
        """
        what, secret = f"arguments of {name!r}", encoded_by(kwargs) is not None and not args
        if secret:
            pair = decoded(self.codec, kwargs, what)
            if not (isinstance(pair, list) and [type(part) for part in pair] == [list, dict]):
                msg = f"{what}: what the plugin {encoded_by(kwargs)!r} decoded is not a list of arguments and an object"
                raise PayloadError(msg)
            args, kwargs = pair
        try:
            return self._structured(name, args, kwargs, what, showing=not secret)
        except TypeError as error:
            msg = f"{what}: {error}; the task was enqueued for another version of the activity, or by hand"
            raise PayloadError(msg) from None

    def written(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments for which JSON stands that a person wrote; raises as `stored_arguments` does."""
        what = f"arguments of {name!r}"
        try:
            return self._structured(name, args, kwargs, what, showing=True)
        except TypeError as error:
            msg = f"{what}: {error}"
            raise EnqueueError(msg) from None

    def stored_result(self, name: str, value: Any) -> str:
        """Return the JSON text that stands for a result; raises PayloadError as `stored_arguments` does."""
        what, form = f"the result of {name!r}", self._result_form(name)
        if value is None and form is None and self.codec is None:
            return "null"  # what most activities return
        if form is not None:
            value = self._judged(lambda: form.out(value), what, showing=self.codec is None)
        remedy = "name the type in the hint of what the function returns" if name in self.signatures else ""
        if self.codec is None:
            _refuse_reserved(value, what)
            return _plain_text(value, what, remedy)
        return self._encoded(value, what, self.codec, remedy)

    def result(self, name: str, stored: Any) -> Any:
        """Return the result for which stored JSON stands; raises PayloadError as `arguments` does."""
        what, form, secret = f"the result of {name!r}", self._result_form(name), encoded_by(stored) is not None
        if secret:
            stored = decoded(self.codec, stored, what)
        return stored if form is None else self._judged(lambda: form.into(stored), what, showing=not secret)

    def _structured(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], what: str, *, showing: bool
    ) -> tuple[list[Any], dict[str, Any]]:
        signature = self.signatures.get(name)
        if signature is None:
            return list(args), dict(kwargs)
        return self._judged(lambda: signature.into(args, kwargs), what, showing=showing)

    def _encoded(self, value: Any, what: str, codec: Codec, remedy: str) -> str:
        text = json_text(value, what, remedy)
        require_text_keys([value], what)
        return encode(codec.encoded(text, what), what)

    def _result_form(self, name: str) -> Any:
        signature = self.signatures.get(name)
        return None if signature is None else signature.result

    def _judged(self, step: Callable[[], T], what: str, *, showing: bool) -> T:
        try:
            return step()
        except RefusedError as error:
            msg = f"{what}: {error.text(showing=showing)}"
        except RecursionError:
            msg = f"{what}: nested too deeply for its type hints, or it contains itself; pass a flatter value"
        raise PayloadError(msg)


def _plain_text(value: Any, what: str, remedy: str) -> str:
    text = encode(value, what, remedy)
    require_text_keys([value], what)
    return text


def _refuse_reserved(value: Any, what: str) -> None:
    if isinstance(value, dict) and set(value) == {ENVELOPE}:
        msg = f"{what}: the key {ENVELOPE!r} alone marks an encoded payload and is reserved; use another"
        raise PayloadError(msg)
