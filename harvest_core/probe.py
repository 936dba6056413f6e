"""Have the policies' clauses tried on the database, before a worker claims with them and in `harvest check`."""

from __future__ import annotations

from harvest_core.errors import HookError, Problem, page
from harvest_core.model import Tick
from harvest_core.policies import Policies
from harvest_core.store.postgres.database import Database
from harvest_core.store.postgres.probe import refusals

_PAGE = page("Write a policy of your own")


async def probe(database: Database, policies: Policies, tick: Tick) -> list[Problem]:
    """Return what is wrong with the clauses that the policies give for this tick.

    Args:
        database: where to try them; nothing stays written.
        policies: the enabled policies.
        tick: a tick of the worker that will claim.
    """
    try:
        clauses = policies.clauses(tick)
    except HookError as error:
        return [Problem("clause.hook", f"plugin {error.plugin!r}", f"hook {error.hook}: {error.detail}")]
    samples = {slug: plugin.sample_traits() for slug, plugin in policies.plugins.items()}
    return [
        Problem(
            "clause.refused",
            f"plugin {clause.plugin!r}",
            f"hook filter_clause: the clause {clause.clause.sql.strip()!r} {reason}",
            f"see {_PAGE}",
        )
        for clause, reason in await refusals(database, clauses, samples)
    ]
