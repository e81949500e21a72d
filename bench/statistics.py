"""Says how sure a median is."""

from collections.abc import Sequence
from math import comb

CERTAIN = 6
"""The fewest rounds of which can be said with 95 % between what their median lies."""


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return between which of the values the true median lies with 95 %; of few values the least and most.

    By counting alone: each value is above the true median or below it, like a coin.
    """
    ordered, count, skipped = sorted(values), len(values), 0
    outside = 2.0 / 2**count
    while True:
        outside += 2.0 * comb(count, skipped + 1) / 2**count
        if outside > 0.05 or 2 * (skipped + 1) >= count:
            return ordered[skipped], ordered[-1 - skipped]
        skipped += 1
