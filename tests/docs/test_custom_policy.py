"""The how-to page on custom policies does what it says: its files are written and its commands run as they stand."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "custom-policy.md").read_text(encoding="utf-8")
FILES = re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"```console\n\$ (.*?)\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path) -> Path:
    """Write every file of the page, and what `pip install .` would leave beside it."""
    for name, text in FILES:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    installed = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in points.items())
            for group, points in project["entry-points"].items()
        )
    )
    return tmp_path


def test_every_block_is_executed():
    """P2: no block of the page is prose."""
    assert len(FILES) + len(COMMANDS) == PAGE.count("```") / 2
    assert [name for name, _ in FILES] == [
        "harvest_region.py",
        "tests/test_region.py",
        "pyproject.toml",
        "harvest.toml",
        "app.py",
    ]


@pytest.mark.parametrize(("command", "output"), COMMANDS, ids=[command for command, _ in COMMANDS])
def test_the_commands_do_what_the_page_says(command, output, folder, harvest_database):
    """P2: the policy's own tests pass and the app prints what the page shows."""
    program, *arguments = shlex.split(command)
    assert program == "python"
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "HARVEST_DSN": harvest_database},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    if output:
        assert result.stdout == output
