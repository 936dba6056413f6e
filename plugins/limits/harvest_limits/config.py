"""The table `[plugins.limits]`. Its defaults limit nothing."""

from __future__ import annotations

import attrs


@attrs.frozen
class Limit:
    """At most so many at once, and so many starts in any period.

    Args:
        concurrency: the most tasks that run at once; None for no bound of this kind.
        rate: the most starts in any period, such as `"100/m"` (s, m, h or d); None for any number.
    """

    concurrency: int | None = None
    rate: str | None = None


@attrs.frozen
class SharedLimit(Limit):
    """A limit that several activities share.

    Args:
        activities: their names.
    """

    activities: list[str] = attrs.field(factory=list)


@attrs.frozen
class LimitsConfig:
    """What is limited.

    Args:
        activities: by activity, over the whole fleet.
        shared: by a name of your own: activities that one limit counts together.
        lanes: by what stands before the first `/` of a lane, for each such lane by itself. Without a concurrency one
            task of a lane runs at a time, as in every lane.
    """

    activities: dict[str, Limit] = attrs.field(factory=dict)
    shared: dict[str, SharedLimit] = attrs.field(factory=dict)
    lanes: dict[str, Limit] = attrs.field(factory=dict)
