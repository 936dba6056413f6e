"""Deliberately bad plugins: each is refused with plugin and hook named, at the earliest moment it can be (K4, B1)."""

import pytest

from harvest_core import BuildError, Harvest, HookError
from harvest_core.plugin import Clause, Plugin, Skip, Turn, hookimpl


@pytest.fixture(scope="module")
def dsn(harvest_server, harvest_servers):
    """One database for all: nothing is claimed from it."""
    with harvest_servers.database(harvest_server) as found:
        yield found


def app_of(dsn, *plugins) -> Harvest:
    app = Harvest(
        {
            "harvest": {"dsn": dsn, "plugins": list(plugins), "notify": False},
            "worker": {"queues": ["default", "second"]},
        }
    )
    app.activity(work)
    return app


def work() -> None:
    raise AssertionError("a task ran that nobody may claim")


def bad(**hooks) -> Plugin:
    """Return a plugin `bad` whose hooks are the given functions."""
    return type("Bad", (Plugin,), {"slug": "bad", **{name: hookimpl(hook) for name, hook in hooks.items()}})()


def clause(sql, samples=(), **values) -> Plugin:
    plugin = bad(filter_clause=lambda self, tick: [Clause(sql, values, lambda route: [])])
    plugin.sample_traits = lambda: samples
    return plugin


def problems(*lines) -> str:
    return "\n".join(
        [f"cannot build: {len(lines)} problem{'s' if len(lines) > 1 else ''}", *(f"  {line}" for line in lines)]
    )


def refused(fault) -> str:
    hint = 'see the page "Write a policy of your own" of Harvest\'s documentation'
    return problems(f"clause.refused  plugin 'bad': hook filter_clause: {fault} ({hint})")


def hook_fault(fault) -> str:
    return problems(f"clause.hook  plugin 'bad': hook filter_clause: {fault}")


# ------------------------------------------------------------------------------------------------ refused at build


async def asynchronous(self, tick): ...
async def asynchronous_generator(self, tick):
    yield


def takes_more(self, tick, database): ...
def checks_nothing(self, build): ...
def raises(self, **_):
    raise RuntimeError("out of order")


def raises_in_check(self, build):
    raise RuntimeError("out of order")


class First(Plugin):
    slug = "first"

    @hookimpl
    def order_queues(self, tick): ...


class Second(First):
    slug = "second"


class Wrapping(Plugin):
    slug = "wrapping"

    @hookimpl(wrapper=True)
    def build_skip_list(self, tick):
        return (yield)

    @hookimpl(tryfirst=True)
    def filter_clause(self, tick): ...

    @hookimpl(trylast=True)
    def order_queues(self, tick): ...


AT_BUILD = {
    "async": (
        [bad(build_skip_list=asynchronous, filter_clause=asynchronous_generator)],
        problems(
            "plugin.async-hook  plugin 'bad': hook build_skip_list: hooks are synchronous "
            "(make it a plain function; what needs I/O belongs into refreshes())",
            "plugin.async-hook  plugin 'bad': hook filter_clause: hooks are synchronous "
            "(make it a plain function; what needs I/O belongs into refreshes())",
        ),
    ),
    "unknown hook": (
        [bad(build_skiplist=lambda self, tick: None)],
        problems(
            "plugin.unknown-hook  plugin 'bad': hook build_skiplist: there is no such hook "
            "(did you mean 'build_skip_list'?)"
        ),
    ),
    "unknown argument": (
        [bad(filter_clause=takes_more)],
        problems(
            "plugin.hook-arguments  plugin 'bad': hook filter_clause: no such argument: database (it may take tick)"
        ),
    ),
    "marks": (
        [Wrapping()],
        problems(
            *(
                f"plugin.hook-marks  plugin 'wrapping': hook {hook}: policies have no order among them "
                "(remove wrapper, tryfirst and trylast)"
                for hook in ("build_skip_list", "filter_clause", "order_queues")
            )
        ),
    ),
    "two owners": (
        [First(), Second()],
        problems(
            "order.two-owners  harvest.plugins: plugins first and second both implement order_queues; "
            "one may own the order "
            '(disable one, or set order_owner = "first" under [harvest])'
        ),
    ),
    "raise in check_build": (
        [bad(check_build=raises_in_check)],
        problems("plugin.hook  plugin 'bad': hook check_build: raised RuntimeError: out of order"),
    ),
    "raise in publish": (
        [bad(publish=lambda self, build: 1 / 0)],
        problems("plugin.hook  plugin 'bad': hook publish: raised ZeroDivisionError: division by zero"),
    ),
    "raise in metrics": (
        [bad(metrics=lambda self, registry: 1 / 0)],
        problems("plugin.hook  plugin 'bad': hook metrics: raised ZeroDivisionError: division by zero"),
    ),
    "wrong type of check_build": (
        [bad(check_build=lambda self, build: ["no"])],
        problems("plugin.hook  plugin 'bad': hook check_build: returned 'no' in its list; expected Problem"),
    ),
    "wrong type of publish": (
        [bad(publish=lambda self, build: [1])],
        problems("plugin.hook  plugin 'bad': hook publish: returned list; expected a mapping"),
    ),
    "publish not JSON": (
        [bad(publish=lambda self, build: {"at": {1}})],
        problems(
            "plugin.hook  plugin 'bad': hook publish: returned what cannot be stored: not JSON: "
            "Object of type set is not JSON serializable; pass text, finite numbers, lists and mappings with text keys"
        ),
    ),
    "publish not a number": (
        [bad(publish=lambda self, build: {"at": float("nan")})],
        problems(
            "plugin.hook  plugin 'bad': hook publish: returned what cannot be stored: not JSON: "
            "it holds a number that is not finite, or too long; "
            "pass text, finite numbers, lists and mappings with text keys"
        ),
    ),
    "slug": (
        [type("Bad", (Plugin,), {"slug": "a__b"})()],
        problems(
            "plugin.slug  plugin 'a__b': class Bad has the slug 'a__b' "
            "(slug, entry point and configuration table are one name of a-z, 0-9 and single _ between them)"
        ),
    ),
}


@pytest.mark.parametrize("case", AT_BUILD)
def test_refused_at_build(case):
    """B1, B3, K4: what can be seen without a database fails the build."""
    plugins, message = AT_BUILD[case]
    with pytest.raises(BuildError) as caught:
        app_of(None, *plugins).build()
    assert str(caught.value) == message


# ------------------------------------------------------------------------------------- refused when a worker starts

AT_START = {
    "closing parenthesis": (
        clause("r.name = 'a') or (true"),
        refused("""the clause "r.name = 'a') or (true" cannot be used: syntax error at or near ")\""""),
    ),
    "chained": (
        clause("true); drop table harvest.tasks; select (true"),
        refused(
            "the clause 'true); drop table harvest.tasks; select (true' cannot be used: "
            "cannot insert multiple commands into a prepared statement"
        ),
    ),
    "volatile": (
        clause("random() < 0.5"),
        refused(
            "the clause 'random() < 0.5' calls the volatile function random; "
            "it may depend on the route and its values only"
        ),
    ),
    "volatile in a cast": (
        clause("r.id > nextval('harvest.task_ids')"),
        refused(
            "the clause \"r.id > nextval('harvest.task_ids')\" calls the volatile function nextval; "
            "it may depend on the route and its values only"
        ),
    ),
    "null": (
        clause("r.traits ->> 'tenant' = {tenant}", tenant="a"),
        refused(
            "the clause \"r.traits ->> 'tenant' = {tenant}\" is NULL for the traits {}; "
            "write (…) is true or coalesce(…, false)"
        ),
    ),
    "another table": (
        clause("exists (select from harvest.tasks)"),
        refused("the clause 'exists (select from harvest.tasks)' reads tasks; it may read nothing but r"),
    ),
    "missing value": (
        clause("r.name = {name}"),
        hook_fault("clause 'r.name = {name}' uses ['name'] without a value of that name"),
    ),
    "unused value": (clause("true", name="a"), hook_fault("clause 'true' does not use the values ['name']")),
    "percent": (
        clause("r.name = %(name)s", name="a"),
        hook_fault("clause 'r.name = %(name)s' does not use the values ['name']"),
    ),
    "braces": (
        clause("r.traits = '{}'"),
        hook_fault("""clause "r.traits = '{}'": {} is not a value's name; write literal braces as {{ and }}"""),
    ),
    "limit": (
        clause("true limit 1"),
        refused("""the clause 'true limit 1' cannot be used: syntax error at or near "limit\""""),
    ),
    "union": (
        clause("true from harvest.routes r union select true"),
        refused(
            "the clause 'true from harvest.routes r union select true' cannot be used: syntax error at or near \"from\""
        ),
    ),
    "aggregate": (
        clause("count(*) > 0"),
        refused("the clause 'count(*) > 0' cannot be used: aggregate functions are not allowed in WHERE"),
    ),
    "raises": (
        clause("(r.traits ->> 'bad')::integer is not null", samples=["1", "x"]),
        refused(
            "the clause \"(r.traits ->> 'bad')::integer is not null\" cannot be used: "
            'invalid input syntax for type integer: "x"'
        ),
    ),
    "no boolean": (
        clause("r.id"),
        refused("the clause 'r.id' cannot be used: argument of IS TRUE must be type boolean, not type bigint"),
    ),
    "unknown column": (
        clause("p.lane = 1"),
        refused("""the clause 'p.lane = 1' cannot be used: missing FROM-clause entry for table "p\""""),
    ),
    "no text": (clause("  "), hook_fault("a clause has no text")),
    "NUL": (
        clause("r.name <> {name}::text", name="\0"),
        refused(
            "the clause 'r.name <> {name}::text' cannot be used: PostgreSQL text fields cannot contain NUL (0x00) bytes"
        ),
    ),
    "object": (
        clause("r.name <> {name}::text", name=object),
        refused(
            "the clause 'r.name <> {name}::text' cannot be used: "
            "cannot adapt type 'type' using placeholder '%s' (format: AUTO)"
        ),
    ),
    "raise": (bad(filter_clause=lambda self, tick: 1 / 0), hook_fault("raised ZeroDivisionError: division by zero")),
    "no list": (
        bad(filter_clause=lambda self, tick: Clause("true", {}, list)),
        hook_fault("returned Clause; expected a list or tuple of Clause"),
    ),
    "text": (
        bad(filter_clause=lambda self, tick: ["true"]),
        hook_fault("returned 'true' in its list; expected Clause"),
    ),
    "no callable": (
        bad(filter_clause=lambda self, tick: [Clause("true", {}, ["no"])]),
        hook_fault("a clause needs a mapping of values and a callable for its reasons"),
    ),
    "two clauses": (
        bad(filter_clause=lambda self, tick: [Clause("r.name = {n}", {"n": n}, list) for n in "ab"]),
        hook_fault("two clauses use one value name; names were ['n', 'n']"),
    ),
}


@pytest.mark.parametrize("case", AT_START)
async def test_refused_when_a_worker_starts(case, dsn):
    """K4, B1: what only the database can tell stops the worker before its first claim."""
    plugin, message = AT_START[case]
    with pytest.raises(BuildError) as caught:
        async with app_of(dsn, plugin).worker():
            pass
    assert str(caught.value) == message


# ----------------------------------------------------------------------------------------- refused at every claim


def twice(self, tick):
    return [Turn(tick.worker.queues[0], 0, 0, 1)] * 2


AT_CLAIM = {
    "skip list raises": (
        bad(build_skip_list=lambda self, tick: 1 / 0),
        "build_skip_list: raised ZeroDivisionError: division by zero",
    ),
    "skip list of texts": (
        bad(build_skip_list=lambda self, tick: ["work"]),
        "build_skip_list: returned 'work' in its list; expected Skip",
    ),
    "skip list is a text": (
        bad(build_skip_list=lambda self, tick: "work"),
        "build_skip_list: returned str; expected a list or tuple of Skip",
    ),
    "skip without reasons": (
        bad(build_skip_list=lambda self, tick: [Skip("work", ())]),
        "build_skip_list: the skip of 'work' gives no reason; every refusal has words",
    ),
    "skip without a name": (
        bad(build_skip_list=lambda self, tick: [Skip("", ("why",))]),
        "build_skip_list: a skip names the activity ''; expected its name",
    ),
    "generator": (
        bad(build_skip_list=lambda self, tick: (Skip(name, ("why",)) for name in "ab")),
        "build_skip_list: returned generator; expected a list or tuple of Skip",
    ),
    "queue twice": (
        bad(order_queues=twice),
        (
            "order_queues: the turns name the queues ['default', 'default']; "
            "each polled queue must stand there once: ['default', 'second']"
        ),
    ),
    "queue missing": (
        bad(order_queues=lambda self, tick: [Turn("default", 0, 0, 1)]),
        (
            "order_queues: the turns name the queues ['default']; "
            "each polled queue must stand there once: ['default', 'second']"
        ),
    ),
    "order raises": (
        bad(order_queues=lambda self, tick: 1 / 0),
        "order_queues: raised ZeroDivisionError: division by zero",
    ),
    "order of texts": (
        bad(order_queues=lambda self, tick: list(tick.worker.queues)),
        "order_queues: returned 'default' in its list; expected Turn",
    ),
    "fraction": (
        bad(order_queues=lambda self, tick: [Turn(queue, 0, 0.5, 1) for queue in tick.worker.queues]),
        "order_queues: the turn of queue 'default' holds 0.5; expected a whole number within 48 bits",
    ),
    "too big": (
        bad(order_queues=lambda self, tick: [Turn(q, 0, 2**64, 1) for q in tick.worker.queues]),
        "order_queues: the turn of queue 'default' holds 18446744073709551616; expected a whole number within 48 bits",
    ),
    "backwards": (
        bad(order_queues=lambda self, tick: [Turn(q, 0, 0, -1) for q in tick.worker.queues]),
        "order_queues: the turn of queue 'default' has the negative step -1",
    ),
}


@pytest.mark.parametrize("case", AT_CLAIM)
async def test_refused_at_every_claim(case, dsn):
    """K4, K6: a gate that cannot be judged is closed: the poll raises, and no task is touched."""
    plugin, message = AT_CLAIM[case]
    app = app_of(dsn, plugin)
    async with app.client() as client:
        task = await client.enqueue("work")
        async with app.worker() as worker:
            with pytest.raises(HookError) as caught:
                await worker.run_once()
        assert str(caught.value) == f"plugin 'bad', hook {message}"
        status = await task.status()
        assert (status.state, status.attempt, status.claimed_at) == ("pending", 0, None)


async def test_live_facts_that_cannot_be_had_keep_a_worker_from_starting(dsn):
    """K4: `observe` is asked for before the first claim as before every other."""
    with pytest.raises(HookError) as caught:
        async with app_of(dsn, bad(observe=lambda self: {"value": float("inf")})).worker():
            pass
    assert str(caught.value) == (
        "plugin 'bad', hook observe: returned what cannot be stored: not JSON: it holds a number that is not finite, "
        "or too long; pass text, finite numbers, lists and mappings with text keys"
    )
