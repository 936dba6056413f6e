"""Prefetched claims that have not started: which may start now, which go back. Pure; holds no connection (rule K15)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import attrs

from harvest_core.model import Skip
from harvest_core.store.postgres.tasks import Claim


@attrs.frozen
class Picked:
    """What is to be done with the prefetched claims: start these, give those back."""

    start: tuple[Claim, ...]
    give_back: tuple[Claim, ...]


@attrs.define
class _Entry:
    claim: Claim
    expires: float
    give_back_at: float


class LocalQueue:
    """The prefetched claims of one worker, in the order in which they were taken.

    Args:
        size: most of them at a time.
        ttl: seconds after which one that has not started goes back.
        clock: monotonic seconds.
    """

    def __init__(self, size: int, ttl: float, clock: Callable[[], float]) -> None:
        self._size, self._ttl, self._clock = size, ttl, clock
        self._entries: list[_Entry] = []

    @property
    def room(self) -> int:
        """How many more it takes."""
        return self._size - len(self._entries)

    @property
    def ids(self) -> frozenset[int]:
        """The tasks in it."""
        return frozenset(entry.claim.id for entry in self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, claims: Iterable[Claim]) -> None:
        """Take claims."""
        expires = self._clock() + self._ttl
        self._entries += [_Entry(claim, expires, expires) for claim in claims]

    def pick(self, free: int, refusals: Mapping[str, Skip]) -> Picked:
        """Take out what may start in so many free slots and what must go back.

        Args:
            free: slots that are free.
            refusals: for each activity that is held or limited now the skip that says so. A task waits under it for the
                skip's `recheck`, then it goes back: another worker may judge otherwise, and a claim counts its start.
        """
        now = self._clock()
        start: list[Claim] = []
        give_back: list[Claim] = []
        kept: list[_Entry] = []
        for entry in self._entries:
            skip = refusals.get(entry.claim.route.name) if entry.claim.route.kind == "activity" else None
            if skip is None:
                entry.give_back_at = entry.expires
            elif entry.give_back_at == entry.expires:
                entry.give_back_at = min(entry.expires, now + skip.recheck)
            if now >= entry.give_back_at:
                give_back.append(entry.claim)
            elif skip is None and len(start) < free:
                start.append(entry.claim)
            else:
                kept.append(entry)
        self._entries = kept
        return Picked(tuple(start), tuple(give_back))

    def clear(self) -> tuple[Claim, ...]:
        """Take out everything."""
        claims = tuple(entry.claim for entry in self._entries)
        self._entries = []
        return claims
