"""A corpus cut by a column: by its values where they are few, by quantiles where they are many numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrnn.errors import InputError
from jaxrnn.messages import near

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
    numeric = column.dtype.is_numeric()
    values = column.to_list() if numeric else [None if each is None else _text(each) for each in column]
    absent = np.array([value is None or value != value for value in values], bool)
    present = np.flatnonzero(~absent)
    known = [values[row] for row in present]
    if not numeric:
        groups = _largest(_by_value(np.array(known, object)))
    elif len(set(known)) <= FEW:
        groups = {_number(value): rows for value, rows in _by_value(np.array(known, np.float64)).items()}
    else:
        groups = _by_quantile(np.array(known, np.float64))
    slices = {label: present[rows] for label, rows in groups.items()}
    if absent.any():
        label = "(none)"
        while label in slices:
            label = f"({label})"
        slices[label] = np.flatnonzero(absent)
    return slices


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else value


def _number(value: float) -> str:
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _by_value(values: np.ndarray) -> dict[Any, np.ndarray]:
    kinds, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    rows = np.split(np.argsort(which, kind="stable"), np.cumsum(counts)[:-1])
    return dict(zip(kinds.tolist(), rows, strict=True)) if len(values) else {}


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
