"""What `@app.activity` makes of a function: the handle by which it is enqueued, and still the function when called."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any, Generic, ParamSpec, TypeVar

from harvest_core.errors import LocalActivityError
from harvest_core.model import Activity
from harvest_core.payload import storable_text

P = ParamSpec("P")
R = TypeVar("R")


class RegisteredActivity(Generic[P, R]):
    """A function declared as an activity: enqueue it by this object; calling it runs the function here and now.

    Attributes:
        activity: its name and defaults.
    """

    def __init__(self, activity: Activity, function: Callable[P, R]) -> None:
        self.activity = activity
        self._function = function
        functools.update_wrapper(self, function)

    @property
    def name(self) -> str:
        """Name of the activity."""
        return self.activity.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now, without a task."""
        if self.activity.local:
            msg = (
                f"local activity {self.name!r} was called outside a workflow; it runs only inside one: "
                "make it an activity, or call a plain function"
            )
            raise LocalActivityError(msg)
        return self._function(*args, **kwargs)


def declaration_faults(activity: Activity) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a declared activity: the option and what to say of it."""
    for option in ("name", "queue"):
        value: Any = getattr(activity, option)
        if not (isinstance(value, str) and value.strip() and storable_text(value) == value):
            yield option, f"is {value!r}; expected text that is not blank"
    if not _is_whole(activity.priority, -(2**31)):
        yield "priority", f"is {activity.priority!r}; expected a whole number of 32 bits"
    if inspect.isgeneratorfunction(activity.function) or inspect.isasyncgenfunction(activity.function):
        yield "function", "is a generator, which nobody would run through; return a value"
    retry = activity.retry
    if not _is_whole(retry.max_attempts, 1):
        yield "max_attempts", f"is {retry.max_attempts!r}; expected a whole number, at least 1"
    for field, least, most in (("initial", 0, 3e8), ("factor", 1, 1e6), ("maximum", 0, 3e8), ("jitter", 0, 1)):
        value = getattr(retry, field)
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not (number and least <= value <= most):
            yield "retry", f"has {field} {value!r}; expected a number from {least} to {most:g}"
    kinds: Any = retry.non_retryable
    if not (
        isinstance(kinds, tuple) and all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds)
    ):
        yield "retry", f"has non_retryable {kinds!r}; expected a tuple of exception types"


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**31
