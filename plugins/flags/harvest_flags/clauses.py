"""The three conditions on a route's flags, each as SQL for the claim and as words for the reader.

Refuses to trust the trait: raw SQL may have written any JSON there, and one odd trait must stay one odd trait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harvest_core.plugin import Clause, Json, Route

# `?|` never raises: it looks at an object's keys, an array's texts and a scalar text, and finds nothing elsewhere.
# It is NULL for an absent trait, hence `is true` and `is not true`.
_ACCEPTED = "(r.traits -> 'flags' ?| {accepted}::text[]) is true"
_FORBIDDEN = "(r.traits -> 'flags' ?| {forbidden}::text[]) is not true"

# CASE, because `jsonb - text[]` raises on a scalar and AND has no order of evaluation. What is left of an array after
# the allowed texts are taken out includes members that are no texts, so those fail closed. (`<@` would admit a scalar.)
_ALLOWLIST = """case
    when r.traits -> 'flags' is null then true
    when jsonb_typeof(r.traits -> 'flags') in ('array', 'object')
    then (r.traits -> 'flags') - {allowlist}::text[] in ('[]', '{{}}')
    else false
end"""


def accepted_clause(accepted: Sequence[str]) -> Clause:
    """Admit routes with at least one of these flags (rule FL2). Reason: `flags_not_accepted:[linux, macos]`."""

    def reasons(route: Route) -> Sequence[str]:
        if flags_of(_trait(route)).isdisjoint(accepted):
            return [f"flags_not_accepted:[{', '.join(accepted)}]"]
        return []

    return Clause(_ACCEPTED, {"accepted": list(accepted)}, reasons)


def forbidden_clause(forbidden: Sequence[str]) -> Clause:
    """Refuse routes with any of these flags (rule FL2). Reason, one per match: `flag_forbidden:gpu`."""

    def reasons(route: Route) -> Sequence[str]:
        return [f"flag_forbidden:{flag}" for flag in sorted(flags_of(_trait(route)).intersection(forbidden))]

    return Clause(_FORBIDDEN, {"forbidden": list(forbidden)}, reasons)


def allowlist_clause(allowlist: Sequence[str]) -> Clause:
    """Refuse routes with any flag outside these, and traits that are no set of flags (rules FL3 and FL6).

    Reasons: `flag_not_allowlisted:arm` for each such flag; `flags_malformed:number` where a number, or another JSON
    type that is named, stands where a flag or the set of flags should.
    """

    def reasons(route: Route) -> Sequence[str]:
        trait = _trait(route)
        outside = sorted(flags_of(trait).difference(allowlist)) if _is_container(trait) else []
        found = [f"flag_not_allowlisted:{flag}" for flag in outside]
        return found + [f"flags_malformed:{kind}" for kind in _malformed(trait)]

    return Clause(_ALLOWLIST, {"allowlist": list(allowlist)}, reasons)


def flags_of(trait: Json) -> frozenset[str]:
    """Return the flags that accepted and forbidden see in a trait: what `?|` sees (rule FL6)."""
    if isinstance(trait, str):
        return frozenset([trait])
    if isinstance(trait, Mapping):
        return frozenset(trait)
    if isinstance(trait, Sequence):
        return frozenset(member for member in trait if isinstance(member, str))
    return frozenset()


def _trait(route: Route) -> Json:
    return route.traits.get("flags", [])  # absent is untagged; JSON null is not absent


def _is_container(trait: Json) -> bool:
    return isinstance(trait, Mapping | Sequence) and not isinstance(trait, str)


def _malformed(trait: Json) -> list[str]:
    if isinstance(trait, Mapping):
        return []
    if isinstance(trait, str) or not isinstance(trait, Sequence):
        return [_json_type(trait)]
    return sorted({_json_type(member) for member in trait if not isinstance(member, str)})


def _json_type(value: Json) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, Mapping):
        return "object"
    return "array" if isinstance(value, Sequence) else "number"
