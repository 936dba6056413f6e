"""`FlagFilter`: the flags that a direct caller takes, whatever the app's configuration says (rule FL7)."""

from __future__ import annotations

from collections.abc import Collection

from harvest_core.plugin import ClaimFilter
from harvest_flags.config import FlagsConfig, flag_fault
from harvest_flags.plugin import Flags, facts_of


class FlagFilter(ClaimFilter):
    """Use it as `client.claimer(filters=[FlagFilter(accepted=["linux"])])`; it stands in for `[plugins.flags]`.

    Args:
        accepted: a task needs at least one of these; empty for no such demand.
        forbidden: a task with any of these is refused.
        allowlist: a task with any flag outside these is refused; empty admits untagged tasks only, None any flag.

    Raises:
        ValueError: one of these holds what no task can carry.
    """

    def __init__(
        self,
        accepted: Collection[str] = (),
        forbidden: Collection[str] = (),
        allowlist: Collection[str] | None = None,
    ) -> None:
        for name, flags in (("accepted", accepted), ("forbidden", forbidden), ("allowlist", allowlist or ())):
            if isinstance(flags, str):
                msg = f"FlagFilter: {name}={flags!r} is a text; give a list such as [{flags!r}]"
                raise ValueError(msg)
            for flag in flags:
                if fault := flag_fault(flag):
                    msg = f"FlagFilter: {name} has {flag!r}, which is {fault}; no task can carry it, so take it out"
                    raise ValueError(msg)
        config = FlagsConfig(list(accepted), list(forbidden), None if allowlist is None else list(allowlist))
        super().__init__(Flags.slug, facts_of(config))
