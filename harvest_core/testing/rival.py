"""A policy of the kit's own, beside which others are tried: it refuses some routes by a clause that begins an OR."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from harvest_core.model import Clause, Route, Tick
from harvest_core.plugin import Plugin, hookimpl


@attrs.define(eq=False, slots=False)
class Rival(Plugin):
    """Refuses all of one queue but one activity; without parentheses its OR would let everything else through.

    Args:
        queue: the queue.
        activity: the one it lets through there.
    """

    slug = "contract_rival"

    queue: str = attrs.field(default="default")
    activity: str = attrs.field(default="work")
    config: None = attrs.field(default=None, init=False)

    @hookimpl
    def filter_clause(self, tick: Tick) -> Sequence[Clause]:  # noqa: ARG002 - pluggy matches by name
        """Give the one clause."""

        def reasons(route: Route) -> Sequence[str]:
            return [] if route.name == self.activity or route.queue != self.queue else ["contract_rival"]

        text = "r.name = {activity} or r.queue <> {queue}  -- 100 % of {{it}}"
        return [Clause(text, {"activity": self.activity, "queue": self.queue}, reasons)]
