"""Messages name pages of the documentation by their titles: an installed package has no files of it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_page_that_a_message_names_is_there():
    """P2: by its heading, and no message names a file of the repository."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "harvest_core").rglob("*.py")]
    sources += [path.read_text(encoding="utf-8") for path in ROOT.glob("plugins/*/harvest_*/*.py")]
    named = {title for text in sources for title in re.findall(r'\bpage\("(.*?)"\)', text)}
    headings = {path.read_text(encoding="utf-8").partition("\n")[0] for path in (ROOT / "docs").rglob("*.md")}
    assert len(named) >= 3
    assert {f"# {title}" for title in named} <= headings
    assert [text for text in sources if re.search(r"docs/\S+\.md", text)] == []
