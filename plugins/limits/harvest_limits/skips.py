"""From a worker's published limits to the budgets that its claims draw from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harvest_core.plugin import Budget, Json, Skip, starts_and_period


def skips_of(facts: Json) -> Iterator[Skip]:
    """Yield one skip for each limit and each activity under it; the kernel unites those of one activity.

    None is a hold: below its bound a limit refuses nothing, and more workers may be what is missing.

    Raises:
        ValueError: the facts are not in the form that this plugin publishes.
    """
    match facts:
        case {"activities": Mapping() as activities, "shared": Mapping() as shared}:
            for name, limit in activities.items():
                yield _skip(name, f"limits:{name}", "", limit)
            for title, limit in shared.items():
                for name in _names(limit):
                    yield _skip(name, f"limits:shared:{title}", f"shared {title}, ", limit)
        case _:
            msg = "they do not say what is limited"
            raise ValueError(msg)


def _names(limit: Json) -> list[str]:
    match limit:
        case {"activities": [*names]} if all(isinstance(name, str) for name in names):
            return list(dict.fromkeys(map(str, names)))
    msg = f"{limit!r} lists no activities"
    raise ValueError(msg)


def _skip(activity: str, budget: str, prefix: str, limit: Json) -> Skip:
    match limit:
        case {"concurrency": int() | None as concurrency, "rate": str() | None as rate}:
            starts, period = (None, 1.0) if rate is None else starts_and_period(rate)
            words = ([] if concurrency is None else [f"concurrency {concurrency}"]) + ([] if rate is None else [rate])
            share = Budget(budget, concurrency, starts, period)
            return Skip(activity, (f"limited:{prefix}{', '.join(words)}",), at_most=share)
    msg = f"{limit!r} is no limit"
    raise ValueError(msg)
