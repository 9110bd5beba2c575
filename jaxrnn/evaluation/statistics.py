"""Statistics over recordings, with confidence intervals by resampling whole recordings (Efron, 1979)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import stats

from jaxrnn.evaluation.metrics import Pool

#: The confidence of intervals, the number of draws that they are made of, and the seed of the draws.
CONFIDENCE, DRAWS, SEED = 0.95, 1000, 0

#: Numbers in memory at once.
_AT_ONCE = 4_000_000

#: Values from which on the interval of their mean is that of the normal distribution.
MANY = 100_000

#: Recordings from which on neighbours are drawn together, and the number of groups that they form then.
ALONE, GROUPS = 10_000, 1_000


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """The interval of the mean of finite values ``float64[n]``; NaN for fewer than two.

    Of many values, it is that of the normal distribution, which the intervals by resampling come to.
    """
    if len(values) < 2:
        return math.nan, math.nan
    if len(values) > MANY:
        half = stats.norm.ppf((1 + CONFIDENCE) / 2) * values.std(ddof=1) / math.sqrt(len(values))
        return float(values.mean() - half), float(values.mean() + half)
    if np.all(values == values[0]):
        return float(values[0]), float(values[0])
    interval = stats.bootstrap(
        (values,),
        np.mean,
        n_resamples=DRAWS,
        batch=max(1, _AT_ONCE // len(values)),
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    return float(interval.low), float(interval.high)


def summarise(values: np.ndarray) -> dict[str, Any]:
    """Statistics of a column ``float64[recordings]``, NaN where there is no value.

    Returns:
        ``n``, the recordings with a finite value, ``missing``, those without a value, and ``infinite``, those with an
        infinite one. Of the finite values: ``mean``, ``low`` and ``high``, the ends of its interval, ``median``,
        ``deviation``, the standard deviation with n - 1, ``minimum`` and ``maximum``; NaN where n is too small.
    """
    finite = values[np.isfinite(values)]
    low, high = mean_interval(finite)
    nothing = math.nan
    return {
        "n": len(finite),
        "missing": int(np.isnan(values).sum()),
        "infinite": int(np.isinf(values).sum()),
        "mean": float(finite.mean()) if len(finite) else nothing,
        "low": low,
        "high": high,
        "median": float(np.median(finite)) if len(finite) else nothing,
        "deviation": float(finite.std(ddof=1)) if len(finite) > 1 else nothing,
        "minimum": float(finite.min()) if len(finite) else nothing,
        "maximum": float(finite.max()) if len(finite) else nothing,
    }


class Sums:
    """The counts of recordings, added up in the groups that are drawn: of up to `ALONE` recordings, one for each.

    Args:
        pool: how counts add up.
        count: the number of recordings.

    Attributes:
        groups: ``float64[groups, counts]``.
    """

    def __init__(self, pool: Pool, count: int):
        self._count = count
        self.groups = np.zeros((count if count <= ALONE else GROUPS, pool.size))

    def add(self, place: int, counts: Mapping[str, Any]) -> None:
        """Add the counts of a recording, by its place among all that are counted."""
        self.groups[place * len(self.groups) // self._count, counts["at"]] += counts["counts"]


def drawn(pool: Pool, groups: np.ndarray) -> dict[str, np.ndarray]:
    """Values of a corpus by column ``float64[1 + draws]``: of all groups, then of each draw of as many.

    Equal numbers of groups have equal draws, so that differences of two systems are those of pairs. There are no draws
    of fewer than two groups.

    Args:
        pool: how counts add up.
        groups: the counts of each group of recordings, ``float64[groups, counts]``.
    """
    generator, count = np.random.default_rng(SEED), len(groups)
    draws = [
        np.bincount(generator.integers(count, size=count), minlength=count).astype(np.int32)
        for _ in range(DRAWS if count > 1 else 0)
    ]
    weights = np.stack([np.ones(count, np.int32), *draws])
    step = max(1, _AT_ONCE // max(pool.size, count))
    # Sums of whole numbers are exact, in whatever order.
    blocks = [pool.values(weights[first : first + step] @ groups) for first in range(0, len(weights), step)]
    return {column: np.concatenate([values[column] for values in blocks]) for column in blocks[0]}


def interval(draws: np.ndarray) -> tuple[float, float]:
    """The interval of the values of draws, without those that are not defined; NaN if none is."""
    known = draws[np.isfinite(draws)]
    if not len(known):
        return math.nan, math.nan
    rest = (1 - CONFIDENCE) / 2
    low, high = np.quantile(known, [rest, 1 - rest])
    return float(low), float(high)


def pooled(pool: Pool, groups: np.ndarray) -> dict[str, dict[str, float]]:
    """Values of a corpus by column, each with its ``value``, ``low`` and ``high``."""
    estimates = {}
    for column, values in drawn(pool, groups).items():
        low, high = interval(values[1:])
        estimates[column] = {"value": float(values[0]), "low": low, "high": high}
    return estimates
