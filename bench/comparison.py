"""The statistics of the benches: ratios that are paired by round, and how sure they are. Standard library only."""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass

SEED = 1  # of the order of the contenders in each round, and of the resampling
RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Comparison:
    """The median of the rounds' ratios and its confidence interval. Above 1 ours is better."""

    ratio: float
    low: float
    high: float
    rounds: int

    def shows_difference(self, noise: float = 0.0) -> bool:
        """Whether the interval excludes 1, and the ratio is further from 1 than `noise` (0.02: 2 %)."""
        return not self.low <= 1 <= self.high and abs(self.ratio - 1) > noise


def paired_ratios(ours: list[float], peer: list[float], more_is_better: bool) -> list[float]:
    """One ratio a round: both ran right after each other, so what slowed the machine then slowed both. A side with one
    value is a constant, such as a limit."""
    if len(ours) != len(peer) and 1 not in (len(ours), len(peer)):
        raise ValueError(f"expected as many rounds of ours as of the peer, found {len(ours)} and {len(peer)}")
    rounds = max(len(ours), len(peer))
    ours, peer = (side * rounds if len(side) == 1 else side for side in (ours, peer))
    pairs = zip(ours, peer, strict=True) if more_is_better else zip(peer, ours, strict=True)
    return [better / worse for better, worse in pairs]


def interval_of_median(values: list[float]) -> tuple[float, float]:
    """The bootstrap's percentile interval: the median of many samples, drawn with replacement from the values."""
    draw = random.Random(SEED)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    outside = int(RESAMPLES * (1 - CONFIDENCE) / 2)
    return medians[outside], medians[-1 - outside]


def compare(ours: list[float], peer: list[float], more_is_better: bool = False) -> Comparison:
    ratios = paired_ratios(ours, peer, more_is_better)
    low, high = interval_of_median(ratios)
    return Comparison(statistics.median(ratios), low, high, len(ratios))
