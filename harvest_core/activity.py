"""What `@app.activity` makes of a function: the handle by which it is enqueued, and still the function when called."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

from harvest_core.errors import LocalActivityError
from harvest_core.model import Activity

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
