"""The table `[plugins.flags]`, and what is wrong with it before any task is judged by it."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from harvest_core.plugin import Problem


@attrs.frozen
class FlagsConfig:
    """Which tasks a worker takes by their flags (rules FL2 and FL3).

    Args:
        accepted: a task needs at least one of these; empty for no such demand.
        forbidden: a task with any of these is refused.
        allowlist: a task with any flag outside these is refused; empty admits untagged tasks only, None any flag.
    """

    accepted: list[str] = attrs.field(factory=list)
    forbidden: list[str] = attrs.field(factory=list)
    allowlist: list[str] | None = None


def flag_fault(flag: object) -> str:
    """Return what keeps flag from being a flag, to be read after "is"; empty where it is one (rules FL1 and FL6)."""
    if not isinstance(flag, str):
        return f"a {type(flag).__name__}, not a text"
    if not flag:
        return "empty"
    if "\0" in flag:
        return "a text with a NUL character, which PostgreSQL cannot store"
    if any("\ud800" <= character <= "\udfff" for character in flag):
        return "a text with half of a surrogate pair, which UTF-8 cannot encode"
    return ""


def config_problems(config: FlagsConfig) -> list[Problem]:
    """Return every malformed flag and, as a warning, a configuration that admits no task at all (rule FL4)."""
    lists = {"accepted": config.accepted, "forbidden": config.forbidden, "allowlist": config.allowlist or []}
    problems = [
        Problem(
            code="flags.malformed-flag",
            where=f"plugins.flags.{key}",
            message=f"flag {flag!r} is {fault}",
            hint="no task can carry it; remove it or write it out",
        )
        for key, flags in lists.items()
        for flag in flags
        if (fault := flag_fault(flag))
    ]
    if not problems and (warning := _admits_nothing(config)):
        problems.append(warning)
    return problems


def _admits_nothing(config: FlagsConfig) -> Problem | None:
    if not config.accepted:
        return None
    accepted, allowlist = set(config.accepted), config.allowlist
    permitted = accepted if allowlist is None else accepted & set(allowlist)
    if allowlist is not None and not allowlist:
        return _warning("allowlist", "is empty while accepted is not, so no task is admitted", config.accepted)
    if not permitted:
        return _warning("accepted", "shares no flag with allowlist, so no task is admitted", config.accepted)
    if permitted <= set(config.forbidden):
        return _warning("forbidden", "covers every accepted flag, so no task is admitted", sorted(permitted))
    return None


def _warning(key: str, message: str, flags: Sequence[str]) -> Problem:
    hint = {
        "allowlist": f"add one of {', '.join(flags)} to it, or remove it",
        "accepted": f"add one of {', '.join(flags)} to allowlist",
        "forbidden": f"remove one of {', '.join(flags)} from it",
    }[key]
    return Problem(code="flags.admits-nothing", where=f"plugins.flags.{key}", message=message, hint=hint, warning=True)
