"""The policy: judges this worker's labels once, at start, and skips what it cannot run (CAP2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs

from harvest_capabilities.config import CapabilitiesConfig
from harvest_capabilities.contradiction import contradiction
from harvest_capabilities.grammar import KEY, UNSTORABLE, RequirementError, parse
from harvest_core.plugin import (
    Activity,
    BuildView,
    Feature,
    Json,
    Plugin,
    Problem,
    Skip,
    Tick,
    WorkerOption,
    hookimpl,
)


@attrs.define(eq=False, slots=False)
class Capabilities(Plugin):
    """Keeps activities off workers whose labels do not meet their `requires`.

    Its facts are `labels` (key to value), `requires` (activity to requirement text) and `ineligible` (activity to
    reasons, at least one each). They are published even when all are empty: facts that are absent mean that a worker
    cannot be judged, and that closes its claims (CAP3).
    """

    slug = "capabilities"
    config_class = CapabilitiesConfig
    needs = frozenset({Feature.SKIP_LIST})
    activity_options = ("requires",)
    worker_options = (
        WorkerOption(flag="--label", key="labels", help="Label of this worker, as key=value.", pairs=True),
    )

    config: CapabilitiesConfig = attrs.field(factory=CapabilitiesConfig)

    @hookimpl
    def check_build(self, build: BuildView) -> Sequence[Problem]:
        """Return every label and requirement that cannot be meant, and a warning for each that can never hold."""
        problems = list(_label_problems(self.config.labels))
        for activity in build.activities.values():
            if "requires" in activity.options:
                problems += _requirement_problems(activity)
        return problems

    @hookimpl
    def publish(self, build: BuildView) -> Mapping[str, Json]:
        """Return this worker's labels, the requirements of its activities and its verdict on each (CAP4)."""
        requires = {
            name: activity.options["requires"]
            for name, activity in build.activities.items()
            if "requires" in activity.options
        }
        labels = dict(self.config.labels)
        verdicts = {name: list(parse(text).unsatisfied(labels)) for name, text in requires.items()}
        ineligible = {name: reasons for name, reasons in verdicts.items() if reasons}
        return {"labels": labels, "requires": requires, "ineligible": ineligible}

    @hookimpl
    def build_skip_list(self, tick: Tick) -> Sequence[Skip] | None:
        """Skip the activities that the worker in tick found itself ineligible for; None where there are none.

        Raises:
            ValueError: the worker published no verdict that can be read.
        """
        facts = tick.worker.facts.get(self.slug)
        ineligible = facts.get("ineligible") if isinstance(facts, Mapping) else None
        if not isinstance(ineligible, Mapping):
            raise _unjudged(tick, f"published {facts!r}")
        return [Skip(name, _reasons(tick, name, given)) for name, given in sorted(ineligible.items())] or None


def _label_problems(labels: Mapping[str, str]) -> Iterator[Problem]:
    for key, value in labels.items():
        if not KEY.fullmatch(key):
            message = f"no requirement can name the label {key!r}"
            hint = "a key is not empty and has no white space and none of , [ ] ' \" = ! < >"
            yield Problem("capabilities.label", "plugins.capabilities.labels", message, hint)
        if UNSTORABLE.search(key + value):
            message = f"the label {key!r} = {value!r} holds a character that cannot be stored"
            yield Problem("capabilities.label", "plugins.capabilities.labels", message, "leave it out")


def _requirement_problems(activity: Activity) -> Iterator[Problem]:
    where, text = f"activity {activity.name!r}", activity.options["requires"]
    if activity.local:
        message = "a local activity runs inline in its workflow task, so 'requires' cannot be enforced"
        yield Problem("capabilities.local-activity", where, message, "make it an activity, or leave 'requires' out")
    if not isinstance(text, str):
        message, hint = f"'requires' is {text!r}, not text", 'write e.g. requires="gpu = true", or leave it out'
        yield Problem("capabilities.requirement", where, message, hint)
        return
    try:
        requirement = parse(text)
    except RequirementError as error:
        yield Problem("capabilities.requirement", where, str(error))
        return
    if terms := contradiction(requirement):
        message = f"no worker will ever run it, because this can never hold: {', '.join(map(str, terms))}"
        hint = "all terms must hold; for one of several values write 'key in [a, b]'"
        yield Problem("capabilities.never-holds", where, message, hint, warning=True)


def _reasons(tick: Tick, name: str, given: Json) -> tuple[str, ...]:
    reasons = () if isinstance(given, str) or not isinstance(given, Sequence) else tuple(given)
    words = tuple(reason for reason in reasons if isinstance(reason, str))
    if not words or words != reasons:
        raise _unjudged(tick, f"published {given!r} as its reasons against {name!r}")
    return words


def _unjudged(tick: Tick, found: str) -> ValueError:
    remedy = "start it anew with the capabilities plugin enabled"
    return ValueError(f"worker {tick.worker.name!r} {found}, so it cannot be judged and claims nothing; {remedy}")
