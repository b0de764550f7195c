"""The statistics of the benches: ratios that are paired by round, and how sure they are. Standard library only."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

SEED = 1  # of the order of the contenders in each round
CONFIDENCE = 0.95
LEAST_ROUNDS = 6  # with fewer, even from the least to the largest value is no interval of 95 %


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
    """From the k-th least to the k-th largest value, with the largest k that leaves the true median outside in at most
    5 % of cases, whatever the distribution (each value is below it with probability 1/2). With fewer than LEAST_ROUNDS
    values it is all of them, and holds the true median less often."""
    ordered, count = sorted(values), len(values)
    outside, k = 2 / 2**count, 1  # the probability that the true median is below the k-th least or above the k-th largest
    while k < count // 2 and outside + 2 * math.comb(count, k) / 2**count <= 1 - CONFIDENCE:
        outside += 2 * math.comb(count, k) / 2**count
        k += 1
    return ordered[k - 1], ordered[count - k]


def compare(ours: list[float], peer: list[float], more_is_better: bool = False) -> Comparison:
    ratios = paired_ratios(ours, peer, more_is_better)
    low, high = interval_of_median(ratios)
    return Comparison(statistics.median(ratios), low, high, len(ratios))
