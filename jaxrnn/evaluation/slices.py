"""A corpus cut by a column: by its values where they are few, by quantiles where they are many numbers."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from jaxrnn.errors import InputError
from jaxrnn.messages import near

#: So many numbers that differ are slices of their own; of more, so many quantiles are.
FEW, QUANTILES = 8, 4

#: Slices of a column at most; what is in the smallest beyond is one more.
MOST = 50


def slice_by(values: Sequence[Any], *, few: int = FEW, quantiles: int = QUANTILES) -> dict[str, np.ndarray]:
    """The places of a column's values by slice, in the order of the values; those without one come last.

    Args:
        values: of each recording: numbers, text or truth values; None and NaN are no value.
        few: so many different numbers at most are slices of their own.
        quantiles: slices of more numbers, each with about as many recordings; it begins with its lower end.

    Returns:
        ``int64[recordings]`` by label.
    """
    absent = np.array([value is None or (isinstance(value, float) and math.isnan(value)) for value in values], bool)
    there = np.flatnonzero(~absent)
    known = [value for value, missing in zip(values, absent, strict=True) if not missing]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in known):
        array = np.array(known, np.float64)
        found = _by_value(array.tolist(), _number) if len(set(known)) <= few else _by_quantile(array, quantiles)
    else:
        found = _largest(_by_value(known, as_text))
    result = {label: there[places] for label, places in found.items()}
    if absent.any():
        label = "(none)"
        while label in result:
            label = f"({label})"
        result[label] = np.flatnonzero(absent)
    return result


def _number(value: float) -> str:
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def as_text(value: Any) -> str:
    """A value of a manifest as text; it is the same before and after it was in a file of JSON."""
    return json.dumps(value, default=str) if isinstance(value, bool | list | tuple | dict) else str(value)


def _by_value(values: Sequence[Any], label: Callable[[Any], str]) -> dict[str, np.ndarray]:
    places: dict[Any, list[int]] = {}
    for place, value in enumerate(values):
        places.setdefault(value if label is _number else label(value), []).append(place)
    return {
        key if isinstance(key, str) else label(key): np.array(found, np.int64) for key, found in sorted(places.items())
    }


def _by_quantile(values: np.ndarray, count: int) -> dict[str, np.ndarray]:
    edges = np.unique(np.quantile(values, np.linspace(0, 1, count + 1), method="lower"))
    inner = edges[1:-1] if len(edges) > 2 else edges[1:]
    which = np.searchsorted(inner, values, side="right")
    ends = [float(edges[0]), *map(float, inner), float(edges[-1])]
    # They are shown rounded as far as those that differ still do; 17 digits tell all apart.
    rounded = ([f"{end:.{digits}g}" for end in ends] for digits in range(3, 18))
    shown = next(labels for labels in rounded if len(set(labels)) == len(set(ends)))
    groups = [np.flatnonzero(which == part) for part in range(len(inner) + 1)]
    labels = [f"{low} to {high}" for low, high in itertools.pairwise(shown)]
    return {label: group for label, group in zip(labels, groups, strict=True) if len(group)}


def _largest(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    if len(found) <= MOST:
        return found
    kept = {label for label, _ in Counter({label: len(places) for label, places in found.items()}).most_common(MOST)}
    rest = [places for label, places in found.items() if label not in kept]
    shown = {label: places for label, places in found.items() if label in kept}
    return shown | {f"({len(rest)} others)": np.sort(np.concatenate(rest))}


def check_slices(slices: Iterable[str], columns: Iterable[str]) -> None:
    """See that every slice is by a column that there is.

    Raises:
        InputError: there is none; names the nearest.
    """
    known = list(dict.fromkeys(columns))
    for name in slices:
        if name not in known:
            listed = ", ".join(known) or "none"
            raise InputError(f"there is no column {name!r} to slice by{near(name, known)}; there are: {listed}")
