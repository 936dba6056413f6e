"""`make bench`: the laws of speed, as ratios within one run, on an embedded PostgreSQL with default durability.

Exits with 1 when a law is broken. `--quick` takes smaller sizes, which show that it works and little more.
"""

import argparse
import sys
import time

import claims
import control
import head
import limits
import policies
import schedules
import throughput
from ground import Figure, ground
from rich.console import Console
from rich.table import Table

PARTS = (policies, claims, throughput, head, schedules, control, limits)


def main() -> int:
    """Measure every part and print the report."""
    arguments = argparse.ArgumentParser(prog="make bench", description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="smaller sizes, less trustworthy figures")
    arguments.add_argument("--only", choices=[part.__name__ for part in PARTS], help="one part of it")
    chosen = arguments.parse_args()
    console, started = Console(width=132), time.monotonic()
    table = Table("figure", "measured", "bound", "verdict", title="Harvest's own laws of speed", expand=True)
    broken = []
    with ground(quick=chosen.quick) as server, console.status("starting") as status:
        for part in PARTS:
            if chosen.only in (None, part.__name__):
                for figure in part.figures(server):
                    status.update(f"{figure.name}: {_shown(figure)}")
                    table.add_row(figure.name, _shown(figure), _bound(figure), _verdict(figure))
                    broken += [figure.name] if figure.broken else []
    console.print(table)
    console.print(f"{time.monotonic() - started:.0f} s; {len(broken)} of the laws broken")
    return 1 if broken else 0


def _shown(figure: Figure) -> str:
    value = f"{figure.value:,.0f}" if figure.value >= 100 else f"{figure.value:.2f}"
    return value if figure.unit == "ratio" else f"{value} {figure.unit}"


def _bound(figure: Figure) -> str:
    return "" if figure.bound is None else f"≤ {figure.bound:g}"


def _verdict(figure: Figure) -> str:
    if figure.bound is None:
        return ""
    return "[red]broken" if figure.broken else "[green]kept"


if __name__ == "__main__":
    sys.exit(main())
