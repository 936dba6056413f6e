"""An oracle that shares no code and no style with the plugin, and 10,000 random cases for it."""

import random

import pytest
from harvest_flags import FlagsConfig

from harvest_core.plugin import Route, Tick, Worker

LABELS = ["linux", "LINUX", "gpu", "arm", "kvm", "", "a,b]", "ü", "true", "1"]
ABSENT = object()


def admits(trait, accepted, forbidden, allowlist):
    """Judge by the wording of FL2, FL3 and FL6 alone, case by case."""
    labels, sound = [], True
    if trait is ABSENT:
        pass
    elif type(trait) is str:
        labels, sound = [trait], False
    elif type(trait) is dict:
        labels = list(trait)
    elif type(trait) is list:
        for member in trait:
            if type(member) is str:
                labels.append(member)
            else:
                sound = False
    else:
        sound = False
    verdict = True
    if accepted:
        verdict = any(label == wanted for label in labels for wanted in accepted)
    for label in labels:
        if label in forbidden:
            verdict = False
        if allowlist is not None and label not in allowlist:
            verdict = False
    if allowlist is not None and not sound:
        verdict = False
    return verdict


def random_json(rng, depth=0):
    """Return any JSON, arrays of labels most often."""
    form = rng.randrange(12 if depth < 3 else 6)
    if form == 0:
        return rng.choice(LABELS)
    if form == 1:
        return rng.choice([None, True, False])
    if form == 2:
        return rng.choice([0, 1, -7, 2.5, 10**20])
    if form < 8:
        return [rng.choice(LABELS) for _ in range(rng.randrange(5))]
    if form < 10:
        return {rng.choice(LABELS): random_json(rng, depth + 1) for _ in range(rng.randrange(4))}
    return [random_json(rng, depth + 1) for _ in range(rng.randrange(4))]


def random_config(rng):
    """Return a configuration in which each dimension is set about half the time."""

    def some():
        return rng.sample(LABELS[:5] + LABELS[6:], rng.randrange(4)) if rng.random() < 0.6 else []

    return FlagsConfig(some(), some(), some() if rng.random() < 0.5 else None)


@pytest.fixture(scope="session")
def cases():
    """Return 100 configurations, each with 100 routes and the oracle's verdicts on them."""
    rng = random.Random(20)
    found = []
    for _ in range(100):
        config, routes, verdicts = random_config(rng), [], []
        for number in range(100):
            trait = ABSENT if rng.random() < 0.05 else random_json(rng)
            routes.append(Route(number, "default", "activity", "build", {} if trait is ABSENT else {"flags": trait}))
            verdicts.append(admits(trait, config.accepted, config.forbidden, config.allowlist))
        found.append((config, routes, verdicts))
    return found


@pytest.fixture
def tick_of():
    """Return a function that gives the tick of a worker which published a plugin's configuration."""

    def tick(plugin):
        facts = {"flags": plugin.publish(build=None)}
        return Tick(Worker("1", "one", ("default",), frozenset({"build"}), facts))

    return tick
