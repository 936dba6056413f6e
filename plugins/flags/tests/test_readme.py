"""The README's examples run."""

import ast
import doctest
import re
import tomllib
from pathlib import Path

from harvest_flags import Flags, FlagsConfig

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README.read_text(), re.DOTALL)


def test_the_sessions_print_what_they_say():
    """P2: every `>>>` example is run."""
    result = doctest.testfile(str(README), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0


def test_the_configuration_is_valid():
    """B4: the table has only keys that exist, and is without a fault."""
    [text] = [text for kind, text in BLOCKS if kind == "toml"]
    plugin = Flags(FlagsConfig(**tomllib.loads(text)["plugins"]["flags"]))
    assert plugin.check_build(build=None) == []


def test_the_enqueue_example_stamps():
    """FL1: the flags in the example are ones that the plugin takes."""
    [text] = [text for kind, text in BLOCKS if kind == "python" and "enqueue" in text]
    tree = ast.parse(text)
    found = [
        ast.literal_eval(node.value) for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "flags"
    ]
    assert [Flags().stamp({"flags": flags}) for flags in found] == [["kvm", "linux"]]
