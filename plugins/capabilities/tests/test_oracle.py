"""Verdicts against an oracle that shares no line with the plugin."""

import random

from harvest_capabilities import parse

KEYS = ["gpu", "region", "driver", "not", "a.b"]
TEXTS = ["true", "True", "us-east-1", "in", "a b", "x,y", "[z]", "=1", "a=b", "it's", 'say "hi"', "exists"]
VERSIONS = ["0", "1", "1.0", "01.0.0", "1.0.1", "9", "10", "12.4", "12.10", "12.4.1"]
ODD = ["v12", "12.4rc1", "", "-1", "1.", "12.4-1", "2026-03-01"]


def written(value: str, rng: random.Random) -> str:
    """Return value as a user may write it: bare where that is possible, else in either kind of quotes."""
    forms = [f"{quote}{value}{quote}" for quote in "'\"" if quote not in value]
    if not set(value) & set(" ,[]'\"") and value[0] not in "=!<>":
        forms.append(value)
    return rng.choice(forms)


def numbers(text: str) -> list[int] | None:
    """Return the version as twelve numbers, or None where it is none; the cases hold no two dashed versions."""
    parts = text.split(".")
    return [int(part) for part in parts] + [0] * (12 - len(parts)) if all(map(str.isdigit, parts)) else None


def meets(labels: dict[str, str], key: str, word: str, values: list[str]) -> bool:
    """Judge one term, one operator after another."""
    if word == "not exists":
        return key not in labels
    if key not in labels:
        return False
    label = labels[key]
    if word == "exists":
        return True
    if word in ("=", "=="):
        return label == values[0]
    if word == "!=":
        return label != values[0]
    if word == "in":
        return any(label == value for value in values)
    if word == "not in":
        return not any(label == value for value in values)
    mine, bound = numbers(label), numbers(values[0])
    if mine is None or bound is None:
        return False
    if word == ">":
        return mine > bound
    if word == "<":
        return mine < bound
    return mine >= bound if word == ">=" else mine <= bound


def term(rng: random.Random) -> tuple[str, str, list[str], str]:
    """Draw key, operator, values and the text that spells them."""
    key = rng.choice(KEYS)
    word = rng.choice(["=", "==", "!=", "in", "not in", "exists", "not exists", ">=", "<=", ">", "<"])
    if key == "not" and word in ("in", "exists"):
        key = "gpu"
    gap = rng.choice(["", " ", "\t", " \n "])
    some = gap or " "
    if word in ("exists", "not exists"):
        return key, word, [], f"{key}{some}{word.replace(' ', some)}"
    if word in ("in", "not in"):
        values = [rng.choice(TEXTS + VERSIONS) for _ in range(rng.randint(1, 4))]
        items = f"{gap},{gap}".join(written(value, rng) for value in values)
        return key, word, values, f"{key}{some}{word.replace(' ', some)}{gap}[{gap}{items}{gap}]"
    value = rng.choice(VERSIONS if word[0] in "<>" else TEXTS + VERSIONS)
    return key, word, [value], f"{key}{gap}{word}{gap}{written(value, rng)}"


def test_ten_thousand_random_cases_agree_with_the_oracle():
    """The same terms fail for the oracle and for the plugin, on random requirements and labels (CAP1, CAP3, CAP6)."""
    rng = random.Random(20260301)
    met = 0
    for _ in range(10_000):
        terms = [term(rng) for _ in range(rng.randint(1, 4))]
        labels = {key: rng.choice(TEXTS + VERSIONS * 2 + ODD) for key in KEYS if rng.random() < 0.8}
        if rng.random() < 0.5:  # by chance alone few values would ever match
            labels |= {key: rng.choice(values) for key, _, values, _ in terms if values}
        text = rng.choice([",", " , ", ",\n"]).join(written_term for *_, written_term in terms)
        verdicts = [meets(labels, key, word, values) for key, word, values, _ in terms]
        requirement = parse(text)
        assert [parsed.holds(labels) for parsed in requirement.terms] == verdicts, (text, labels)
        reasons = [
            f"unsatisfied_requirement:{parsed}"
            for parsed, good in zip(requirement.terms, verdicts, strict=True)
            if not good
        ]
        assert list(requirement.unsatisfied(labels)) == list(dict.fromkeys(reasons)), (text, labels)
        met += not reasons
    assert 1_000 < met < 9_000
