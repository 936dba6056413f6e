"""The how-to page on custom signals does what it says: its blocks are run as they stand."""

from __future__ import annotations

import re
import runpy
import sys
import tomllib
from pathlib import Path

import pytest
from harvest_cost_hold import CostHold, CostHoldConfig

from harvest_core.plugin import BuildView, seconds

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "custom-signal.md"


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Write every block of the page to the file that its first line names, with a meter that shows 520."""
    blocks = re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == PAGE.read_text(encoding="utf-8").count("```") / 2
    for name, text in blocks:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (tmp_path / "meter").write_text("520", encoding="utf-8")
    monkeypatch.setenv("METER_FILE", str(tmp_path / "meter"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "meter_signal", raising=False)
    return tmp_path


def test_try_it_alone(folder) -> None:
    """The page's own assertions hold (C3)."""
    runpy.run_path(str(folder / "try_it.py"))


def test_in_code(folder) -> None:
    """The configuration in code holds by the function in it."""
    configuration = runpy.run_path(str(folder / "configuration.py"))["configuration"]
    held_by(configuration["plugins"]["cost_hold"])


def test_installed(folder) -> None:
    """The page's entry point, once installed, is what the page's TOML file names."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    points = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    )
    metadata = folder / "meter_signal-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(points)
    table = tomllib.loads((folder / "harvest.toml").read_text(encoding="utf-8"))["plugins"]["cost_hold"]
    held_by(table | {key: seconds(table[key]) for key in ("refresh", "stale_after")})


def held_by(table) -> None:
    hold = CostHold(CostHoldConfig(**table))
    assert [problem for problem in hold.check_build(BuildView({}, ())) if not problem.warning] == []
    (refresh,) = hold.refreshes()
    refresh.run({})
    assert hold.observe()["why"] == "signal 520.0 > 400.0"
