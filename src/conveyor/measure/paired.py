"""Means with their spread, and whether one of two ways is better, from runs that have their seeds in common."""

import math
import statistics
from collections.abc import Sequence


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and the standard deviation (n - 1); None for a single value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def probability_better(differences: Sequence[float]) -> float | None:
    """The probability that the mean of the pairs' differences is above 0: Student's t with n - 1 degrees of freedom.

    t = mean sqrt(n) / deviation. It assumes that differences scatter normally; None for fewer than two of them. Without
    any scatter it is 1, 0 or, for nothing but zeros, 1/2.
    """
    if len(differences) < 2:
        return None
    mean, deviation = statistics.fmean(differences), statistics.stdev(differences)
    if deviation == 0:
        return 0.5 if mean == 0 else float(mean > 0)
    freedom = len(differences) - 1
    t = mean * math.sqrt(len(differences)) / deviation
    # With t = sqrt(freedom) tan(a), the density becomes cos(a)^(freedom - 1): smooth on a bounded range, so Simpson's rule.
    end, steps = math.atan(t / math.sqrt(freedom)), 2000
    heights = [math.cos(end * i / steps) ** (freedom - 1) for i in range(steps + 1)]
    area = end / steps / 3 * (heights[0] + heights[-1] + 4 * sum(heights[1::2]) + 2 * sum(heights[2:-1:2]))
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return 0.5 + scale * area


def verdict(one: str, other: str, probability: float | None, pairs: int) -> str:
    """`is A better than B, and how sure`, in a sentence."""
    if probability is None:
        return (
            f"{one} against {other}: one seed has no spread, so nothing can be said; give at least 2 (better 3) seeds"
        )
    if probability < 0.5:
        one, other, probability = other, one, 1 - probability
    sure = "clearly" if probability >= 0.99 else "probably" if probability >= 0.9 else "not clearly"
    return f"{one} is {sure} better than {other}: {100 * probability:.1f} % sure from {pairs} paired seeds"
