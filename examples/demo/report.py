"""Judges a run by its effect log alone: plain rules written a second time, sharing no code with Harvest.

Every function is pure. A check that fails carries the line of evidence that broke it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import attrs

LEAST_SPAN = 300
"""Dispatches of one worker below which its split is not judged, and the demo fails."""

LEAST_HELD = 50
"""Dispatches under a high signal, beside waiting held work, below which a hold was not shown."""

GRACE = 3.0
"""Seconds after a rise within which a task claimed before it may still log its start."""


@attrs.frozen
class Planned:
    """A task the demo enqueues. Activity and subject together name it, whatever id it is given."""

    activity: str
    subject: str
    queue: str
    flags: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """Activity and subject."""
        return self.activity, self.subject


@attrs.frozen
class Effect:
    """One line of the effect log; an end line has a result, a start line has the rest."""

    effect: str
    task: str
    activity: str
    subject: str
    attempt: int
    worker: str
    time: float
    queue: str = ""
    flags: Sequence[str] = ()
    signal: float | None = None
    labels: Mapping[str, str] = attrs.field(factory=dict)
    accepted: Sequence[str] = ()
    forbidden: Sequence[str] = ()
    allowlist: Sequence[str] | None = None
    result: Any = None

    @property
    def key(self) -> tuple[str, str]:
        """Activity and subject."""
        return self.activity, self.subject

    def __str__(self) -> str:
        """Return the line as evidence."""
        seen = "" if self.effect == "end" else f" queue={self.queue} flags={list(self.flags)} signal={self.signal}"
        what = f"task {self.task} {self.activity}({self.subject}) attempt {self.attempt}"
        return f"{self.time:.3f} {self.worker} {self.effect} {what}{seen}"


@attrs.frozen
class Member:
    """A worker as it was started: its labels and flag sets, the queues it polls, and how many tasks at once."""

    name: str
    slots: int = 4
    weights: Mapping[str, int] = attrs.field(factory=dict)
    queues: tuple[str, ...] = ("interactive", "bulk")
    labels: Mapping[str, str] = attrs.field(factory=dict)
    accepted: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    allowlist: tuple[str, ...] | None = None


@attrs.frozen
class Change:
    """The operator's setting of the signal: not in force before `begun`, in force everywhere soon after `done`."""

    value: float
    begun: float
    done: float


@attrs.frozen
class Rules:
    """The routing rules of the demo's app, said independently of its decorators and of its TOML."""

    requires: Mapping[str, tuple[str, str]] = attrs.field(factory=lambda: {"similarity": ("memory", "large")})
    held: frozenset[str] = frozenset({"fingerprint"})
    threshold: float = 400.0


@attrs.frozen
class Run:
    """All that is judged.

    Args:
        planned: tasks enqueued before any worker started.
        followed: tasks enqueued during the run.
        effects: the whole effect log.
        members: the workers as started.
        changes: the operator's changes of the signal, in order.
        expected: result by activity and subject, computed directly in one process.
        index: the merged index as Harvest returned it, to equal `expected[index_key]`.
        index_key: activity and subject of the last merge.
        rules: the routing rules.
    """

    planned: Sequence[Planned]
    followed: Sequence[Planned]
    effects: Sequence[Effect]
    members: Sequence[Member]
    changes: Sequence[Change]
    expected: Mapping[tuple[str, str], Any]
    index: Any
    index_key: tuple[str, str]
    rules: Rules = attrs.field(factory=Rules)

    @property
    def everything(self) -> list[Planned]:
        """All tasks of the run."""
        return [*self.planned, *self.followed]

    @property
    def starts(self) -> list[Effect]:
        """Dispatches of the fleet in order of time."""
        return sorted((e for e in self.effects if e.effect == "start"), key=lambda e: e.time)

    @property
    def ends(self) -> list[Effect]:
        """Finished activities."""
        return [e for e in self.effects if e.effect == "end"]


@attrs.frozen
class Check:
    """The verdict of one check: what was seen, and the lines that broke it (none when it passed)."""

    name: str
    said: str
    evidence: Sequence[str] = ()

    @property
    def passed(self) -> bool:
        """True when nothing was found against it."""
        return not self.evidence


def judge(run: Run) -> list[Check]:
    """Return every check of the report, in the order it is printed."""
    return [
        totals(run),
        index(run),
        once(run),
        log(run),
        requirement(run),
        flags(run),
        hold(run),
        hold_shown(run),
        first_attempt(run),
        *(check for member in run.members if len(member.weights) > 1 for check in split(run, member)),
    ]


def totals(run: Run) -> Check:
    """Every planned task ended with the value the direct computation gives, so the totals are equal."""
    results = {end.key: end.result for end in run.ends}
    wrong = [
        f"{name}({subject}): the log says {results.get((name, subject), 'nothing')}, directly {value}"
        for name, subject in (planned.key for planned in run.everything)
        if results.get((name, subject)) != (value := run.expected[name, subject])
    ]
    files = sum(planned.activity == "checksum" for planned in run.planned)
    said = f"{len(results):,} results on {files:,} files equal a direct single-process computation"
    return Check("totals", said, wrong[:3])


def index(run: Run) -> Check:
    """The merged index that Harvest returned is the sum the direct computation gives."""
    expected = run.expected[run.index_key]
    wrong = [] if run.index == expected else [f"Harvest returned {run.index}, directly {expected}"]
    said = ", ".join(f"{name} {total:,}" for name, total in expected.items() if name != "checksum")
    return Check("merged index", said, wrong)


def once(run: Run) -> Check:
    """No task started twice, by its id and by what it works on."""
    ids = Counter(start.task for start in run.starts)
    keys = Counter(start.key for start in run.starts)
    twice = [str(start) for start in run.starts if ids[start.task] > 1 or keys[start.key] > 1]
    return Check("once", f"{len(ids):,} tasks started, none twice", twice[:4])


def log(run: Run) -> Check:
    """Every start is of a planned task with its queue and flags, on a worker with the policy it was started with."""
    known = {planned.key: planned for planned in run.everything}
    members = {member.name: member for member in run.members}
    strange = [
        str(start)
        for start in run.starts
        if (planned := known.get(start.key)) is None
        or (planned.queue, list(planned.flags)) != (start.queue, list(start.flags))
        or not _same_policy(members.get(start.worker), start)
    ]
    return Check("log", "each effect shows the queue, flags and worker policy that the demo gave", strange[:3])


def requirement(run: Run) -> Check:
    """A task that requires a label ran only where the worker has it."""
    concerned = [start for start in run.starts if start.activity in run.rules.requires]
    wrong = [str(start) for start in concerned if not _meets(run.rules, start.activity, start.labels)]
    lacking = [m.name for m in run.members if any(not _meets(run.rules, name, m.labels) for name in run.rules.requires)]
    if not concerned or not lacking:
        wrong = [*wrong, "nothing to judge: no task with a requirement ran, or every worker meets it"]
    said = f"{len(concerned)} tasks that require a label ran on {_names(concerned)}, none on {', '.join(lacking)}"
    return Check("requirement", said, wrong[:3])


def flags(run: Run) -> Check:
    """No task ran on a worker whose forbidden, accepted or allowlisted flags refuse it."""
    true_flags = {planned.key: planned.flags for planned in run.everything}
    wrong = [
        f"{refusal}: {start}"
        for start in run.starts
        if (refusal := _refusal(true_flags.get(start.key, start.flags), start))
    ]
    refused = {
        member.name: sum(_refusal(planned.flags, member) is not None for planned in run.planned)
        for member in run.members
    }
    if not any(refused.values()):
        wrong = [*wrong, "nothing to judge: no worker refuses any task"]
    kept = ", ".join(f"{count:,} from {name}" for name, count in refused.items() if count)
    return Check("flags", f"kept away: {kept}", wrong[:3])


def hold(run: Run) -> Check:
    """Held activities were claimed only under a low signal: as the claim saw it, and as the operator set it."""
    held = _held(run)
    wrong = [f"claimed under a signal that is not low: {start}" for start in held if not _low(run.rules, start.signal)]
    for rise, fall in _highs(run):
        wrong += [
            f"started {start.time - rise.done:.1f} s after the signal was set to {rise.value}: {start}"
            for start in held
            if rise.done + GRACE < start.time < fall.begun
        ]
    highest = max((start.signal for start in held if start.signal is not None), default=0.0)
    said = (
        f"{len(held)} held tasks, each claimed at a signal of at most {highest:g} (threshold {run.rules.threshold:g})"
    )
    return Check("hold", said, wrong[:3])


def hold_shown(run: Run) -> Check:
    """While held work waited under a high signal, other work went on; after the fall the held work ran."""
    last = max((start.time for start in _held(run)), default=0.0)
    beside = [s for s in run.starts if s.signal is not None and s.signal > run.rules.threshold and s.time < last]
    wrong = []
    if len(beside) < LEAST_HELD:
        wrong = [
            f"only {len(beside)} tasks were claimed under a high signal while held work waited (at least {LEAST_HELD})"
        ]
    rises = sum(change.value > run.rules.threshold for change in run.changes)
    said = f"{len(beside):,} other tasks were claimed under a high signal ({rises} rises) beside waiting held ones"
    return Check("hold shown", said, wrong)


def first_attempt(run: Run) -> Check:
    """Being held costs no attempt: each held task ran as attempt 1, and so did every other."""
    wrong = [str(start) for start in run.starts if start.attempt != 1]
    return Check("attempt 1", f"{len(_held(run))} held tasks, and all others, ran as attempt 1", wrong[:3])


def split(run: Run, member: Member) -> list[Check]:
    """Return two checks of one worker: its span is long enough, and its split keeps the bound at every dispatch of it.

    The bound is rule W2: after t dispatches a queue of weight w among W has had t * w / W, give or take one, and the
    up to `slots` tasks of the claims under way may log their start in another order.
    """
    span = _span(run, member)
    whole, bound = sum(member.weights.values()), len(member.weights) - 1 + member.slots
    taken: Counter[str] = Counter()
    broken: list[str] = []
    worst = 0.0
    for count, start in enumerate(span, 1):
        taken[start.queue] += 1
        for queue, weight in member.weights.items():
            due = count * weight / whole
            worst = max(worst, abs(taken[queue] - due))
            if abs(taken[queue] - due) > bound:
                broken.append(f"after {count} dispatches {queue} had {taken[queue]}, due {due:g} ± {bound}: {start}")
    short = []
    if len(span) < LEAST_SPAN:
        short = [f"{len(span)} dispatches of {member.name} while both queues held work for it (at least {LEAST_SPAN})"]
    ratio = ", ".join(f"{queue} {taken[queue]:,}" for queue in member.weights)
    wanted = ":".join(str(weight) for weight in member.weights.values())
    said = f"{ratio} for {wanted}; never more than {worst:.1f} from it (bound {bound})"
    return [
        Check(f"span of {member.name}", f"{len(span):,} dispatches while both queues held work for it", short),
        Check(f"split of {member.name}", said, broken[:1]),
    ]


def _span(run: Run, member: Member) -> list[Effect]:
    """Return the member's own dispatches while, beyond doubt, each of its queues held work that it may take.

    A task that has not logged its start may be claimed already (at most the slots of the fleet) or stand locked at the
    head of its route for a moment (one for each route and other worker), so the span ends that much early.
    """
    candidates = [planned for planned in run.planned if _may_take(run.rules, member, planned)]
    routes = len({(p.queue, p.activity, p.flags) for p in run.planned})
    margin = sum(m.slots for m in run.members) + member.slots + (len(run.members) - 1) * routes
    left = Counter(planned.queue for planned in candidates)
    counted = {planned.key for planned in candidates}
    own = []
    for start in run.starts:
        if any(left[queue] <= margin for queue in member.weights):
            break
        if start.key in counted:
            left[start.queue] -= 1
        if start.worker == member.name:
            own.append(start)
    return own


def _may_take(rules: Rules, member: Member, planned: Planned) -> bool:
    return (
        planned.queue in member.queues
        and planned.activity not in rules.held
        and _meets(rules, planned.activity, member.labels)
        and _refusal(planned.flags, member) is None
    )


def _meets(rules: Rules, activity: str, labels: Mapping[str, str]) -> bool:
    if activity not in rules.requires:
        return True
    label, value = rules.requires[activity]
    return labels.get(label) == value


def _refusal(flags: Sequence[str], worker: Member | Effect) -> str | None:
    """Return why a worker's flag sets refuse these flags, or None; the rules FL2 and FL3 in plain words."""
    for flag in flags:
        if flag in worker.forbidden:
            return f"{_name(worker)} forbids {flag}"
        if worker.allowlist is not None and flag not in worker.allowlist:
            return f"{_name(worker)} does not allow {flag}"
    if worker.accepted and not any(flag in worker.accepted for flag in flags):
        return f"{_name(worker)} accepts only {', '.join(worker.accepted)}"
    return None


def _name(worker: Member | Effect) -> str:
    """Return the name of a worker, or of the one that wrote an effect."""
    return worker.name if isinstance(worker, Member) else worker.worker


def _same_policy(member: Member | None, start: Effect) -> bool:
    if member is None:
        return False
    told = (dict(start.labels), list(start.accepted), list(start.forbidden))
    given = (dict(member.labels), list(member.accepted), list(member.forbidden))
    allowed = None if member.allowlist is None else list(member.allowlist)
    return told == given and (None if start.allowlist is None else list(start.allowlist)) == allowed


def _held(run: Run) -> list[Effect]:
    return [start for start in run.starts if start.activity in run.rules.held]


def _low(rules: Rules, signal: float | None) -> bool:
    return signal is not None and signal <= rules.threshold


def _highs(run: Run) -> Iterator[tuple[Change, Change]]:
    """Yield each rise with the fall that follows it."""
    for change, following in pairwise(run.changes):
        if change.value > run.rules.threshold >= following.value:
            yield change, following


def _names(starts: Iterable[Effect]) -> str:
    return ", ".join(sorted({start.worker for start in starts})) or "no worker"
