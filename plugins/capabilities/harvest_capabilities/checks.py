"""What a build finds wrong with labels, exclusive keys, requirements and preferences (CAP1, CAP3, CAP6)."""

from __future__ import annotations

from collections.abc import Iterator

from harvest_capabilities.config import CapabilitiesConfig
from harvest_capabilities.contradiction import contradiction
from harvest_capabilities.grammar import KEY, UNSTORABLE, RequirementError, parse
from harvest_capabilities.requirement import Requirement
from harvest_core.plugin import Activity, Problem, near_match

OPTIONS = ("requires", "prefers")
"""The activity options: what a worker must have, and what it should have."""


def config_problems(config: CapabilitiesConfig) -> Iterator[Problem]:
    """Yield every label that cannot be named or stored and every exclusive key that is no label."""
    for key, value in config.labels.items():
        if not KEY.fullmatch(key):
            message = f"no requirement can name the label {key!r}"
            hint = "a key is not empty and has no white space and none of , [ ] ' \" = ! < >"
            yield Problem("capabilities.label", "plugins.capabilities.labels", message, hint)
        if UNSTORABLE.search(key + value):
            message = f"the label {key!r} = {value!r} holds a character that cannot be stored"
            yield Problem("capabilities.label", "plugins.capabilities.labels", message, "leave it out")
    for key in config.exclusive:
        if key not in config.labels:
            hint = near_match(key, config.labels) or f"give the worker a label {key!r}, or leave the key out"
            message = f"the worker has no label {key!r}, so it could run nothing that asks for it"
            yield Problem("capabilities.exclusive", "plugins.capabilities.exclusive", message, hint)


def activity_problems(activity: Activity) -> Iterator[Problem]:
    """Yield what is wrong with what an activity asks for; a warning where no worker can ever have it."""
    where = f"activity {activity.name!r}"
    read: dict[str, Requirement] = {}
    for option in OPTIONS:
        if option not in activity.options:
            continue
        text = activity.options[option]
        if activity.local:
            message = f"a local activity runs inline in its workflow task, so {option!r} cannot be enforced"
            yield Problem(
                "capabilities.local-activity", where, message, f"make it an activity, or leave {option!r} out"
            )
        if not isinstance(text, str):
            message, hint = f"{option!r} is {text!r}, not text", f'write e.g. {option}="gpu = true", or leave it out'
            yield Problem("capabilities.requirement", where, message, hint)
            continue
        try:
            read[option] = parse(text)
        except RequirementError as error:
            yield Problem("capabilities.requirement", where, f"{option!r}: {error}")
    required = read["requires"].terms if "requires" in read else ()
    if terms := contradiction(Requirement(required)):
        message = f"no worker will ever run it, because this can never hold: {', '.join(map(str, terms))}"
        hint = "all terms must hold; for one of several values write 'key in [a, b]'"
        yield Problem("capabilities.never-holds", where, message, hint, warning=True)
    elif "prefers" in read and (terms := contradiction(Requirement((*required, *read["prefers"].terms)))):
        message = f"no worker will ever be preferred, because this can never hold: {', '.join(map(str, terms))}"
        hint = "the terms of 'requires' and 'prefers' must hold together"
        yield Problem("capabilities.never-preferred", where, message, hint, warning=True)
