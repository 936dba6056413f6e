"""The how-to page on direct claims does what it says: its files are written and its program runs as it stands (P2)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "direct-claims.md").read_text(encoding="utf-8")


def test_the_program_prints_what_the_page_shows(tmp_path, harvest_database):
    """FL7: a stream through a filter, beside a task that the filter refuses."""
    files = re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
    ((command, output),) = re.findall(r"```console\n\$ python (\S+)\n(.*?)```", PAGE, re.DOTALL)
    assert len(files) + 1 == PAGE.count("```") / 2
    for name, text in files:
        (tmp_path / name).write_text(text, encoding="utf-8")
    environ = {**os.environ, "HARVEST_DSN": harvest_database}
    done = subprocess.run(
        [sys.executable, command], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == (output, "")
