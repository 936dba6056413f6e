"""What a worker publishes of itself (CAP2, CAP4), written at its build and read wherever it is judged.

Facts are `labels` (key to value), `requires` and `prefers` (activity to text), `ineligible` (activity to reasons, at
least one each), `lesser` (the activities it may run but is not preferred for, each with its queue) and `prefer_wait`
in seconds. They are published even where all are empty: facts that are absent mean that a worker cannot be judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import attrs

from harvest_capabilities.checks import OPTIONS
from harvest_capabilities.config import CapabilitiesConfig
from harvest_capabilities.grammar import parse
from harvest_core.plugin import Activity, Json, Peer, Worker

_parsed = lru_cache(maxsize=4096)(parse)


@attrs.frozen
class Facts:
    """One worker's facts, read.

    Args:
        prefers: what its activities prefer, as text.
        ineligible: reasons against each activity that it never takes.
        lesser: the queue of each activity that it takes only for want of a preferred worker.
        prefer_wait: seconds that it leaves those to a preferred worker.
    """

    prefers: Mapping[str, str]
    ineligible: Mapping[str, tuple[str, ...]]
    lesser: Mapping[str, str]
    prefer_wait: float

    def leaves(self, activity: str, peer: Peer, slug: str) -> bool:
        """Return whether a peer has a free slot for a lesser activity, may take it, and is one that it prefers.

        What the peer may take is its own word; a peer that cannot be judged is not waited for.
        """
        if not peer.free or activity not in peer.worker.activities or self.lesser[activity] not in peer.worker.queues:
            return False
        match peer.worker.facts.get(slug):
            case {"labels": Mapping() as labels, "ineligible": Mapping() as ineligible} if activity not in ineligible:
                texts = {key: label for key, label in labels.items() if isinstance(label, str)}
                return not _parsed(self.prefers[activity]).unsatisfied(texts)
        return False


def written(config: CapabilitiesConfig, activities: Mapping[str, Activity]) -> Mapping[str, Json]:
    """Return a worker's facts: its labels, what its activities ask for, and its verdict on each."""
    texts = {
        option: {name: activity.options[option] for name, activity in activities.items() if option in activity.options}
        for option in OPTIONS
    }
    labels = dict(config.labels)
    ineligible: dict[str, list[str]] = {}
    lesser: dict[str, str] = {}
    for name, activity in activities.items():
        if activity.local:
            continue
        asked = [parse(texts[option][name]) for option in OPTIONS if name in texts[option]]
        reasons = list(asked[0].unsatisfied(labels)) if name in texts["requires"] else []
        if config.exclusive and not any(one.asks_for(config.exclusive) for one in asked):
            reasons.append(f"worker_exclusive:{' or '.join(config.exclusive)}")
        if reasons:
            ineligible[name] = reasons
        elif name in texts["prefers"] and asked[-1].unsatisfied(labels):
            lesser[name] = activity.queue
    wait = float(config.prefer_wait)
    return {"labels": labels, **texts, "ineligible": ineligible, "lesser": lesser, "prefer_wait": wait}


def facts_of(worker: Worker, slug: str) -> Facts:
    """Read what a worker published under a slug. One of the version before prefers nothing (CAP6).

    Raises:
        ValueError: it published no verdict that can be read.
    """
    facts = worker.facts.get(slug)
    ineligible = facts.get("ineligible") if isinstance(facts, Mapping) else None
    if not isinstance(facts, Mapping) or not isinstance(ineligible, Mapping):
        raise _unjudged(worker, f"published {facts!r}")
    read = Facts(
        prefers=_texts(worker, facts, "prefers"),
        ineligible={name: _reasons(worker, name, given) for name, given in ineligible.items()},
        lesser=_texts(worker, facts, "lesser"),
        prefer_wait=_seconds(worker, facts.get("prefer_wait", 0.0)),
    )
    if unknown := read.lesser.keys() - read.prefers.keys():
        raise _unjudged(worker, f"published no preference of {sorted(unknown)}")
    return read


def _texts(worker: Worker, facts: Mapping[str, Json], key: str) -> Mapping[str, str]:
    given = facts.get(key, {})
    texts = {name: text for name, text in given.items() if isinstance(text, str)} if isinstance(given, Mapping) else {}
    if texts != given:
        raise _unjudged(worker, f"published {given!r} as its {key}")
    return texts


def _reasons(worker: Worker, name: str, given: Json) -> tuple[str, ...]:
    reasons = () if isinstance(given, str) or not isinstance(given, Sequence) else tuple(given)
    words = tuple(reason for reason in reasons if isinstance(reason, str))
    if not words or words != reasons:
        raise _unjudged(worker, f"published {given!r} as its reasons against {name!r}")
    return words


def _seconds(worker: Worker, given: Json) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise _unjudged(worker, f"published {given!r} as its prefer_wait")
    return float(given)


def _unjudged(worker: Worker, found: str) -> ValueError:
    remedy = "start it anew with the capabilities plugin enabled"
    return ValueError(f"worker {worker.name!r} {found}, so it cannot be judged and claims nothing; {remedy}")
