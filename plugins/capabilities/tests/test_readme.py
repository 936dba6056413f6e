"""The README's examples, run."""

import doctest
import re
import tomllib
from pathlib import Path

import pytest
from harvest_capabilities import CapabilitiesConfig, parse

README = Path(__file__).parent.parent / "README.md"
GRAMMAR = README.read_text().split("## Grammar")[1].splitlines()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in GRAMMAR if "| `" in line]


def test_the_session_in_the_readme_shows_what_happens():
    """The pycon block of the README, verdicts and the caret included (CAP1, CAP5)."""
    failed, run = doctest.testfile(str(README), module_relative=False)
    assert (failed, run > 0) == (0, True)


def test_the_table_in_the_readme_is_this_plugin_s_table():
    """The TOML block configures three labels (CAP1)."""
    [block] = re.findall(r"```toml\n(.*?)```", README.read_text(), re.DOTALL)
    table = tomllib.loads(block)["plugins"]["capabilities"]
    assert CapabilitiesConfig(**table).labels == {"gpu": "true", "region": "us-east-1", "driver": "12.10"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_row_of_the_grammar_table_holds(row):
    """Labels that meet a term, that do not, and the absent one (CAP3, CAP6)."""
    term, meets, fails, absent = row
    requirement = parse(term.split("`")[1])
    key = requirement.terms[0].key
    assert not meets or not requirement.unsatisfied({key: meets.strip("`")})
    assert not fails or requirement.unsatisfied({key: fails.strip("`")})
    assert {"holds": True, "fails": False}[absent] == (not requirement.unsatisfied({}))


def test_the_grammar_table_has_a_row_for_every_operator():
    """Every operator of CAP1 and CAP6 stands in the README."""
    assert {parse(row[0].split("`")[1]).terms[0].operator.value for row in ROWS} == {
        *("=", "!=", "in", "not in", "exists", "not exists", ">=", "<=", ">", "<")
    }
