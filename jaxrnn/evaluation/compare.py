"""Comparison of two systems on the same corpus, recording by recording."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from scipy import stats

from jaxrnn._files.messages import short_repr
from jaxrnn._files.stores import Location
from jaxrnn.errors import InputError
from jaxrnn.evaluation.metrics import Column
from jaxrnn.evaluation.parts import collected
from jaxrnn.evaluation.results import Results, read_results
from jaxrnn.evaluation.summary import check_slices, group_sums, pooled, slice_by, summarise

#: Rounding of lengths, in seconds.
_SECONDS = 1e-3

#: The largest number of recordings that a message names.
_NAMED = 3


@short_repr
@dataclass(frozen=True)
class PairedComparison:
    """A comparison of two systems on the same corpus.

    Attributes:
        names: the names of the first and the second system.
        recordings: the number of common recordings.
        only_first: ids that only the first system has, which are left out.
        only_second: ids that only the second system has, which are left out.
        only_columns: metrics that only one system has.
        differences: differences of each common metric.
        slices: by column and slice, differences over the recordings of the slice.
        corpus: by metric that counts, differences over the whole corpus.
    """

    names: tuple[str, str]
    recordings: int
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    only_columns: tuple[str, ...]
    differences: tuple[MetricDifference, ...]
    slices: Mapping[str, Mapping[str, tuple[MetricDifference, ...]]]
    corpus: Mapping[str, tuple[CorpusDifference, ...]]


def compare(
    first: Location | str | Results,
    second: Location | str | Results,
    *,
    slices: Sequence[str] = (),
    same_files: bool = True,
) -> PairedComparison:
    """Compare two systems on their common recordings, paired by id.

    Args:
        first: results, or a results folder.
        second: the results to compare with the first, or a results folder.
        slices: columns of the second results to group the recordings by.
        same_files: True to require equal paths of recordings and references; False to compare only ids and lengths, for
            a corpus that has moved.

    Raises:
        InputError: the corpora differ, the systems have no common metric, or a folder has no results.
    """
    results = [
        each if isinstance(each, Results) else dataclasses.replace(read_results(each), name=str(each))
        for each in (first, second)
    ]
    names = results[0].name, results[1].name
    known = [{column.name: column for column in each.columns} for each in results]
    common = [column for name, column in known[1].items() if name in known[0]]
    needed = ["id", "path", "reference", "seconds", *(column.name for column in common)]
    sliced = [name for name in slices if name in results[1].scan.collect_schema()]
    left = collected(results[0].scan.select(needed))
    right = collected(results[1].scan.select(list(dict.fromkeys([*needed, *sliced]))))
    for name, table in zip(names, (left, right), strict=True):
        twice = table.filter(table["id"].is_duplicated())["id"]
        if len(twice):
            raise InputError(f"{name}: two rows have the id {twice[0]!r}, so that recordings cannot be paired")
    pairs = (left, right), (right, left)
    only = [one.join(other, on="id", how="anti")["id"].sort() for one, other in pairs]
    both = [one.join(other, on="id", how="semi").sort("id") for one, other in pairs]
    if both[0].is_empty():
        some = [", ".join(ids[:_NAMED]) or "none" for ids in only]
        raise InputError(
            f"{names[0]} and {names[1]} are of different corpora: no id is in both. The first has {some[0]}, the "
            f"second {some[1]}"
        )
    _check_corpora(both[0], both[1], f"{names[0]} and {names[1]} are of different corpora", same_files)
    if not common and not results[0].pools.keys() & results[1].pools.keys():
        listed = " and ".join(", ".join(columns) or "none" for columns in known)
        raise InputError(f"{names[0]} and {names[1]} have no metric in common: {listed}")
    check_slices(slices, results[1].scan.collect_schema().names())

    def differences(places: np.ndarray) -> tuple[MetricDifference, ...]:
        parts = [table[places] for table in both]
        return tuple(difference(column, *(part[column.name].to_numpy() for part in parts)) for column in common)

    return PairedComparison(
        names=names,
        recordings=len(both[0]),
        only_first=tuple(only[0]),
        only_second=tuple(only[1]),
        only_columns=tuple(sorted(known[0].keys() ^ known[1].keys())),
        differences=differences(np.arange(len(both[0]))),
        slices={
            name: {label: differences(places) for label, places in slice_by(both[1][name]).items()} for name in slices
        },
        corpus=_corpus(*results),
    )


def _corpus(first: Results, second: Results) -> dict[str, tuple[CorpusDifference, ...]]:
    """Return the differences of each metric that counts, over the recordings that both systems have counted."""
    corpus, both = {}, (first, second)
    for metric in sorted(first.pools.keys() & second.pools.keys()):
        pools = first.pools[metric], second.pools[metric]
        counted = [
            collected(each.counted.drop_nulls(pool.key).select("id"))
            for each, pool in zip(both, pools, strict=True)
            if each.counted is not None and pool.key in each.counted.collect_schema()
        ]
        if len(counted) < 2 or (ids := counted[0].join(counted[1], on="id").sort("id")["id"]).is_empty():
            continue
        whole = [np.arange(len(ids))]
        systems = [
            (pool, group_sums(pool, results.counted, ids, whole)[0]) for pool, results in zip(pools, both, strict=True)
        ]
        before, after = (pool.values(groups.sum(0)) for pool, groups in systems)
        corpus[metric] = tuple(
            CorpusDifference(column, len(ids), float(before[column]), float(after[column]), *each.values())
            for column, each in pooled(*systems).items()
        )
    return corpus


def _check_corpora(left: pl.DataFrame, right: pl.DataFrame, apart: str, same_files: bool) -> None:
    for key, what in (("path", "recording"), ("reference", "reference")) if same_files else ():
        rows = zip(left["id"], left[key], right[key], strict=True)
        differing = [row for row in rows if len({path and os.path.normpath(path) for path in row[1:]}) > 1]
        for name, one, other in differing[:1]:
            raise InputError(
                f"{apart}: for {len(differing)} of {len(left)} ids the {what} is another file, as for {name!r}: {one} "
                f"and {other}. If they are the same, set same_files to false"
            )
    for name, one, other in zip(left["id"], left["seconds"], right["seconds"], strict=True):
        if None not in (one, other) and abs(one - other) > _SECONDS:
            raise InputError(f"{apart}: {name!r} has {one:g} seconds in the first, {other:g} in the second")


@dataclass(frozen=True)
class MetricDifference:
    """A metric of the second system minus that of the first system, over recordings with both values.

    Attributes:
        column: the column of the metric.
        unit: the unit.
        higher_is_better: None if neither direction is better.
        n: recordings with a finite difference; means are over these recordings.
        missing_first: recordings with a value only in the second system, which count in no other figure.
        missing_second: recordings with a value only in the first system.
        missing_both: recordings without a value in both systems.
        infinite: recordings with an infinite difference.
        first: the mean of the first system; NaN without a value.
        second: the mean of the second system.
        mean: the mean difference.
        low: the lower end of the interval of the mean; pairs are drawn together.
        high: the upper end of the interval.
        median: the median difference.
        p: the p-value of Wilcoxon's signed-rank test, two-sided, without differences of zero (Wilcoxon, 1945); NaN
            without pairs.
        wins: recordings with a better value in the second system; with a higher value if neither direction is better.
        ties: recordings with equal values.
        losses: recordings with a better value in the first system.
    """

    column: str
    unit: str
    higher_is_better: bool | None
    n: int
    missing_first: int
    missing_second: int
    missing_both: int
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
    """A value over the whole corpus for two systems, over the recordings that both have counted.

    Attributes:
        column: the column of the value.
        n: the number of recordings.
        first: the value of the first system; NaN if undefined.
        second: the value of the second system.
        difference: the second value minus the first.
        low: the lower end of the interval; recordings are drawn for both systems together.
        high: the upper end of the interval.
    """

    column: str
    n: int
    first: float
    second: float
    difference: float
    low: float
    high: float


def difference(column: Column, first: np.ndarray, second: np.ndarray) -> MetricDifference:
    """Return the difference of a metric ``float64[recordings]`` of two systems, with NaN for missing values."""
    missing = np.isnan(first), np.isnan(second)
    both = ~(missing[0] | missing[1])
    first, second = first[both], second[both]
    with np.errstate(invalid="ignore"):
        change = np.where(first == second, 0.0, second - first)  # two equal infinities do not differ
    unequal = change[change != 0]
    test: Any = stats.wilcoxon(unequal, alternative="two-sided") if len(unequal) else None
    finite = np.isfinite(change) & np.isfinite(first)
    over = summarise(np.where(finite, change, math.inf))
    higher, lower = int((change > 0).sum()), int((change < 0).sum())
    wins, losses = (lower, higher) if column.higher_is_better is False else (higher, lower)
    known = bool(finite.any())
    return MetricDifference(
        column=column.name,
        unit=column.unit,
        higher_is_better=column.higher_is_better,
        missing_first=int((missing[0] & ~missing[1]).sum()),
        missing_second=int((missing[1] & ~missing[0]).sum()),
        missing_both=int((missing[0] & missing[1]).sum()),
        first=float(first[finite].mean()) if known else math.nan,
        second=float(second[finite].mean()) if known else math.nan,
        **{key: over[key] for key in ("n", "infinite", "mean", "low", "high", "median")},
        p=float(test.pvalue) if len(unequal) else 1.0 if len(change) else math.nan,
        wins=wins,
        ties=len(change) - wins - losses,
        losses=losses,
    )
