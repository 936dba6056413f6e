"""The SQL against the words and the oracle, on a real database (rules FL2, FL3, FL5 and FL6)."""

import re
from pathlib import Path

import psycopg
import pytest
from harvest_flags import Flags, FlagsConfig

from harvest_core.plugin import Route

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_sql_agrees_with_words_and_oracle(cases, tick_of, clause_runner):
    """FL2, FL3, FL6: on 10,000 random traits no clause raises or is NULL; each refuses exactly where it has words."""
    for config, routes, verdicts in cases:
        plugin = Flags(config)
        admitted = [True] * len(routes)
        for clause in plugin.filter_clause(tick_of(plugin)) or []:
            answers = clause_runner.verdicts(clause, routes)
            assert answers == [not clause.reasons(route) for route in routes]
            admitted = [before and now for before, now in zip(admitted, answers, strict=True)]
        assert admitted == verdicts


@pytest.mark.parametrize("config", [FlagsConfig(["linux"], ["gpu"], ["linux"]), FlagsConfig(["linux"], ["gpu"], [])])
def test_sql_agrees_on_the_sample_traits(config, tick_of, clause_runner):
    """FL6: the traits that the probe is given cover every JSON form and pass."""
    plugin = Flags(config)
    routes = [Route(0, "default", "activity", "build")] + [
        Route(number, "default", "activity", "build", {"flags": trait})
        for number, trait in enumerate(plugin.sample_traits(), start=1)
    ]
    for clause in plugin.filter_clause(tick_of(plugin)):
        assert clause_runner.verdicts(clause, routes) == [not clause.reasons(route) for route in routes]


def test_the_documented_statement_writes_the_same_trait_as_python(harvest_database):
    """FL6: what a raw SQL caller is told to write is sorted and distinct, as the Python API's stamp is."""
    [statement] = re.findall(r"```sql\n(select harvest.enqueue.*?)```", README, re.DOTALL)
    with psycopg.connect(harvest_database) as connection:
        connection.execute(statement)
        assert connection.execute("select traits from harvest.routes").fetchall() == [({"flags": ["Kvm", "linux"]},)]
    assert Flags().stamp({"flags": ["linux", "Kvm", "linux"]}) == ["Kvm", "linux"]
