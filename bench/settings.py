"""A search for a peer's settings that takes one after another: the best layout, with it the best allocator, and so on. So
settings that help are combined, without a run of every combination."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness import Contender, Outcome, best_way
from peer_ways import Way

PASSES = 3


def combined(one: Way, other: Way) -> Way:
    return Way(f"{one.reason}; {other.reason}", {**one.environment, **other.environment}, (*one.options, *other.options),
               pinned=one.pinned and other.pinned)


def best_settings(
    start: Way, settings: Mapping[str, Mapping[str, Way]], measured: Callable[[Way], Contender], outcome: Outcome, what: str,
    more_is_better: bool = False, passes: int = PASSES,
) -> tuple[Way, str]:
    """The best way on from `start`, and the names of its settings: of each the best, with those before it. The first of a
    setting stays if none can be measured. The contenders have one key."""
    chosen, names = start, []
    for setting, values in settings.items():
        ways = {name: combined(chosen, way) for name, way in values.items()}
        tried = {name: measured(way) for name, way in ways.items()}
        best = best_way(tried, outcome, f"{what}, {setting}", more_is_better, passes)
        name = next(iter(best.values()), next(iter(values)))
        chosen = ways[name]
        names.append(name)
    return chosen, ", ".join(names)
