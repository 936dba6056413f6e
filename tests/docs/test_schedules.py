"""The how-to page on schedules runs as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "schedules.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_runs_as_printed(tmp_path: Path, harvest_database: str) -> None:
    """P2: both snippets, one after the other, with a worker that declares what the first one says."""
    assert len(BLOCKS) == PAGE.count("```") / 2 == 2
    declared, managed = BLOCKS
    indented = "".join(f"    {line}\n" for line in managed.splitlines())
    main = f"\nasync def main():\n    async with app.worker() as worker:\n        await worker.run_once()\n{indented}"
    (tmp_path / "harvest.toml").write_text("")
    (tmp_path / "page.py").write_text(f"{declared}\n{main}\nimport asyncio\n\nasyncio.run(main())\n")
    done = subprocess.run(
        [sys.executable, "page.py"],
        cwd=tmp_path,
        env={**os.environ, "HARVEST_DSN": harvest_database},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.findall(r"\('([\w ]+)', '(\w+)'", done.stdout) == [("heartbeat", "active"), ("nightly report", "active")]
