"""The enabled plugins' hooks behind one typed face: each call is attributed to its plugin and its result checked.

Pluggy runs implementations in reverse and drops None, so results of one joint call cannot be attributed: every plugin
has callers of its own, made once after the last registration.
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from string import Formatter
from typing import Any, TypeVar

import attrs
import pluggy
from prometheus_client import CollectorRegistry

from harvest_core import hookspecs
from harvest_core.errors import HookError, PayloadError, Problem, near_match
from harvest_core.model import Attributed, Budget, BuildView, Clause, Json, LaneLimit, Skip, Tick, Turn
from harvest_core.payload import encode
from harvest_core.plugin import Plugin

HOOKS = tuple(name for name, value in vars(hookspecs).items() if hasattr(value, f"{hookspecs.PROJECT}_spec"))
_BITS = 48  # the claim adds a step once a task: thousands of them stay within PostgreSQL's bigint
_TIER_BITS = 31
_LONGEST = 1e10
_SHORTEST = 0.001  # a hundredth of it is what a window of starts can tell apart
LATE = 1.0
"""Seconds after which a hook of the claim has failed: it holds up the whole worker."""
_AT_LEISURE = ("check_build", "publish", "metrics")
_T = TypeVar("_T")


@attrs.frozen
class Policies:
    """The hooks of the enabled plugins.

    Args:
        plugins: the plugins by slug, in configured order.
        callers: for each plugin and hook it implements, the caller of that one implementation.
        owner: slug of the plugin that owns the order of queues, or None.
    """

    plugins: Mapping[str, Plugin]
    callers: Mapping[tuple[str, str], Callable[..., Any]]
    owner: str | None

    @classmethod
    def of(cls, plugins: Mapping[str, Plugin], owner: str | None = None) -> Policies:
        """Register plugins whose implementations `implementation_problems` found no fault in."""
        manager = pluggy.PluginManager(hookspecs.PROJECT)
        manager.add_hookspecs(hookspecs)
        for slug, plugin in plugins.items():
            manager.register(plugin, slug)
        callers = {}
        for slug, plugin in plugins.items():
            others = [other for other in plugins.values() if other is not plugin]
            for implementation in manager.get_hookcallers(plugin) or ():
                callers[slug, implementation.name] = _single(manager.subset_hook_caller(implementation.name, others))
        owners = [slug for slug in plugins if (slug, "order_queues") in callers]
        return cls(plugins, callers, owner if owner in owners else next(iter(owners), None))

    def only(self, slugs: Iterable[str]) -> Policies:
        """Return these policies without the plugins not named: those of a worker that has fewer."""
        kept = {slug: plugin for slug, plugin in self.plugins.items() if slug in set(slugs)}
        callers = {key: caller for key, caller in self.callers.items() if key[0] in kept}
        owners = [slug for slug, hook in callers if hook == "order_queues"]
        return Policies(kept, callers, self.owner if self.owner in owners else next(iter(owners), None))

    def publishing(self, facts: Mapping[str, Mapping[str, Json]]) -> Policies:
        """Return these policies, where the named plugins publish the given facts in place of their own."""
        given = {(slug, "publish"): lambda build, found=found: found for slug, found in facts.items()}  # noqa: ARG005
        return attrs.evolve(self, callers={**self.callers, **given})

    def skips(self, tick: Tick) -> tuple[tuple[str, Skip], ...]:
        """Return every plugin's skips with its slug.

        Raises:
            HookError: an implementation raised or returned something its law forbids; so do the methods below.
        """
        return tuple((slug, skip) for slug in self.plugins for skip in self.skips_of(slug, tick))

    def skips_of(self, slug: str, tick: Tick) -> Sequence[Skip]:
        """Return one plugin's skips."""
        return self._each(slug, "build_skip_list", Skip, _skip_fault, tick=tick)

    def clauses(self, tick: Tick) -> tuple[Attributed, ...]:
        """Return every plugin's clauses with its slug."""
        return tuple(Attributed(slug, clause) for slug in self.plugins for clause in self.clauses_of(slug, tick))

    def clauses_of(self, slug: str, tick: Tick) -> Sequence[Clause]:
        """Return one plugin's clauses."""
        clauses = self._each(slug, "filter_clause", Clause, _clause_fault, tick=tick)
        names = [name for clause in clauses for name in clause.values]
        if len(names) != len(set(names)):
            raise HookError(slug, "filter_clause", f"two clauses use one value name; names were {sorted(names)}")
        return clauses

    def turns(self, tick: Tick) -> Sequence[Turn] | None:
        """Return the owner's turns, one for each polled queue, or None where there is no order."""
        if self.owner is None:
            return None
        turns = self._each(self.owner, "order_queues", Turn, _turn_fault, tick=tick)
        if not turns:
            return None
        named, polled = sorted(turn.queue for turn in turns), sorted(tick.worker.queues)
        if named != polled:
            detail = f"the turns name the queues {named}; each polled queue must stand there once: {polled}"
            raise HookError(self.owner, "order_queues", detail)
        return turns

    def facts(self, build: BuildView) -> dict[str, Json]:
        """Return what each plugin publishes, after a passage through JSON."""
        return self._objects("publish", build=build)

    def live(self) -> dict[str, Json]:
        """Return what each plugin observes now, after a passage through JSON."""
        return self._objects("observe")

    def problems(self, build: BuildView) -> list[Problem]:
        """Return what every plugin finds wrong with the build; one that raises is itself a problem."""
        found: list[Problem] = []
        for slug in self.plugins:
            try:
                found += self._each(slug, "check_build", Problem, lambda _: "", build=build)
            except HookError as error:
                found.append(Problem("plugin.hook", f"plugin {slug!r}", f"hook {error.hook}: {error.detail}"))
        return found

    def register_metrics(self, registry: CollectorRegistry) -> None:
        """Let each plugin register its collectors."""
        for slug in self.plugins:
            self._call(slug, "metrics", registry=registry)

    def lanes(self) -> Sequence[LaneLimit] | None:
        """Return the limits of lanes that plugins declare, or None where no plugin has a say in it.

        Raises:
            HookError: a limit cannot be kept, or its name has another one.
        """
        declaring = [slug for slug, plugin in self.plugins.items() if type(plugin).lanes is not Plugin.lanes]
        found: dict[str, LaneLimit] = {}
        for slug in declaring:
            for limit in self.plugins[slug].lanes():
                if fault := _lane_fault(limit) or ("is limited twice" if limit.name in found else ""):
                    raise HookError(slug, "lanes", f"the lane name {limit.name!r} {fault}")
                found[limit.name] = limit
        return list(found.values()) if declaring else None

    def needs_peers(self) -> bool:
        """Tell whether any plugin judges by the other workers."""
        return any(plugin.needs_peers for plugin in self.plugins.values())

    def _call(self, slug: str, hook: str, **arguments: Any) -> Any:
        caller = self.callers.get((slug, hook))
        if caller is None:
            return None
        begun = time.perf_counter()
        try:
            result = caller(**arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a hook's SystemExit or CancelledError is a fault like any other
            raise HookError(slug, hook, f"raised {type(error).__name__}: {error}") from error
        took = time.perf_counter() - begun
        if took > LATE and hook not in _AT_LEISURE:
            raise HookError(slug, hook, f"took {took:.1f} s, more than {LATE:g} s; what reads belongs into refreshes()")
        return result

    def _each(self, slug: str, hook: str, kind: type[_T], fault: Callable[[_T], str], **arguments: Any) -> Sequence[_T]:
        result = self._call(slug, hook, **arguments)
        if result is None:
            return ()
        if not isinstance(result, list | tuple):
            expected = f"a list or tuple of {kind.__name__}"
            raise HookError(slug, hook, f"returned {type(result).__name__}; expected {expected}")
        for value in result:
            if not isinstance(value, kind):
                raise HookError(slug, hook, f"returned {value!r} in its list; expected {kind.__name__}")
            if found := fault(value):
                raise HookError(slug, hook, found)
        return tuple(result)

    def _objects(self, hook: str, **arguments: Any) -> dict[str, Json]:
        found: dict[str, Json] = {}
        for slug in self.plugins:
            result = self._call(slug, hook, **arguments)
            if result is None:
                continue
            if not isinstance(result, Mapping):
                raise HookError(slug, hook, f"returned {type(result).__name__}; expected a mapping")
            try:
                found[slug] = json.loads(encode(dict(result), "returned what cannot be stored"))
            except PayloadError as error:
                raise HookError(slug, hook, str(error)) from error
        return found


def implementation_problems(plugin: Plugin) -> list[Problem]:
    """Return what is wrong with a plugin's implementations: all faults, where pluggy stops at the first."""
    where = f"plugin {plugin.slug!r}"
    found = []
    if plugin.hook_api < hookspecs.HOOK_API:
        message = f"was written for hook API {plugin.hook_api}; it works, and the present one is {hookspecs.HOOK_API}"
        found.append(Problem("plugin.old-hook-api", where, message, "upgrade the plugin", warning=True))
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    for name in dir(type(plugin)):
        options = manager.parse_hookimpl_opts(plugin, name) if not name.startswith("__") else None
        if options is None:
            if name in HOOKS:
                hint = "put @hookimpl on it, or give it another name"
                message = f"{name} is named like a hook but not marked as one, so it would never be asked"
                found.append(Problem("plugin.unmarked-hook", where, message, hint))
            continue
        specification = getattr(hookspecs, name, None) if name in HOOKS else None
        if specification is None:
            hint = near_match(name, HOOKS) or f"hooks are {', '.join(HOOKS)}"
            found.append(Problem("plugin.unknown-hook", where, f"hook {name}: there is no such hook", hint))
            continue
        method = getattr(plugin, name)
        if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
            hint = "make it a plain function; what needs I/O belongs into refreshes()"
            found.append(Problem("plugin.async-hook", where, f"hook {name}: hooks are synchronous", hint))
        if any(options.get(mark) for mark in ("wrapper", "hookwrapper", "tryfirst", "trylast")):
            hint = "remove wrapper, tryfirst and trylast"
            found.append(Problem("plugin.hook-marks", where, f"hook {name}: policies have no order among them", hint))
        found += _deprecations(where, name, method)
        allowed = set(inspect.signature(specification).parameters)
        unknown = [parameter for parameter in inspect.signature(method).parameters if parameter not in allowed]
        if unknown:
            hint = f"it may take {', '.join(sorted(allowed)) or 'nothing'}"
            message = f"hook {name}: no such argument: {', '.join(unknown)}"
            found.append(Problem("plugin.hook-arguments", where, message, hint))
    return found


def _deprecations(where: str, name: str, method: Callable[..., Any]) -> list[Problem]:
    marks = getattr(getattr(hookspecs, name), f"{hookspecs.PROJECT}_spec")
    told = {f"hook {name}": marks["warn_on_impl"]} if marks["warn_on_impl"] else {}
    for argument, warning in (marks["warn_on_impl_args"] or {}).items():
        if argument in inspect.signature(method).parameters:
            told[f"hook {name}, argument {argument}"] = warning
    return [
        Problem("plugin.deprecated", where, f"{what} goes with the next hook API: {warning}", warning=True)
        for what, warning in told.items()
    ]


def value_names(text: str) -> set[str]:
    """Return the names that stand in braces in a clause.

    Raises:
        ValueError: braces do not match, or hold more than a name.
    """
    names = set()
    for _, name, form, conversion in Formatter().parse(text):
        if name is None:
            continue
        if form or conversion or not name.isidentifier():
            msg = f"{{{name}}} is not a value's name; write literal braces as {{{{ and }}}}"
            raise ValueError(msg)
        names.add(name)
    return names


def _single(caller: Callable[..., list[Any]]) -> Callable[..., Any]:
    def call(**arguments: Any) -> Any:
        results = caller(**arguments)
        return results[0] if results else None

    return call


def _skip_fault(skip: Skip) -> str:
    if not isinstance(skip.activity, str) or not skip.activity:
        return f"a skip names the activity {skip.activity!r}; expected its name"
    if not skip.reasons or not all(isinstance(reason, str) and reason for reason in skip.reasons):
        return f"the skip of {skip.activity!r} gives no reason; every refusal has words"
    if not isinstance(skip.at_most, Budget) and not _is_whole(skip.at_most, 0):
        return f"the skip of {skip.activity!r} has at_most {skip.at_most!r}; expected a whole number or a Budget"
    for field in ("unless_older", "unless_younger", "recheck"):
        value = getattr(skip, field)
        if not (value is None and field != "recheck") and not _is_span(value):
            return f"the skip of {skip.activity!r} has {field} {value!r}; expected seconds"
    if skip.unless_older is not None and skip.at_most != 0:
        return f"the skip of {skip.activity!r} has both unless_older and at_most; give two skips"
    if skip.unless_younger is not None and skip.at_most == 0:
        return f"the skip of {skip.activity!r} has unless_younger without at_most; only a cap can spare younger tasks"
    return _budget_fault(skip.at_most) if isinstance(skip.at_most, Budget) else ""


def _budget_fault(budget: Budget) -> str:
    if not isinstance(budget.name, str) or not budget.name:
        return f"a budget has the name {budget.name!r}; expected text that begins with the plugin's slug"
    for field in ("concurrency", "starts"):
        value = getattr(budget, field)
        if value is not None and not _is_whole(value, 0):
            return f"the budget {budget.name!r} has {field} {value!r}; expected a whole number of 31 bits"
    if not _is_period(budget.period):
        return f"the budget {budget.name!r} has period {budget.period!r}; expected seconds, at least {_SHORTEST:g}"
    return ""


def _lane_fault(limit: LaneLimit) -> str:
    if not isinstance(limit.name, str) or not limit.name or "/" in limit.name:
        return "is none; expected what stands before the first slash of a lane"
    for field in ("concurrency", "starts"):
        value = getattr(limit, field)
        if value is not None and not _is_whole(value, 1):
            return f"has {field} {value!r}; expected a whole number of 31 bits, at least 1"
    if limit.concurrency is None and limit.starts is None:
        return "has neither concurrency nor starts; give one of them"
    return "" if _is_period(limit.period) else f"has period {limit.period!r}; expected seconds, at least {_SHORTEST:g}"


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**31


def _is_span(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LONGEST  # NaN is neither


def _is_period(value: object) -> bool:
    return _is_span(value) and value >= _SHORTEST  # type: ignore[operator]


def _clause_fault(clause: Clause) -> str:
    if not isinstance(clause.sql, str) or not clause.sql.strip():
        return "a clause has no text"
    if not isinstance(clause.values, Mapping) or not callable(clause.reasons):
        return "a clause needs a mapping of values and a callable for its reasons"
    if not all(isinstance(name, str) for name in clause.values):
        return f"clause {clause.sql!r} has values whose names are no text"
    try:
        used = value_names(clause.sql)
    except ValueError as error:
        return f"clause {clause.sql!r}: {error}"
    if missing := sorted(used - set(clause.values)):
        return f"clause {clause.sql!r} uses {missing} without a value of that name"
    if unused := sorted(set(clause.values) - used):
        return f"clause {clause.sql!r} does not use the values {unused}"
    return ""


def _turn_fault(turn: Turn) -> str:
    if not isinstance(turn.queue, str):
        return f"a turn names the queue {turn.queue!r}; expected its name"
    for number, bits in ((turn.tier, _TIER_BITS), (turn.start, _BITS), (turn.step, _BITS)):
        if not isinstance(number, int) or isinstance(number, bool) or number.bit_length() > bits:
            return f"the turn of queue {turn.queue!r} holds {number!r}; expected a whole number within {bits} bits"
    if turn.step < 0:
        return f"the turn of queue {turn.queue!r} has the negative step {turn.step}"
    if turn.most is not None and not _is_whole(turn.most, 0):
        return f"the turn of queue {turn.queue!r} has most {turn.most!r}; expected a whole number, or None"
    return ""
