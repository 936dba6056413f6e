"""A kit for testing policies: fakes, a clause and a claim on a real database, and the laws as a test class.

`Inline` and `InlineTask` are the types of what `app.testing()` gives.

Its fixtures (`harvest_database`, `clause_runner`, `claim_runner` …) are a pytest plugin that is there once
`harvest-core[testing]` is installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harvest_core.inline.memory import InlineTask
    from harvest_core.inline.session import Inline
    from harvest_core.testing.claim_runner import ClaimRunner, Judged
    from harvest_core.testing.clause_runner import ClauseRunner
    from harvest_core.testing.contract import PolicyContract
    from harvest_core.testing.fakes import FakeClock, FakeSignal, fake_build, fake_route, fake_tick, fake_worker

__all__ = [
    "ClaimRunner",
    "ClauseRunner",
    "FakeClock",
    "FakeSignal",
    "Inline",
    "InlineTask",
    "Judged",
    "PolicyContract",
    "fake_build",
    "fake_route",
    "fake_tick",
    "fake_worker",
]

_HOMES = {"ClaimRunner": "claim_runner", "Judged": "claim_runner", "ClauseRunner": "clause_runner"} | {
    "PolicyContract": "contract"
}
_INLINE = {"Inline": "harvest_core.inline.session", "InlineTask": "harvest_core.inline.memory"}


def __getattr__(name: str) -> Any:
    # Late: pytest imports this package at its start, before coverage measures and where hypothesis may be missing.
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    home = _INLINE.get(name) or f"{__name__}.{_HOMES.get(name, 'fakes')}"
    return getattr(import_module(home), name)
