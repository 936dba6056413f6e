"""The table `[plugins.capabilities]`."""

from __future__ import annotations

import attrs

from harvest_core.plugin import Duration


@attrs.frozen
class CapabilitiesConfig:
    """What this worker says of itself.

    Args:
        labels: its labels by key, both text (CAP1); fixed while it runs. None at all meets no requirement.
        exclusive: keys of its labels; where there are any, it takes only activities that ask for one of them (CAP6).
        prefer_wait: how long it leaves a due task to a worker that the activity prefers and that has a free slot.
    """

    labels: dict[str, str] = attrs.field(factory=dict)
    exclusive: list[str] = attrs.field(factory=list)
    prefer_wait: Duration = attrs.field(default=Duration(10.0))
