"""What many recordings say together: means, and how far they can be trusted, by resampling the recordings."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from jaxrnn.errors import InputError
from jaxrnn.evaluation.metrics.protocol import Counts, Pool

#: How sure intervals are, draws that they are made of, and what the draws begin with.
CONFIDENCE, DRAWS, SEED = 0.95, 1000, 0

#: Numbers that are drawn at once, so that memory is bounded.
_AT_ONCE = 2_000_000

#: The kinds of interval, as `scipy.stats.bootstrap` calls them.
INTERVALS = {"percentile": "percentile", "bca": "BCa"}


@dataclass(frozen=True)
class Resampling:
    """How intervals are made: the recordings are drawn with replacement, again and again (Efron, 1979).

    Attributes:
        confidence: how often such an interval holds the true value.
        draws: how many times.
        seed: of the draws; the same gives the same intervals.
        kind: ``"percentile"``, or ``"bca"``, which corrects for skew (Efron, 1987) and takes time with the square of
            the number of recordings.
    """

    confidence: float = CONFIDENCE
    draws: int = DRAWS
    seed: int = SEED
    kind: str = "percentile"

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1 or self.draws < 1 or self.kind not in INTERVALS:
            raise InputError(
                f"expected a confidence between 0 and 1, at least 1 draw and a kind of {', '.join(INTERVALS)}, not "
                f"{self.confidence}, {self.draws} and {self.kind!r}"
            )

    def of_mean(self, values: np.ndarray) -> tuple[float, float]:
        """The interval of the mean of finite values ``float64[n]``; NaN for less than two."""
        if len(values) < 2:
            return math.nan, math.nan
        if np.all(values == values[0]):
            return float(values[0]), float(values[0])
        found = stats.bootstrap(
            (values,),
            np.mean,
            n_resamples=self.draws,
            batch=max(1, _AT_ONCE // len(values)),
            confidence_level=self.confidence,
            method=INTERVALS[self.kind],
            rng=np.random.default_rng(self.seed),
        ).confidence_interval
        return float(found.low), float(found.high)

    def weights_and_whole(self, count: int) -> np.ndarray:
        """How often each of so many recordings is in each draw, ``int32[1 + draws, count]``; the first is all of them.

        There are no draws of less than two.
        """
        generator = np.random.default_rng(self.seed)
        drawn = [
            np.bincount(generator.integers(count, size=count), minlength=count).astype(np.int32)
            for _ in range(self.draws if count > 1 else 0)
        ]
        return np.stack([np.ones(count, np.int32), *drawn])

    def of_draws(self, draws: np.ndarray) -> tuple[float, float]:
        """The interval of what was found in each draw, those apart in which nothing was; NaN if that was in none."""
        known = draws[np.isfinite(draws)]
        if not len(known):
            return math.nan, math.nan
        rest = (1 - self.confidence) / 2
        low, high = np.quantile(known, [rest, 1 - rest])
        return float(low), float(high)


@dataclass(frozen=True)
class Summary:
    """A column over recordings.

    Attributes:
        n: recordings with a finite value; all below is of them.
        missing: recordings without a value.
        infinite: recordings with an infinite one.
        mean: of the values; NaN where there is none.
        low: of the mean's interval; NaN for less than two values.
        high: of the mean's interval.
        median: of the values.
        deviation: their standard deviation, with n - 1; NaN for less than two.
        minimum: of the values.
        maximum: of the values.
    """

    n: int
    missing: int
    infinite: int
    mean: float
    low: float
    high: float
    median: float
    deviation: float
    minimum: float
    maximum: float

    def as_dict(self) -> dict[str, Any]:
        """The same by name."""
        return dataclasses.asdict(self)


def numbers(values: Sequence[Any] | np.ndarray) -> np.ndarray:
    """A column as ``float64``, NaN where there is no number."""
    return np.array([math.nan if value is None else float(value) for value in values], np.float64)


def summarise(values: Sequence[Any] | np.ndarray, resampling: Resampling | None = None) -> Summary:
    """A column over recordings; None and NaN are missing.

    Args:
        values: of each recording.
        resampling: how the interval is made.
    """
    found = numbers(values)
    finite = found[np.isfinite(found)]
    low, high = (resampling or Resampling()).of_mean(finite)
    nothing = math.nan
    return Summary(
        n=len(finite),
        missing=int(np.isnan(found).sum()),
        infinite=int(np.isinf(found).sum()),
        mean=float(finite.mean()) if len(finite) else nothing,
        low=low,
        high=high,
        median=float(np.median(finite)) if len(finite) else nothing,
        deviation=float(finite.std(ddof=1)) if len(finite) > 1 else nothing,
        minimum=float(finite.min()) if len(finite) else nothing,
        maximum=float(finite.max()) if len(finite) else nothing,
    )


@dataclass(frozen=True)
class Estimate:
    """A value of the corpus as a whole.

    Attributes:
        value: NaN where it is not defined.
        low: of its interval.
        high: of its interval.
    """

    value: float
    low: float
    high: float


def pooled(pool: Pool, counts: Sequence[Counts], resampling: Resampling | None = None) -> dict[str, Estimate]:
    """Values by column of the counts of all recordings together; for intervals, whole recordings are drawn.

    The intervals are percentiles, whatever the resampling's kind.
    """
    how = resampling or Resampling()
    found = pool.values(counts, how.weights_and_whole(len(counts)))
    return {column: Estimate(float(values[0]), *how.of_draws(values[1:])) for column, values in found.items()}
