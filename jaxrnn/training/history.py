"""What happened in a training, update by update: a list of dicts, and the same as two arrays for a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Record = dict[str, Any]


def as_arrays(records: Sequence[Record]) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Records as keys, ``float64[records, keys]`` and which of them are there, ``bool[records, keys]``."""
    keys = list(dict.fromkeys(key for record in records for key in record))
    present = np.array([[key in record for key in keys] for record in records], bool).reshape(len(records), len(keys))
    values = np.array([[record.get(key, 0.0) for key in keys] for record in records], np.float64)
    return keys, values.reshape(present.shape), present


def from_arrays(keys: Sequence[str], values: np.ndarray, present: np.ndarray) -> list[Record]:
    """The records that `as_arrays` was given."""
    return [
        {
            key: int(value) if key == "step" else float(value)
            for key, value, here in zip(keys, row, there, strict=True)
            if here
        }
        for row, there in zip(values, present, strict=True)
    ]


def curve(records: Sequence[Mapping[str, Any]], key: str) -> tuple[np.ndarray, np.ndarray]:
    """The steps at which a number was recorded, and the number."""
    points = [(record["step"], record[key]) for record in records if key in record]
    steps, values = zip(*points, strict=True) if points else ((), ())
    return np.asarray(steps), np.asarray(values, np.float64)


def smoothed(values: np.ndarray, window: int) -> np.ndarray:
    """The running mean over the last ``window`` values."""
    if not values.size:
        return values
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, values.size + 1)
    starts = np.maximum(0, ends - window)
    return (sums[ends] - sums[starts]) / (ends - starts)
