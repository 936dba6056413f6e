"""The table `[plugins.capabilities]`."""

from __future__ import annotations

import attrs


@attrs.frozen
class CapabilitiesConfig:
    """What this worker says of itself.

    Args:
        labels: its labels by key, both text (CAP1); fixed while it runs. None at all meets no requirement.
    """

    labels: dict[str, str] = attrs.field(factory=dict)
