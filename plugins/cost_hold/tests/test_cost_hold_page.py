"""The how-to page on holds does what it says: its blocks are run as they stand."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import attrs
import pytest
from harvest_cost_hold import CostHoldConfig

from harvest_core import Harvest

FOLDER = Path(__file__).parents[3] / "docs" / "how-to"
PAGE = (FOLDER / "cost-hold.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path) -> Path:
    """Write every block of the page to the file that its first line names."""
    blocks = re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == PAGE.count("```") / 2
    for name, text in blocks:
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_try_it(folder) -> None:
    """The page's own assertions hold (C9)."""
    runpy.run_path(str(folder / "try_it.py"))


def test_the_configuration_builds(folder) -> None:
    """The page's table is accepted, each key with its meaning (C4, C9)."""
    app = Harvest.from_toml(folder / "harvest.toml")
    for name in ("train_model", "render"):
        app.activity(name=name)(lambda: None)
    build = app.build()
    assert [str(warning) for warning in build.warnings] == []
    expected = CostHoldConfig(
        400.0,
        ["train_model"],
        resume_threshold=350.0,
        max_hold=21600.0,
        release_rate="10/m",
        thresholds={"render": 300.0},
    )
    assert build.config.configured["cost_hold"] == expected


def test_every_key_is_documented() -> None:
    """Each key of the table stands in the plugin's README (C4)."""
    readme = (FOLDER.parents[1] / "plugins" / "cost_hold" / "README.md").read_text(encoding="utf-8")
    assert [field.name for field in attrs.fields(CostHoldConfig) if f"| `{field.name}` |" not in readme] == []
