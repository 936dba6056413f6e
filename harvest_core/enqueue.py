"""From a call as a user writes it to a task as it is written: names, arguments and options checked, traits stamped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from harvest_core.activity import RegisteredActivity
from harvest_core.build import ENQUEUE_OPTIONS, Build
from harvest_core.duration import seconds
from harvest_core.errors import EnqueueError, LocalActivityError, UnknownActivityError, near_match
from harvest_core.model import Activity, Json
from harvest_core.payload import encode, storable_text
from harvest_core.store.postgres.enqueue import NewTask

_INTEGER = 2**31
_SECONDS = 300 * 365.25 * 86400
_TEXT_BYTES = 1024
_SPANS = ("delay", "start_to_close", "schedule_to_start", "schedule_to_close", "heartbeat", "key_period")
ON_CONFLICT = ("ignore", "replace", "raise")
"""What an enqueue may do where another task has its key."""
_LAST_YEAR = 9000


class Call:
    """One task to be: an activity, its arguments, and enqueue options.

    Args:
        activity: the declared activity, or its name.
        args: positional arguments.
        kwargs: keyword arguments of the activity.
        options: `queue`, `priority`, `delay` (seconds or "5m"), `scheduled_at` (aware datetime), `key` (unique among
            unfinished tasks of the activity), `key_period` (the key is taken for so long from now, after the end too),
            `on_conflict` ("ignore", "replace" or "raise", where the key is taken), `lane` ("customer/7": one of a lane
            runs at a time), `max_attempts`, `start_to_close`, `heartbeat`, `schedule_to_start`, `schedule_to_close`
            (lengths of time), `elsewhere` (True: another app has the activity), and the enqueue options of plugins,
            e.g. `flags`.
    """

    def __init__(
        self,
        activity: RegisteredActivity[..., Any] | str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(activity, str | RegisteredActivity):
            msg = f"{activity!r} is no activity: decorate the function with @app.activity, or pass a name"
            raise EnqueueError(msg)
        self.activity = activity if isinstance(activity, str) else activity.name
        self.args, self.kwargs, self.options = args, kwargs or {}, options


def new_task(build: Build, call: Call) -> NewTask:
    """Return the task that a call becomes; nothing is written.

    Args:
        build: has the activities, and the plugins that stamp.
        call: as the user wrote it.

    Raises:
        EnqueueError: an option is unknown or not allowed, or the arguments do not fit the activity.
        UnknownActivityError: the app has no activity of that name.
        LocalActivityError: it is a local one.
        PayloadError: the arguments cannot be stored.
    """
    name, options = call.activity, dict(call.options)
    activity = build.activities.get(name)
    elsewhere = options.pop("elsewhere", False)
    if activity is None and not elsewhere:
        hint = near_match(name, build.runnable) or f"it has {', '.join(build.runnable) or 'none'}"
        msg = f"this app has no activity {name!r} ({hint}); pass elsewhere=True where another app has it"
        raise UnknownActivityError(msg)
    if activity is not None and activity.local:
        msg = f"{name!r} is a local activity: it runs inline in a workflow and is never enqueued"
        raise LocalActivityError(msg)
    for option in sorted(build.backend.lacks):
        if options.get(option) is not None:
            msg = f"enqueue of {name!r}: {build.backend.refusal(option)}"
            raise EnqueueError(msg)
    if build.backend.lacks and options.get("on_conflict") == "replace":
        msg = f"enqueue of {name!r}: {build.backend.refusal('on_conflict replace')}"
        raise EnqueueError(msg)
    args, kwargs = build.payloads.stored_arguments(name, call.args, call.kwargs)
    traits = _stamped(build, name, options)
    return NewTask(
        name=name,
        args=args,
        kwargs=kwargs,
        traits=encode(traits, f"options of {name!r}"),
        **_kernel_options(name, activity, options),
    )


def _stamped(build: Build, name: str, options: dict[str, Any]) -> dict[str, Json]:
    """Take the plugins' options out of options and return the traits they become."""
    given: dict[str, dict[str, Any]] = {}
    for option in [option for option in options if option not in ENQUEUE_OPTIONS]:
        slug = build.enqueue_options.get(option)
        if slug is None:
            known = [*ENQUEUE_OPTIONS, *build.enqueue_options]
            hint = near_match(option, known) or f"options are {', '.join(known)}"
            msg = f"enqueue of {name!r}: no option {option!r} ({hint}); the activity's own keywords go through kwargs="
            raise EnqueueError(msg)
        given.setdefault(slug, {})[option] = options.pop(option)
    traits = {slug: build.policies.plugins[slug].stamp(values) for slug, values in given.items()}
    return {slug: trait for slug, trait in traits.items() if trait is not None}


def _kernel_options(name: str, activity: Activity | None, options: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(options)
    if activity is not None:
        found.setdefault("queue", activity.queue)
        found.setdefault("priority", activity.priority)
        found.setdefault("max_attempts", activity.retry.max_attempts)
        found.setdefault("start_to_close", activity.start_to_close)
        found.setdefault("schedule_to_start", activity.schedule_to_start)
        found.setdefault("schedule_to_close", activity.schedule_to_close)
        found.setdefault("heartbeat", activity.heartbeat)
    for option in ("priority", "max_attempts"):
        value, least = found.get(option), 1 if option == "max_attempts" else -_INTEGER
        if value is not None and not (type(value) is int and least <= value < _INTEGER):
            msg = f"enqueue of {name!r}: {option} is {value!r}; expected a whole number from {least} to {_INTEGER - 1}"
            raise EnqueueError(msg)
    for option in ("queue", "key", "lane"):
        value = found.get(option)
        too_long = isinstance(value, str) and len(value.encode(errors="replace")) > _TEXT_BYTES
        if not too_long and value is not None and not _is_plain_text(value):
            msg = f"enqueue of {name!r}: {option} is {value!r}; expected text that is not blank, without NUL"
            raise EnqueueError(msg)
        if too_long:
            msg = f"enqueue of {name!r}: {option} takes more than {_TEXT_BYTES} bytes; use a digest of it"
            raise EnqueueError(msg)
    for option in _SPANS:
        if found.get(option) is not None:
            try:
                found[option] = seconds(found[option])
            except ValueError as error:
                msg = f"enqueue of {name!r}: {option} {error}"
                raise EnqueueError(msg) from None
            if found[option] > _SECONDS or (found[option] <= 0 and option != "delay"):
                msg = f"enqueue of {name!r}: {option} is {found[option]:g} s; expected above 0 and at most 300 years"
                raise EnqueueError(msg)
    if found.setdefault("on_conflict", "ignore") not in ON_CONFLICT:
        hint = near_match(str(found["on_conflict"]), ON_CONFLICT) or f"one of {', '.join(ON_CONFLICT)}"
        msg = f"enqueue of {name!r}: on_conflict is {found['on_conflict']!r}; {hint}"
        raise EnqueueError(msg)
    if found.get("key") is None and (found.get("key_period") is not None or found["on_conflict"] != "ignore"):
        msg = f"enqueue of {name!r}: key_period and on_conflict say what a key does; give key= too"
        raise EnqueueError(msg)
    moment = found.get("scheduled_at")
    if moment is not None and not (isinstance(moment, datetime) and moment.tzinfo is not None):
        msg = f"enqueue of {name!r}: scheduled_at is {moment!r}; expected a datetime with a time zone"
        raise EnqueueError(msg)
    if moment is not None and not 2 <= moment.year < _LAST_YEAR:
        msg = f"enqueue of {name!r}: scheduled_at is {moment!r}; expected a year from 2 to {_LAST_YEAR - 1}"
        raise EnqueueError(msg)
    return found


def _is_plain_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and storable_text(value) == value
