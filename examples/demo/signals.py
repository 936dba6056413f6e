"""The operator of the demo: raises and lowers the cost signal as the run goes on, with `harvest config set`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import attrs
from report import GRACE, Change

LOW, HIGH = 120.0, 520.0

_SCRIPT = ((0.15, HIGH), (0.45, LOW), (0.60, HIGH), (0.85, LOW))
"""Part of the work on single files after which each value is set."""

_LOOK = 0.1

_LEAST = GRACE + 1.5
"""Seconds that each value stays, so that a hold has time to be seen to hold."""


@attrs.define
class Operator:
    """Sets the signal by the script; `changes` is its logbook.

    Args:
        command: runs a `harvest` command to its end.
    """

    command: Callable[..., Awaitable[None]]
    changes: list[Change] = attrs.field(factory=list)

    @property
    def signal(self) -> float:
        """The value set last."""
        return self.changes[-1].value

    async def set(self, value: float) -> None:
        """Set the signal and note when."""
        begun = time.time()
        await self.command("config", "set", "cost_signal", f"{value:g}")
        self.changes.append(Change(value, begun, time.time()))

    async def follow(self, files_done: Callable[[], float]) -> None:
        """Set each value of the script when its time has come, and return after the last."""
        for part, value in _SCRIPT:
            while files_done() < part or time.time() - self.changes[-1].done < _LEAST:  # noqa: ASYNC110
                await asyncio.sleep(_LOOK)
            await self.set(value)
