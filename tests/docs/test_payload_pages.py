"""The how-to pages on payloads do what they say: their blocks are written to files and run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

PAGES = Path(__file__).parents[2] / "docs" / "how-to"


def run(page: str, folder: Path, dsn: str) -> tuple[str, str]:
    """Return what the page's one program prints, and the page."""
    text = (PAGES / page).read_text(encoding="utf-8")
    ((name, program),) = re.findall(r"```python\n# (\S+)\n(.*?)```", text, re.DOTALL)
    (folder / name).write_text(program, encoding="utf-8")
    (folder / "harvest.toml").write_text("", encoding="utf-8")
    if page == "codec.md":  # an app configured in code takes nothing from the environment
        assert '{"plugins": [Zip]}' in program
        (folder / name).write_text(program.replace('{"plugins"', f'{{"dsn": {dsn!r}, "plugins"'), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, name],
        cwd=folder,
        env={**os.environ, "HARVEST_DSN": dsn},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, text


def test_typed_payloads(tmp_path: Path, harvest_database: str) -> None:
    """The program prints what the page shows (P2)."""
    printed, page = run("typed-payloads.md", tmp_path, harvest_database)
    assert f"```console\n$ python typed.py\n{printed}```" in page


def test_codec(tmp_path: Path, harvest_database: str) -> None:
    """What the program stores is small and encoded, and the result comes back (P2)."""
    printed, page = run("codec.md", tmp_path, harvest_database)
    assert f"```console\n$ python zipped.py\n{printed}```" in page
    with psycopg.connect(harvest_database) as connection:
        (row,) = connection.execute("select f::text from harvest.finished f").fetchone()
    assert "fro" not in row


@pytest.mark.parametrize("page", ["typed-payloads.md", "codec.md"])
def test_a_page_is_short(page: str) -> None:
    """Besides its program a page takes no more than a screen."""
    text = (PAGES / page).read_text(encoding="utf-8")
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    assert len(prose.splitlines()) < 40
    assert all(len(line) <= 120 for line in text.splitlines())
