"""The README's examples run."""

import doctest
import re
import tomllib
from pathlib import Path

from harvest_weights import Weights, WeightsConfig

from harvest_core.plugin import BuildView

README = Path(__file__).parents[1] / "README.md"


def test_the_sessions_print_what_they_say():
    """P2: every `>>>` example is run."""
    result = doctest.testfile(str(README), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0


def test_the_configuration_is_valid():
    """B4: the table has only keys that exist, and is without a fault for the worker beside it."""
    [text] = re.findall(r"```toml\n(.*?)```", README.read_text(), re.DOTALL)
    table = tomllib.loads(text)
    plugin = Weights(WeightsConfig(**table["plugins"]["weights"]))
    assert plugin.check_build(BuildView({}, tuple(table["worker"]["queues"]))) == []
