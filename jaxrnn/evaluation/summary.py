"""Statistics of a table of results: of the whole corpus and by slices, with confidence intervals."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from scipy import stats

from jaxrnn._files.messages import near
from jaxrnn.errors import InputError
from jaxrnn.evaluation.metrics import Pool
from jaxrnn.evaluation.metrics.protocol import UNPROCESSED
from jaxrnn.evaluation.parts import collected


def summary_of(
    scan: pl.LazyFrame,
    counted: pl.LazyFrame | None,
    measured: Sequence[str],
    pools: Mapping[str, Pool],
    slices: Sequence[str],
) -> dict[str, Any]:
    """Return the parts of a `Results` document that summarise the rows.

    ``counted`` are the ids of recordings and their counts, in any order.
    """
    has = {"failed": pl.col("error").is_not_null(), "noted": pl.col("notes").is_not_null()}
    about = collected(scan.select("id", pl.col("seconds").fill_null(0.0), **has))
    values, labels = collected(scan.select(measured)), collected(scan.select(set(slices)))
    parts = [(None, None, np.arange(about.height))]
    parts += [(name, label, places) for name in slices for label, places in slice_by(labels[name]).items()]
    places = [each for *_, each in parts]
    groups = {name: group_sums(pool, counted, about["id"], places) for name, pool in pools.items()}
    summaries = []
    for number, each in enumerate(places):
        seconds, failed, noted = about[each].drop("id").get_columns()
        summary: dict[str, Any] = {
            "recordings": {
                "all": len(each),
                "failed": int(failed.sum()),
                "noted": int(noted.sum()),
                "seconds": float(seconds.to_numpy().sum()),
            },
            "summary": _statistics(values[each]) if measured else {},
            "corpus": {name: {"values": pooled((pool, groups[name][number]))} for name, pool in pools.items()},
        }
        summaries.append(summary)
    whole, *sliced = summaries
    for name, pool in pools.items():
        whole["corpus"][name]["curve"] = {} if pool.curve is None else pool.curve(groups[name][0].sum(0))
    whole["slices"] = {
        name: [{"label": label, **part} for part, (of, label, _) in zip(sliced, parts[1:], strict=True) if of == name]
        for name in slices
    }
    return whole


def _statistics(values: pl.DataFrame) -> dict[str, dict[str, Any]]:
    """Return the statistics of each column, and of the improvement over the unprocessed recordings."""
    arrays = {column.name: column.to_numpy() for column in values}
    statistics = {name: summarise(array) for name, array in arrays.items()}
    for name in arrays:
        if (before := arrays.get(f"{UNPROCESSED}{name}")) is not None:
            statistics[name]["improvement"] = summarise(arrays[name] - before)
    return statistics


#: Up to `FEW` different numbers are slices; more numbers are cut into `QUANTILES` quantiles.
FEW, QUANTILES = 8, 4

#: The largest number of slices of a text column; remaining values share a slice.
MOST = 50


def slice_by(column: pl.Series) -> dict[str, np.ndarray]:
    """Return the row numbers of each slice of a column, ``int64[recordings]`` by label, in the order of values.

    Each value is a slice, but many different numbers are cut into quantiles, labelled by range. Rows with null or NaN
    are last.
    """
    numeric = column.dtype.is_numeric()
    values = column.cast(pl.Float64).fill_nan(None) if numeric else column.cast(pl.String)
    present, known = np.flatnonzero(values.is_not_null().to_numpy()), values.drop_nulls()
    if numeric and known.n_unique() > FEW:
        slices = {label: present[rows] for label, rows in _by_quantile(known.to_numpy()).items()}
    else:
        table = pl.DataFrame({"value": known, "row": present}).sort("value", maintain_order=True)
        parts = table.partition_by("value", as_dict=True, maintain_order=True)
        slices = {_label(value): part["row"].to_numpy() for (value,), part in parts.items()}
        if not numeric and len(slices) > MOST:
            kept = set(sorted(slices, key=lambda label: -len(slices[label]))[:MOST])
            rest = [slices.pop(label) for label in list(slices) if label not in kept]
            slices[_unused(f"({len(rest)} others)", slices)] = np.sort(np.concatenate(rest))
    if values.has_nulls():
        slices[_unused("(none)", slices)] = np.flatnonzero(values.is_null().to_numpy())
    return slices


def _unused(label: str, labels: Collection[str]) -> str:
    while label in labels:
        label = f"({label})"
    return label


def _label(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _by_quantile(values: np.ndarray) -> dict[str, np.ndarray]:
    edges = np.unique(np.quantile(values, np.linspace(0, 1, QUANTILES + 1), method="lower"))
    inner = edges[1:-1] if len(edges) > 2 else edges[1:]
    which = np.searchsorted(inner, values, side="right")
    ends = [float(edges[0]), *map(float, inner), float(edges[-1])]
    # Labels have the fewest digits that keep different ends different; 17 digits always suffice.
    rounded = ([f"{end:.{digits}g}" for end in ends] for digits in range(3, 18))
    shown = next(labels for labels in rounded if len(set(labels)) == len(set(ends)))
    groups = [np.flatnonzero(which == part) for part in range(len(inner) + 1)]
    labels = [f"{low} to {high}" for low, high in itertools.pairwise(shown)]
    return {label: group for label, group in zip(labels, groups, strict=True) if len(group)}


def check_slices(slices: Iterable[str], columns: Iterable[str]) -> None:
    """Check that results have these columns to group by."""
    known = list(dict.fromkeys(columns))
    for name in slices:
        if name not in known:
            listed = ", ".join(known) or "none"
            raise InputError(f"there is no column {name!r} to slice by{near(name, known)}; there are: {listed}")


#: The confidence of intervals, the number of draws, and the seed of the draws.
CONFIDENCE, DRAWS, SEED = 0.95, 1000, 0

#: Fewer recordings than `LEAST` have no interval; fewer than `SOME` have an interval of Student's t distribution.
LEAST, SOME = 4, 10

#: More values than this use the normal distribution for the interval of the mean.
MANY = 10_000

#: More than `ALONE` recordings are drawn in `GROUPS` groups of neighbours.
ALONE, GROUPS = 2_000, 1_000

#: Numbers in memory at once.
_AT_ONCE = 4_000_000

#: A function from indices of recordings ``int[..., n]`` to values over these recordings, ``float64[values, ...]``.
Statistic = Callable[[np.ndarray], np.ndarray]


def intervals(statistic: Statistic, count: int, size: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return values over ``count`` recordings, and the ends of their confidence intervals, each ``float64[values]``.

    From `SOME` recordings on, the ends are by bias-corrected and accelerated bootstrap (Efron, 1987). For fewer
    recordings, the ends are by Student's t distribution and the jackknife's standard error (Tukey, 1958), which for a
    mean is the textbook's. Below `LEAST` recordings, the ends are NaN. ``size`` is the memory of a statistic in numbers
    for each draw.
    """
    everyone = np.arange(count)
    values = statistic(everyone)
    nothing = np.full(values.shape, math.nan)
    if count < LEAST:
        return values, nothing, nothing
    if count < SOME:
        left_out = statistic(np.stack([np.delete(everyone, place) for place in range(count)]))
        half = stats.t.ppf((1 + CONFIDENCE) / 2, count - 1) * np.sqrt((count - 1) * left_out.var(-1))
        return values, values - half, values + half
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # values without spread, which follow below
        found = stats.bootstrap(
            (everyone,),
            lambda indices, axis: statistic(indices),
            n_resamples=DRAWS,
            batch=max(1, _AT_ONCE // max(size, count)),
            confidence_level=CONFIDENCE,
            method="BCa",
            vectorized=True,
            rng=np.random.default_rng(SEED),
        )
    low, high = (np.array(end) for end in found.confidence_interval)
    for place in np.flatnonzero(~np.isfinite(low) | ~np.isfinite(high)):
        # Equal draws have no acceleration, and undefined draws are left out.
        draws = found.bootstrap_distribution[place]
        known, rest = draws[np.isfinite(draws)], (1 - CONFIDENCE) / 2
        low[place], high[place] = np.quantile(known, [rest, 1 - rest]) if len(known) else (math.nan, math.nan)
    return values, low, high


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """Return the confidence interval of the mean of finite values ``float64[n]``, as `intervals` does.

    Many values use the normal distribution, the limit of intervals by resampling.
    """
    if len(values) > MANY:
        half = stats.norm.ppf((1 + CONFIDENCE) / 2) * values.std(ddof=1) / math.sqrt(len(values))
        return float(values.mean() - half), float(values.mean() + half)
    if not len(values):
        return math.nan, math.nan
    _, (low,), (high,) = intervals(lambda indices: values[indices].mean(-1)[None], len(values))
    return float(low), float(high)


def summarise(values: np.ndarray) -> dict[str, Any]:
    """Return statistics of a column ``float64[recordings]``, with NaN for missing values.

    All but ``missing`` and ``infinite`` are of the finite values, and NaN if these are too few.
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


def group_sums(
    pool: Pool, counted: pl.LazyFrame | None, ids: pl.Series, parts: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Return the counts of each part of a corpus, added up in groups for resampling: ``float64[groups, counts]``.

    Up to `ALONE` recordings are a group each. ``ids`` are sorted; ``parts`` are indices of ``ids``.
    """
    if counted is None or pool.key not in counted.collect_schema():
        return [np.zeros((0, pool.size))] * len(parts)
    counts = counted.drop_nulls(pool.key)
    is_counted = ids.is_in(collected(counts.select("id"))["id"].implode()).to_numpy()
    sums, members = [], []
    for number, part in enumerate(parts):
        chosen = part[is_counted[part]]
        count = len(chosen) if len(chosen) <= ALONE else GROUPS
        groups = np.arange(len(chosen)) * count // max(1, len(chosen))
        members.append(pl.DataFrame({"id": ids[chosen], "part": np.full(len(chosen), number), "group": groups}))
        sums.append(np.zeros((count, pool.size)))
    each = counts.select("id", pl.col(pool.key).struct.unnest()).join(pl.concat(members).lazy(), on="id")
    added = each.explode("at", "counts").drop_nulls("at").group_by("part", "group", "at").agg(pl.col("counts").sum())
    for (number,), found in collected(added, in_blocks=True).partition_by("part", as_dict=True).items():
        sums[number][found["group"], found["at"]] = found["counts"]
    return sums


def pooled(*systems: tuple[Pool, np.ndarray]) -> dict[str, dict[str, float]]:
    """Return values of a corpus by column, each with ``value``, ``low`` and ``high``.

    A system is a pool and counts in groups, ``float64[groups, counts]``. For two systems with the same groups, the
    values are differences, the second system minus the first, and both systems are drawn together.
    """
    count = len(systems[0][1])
    known = [pool.values(groups.sum(0)) for pool, groups in systems]
    columns = [column for column in known[0] if all(column in values for values in known)]

    def values(indices: np.ndarray) -> np.ndarray:
        draws = indices.reshape(math.prod(indices.shape[:-1]), indices.shape[-1])
        places = draws + count * np.arange(len(draws))[:, None]
        weights = np.bincount(places.ravel(), minlength=count * len(draws)).reshape(len(draws), count)
        # Sums of integers are exact in any order.
        found = [pool.values(weights.astype(np.float64) @ groups) for pool, groups in systems]
        stacked = [np.stack([each[column] for column in columns]).reshape(-1, *indices.shape[:-1]) for each in found]
        return stacked[0] if len(stacked) == 1 else stacked[1] - stacked[0]

    estimates = zip(*intervals(values, count, max(pool.size for pool, _ in systems)), strict=True)
    names = ("value", "low", "high")
    return {
        column: dict(zip(names, map(float, estimate), strict=True))
        for column, estimate in zip(columns, estimates, strict=True)
    }
