"""The how-to page on SQLite: its files are written, its session runs as it stands, and commands work on its file."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "sqlite.md").read_text(encoding="utf-8")


def test_the_page_does_what_it_says(tmp_path):
    """B2: every block of the page is a file or a session, and needs no server."""
    files = re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
    ((command, output),) = re.findall(r"```console\n\$ (.*?)\n(.*?)```", PAGE, re.DOTALL)
    assert len(files) + 1 == PAGE.count("```") / 2
    assert len(PAGE.splitlines()) <= 70
    for name, text in files:
        (tmp_path / name).write_text(text, encoding="utf-8")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HARVEST_")}

    def run(*words):
        result = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    assert run(*shlex.split(command)[1:]) == output
    assert (tmp_path / "tasks.db").exists()
    harvest = "import sys; from harvest_core.cli import main; sys.exit(main())"
    assert "digest" in run("-c", harvest, "schedule", "list")
    assert "completed" in run("-c", harvest, "task", "show", "1")
