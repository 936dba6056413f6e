"""The how-to pages on cancel and retry, unique keys and deadlines do what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "how-to"


@pytest.mark.parametrize("page", ["cancel-and-retry", "unique-keys", "deadlines"])
def test_the_page_runs_as_printed(page: str, tmp_path: Path, harvest_database: str) -> None:
    """P2: the page's one program prints what the page shows."""
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    ((name, printed),) = re.findall(r"```console\n\$ python (\S+)\n(.*?)```", text, re.DOTALL)
    assert text.count("```") == 4
    (tmp_path / name).write_text(program)
    done = subprocess.run(
        [sys.executable, name],
        cwd=tmp_path,
        env={**os.environ, "HARVEST_DSN": harvest_database},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == printed, done.stderr
    assert all(len(line) <= 120 for line in text.splitlines() if not line.startswith("|"))
