"""The README's first app runs as printed, and the reference pages name everything there is."""

import os
import re
import subprocess
import sys
from pathlib import Path

import attrs

from harvest_core import config, hookspecs
from harvest_core.plugin import Plugin
from harvest_core.policies import HOOKS

ROOT = Path(__file__).parents[2]


def marked_blocks(page: Path, mark: str) -> list[tuple[str, str]]:
    """Return language and text of the fenced blocks that follow `<!-- test: mark -->`."""
    pattern = rf"<!-- test: {mark} -->\n```(\w+)\n(.*?)```"
    return re.findall(pattern, page.read_text(encoding="utf-8"), re.DOTALL)


def test_first_app_runs_as_printed(tmp_path: Path, harvest_server: str) -> None:
    """The README's app and configuration, written as they stand, print what a reader expects (thirty lines)."""
    blocks = dict(marked_blocks(ROOT / "README.md", "first-app"))
    assert len(blocks["python"].splitlines()) <= 32
    (tmp_path / "app.py").write_text(blocks["python"])
    (tmp_path / "harvest.toml").write_text(blocks["toml"])
    environ = {**os.environ, "HARVEST_DSN": harvest_server, "HARVEST_SCHEMA": "readme"}
    done = subprocess.run(
        [sys.executable, "app.py"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "holiday.mov by box-1 | sent to ada@example.org\n", done.stderr


def test_every_configuration_key_is_documented() -> None:
    """Each key of the kernel's tables stands in the reference page."""
    page = (ROOT / "docs/reference/configuration.md").read_text(encoding="utf-8")
    keys = [field.name for table in (config.HarvestTable, config.WorkerTable) for field in attrs.fields(table)]
    assert [key for key in keys if f"`{key}`" not in page] == []


def test_every_hook_states_its_law() -> None:
    """Each hook has a docstring of more than one line, and the page for authors names the three of the claim."""
    assert all("\n" in (getattr(hookspecs, name).__doc__ or "").strip() or name == "metrics" for name in HOOKS)
    page = (ROOT / "docs/how-to/custom-policy.md").read_text(encoding="utf-8")
    assert "filter_clause" in page


def test_links_between_pages_lead_somewhere() -> None:
    """No relative link in a page of the project is broken."""
    broken = []
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            if not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_every_hook_stands_in_the_reference() -> None:
    """Each hook of the contract and each method of a plugin has its place on the page (P3)."""
    page = (ROOT / "docs/reference/hooks.md").read_text(encoding="utf-8")
    assert [hook for hook in HOOKS if f"`{hook}(" not in page] == []
    public = [name for name in vars(Plugin) if not name.startswith("_") and name not in ("slug", "hook_api", "config")]
    assert [name for name in public if f"`{name}`" not in page] == []
