"""A metric of two systems, recording by recording."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from jaxrnn.evaluation.metrics.protocol import Column, Counts, Pool
from jaxrnn.evaluation.statistics import Resampling


@dataclass(frozen=True)
class Difference:
    """A metric of the second system less the same of the first, over the recordings where both have one.

    Attributes:
        column: the metric's.
        unit: what it is in.
        higher_is_better: None where neither is.
        n: recordings whose difference is finite; means are of them.
        left_out: recordings of both without a value in one of them.
        infinite: recordings whose difference is infinite.
        first: mean of the first system; NaN where there is none.
        second: mean of the second.
        mean: of the differences.
        low: of the mean's interval, for which pairs are drawn together.
        high: of the mean's interval.
        median: of the differences.
        p: of Wilcoxon's signed-rank test, two-sided: how often as much would be seen of two systems of which neither is
            better; NaN where nothing can be compared. Differences of zero are left out of it (Wilcoxon, 1945).
        wins: recordings where the second is better; the higher value where neither direction is.
        ties: recordings where neither is.
        losses: recordings where the first is better.
    """

    column: str
    unit: str
    higher_is_better: bool | None
    n: int
    left_out: int
    infinite: int
    first: float
    second: float
    mean: float
    low: float
    high: float
    median: float
    p: float
    wins: int
    ties: int
    losses: int


@dataclass(frozen=True)
class CorpusDifference:
    """A value of the corpus as a whole, of two systems, over the recordings that both have counted.

    Attributes:
        column: the value's.
        n: recordings.
        first: of the first system; NaN where it is not defined.
        second: of the second.
        difference: the second less the first.
        low: of the difference's interval, for which recordings are drawn for both together.
        high: of the difference's interval.
    """

    column: str
    n: int
    first: float
    second: float
    difference: float
    low: float
    high: float


def corpus_differences(
    pools: tuple[Pool, Pool], counts: Sequence[tuple[Counts, Counts]], how: Resampling
) -> tuple[CorpusDifference, ...]:
    """What the counts of two systems say together, each of all recordings ``(first, second)``."""
    first, second = (
        pool.values([pair[side] for pair in counts], how.weights_and_whole(len(counts)))
        for side, pool in enumerate(pools)
    )
    found = []
    for column in first:
        if column in second:
            drawn = second[column] - first[column]
            values = float(first[column][0]), float(second[column][0]), float(drawn[0])
            found.append(CorpusDifference(column, len(counts), *values, *how.of_draws(drawn[1:])))
    return tuple(found)


def less(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The second less the first; zero for two equal infinities."""
    with np.errstate(invalid="ignore"):
        return np.where(first == second, 0.0, second - first)


def difference(column: Column, first: np.ndarray, second: np.ndarray, ties: float, how: Resampling) -> Difference:
    """A metric of two systems ``float64[recordings]``, NaN where there is none; at most ``ties`` is a tie."""
    both = ~(np.isnan(first) | np.isnan(second))
    first, second = first[both], second[both]
    change = less(first, second)
    finite = np.isfinite(change) & np.isfinite(first)
    nothing = math.nan
    low, high = how.of_mean(change[finite])
    higher, lower = int((change > ties).sum()), int((change < -ties).sum())
    wins, losses = (lower, higher) if column.higher_is_better is False else (higher, lower)
    some = bool(finite.any())
    return Difference(
        column=column.name,
        unit=column.unit,
        higher_is_better=column.higher_is_better,
        n=int(finite.sum()),
        left_out=int((~both).sum()),
        infinite=int((~finite).sum()),
        first=float(first[finite].mean()) if some else nothing,
        second=float(second[finite].mean()) if some else nothing,
        mean=float(change[finite].mean()) if some else nothing,
        low=low,
        high=high,
        median=float(np.median(change[finite])) if some else nothing,
        p=_wilcoxon(change),
        wins=wins,
        ties=len(change) - wins - losses,
        losses=losses,
    )


def _wilcoxon(change: np.ndarray) -> float:
    unlike = change[change != 0]
    if not len(unlike):
        return 1.0 if len(change) else math.nan
    result: Any = stats.wilcoxon(unlike, alternative="two-sided")
    return float(result.pvalue)
