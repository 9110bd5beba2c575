"""Two systems on one corpus, recording by recording: how much better, how surely, and on which recordings."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from jaxrnn._files.locations import Location
from jaxrnn._files.messages import brief
from jaxrnn.errors import InputError
from jaxrnn.evaluation.differences import CorpusDifference, Difference, corpus_differences, difference
from jaxrnn.evaluation.results import Results, read_results
from jaxrnn.evaluation.slices import check_slices, slice_by

if TYPE_CHECKING:
    import polars

#: Seconds by which the lengths of one recording may differ, as they may be rounded.
_SECONDS = 1e-3

#: Recordings that a message names at most.
_NAMED = 3


@brief
@dataclass(frozen=True)
class PairedComparison:
    """Two results on one corpus.

    Attributes:
        names: of the first and the second.
        recordings: the number that are in both.
        only_first: ids that the second does not have; they are left out.
        only_second: ids that the first does not have; they are left out.
        only_columns: metrics that only one of them has.
        differences: of each metric that both have.
        slices: by column and slice, the same of the recordings in it.
        corpus: by metric that counts, the differences of the corpus as a whole.
    """

    names: tuple[str, str]
    recordings: int
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    only_columns: tuple[str, ...]
    differences: tuple[Difference, ...]
    slices: Mapping[str, Mapping[str, tuple[Difference, ...]]]
    corpus: Mapping[str, tuple[CorpusDifference, ...]]


def compare(
    first: Location | str | Results,
    second: Location | str | Results,
    *,
    slices: Sequence[str] = (),
    same_files: bool = True,
) -> PairedComparison:
    """Compare two systems on the recordings that both have, paired by id.

    Args:
        first: results, or their folder.
        second: the results to compare with them, or their folder.
        slices: columns to group the recordings by, as the second has them.
        same_files: whether paths of recordings and references must be equal. Otherwise only ids and lengths are
            compared, for a corpus that has moved.

    Raises:
        InputError: they are of different corpora, have no metric in common, or a folder holds no results.
    """
    results = [_results(first), _results(second)]
    names = results[0].name, results[1].name
    known = [{column.name: column for column in each.columns} for each in results]
    common = [column for name, column in known[1].items() if name in known[0]]
    needed = ["id", "path", "reference", "seconds", *(column.name for column in common)]
    sliced = [name for name in slices if name in results[1].scan.collect_schema()]
    left = results[0].scan.select(needed).collect()
    right = results[1].scan.select(list(dict.fromkeys([*needed, *sliced]))).collect()
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
    if not common:
        listed = " and ".join(", ".join(columns) or "none" for columns in known)
        raise InputError(f"{names[0]} and {names[1]} have no metric in common: {listed}")
    check_slices(slices, results[1].scan.collect_schema().names())

    def differences(places: np.ndarray) -> tuple[Difference, ...]:
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


def _results(results: Location | str | Results) -> Results:
    if isinstance(results, Results):
        return results
    return dataclasses.replace(read_results(results), name=str(results))


def _corpus(first: Results, second: Results) -> dict[str, tuple[CorpusDifference, ...]]:
    corpus = {}
    for metric in sorted(first.pools.keys() & second.pools.keys()):
        one, two = first.pools[metric], second.pools[metric]
        others = {row["id"]: row[one.key] for row in first.counted if row.get(one.key) is not None}
        rows = [row for row in second.counted if row["id"] in others and row.get(two.key) is not None]
        counts = [(others[row["id"]], row[two.key]) for row in sorted(rows, key=lambda row: row["id"])]
        if counts:
            corpus[metric] = corpus_differences((one, two), counts)
    return corpus


def _check_corpora(left: polars.DataFrame, right: polars.DataFrame, apart: str, same_files: bool) -> None:
    for key, what in (("path", "recording"), ("reference", "reference")) if same_files else ():
        files = [[path and os.path.normpath(path) for path in table[key]] for table in (left, right)]
        differing = [place for place, (one, other) in enumerate(zip(*files, strict=True)) if one != other]
        if differing:
            one = differing[0]
            raise InputError(
                f"{apart}: for {len(differing)} of {len(left)} ids the {what} is another file, as for "
                f"{left['id'][one]!r}: {left[key][one]} and {right[key][one]}. If they are the same, set same_files to "
                "false"
            )
    lengths = np.stack([table["seconds"].to_numpy() for table in (left, right)])
    for place in np.flatnonzero(np.abs(lengths[0] - lengths[1]) > _SECONDS):
        one, other = lengths[:, place]
        raise InputError(
            f"{apart}: {left['id'][int(place)]!r} has {one:g} seconds in the first, {other:g} in the second"
        )
