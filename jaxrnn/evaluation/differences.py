"""A metric of two systems, recording by recording."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from jaxrnn.evaluation.metrics import Column, Pool
from jaxrnn.evaluation.statistics import Sums, drawn, interval, mean_interval


@dataclass(frozen=True)
class Difference:
    """A metric of the second system less the same of the first, over the recordings where both have one.

    Attributes:
        column: the metric's.
        unit: its unit.
        higher_is_better: None where neither direction is better.
        n: recordings whose difference is finite; means are of them.
        left_out: recordings of both without a value in one of them.
        infinite: recordings whose difference is infinite.
        first: mean of the first system; NaN where there is none.
        second: mean of the second.
        mean: of the differences.
        low: of the mean's interval, for which pairs are drawn together.
        high: of the mean's interval.
        median: of the differences.
        p: of Wilcoxon's signed-rank test, two-sided: the probability of a difference as large between two equally good
            systems; NaN where nothing can be compared. Differences of zero are left out of it (Wilcoxon, 1945).
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
    pools: tuple[Pool, Pool], counts: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
) -> tuple[CorpusDifference, ...]:
    """The differences of a metric that counts, by the counts ``(first, second)`` of each recording."""
    sums = [Sums(pool, len(counts)) for pool in pools]
    for place, pair in enumerate(counts):
        for each, count in zip(sums, pair, strict=True):
            each.add(place, count)
    first, second = (drawn(pool, each.groups) for pool, each in zip(pools, sums, strict=True))
    differences = []
    for column in first:
        if column in second:
            change = second[column] - first[column]
            values = float(first[column][0]), float(second[column][0]), float(change[0])
            differences.append(CorpusDifference(column, len(counts), *values, *interval(change[1:])))
    return tuple(differences)


def difference(column: Column, first: np.ndarray, second: np.ndarray) -> Difference:
    """The difference of a metric of two systems ``float64[recordings]``, NaN where there is no value."""
    both = ~(np.isnan(first) | np.isnan(second))
    first, second = first[both], second[both]
    with np.errstate(invalid="ignore"):
        change = np.where(first == second, 0.0, second - first)  # two equal infinities do not differ
    finite = np.isfinite(change) & np.isfinite(first)
    low, high = mean_interval(change[finite])
    higher, lower = int((change > 0).sum()), int((change < 0).sum())
    wins, losses = (lower, higher) if column.higher_is_better is False else (higher, lower)
    known = bool(finite.any())
    return Difference(
        column=column.name,
        unit=column.unit,
        higher_is_better=column.higher_is_better,
        n=int(finite.sum()),
        left_out=int((~both).sum()),
        infinite=int((~finite).sum()),
        first=float(first[finite].mean()) if known else math.nan,
        second=float(second[finite].mean()) if known else math.nan,
        mean=float(change[finite].mean()) if known else math.nan,
        low=low,
        high=high,
        median=float(np.median(change[finite])) if known else math.nan,
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
