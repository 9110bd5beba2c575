"""A corpus cut by a column: by its values where they are few, by quantiles where they are many numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from jaxrnn._files.messages import near
from jaxrnn.errors import InputError
from jaxrnn.evaluation.tables import load_polars

if TYPE_CHECKING:
    import polars

#: As many different numbers are slices of their own; more are cut into as many quantiles.
FEW, QUANTILES = 8, 4

#: Slices of a column of text at most; the rest is one more.
MOST = 50


def slice_by(column: polars.Series) -> dict[str, np.ndarray]:
    """The rows of each slice of a column, in the order of values; those without a value come last.

    Args:
        column: a column of a table of results: numbers, text or truth values. Null and NaN are no value.

    Returns:
        ``int64[recordings]`` by label. A quantile's label is its range.
    """
    pl, numeric = load_polars(), column.dtype.is_numeric()
    known = column.cast(pl.Float64 if numeric else pl.String)
    absent = known.is_null() | known.is_nan() if numeric else known.is_null()
    present = np.flatnonzero(~absent.to_numpy())
    known = known.filter(~absent)
    kinds = known.unique().sort()
    if numeric and len(kinds) > FEW:
        groups = _by_quantile(known.to_numpy())
    else:
        names = list(map(_number, kinds)) if numeric else kinds.to_list()
        groups = _by_value(names, kinds.search_sorted(known).to_numpy())
        groups = groups if numeric else _largest(groups)
    slices = {label: present[rows] for label, rows in groups.items()}
    if absent.any():
        label = "(none)"
        while label in slices:
            label = f"({label})"
        slices[label] = np.flatnonzero(absent.to_numpy())
    return slices


def _number(value: float) -> str:
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _by_value(names: Sequence[str], which: np.ndarray) -> dict[str, np.ndarray]:
    counts = np.bincount(which, minlength=len(names))
    rows = np.split(np.argsort(which, kind="stable"), np.cumsum(counts)[:-1])
    return dict(zip(names, rows, strict=True)) if names else {}


def _by_quantile(values: np.ndarray) -> dict[str, np.ndarray]:
    edges = np.unique(np.quantile(values, np.linspace(0, 1, QUANTILES + 1), method="lower"))
    inner = edges[1:-1] if len(edges) > 2 else edges[1:]
    which = np.searchsorted(inner, values, side="right")
    ends = [float(edges[0]), *map(float, inner), float(edges[-1])]
    # They are rounded as far as different ends stay different; 17 digits tell all apart.
    rounded = ([f"{end:.{digits}g}" for end in ends] for digits in range(3, 18))
    shown = next(labels for labels in rounded if len(set(labels)) == len(set(ends)))
    groups = [np.flatnonzero(which == part) for part in range(len(inner) + 1)]
    labels = [f"{low} to {high}" for low, high in itertools.pairwise(shown)]
    return {label: group for label, group in zip(labels, groups, strict=True) if len(group)}


def _largest(groups: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    if len(groups) <= MOST:
        return groups
    kept = set(sorted(groups, key=lambda label: -len(groups[label]))[:MOST])
    rest = [rows for label, rows in groups.items() if label not in kept]
    shown = {label: rows for label, rows in groups.items() if label in kept}
    return shown | {f"({len(rest)} others)": np.sort(np.concatenate(rest))}


def check_slices(slices: Iterable[str], columns: Iterable[str]) -> None:
    """Check that results can be cut by these columns.

    Raises:
        InputError: there is no such column; the message names the nearest.
    """
    known = list(dict.fromkeys(columns))
    for name in slices:
        if name not in known:
            listed = ", ".join(known) or "none"
            raise InputError(f"there is no column {name!r} to slice by{near(name, known)}; there are: {listed}")
