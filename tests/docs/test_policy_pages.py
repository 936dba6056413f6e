"""The how-to pages on preferred workers and weights by slots do what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from harvest_core import Harvest

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"


@pytest.mark.parametrize("page", ["preferred-workers", "weights-by-slots"])
def test_the_page_does_what_it_says(page, tmp_path, monkeypatch):
    """P2: every block is executed: the configuration builds without a warning, the command prints what is shown."""
    text = (HOW_TO / f"{page}.md").read_text(encoding="utf-8")
    files = re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", text, re.DOTALL)
    commands = re.findall(r"```console\n\$ python (\S+)\n(.*?)```", text, re.DOTALL)
    assert len(files) + len(commands) == text.count("```") / 2
    for name, content in files:
        (tmp_path / name).write_text(content, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    app = Harvest.from_toml("harvest.toml")
    if (tmp_path / "app.py").exists():
        namespace: dict[str, Harvest] = {}
        exec((tmp_path / "app.py").read_text(encoding="utf-8"), namespace)
        app = namespace["app"]
    assert not app.build().warnings
    for program, output in commands:
        result = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
        assert (result.stdout, result.stderr) == (output, "")
