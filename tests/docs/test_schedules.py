"""The how-to page on schedules runs as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "schedules.md").read_text(encoding="utf-8")


def test_the_page_runs_as_printed(tmp_path: Path, harvest_database: str) -> None:
    """P2: the two files; a resumed schedule has a next tick once a worker has looked."""
    files = re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
    assert len(files) == PAGE.count("```") / 2 == 2
    for name, text in files:
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "manage.py"],
        cwd=tmp_path,
        env={**os.environ, "HARVEST_DSN": harvest_database},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    listed = re.findall(r"\('([\w ]+)', '(\w+)', (\w+)", done.stdout)
    assert listed == [("heartbeat", "active", "datetime"), ("nightly report", "active", "datetime")]
