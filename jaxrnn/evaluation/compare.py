"""Two systems on one corpus, recording by recording: how much better, how surely, and on which recordings."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from jaxrnn.errors import InputError
from jaxrnn.evaluation.differences import CorpusDifference, Difference, corpus_differences, difference, less
from jaxrnn.evaluation.journal import Row
from jaxrnn.evaluation.metrics.protocol import Column, Metric
from jaxrnn.evaluation.slices import check_slices, slice_by
from jaxrnn.evaluation.statistics import Resampling, numbers
from jaxrnn.evaluation.tables import metric_columns, plain, read_results

#: Seconds by which the lengths of one recording may differ: what is told of it may be rounded.
_SECONDS = 1e-3

#: Recordings that a message names at most.
_NAMED = 3


@dataclass(frozen=True)
class PairedComparison:
    """Two results on one corpus.

    Attributes:
        names: of the first and the second.
        recordings: how many are in both.
        only_first: ids that the second does not have; they are left out.
        only_second: ids that the first does not have; they are left out.
        only_columns: metrics that only one of them has.
        differences: of each metric that both have.
        slices: by column and slice, the same of the recordings in it.
        pairs: by metric, the differences themselves ``float64[recordings]``, NaN where there is none, in the order of
            ``ids``.
        ids: of the recordings that are in both.
        corpus: by metric that counts, the differences of the corpus as a whole.
    """

    names: tuple[str, str]
    recordings: int
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    only_columns: tuple[str, ...]
    differences: tuple[Difference, ...]
    slices: Mapping[str, Mapping[str, tuple[Difference, ...]]]
    pairs: Mapping[str, np.ndarray] = field(repr=False, compare=False)
    ids: tuple[str, ...] = field(repr=False)
    corpus: Mapping[str, tuple[CorpusDifference, ...]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """All but the pairs, as JSON has it: what is not finite is None."""
        differences = [dataclasses.asdict(entry) for entry in self.differences]
        slices = {
            name: [
                {"label": label, "differences": [dataclasses.asdict(entry) for entry in found]}
                for label, found in cut.items()
            ]
            for name, cut in self.slices.items()
        }
        shown = {
            key: getattr(self, key) for key in ("names", "recordings", "only_first", "only_second", "only_columns")
        }
        corpus = {name: [dataclasses.asdict(entry) for entry in found] for name, found in self.corpus.items()}
        return plain(shown | {"differences": differences, "slices": slices, "corpus": corpus})


def compare(
    first: Path | Sequence[Row],
    second: Path | Sequence[Row],
    *,
    metrics: Sequence[Metric | Column] | None = None,
    slices: Sequence[str] = (),
    names: tuple[str, str] | None = None,
    resampling: Resampling | None = None,
    ties: float = 0.0,
    same_files: bool = True,
) -> PairedComparison:
    """Compare two systems on the recordings that both have, paired by id.

    Args:
        first: a folder of results, or its rows.
        second: another.
        metrics: what is compared; by default every metric of both folders. Rows alone do not say which columns are
            metrics.
        slices: columns by which the recordings are told apart, as the second has them.
        names: of both; by default those of the folders.
        resampling: how intervals are made.
        ties: differences of at most so much are ties.
        same_files: whether paths of recordings and references must be the same; otherwise only ids and lengths are
            looked at, for a corpus that lies elsewhere now.

    Raises:
        InputError: they are of different corpora, have no metric in common, or a folder holds no results.
    """
    if not ties >= 0:
        raise InputError(f"ties must be at least 0, not {ties}")
    how = resampling or Resampling()
    (old, old_columns, old_counting), (new, new_columns, new_counting) = (
        _opened(results, metrics) for results in (first, second)
    )
    if names is None:
        names = (_name(first, "first"), _name(second, "second"))
    left, right = _by_id(old, names[0]), _by_id(new, names[1])
    ids = sorted(left.keys() & right.keys())
    _check_corpora(left, right, ids, names, same_files)
    common = [column for column in new_columns if column.name in {other.name for other in old_columns}]
    if not common:
        listed = " and ".join(
            ", ".join(column.name for column in columns) or "none" for columns in (old_columns, new_columns)
        )
        raise InputError(f"{names[0]} and {names[1]} have no metric in common: {listed}")
    check_slices(slices, [key for row in new for key in row])
    values = {
        column.name: (
            numbers([left[name].get(column.name) for name in ids]),
            numbers([right[name].get(column.name) for name in ids]),
        )
        for column in common
    }

    def differences(places: np.ndarray) -> tuple[Difference, ...]:
        return tuple(
            difference(column, first[places], second[places], ties, how)
            for column, (first, second) in ((column, values[column.name]) for column in common)
        )

    cut = {
        name: {
            label: differences(places)
            for label, places in slice_by([right[identity].get(name) for identity in ids]).items()
        }
        for name in slices
    }
    known = [{column.name for column in columns} for columns in (old_columns, new_columns)]
    return PairedComparison(
        names=names,
        recordings=len(ids),
        only_first=tuple(sorted(left.keys() - right.keys())),
        only_second=tuple(sorted(right.keys() - left.keys())),
        only_columns=tuple(sorted(known[0] ^ known[1])),
        differences=differences(np.arange(len(ids))),
        slices=cut,
        pairs={name: less(*sides) for name, sides in values.items()},
        ids=tuple(ids),
        corpus=_of_corpus(old_counting, new_counting, [(left[name], right[name]) for name in ids], how),
    )


def _of_corpus(
    old: Mapping[str, Metric], new: Mapping[str, Metric], pairs: Sequence[tuple[Row, Row]], how: Resampling
) -> dict[str, tuple[CorpusDifference, ...]]:
    found = {}
    for name in new.keys() & old.keys():
        pools, key = (old[name].pool, new[name].pool), new[name].counts
        assert pools[0] is not None
        assert pools[1] is not None
        assert key is not None
        counts = [(one[key], other[key]) for one, other in pairs if one.get(key) and other.get(key)]
        if counts:
            found[name] = corpus_differences((pools[0], pools[1]), counts, how)
    return dict(sorted(found.items()))


def _opened(
    results: Path | Sequence[Row], metrics: Sequence[Metric | Column] | None
) -> tuple[Sequence[Row], Sequence[Column], Mapping[str, Metric]]:
    if isinstance(results, str | os.PathLike):
        rows, columns, counting = read_results(Path(results))
    else:
        rows, columns, counting = results, None, ()
    if metrics is not None:
        columns = [
            column
            for metric in metrics
            for column in ([metric] if isinstance(metric, Column) else metric_columns(rows, [metric]))
        ]
        columns = [column for column in columns if any(column.name in row for row in rows)]
        counting = [metric for metric in metrics if isinstance(metric, Metric)]
    if columns is None:
        raise InputError("rows do not say which of their columns are metrics: give metrics, or folders of results")
    return rows, columns, {metric.name: metric for metric in counting if metric.pool is not None}


def _name(results: Path | Sequence[Row], otherwise: str) -> str:
    return str(results) if isinstance(results, str | os.PathLike) else otherwise


def _by_id(rows: Sequence[Row], name: str) -> dict[str, Row]:
    found = {row["id"]: row for row in rows}
    if len(found) < len(rows):
        ids = [row["id"] for row in rows]
        twice = next(identity for identity in ids if ids.count(identity) > 1)
        raise InputError(f"{name}: two rows have the id {twice!r}, so that recordings cannot be paired")
    return found


def _check_corpora(
    left: Mapping[str, Row], right: Mapping[str, Row], ids: Sequence[str], names: tuple[str, str], same_files: bool
) -> None:
    apart = f"{names[0]} and {names[1]} are of different corpora"
    if not ids:
        some = [", ".join(sorted(rows)[:_NAMED]) or "none" for rows in (left, right)]
        raise InputError(f"{apart}: no id is in both. The first has {some[0]}, the second {some[1]}")
    for key, what in (("path", "recording"), ("reference", "reference")) if same_files else ():
        differing = [name for name in ids if _file(left[name].get(key)) != _file(right[name].get(key))]
        if differing:
            one = differing[0]
            raise InputError(
                f"{apart}: for {len(differing)} of {len(ids)} ids the {what} is another file, as for {one!r}: "
                f"{left[one].get(key)} and {right[one].get(key)}. If they are the same, set same_files to false"
            )
    for name in ids:
        one, other = left[name].get("seconds"), right[name].get("seconds")
        if one is not None and other is not None and abs(one - other) > _SECONDS:
            raise InputError(f"{apart}: {name!r} has {one:g} seconds in the first, {other:g} in the second")


def _file(path: Any) -> str | None:
    return None if path is None else os.path.normpath(str(path))
