"""The bare claim, told and not judged: how its rate falls with the number of eligible active routes."""

from collections.abc import Iterator
from contextlib import ExitStack
from statistics import median

from ground import BATCH, Claimer, Figure, Ground, add_tasks, connect, interleaved, plain_plan, ratio, seconds

ROUTES = (1, 20, 100, 300, 1000)


def figures(ground: Ground) -> Iterator[Figure]:
    """Measure claims in turns over databases with so many routes."""
    rounds = ground.size(60, 10)
    with ExitStack() as stack:
        sides = {}
        for routes in ROUTES:
            names = [f"work{number}" for number in range(routes)]
            dsn = stack.enter_context(ground.database())
            with connect(dsn) as connection:
                add_tasks(connection, [("busy", name) for name in names], (rounds + 4) * BATCH + 20 * routes)
                connection.execute("vacuum analyze")
            claimer = Claimer(dsn, plain_plan(names))
            sides[f"{routes:4}"] = lambda claimer=claimer: seconds(claimer.claim)
        found = interleaved(sides, rounds)
    for name, measured in found.items():
        yield Figure(f"claims of {BATCH} from {int(name):,} eligible active routes", 1 / median(measured), "claims/s")
    few, many = found[f"{ROUTES[1]:4}"], found[f"{ROUTES[-1]:4}"]
    yield Figure(f"a claim from {ROUTES[-1]:,} routes: to one from {ROUTES[1]}", ratio(many, few))
