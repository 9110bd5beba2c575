"""Statistics over recordings, with confidence intervals by resampling whole recordings (Efron, 1979)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from jaxrnn.evaluation.metrics import Pool

#: The confidence of intervals, the number of draws that they are made of, and the seed of the draws.
CONFIDENCE, DRAWS, SEED = 0.95, 1000, 0

#: Numbers in memory at once.
_AT_ONCE = 4_000_000


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """The interval of the mean of finite values ``float64[n]``; NaN for fewer than two."""
    if len(values) < 2:
        return math.nan, math.nan
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


def drawn(pool: Pool, counts: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Values of a corpus by column ``float64[1 + draws]``: of all recordings, then of each draw of as many.

    Equal numbers of recordings have equal draws, so that differences of two systems are those of pairs. There are no
    draws of fewer than two recordings.
    """
    generator, count = np.random.default_rng(SEED), len(counts)
    draws = [
        np.bincount(generator.integers(count, size=count), minlength=count).astype(np.int32)
        for _ in range(DRAWS if count > 1 else 0)
    ]
    weights = np.stack([np.ones(count, np.int32), *draws])
    step = max(1, _AT_ONCE // pool.size)
    blocks = []
    for first in range(0, len(weights), step):
        block = weights[first : first + step]
        # Sums of whole numbers are exact, in whatever order.
        sums = np.zeros((len(block), pool.size))
        for start in range(0, count, step):
            sums += block[:, start : start + step] @ np.stack(list(map(pool.sums, counts[start : start + step])))
        blocks.append(pool.values(sums))
    return {column: np.concatenate([values[column] for values in blocks]) for column in blocks[0]}


def interval(draws: np.ndarray) -> tuple[float, float]:
    """The interval of the values of draws, without those that are not defined; NaN if none is."""
    known = draws[np.isfinite(draws)]
    if not len(known):
        return math.nan, math.nan
    rest = (1 - CONFIDENCE) / 2
    low, high = np.quantile(known, [rest, 1 - rest])
    return float(low), float(high)


def pooled(pool: Pool, counts: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Values of a corpus by column, each with its ``value``, ``low`` and ``high``."""
    estimates = {}
    for column, values in drawn(pool, counts).items():
        low, high = interval(values[1:])
        estimates[column] = {"value": float(values[0]), "low": low, "high": high}
    return estimates
