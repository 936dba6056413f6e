"""Shows the run while it happens: a live screen on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import attrs
from fleet import rule
from progress import Progress
from report import Check, Member
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_LINE_EVERY = 2.0


@attrs.frozen
class Scene:
    """One look at the run."""

    progress: Progress
    members: Sequence[Member]
    signal: float
    seconds: float

    @property
    def holding(self) -> bool:
        """True while the operator's signal is above the threshold."""
        return self.signal > self.progress.rules.threshold


class View(Protocol):
    """Shows scenes."""

    def show(self, scene: Scene) -> None:
        """Show one scene."""


@contextmanager
def view(console: Console) -> Iterator[View]:
    """Open the view that suits the console."""
    if not console.is_terminal:
        yield _Lines(console)
        return
    with Live(console=console, auto_refresh=False) as live:
        yield _Screen(live)


def report_table(checks: Sequence[Check]) -> Table:
    """Return the report: one row a check."""
    table = Table(box=box.SIMPLE_HEAD, title="Report, judged from the effect log alone", title_justify="left")
    table.add_column("check", no_wrap=True)
    table.add_column("verdict")
    table.add_column("seen", overflow="fold")
    for check in checks:
        verdict = Text("pass", "green") if check.passed else Text("FAIL", "bold red")
        table.add_row(check.name, verdict, Text(check.said))
    return table


@attrs.define
class _Screen:
    live: Live

    def show(self, scene: Scene) -> None:
        self.live.update(Group(_queues(scene), _workers(scene), _hold(scene)), refresh=True)


@attrs.define
class _Lines:
    console: Console
    shown: float = attrs.field(factory=lambda: time.monotonic() - _LINE_EVERY)

    def show(self, scene: Scene) -> None:
        now = time.monotonic()
        if now - self.shown < _LINE_EVERY:
            return
        self.shown = now
        queues = "  ".join(f"{name} {started}/{total}" for name, started, total in _counts(scene))
        workers = "  ".join(f"{m.name} {_dispatched(scene, m)}{_share(scene, m)}" for m in scene.members)
        hold = f"signal {scene.signal:g}{' HIGH' if scene.holding else ''}, {scene.progress.held_waiting} held wait"
        self.console.print(f"{scene.seconds:5.1f}s  {queues}  {hold}  {workers}", highlight=False, soft_wrap=True)


def _queues(scene: Scene) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=f"Queues after {scene.seconds:.0f} s", title_justify="left")
    for heading in ("queue", "started", ""):
        table.add_column(heading)
    for name, started, total in _counts(scene):
        table.add_row(name, f"{started:,} of {total:,}", ProgressBar(total=total, completed=started, width=40))
    return table


def _workers(scene: Scene) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="Workers", title_justify="left")
    for heading in ("worker", "rule", "dispatched", "runs now"):
        table.add_column(heading, no_wrap=True, overflow="ellipsis")
    for member in scene.members:
        running = [effect for effect in scene.progress.running.values() if effect.worker == member.name]
        now = f"{running[-1].activity} {running[-1].subject}" if running else "idle"
        dispatched = f"{_dispatched(scene, member):,}{_share(scene, member)}"
        table.add_row(member.name, rule(member), dispatched, now)
    return table


def _hold(scene: Scene) -> Text:
    verb = Text("held", "bold yellow") if scene.holding else Text("free to run", "green")
    threshold = scene.progress.rules.threshold
    words = f" signal {scene.signal:g} (threshold {threshold:g}); {', '.join(sorted(scene.progress.rules.held))} is "
    return Text.assemble(words, verb, f"; {scene.progress.held_waiting} wait")


def _counts(scene: Scene) -> list[tuple[str, int, int]]:
    names = dict.fromkeys(queue for member in scene.members for queue in member.queues)
    return [(name, *scene.progress.of_queue(name)) for name in names]


def _dispatched(scene: Scene, member: Member) -> int:
    return sum(scene.progress.started[member.name, queue] for queue in member.queues)


def _share(scene: Scene, member: Member) -> str:
    if len(member.weights) < 2 or not (total := _dispatched(scene, member)):
        return ""
    parts = (round(100 * scene.progress.started[member.name, queue] / total) for queue in member.weights)
    return f" ({':'.join(str(part) for part in parts)})"
