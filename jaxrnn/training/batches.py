"""Batches: examples padded to one length, cut into chunks, and placed on the devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from contextlib import closing
from fractions import Fraction

import jax
import numpy as np

from jaxrnn.errors import InputError
from jaxrnn.training.examples import Example, ExampleSource
from jaxrnn.training.layout import ExampleLayout
from jaxrnn.training.order import Order, made_ahead
from jaxrnn.training.sharding import Placement

#: Frames that buckets and chunks may add to the examples of a batch.
MAX_PADDING = 2**26


@dataclasses.dataclass(frozen=True)
class BatchChunk:
    """Frames of a batch, or all of them: what one update takes.

    Attributes:
        arrays: by name, ``[rows, ...]``, on the devices.
        mask: ``bool[rows, frames]``, which frames exist.
        weights: ``bool[rows]``, which rows are examples with a frame here.
        ragged: whether a frame of some row does not exist.
        own: the same arrays, mask and weights of this process's rows, in host memory.
    """

    arrays: dict[str, jax.Array]
    mask: jax.Array
    weights: jax.Array
    ragged: bool
    own: tuple[Example, np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Batch:
    """A batch by its number in the order, in chunks, with what its rows are called."""

    number: int
    chunks: list[BatchChunk]
    labels: list[str]


@dataclasses.dataclass(frozen=True)
class _Rows:
    """This process's rows of a batch, not yet padded; those that are not ``real`` only fill up the devices."""

    batch: int
    examples: list[Example]
    labels: list[str]
    real: list[bool]


class Batches:
    """Makes batches of what a source gives.

    Args:
        source: the examples.
        layout: how they lie in time.
        placement: the devices.
    """

    def __init__(self, source: ExampleSource, layout: ExampleLayout, placement: Placement):
        self._source, self._layout, self._placement = source, layout, placement

    def make(self, order: Order, start: int = 0) -> Generator[Batch]:
        """The batches of an order, from the batch of a number on.

        Another thread fetches the examples of the next batch while one is in use, always in the same order.
        """
        with closing(made_ahead(order, start, self._load)) as results:
            for rows in results:
                # Here, not in the thread: every process must take part in collective calls in one order.
                if isinstance(rows, BaseException):
                    self._placement.agree([0] * (2 + 3 * len(self._layout.axes)), rows)
                    raise rows
                yield self._finish(rows, self._placement.agree(self._sizes(rows)))

    def _load(self, batch: int, numbers: tuple[int, ...]) -> _Rows:
        real = [row < len(numbers) for row in self._placement.own_rows]
        rows = [numbers[row if exists else 0] for row, exists in zip(self._placement.own_rows, real, strict=True)]
        read = {number: self._read(number) for number in dict.fromkeys(rows)}
        return _Rows(batch, [read[number][1] for number in rows], [read[number][0] for number in rows], real)

    def _read(self, number: int) -> tuple[str, Example]:
        label, value = self._source.get(number)
        return label, self._layout.read(label, value)

    def _sizes(self, rows: _Rows) -> list[int]:
        """What every process must know to pad alike: fewest and most frames; lengths and rates of the arrays."""
        frames = [self._layout.frames(example) for example in rows.examples]
        sizes = [min(frames), max(frames)]
        for name, axis in self._layout.axes.items():
            lengths = [example[name].shape[axis] for example in rows.examples]
            rates = {Fraction(length, count) for length, count in zip(lengths, frames, strict=True)}
            rate = next(iter(rates)) if len(rates) == 1 else Fraction(0)
            sizes += [max(lengths), rate.numerator, rate.denominator]
        return sizes

    def _finish(self, rows: _Rows, table: np.ndarray) -> Batch:
        layout, bucket, chunk = self._layout, self._layout.sequences.bucket, self._layout.sequences.chunk
        fewest, most = int(table[:, 0].min()), int(table[:, 1].max())
        frames = -(-most // bucket) * bucket
        chunk = chunk or frames
        frames = -(-frames // chunk) * chunk
        if (frames - most) * len(rows.examples) > MAX_PADDING:
            raise InputError(
                f"bucket={bucket:,} and chunk={chunk:,} pad the {most:,} frames of the longest of "
                f"{len(rows.examples):,} examples to {frames:,}; no more than {MAX_PADDING:,} frames of padding in a "
                "batch are allowed: give smaller ones"
            )
        lengths = np.array([layout.frames(example) for example in rows.examples])
        mask = np.arange(frames) < lengths[:, None]
        arrays = {
            name: np.stack([example[name] for example in rows.examples])
            for name in layout.example
            if name not in layout.axes
        }
        for index, (name, axis) in enumerate(layout.axes.items()):
            longest, numerators, denominators = table[:, 2 + 3 * index : 5 + 3 * index].T
            rates = {Fraction(int(n), int(d)) for n, d in zip(numerators, denominators, strict=True)}
            rate = next(iter(rates)) if len(rates) == 1 else Fraction(0)
            # An array whose length has nothing to do with the frames (a label sequence) goes by its own longest.
            length = -(-rate * frames // 1) if rate else int(longest.max())
            unit = max(1, int(rate))
            arrays[name] = np.stack([_lengthened(example[name], axis, int(length), unit) for example in rows.examples])
        real = np.array(rows.real)
        chunks = []
        for start in range(0, frames, chunk):
            here = mask[:, start : start + chunk]
            cut = {name: self._slice(name, array, start, chunk, frames) for name, array in arrays.items()}
            own = cut, here, real & here.any(1)
            placed, where, weights = self._placement.spread(own)
            chunks.append(BatchChunk(placed, where, weights, start + chunk > fewest, own))
        return Batch(rows.batch, chunks, rows.labels)

    def _slice(self, name: str, array: np.ndarray, start: int, chunk: int, frames: int) -> np.ndarray:
        axis = self._layout.axes.get(name)
        if axis is None or chunk == frames:
            return array
        rate = Fraction(array.shape[axis + 1], frames)
        window = [slice(None)] * array.ndim
        window[axis + 1] = slice(int(start * rate), int((start + chunk) * rate))
        return np.ascontiguousarray(array[tuple(window)])


def _lengthened(array: np.ndarray, axis: int, length: int, unit: int) -> np.ndarray:
    """An array padded at its end with copies of its last frame of ``unit`` elements, or with zeros if it has integers.

    Padding counts nowhere, but goes through the model and the loss. A copy of a frame is finite in both, with its
    gradient, as the frame is; the logarithm of 0 is not.
    """
    missing = length - array.shape[axis]
    if not missing:
        return array
    if array.dtype.kind in "iub" or array.shape[axis] < unit:
        widths = [(0, missing if place == axis else 0) for place in range(array.ndim)]
        return np.pad(array, widths)
    last = array.shape[axis] - unit
    return np.concatenate([array, array.take(last + np.arange(missing) % unit, axis)], axis)
