"""Every error that Harvest raises, and `Problem`, the value in which a fault is reported.

Refuses to format for a terminal: the command line renders these values.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import attrs


def page(title: str) -> str:
    """Return the words that name a page of the documentation, which an installed package does not bring."""
    return f'the page "{title}" of Harvest\'s documentation'


ROLES = page("Give each program the rights it needs")


@attrs.frozen
class Problem:
    """One fault or warning found while building, in words a reader can act on.

    Args:
        code: stable identifier, `<plugin or part>.<what>`, e.g. `cost_hold.local-activity`.
        where: the subject: a dotted configuration key, an activity, a plugin.
        message: one sentence saying what is wrong.
        hint: what to do next; empty where the message already says it.
        warning: True where the build may go on.
    """

    code: str
    where: str
    message: str
    hint: str = ""
    warning: bool = False

    def __str__(self) -> str:
        text = f"{self.code}  {self.where}: {self.message}"
        return f"{text} ({self.hint})" if self.hint else text


class HarvestError(Exception):
    """Base of every error that Harvest raises on purpose."""


class BuildError(HarvestError):
    """The configuration, the plugins, the activities or the backend do not fit each other.

    Attributes:
        problems: every fault that was found, not only the first.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(tuple(problems))
        self.problems = tuple(problems)

    def __str__(self) -> str:
        count = len(self.problems)
        lines = [f"cannot build: {count} problem{'s' if count != 1 else ''}"]
        width = max((len(problem.code) for problem in self.problems), default=0)
        for problem in self.problems:
            hint = f" ({problem.hint})" if problem.hint else ""
            lines.append(f"  {problem.code:<{width}}  {problem.where}: {problem.message}{hint}")
        return "\n".join(lines)


class BackendError(HarvestError):
    """The backend has no means for what was asked; the message names the page that says why."""


class EnqueueError(HarvestError):
    """A task cannot be enqueued as asked; nothing was written."""


class KeyTakenError(EnqueueError):
    """Another task has the key, and the call said `on_conflict="raise"`."""


class UnknownActivityError(EnqueueError):
    """The app registers no activity of that name, so no worker of it would run the task."""


class PayloadError(EnqueueError):
    """Arguments or a result do not match their type hints, or cannot be stored or read: not JSON, over the limit."""


class LocalActivityError(HarvestError):
    """A local activity was called outside a workflow."""


class ScheduleError(HarvestError):
    """A schedule cannot be written or removed as asked; nothing was changed."""


class ScheduleNotFoundError(HarvestError):
    """There is no schedule of that name."""


class TaskNotFoundError(HarvestError):
    """No task of that id is known: never enqueued, or its retention has passed."""


class TaskFailedError(HarvestError):
    """The task ended as failed or cancelled; carries the error text of its last attempt."""


class LostClaimError(HarvestError):
    """This holder's claim is no longer the live one; its write changed nothing."""


class HookError(HarvestError):
    """A plugin's hook raised or returned something its law forbids; nothing was claimed.

    Attributes:
        plugin: slug of the plugin.
        hook: name of the hook.
        detail: one sentence saying what was wrong.
    """

    def __init__(self, plugin: str, hook: str, detail: str) -> None:
        super().__init__(plugin, hook, detail)
        self.plugin, self.hook, self.detail = plugin, hook, detail

    def __str__(self) -> str:
        return f"plugin {self.plugin!r}, hook {self.hook}: {self.detail}"


class DatabaseUnavailableError(HarvestError):
    """The database cannot be reached; the message names it without its password."""


class MissingRightError(DatabaseUnavailableError):
    """The database's role may not do what was asked; a worker waits until it may.

    Attributes:
        role: the role that connected.
        denied: PostgreSQL's own words, such as `permission denied for table tasks`.
    """

    def __init__(self, role: str, denied: str) -> None:
        super().__init__(role, denied)
        self.role, self.denied = role, denied

    def __str__(self) -> str:
        return f"role {self.role!r} lacks a right: {self.denied}; {ROLES} says what a role is granted"


class SchemaError(HarvestError):
    """The database's schema is behind or ahead of this version; the message names the command."""


class NonRetryableError(HarvestError):
    """Raise it, or a subclass, from an activity to fail the task at once, whatever is left of its attempts."""


def near_match(word: str, known: Iterable[str]) -> str:
    """Return `did you mean 'x'?` for the known name closest to word, or an empty text."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {found[0]!r}?" if found else ""
