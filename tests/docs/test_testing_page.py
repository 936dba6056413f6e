"""The how-to page on testing an application: its files are written and its command runs as it stands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "test-an-application.md").read_text(encoding="utf-8")


def test_the_tests_of_the_page_pass(tmp_path):
    """P2: every block of the page is a file or the command, and its tests pass without a database."""
    files = re.findall(r"```(?:python|ini)\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
    ((command,),) = [re.findall(r"```console\n\$ (.*?)\n```", PAGE, re.DOTALL)]
    assert len(files) + 1 == PAGE.count("```") / 2
    assert len(PAGE.splitlines()) <= 75
    for name, text in files:
        (tmp_path / name).write_text(text, encoding="utf-8")
    python = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "PYTHONPATH": python, "HARVEST_DSN": "postgresql://nobody@127.0.0.1:1/nowhere"}
    result = subprocess.run(
        [sys.executable, *shlex.split(command)[1:]],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 passed" in result.stdout
    assert "warning" not in result.stdout
    assert result.stderr == ""
