"""Batches: the order of examples by Grain, padding to a common length, chunks, and placement on the devices."""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import jax
import numpy as np

from jaxrnn._files.progress import progress_bar
from jaxrnn.errors import InputError, optional_package
from jaxrnn.training.examples import Example, ExampleSource
from jaxrnn.training.layout import ExampleLayout
from jaxrnn.training.sharding import Placement

if TYPE_CHECKING:
    import grain

#: The longest example of a class of lengths over the shortest.
RATIO = 1.1
#: The most frames that buckets and chunks may add to a batch.
MAX_PADDING = 2**26


@dataclasses.dataclass(frozen=True)
class BatchChunk:
    """The input of an update: all frames of a batch, or a chunk of frames."""

    arrays: dict[str, jax.Array]  # [rows, ...], on the devices
    mask: jax.Array  # bool[rows, frames]: frames that exist
    weights: jax.Array  # bool[rows]: examples with a frame in this chunk
    ragged: bool  # some frames do not exist
    own: tuple[Example, np.ndarray, np.ndarray]  # arrays, mask and weights of this process, in host memory
    own_lengths: dict[str, list[int]]  # lengths of arrays of this process without one frame rate, such as labels


@dataclasses.dataclass(frozen=True)
class Batch:
    """A batch: the number in the order, the chunks, and the labels of the rows."""

    number: int
    chunks: list[BatchChunk]
    labels: list[str]


@dataclasses.dataclass(frozen=True)
class _Rows:
    batch: int
    examples: list[Example]
    labels: list[str]
    real: list[bool]


class Batches:
    """Batches of the examples of a source."""

    def __init__(self, source: ExampleSource, layout: ExampleLayout, placement: Placement):
        self._source, self._layout, self._placement = source, layout, placement

    def make(self, order: Order, start: int = 0) -> Generator[Batch]:
        """Yield the batches of an order from number ``start`` on. A background thread prepares the next batch."""
        with closing(made_ahead(order, start, self._load)) as results:
            for rows in results:
                # Not in the thread: collective calls need the same order in all processes.
                if isinstance(rows, BaseException):
                    self._placement.agree([0] * (2 + 3 * len(self._layout.axes)), rows)
                    raise rows
                yield self._finish(rows, self._placement.agree(self._sizes(rows)))

    def _load(self, batch: int, numbers: tuple[int, ...]) -> _Rows:
        count = self._placement.batch_size if self._layout.sequences.batch_frames is None else len(numbers)
        own = self._placement.own_rows(count)
        real = [row < len(numbers) for row in own]
        rows = [numbers[row if exists else 0] for row, exists in zip(own, real, strict=True)]
        read = {}
        for number in dict.fromkeys(rows):
            label, value = self._source.get(number)
            read[number] = label, self._layout.read(label, value)
        return _Rows(batch, [read[number][1] for number in rows], [read[number][0] for number in rows], real)

    def _sizes(self, rows: _Rows) -> list[int]:
        """Return the sizes that processes need for equal padding: fewest and most frames; lengths and rates."""
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
        # A bucket of several chunks would end with chunks, and thus updates, without a frame.
        unit = chunk or bucket
        frames = -(-most // unit) * unit
        chunk = chunk or frames
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
        inputs, lengths_without_rate = {info.name for info in layout.inputs}, {}
        for index, (name, axis) in enumerate(layout.axes.items()):
            longest, numerators, denominators = table[:, 2 + 3 * index : 5 + 3 * index].T
            rates = {Fraction(int(n), int(d)) for n, d in zip(numerators, denominators, strict=True)}
            rate = next(iter(rates)) if len(rates) == 1 else Fraction(0)
            # The length of an array without a frame rate (a label sequence) is the longest of the batch.
            length = -(-rate * frames // 1) if rate else int(longest.max())
            unit = max(1, int(rate))
            # Zero is a label like any other, and a negative number is none.
            fill = 0 if name in inputs else -1
            arrays[name] = np.stack(
                [_lengthened(example[name], axis, int(length), unit, fill) for example in rows.examples]
            )
            if not rate:
                lengths_without_rate[name] = [example[name].shape[axis] for example in rows.examples]
        real = np.array(rows.real)
        chunks = []
        for start in range(0, frames, chunk):
            here = mask[:, start : start + chunk]
            cut = {name: self._slice(name, array, start, chunk, frames) for name, array in arrays.items()}
            own = cut, here, real & here.any(1)
            placed, where, weights = self._placement.spread(own)
            chunks.append(BatchChunk(placed, where, weights, start + chunk > fewest, own, lengths_without_rate))
        return Batch(rows.batch, chunks, rows.labels)

    def _slice(self, name: str, array: np.ndarray, start: int, chunk: int, frames: int) -> np.ndarray:
        axis = self._layout.axes.get(name)
        if axis is None or chunk == frames:
            return array
        rate = Fraction(array.shape[axis + 1], frames)
        window = [slice(None)] * array.ndim
        window[axis + 1] = slice(int(start * rate), int((start + chunk) * rate))
        return np.ascontiguousarray(array[tuple(window)])


def _lengthened(array: np.ndarray, axis: int, length: int, unit: int, fill: int) -> np.ndarray:
    """Pad whole numbers with ``fill`` (the highest number for an unsigned -1), and floats with their last frame."""
    missing = length - array.shape[axis]
    if not missing:
        return array
    if array.dtype.kind in "iub" or array.shape[axis] < unit:
        widths = [(0, missing if place == axis else 0) for place in range(array.ndim)]
        value = np.asarray(fill if array.dtype.kind in "iu" else 0).astype(array.dtype)
        return np.pad(array, widths, constant_values=value)
    last = array.shape[axis] - unit
    return np.concatenate([array, array.take(last + np.arange(missing) % unit, axis)], axis)


T = TypeVar("T")
#: The numbers of the examples in each batch.
Order: TypeAlias = "grain.MapDataset[tuple[int, ...]]"


@dataclasses.dataclass(frozen=True)
class Position:
    """The place of the next update in the order: a batch and a chunk."""

    batch: int = 0
    chunk: int = 0

    def after(self, chunks: int) -> Position:
        """Return the position after an update, for a batch with this number of chunks."""
        return Position(self.batch, self.chunk + 1) if self.chunk + 1 < chunks else Position(self.batch + 1)


def sequence_order(size: int, batch_size: int, *, seed: int | None = None, epochs: int | None = 1) -> Order:
    """Return the order of a sequence of examples, shuffled with a seed; the last batch of an epoch may be smaller.

    ``epochs`` None repeats the order without end.
    """
    numbers = _grain().MapDataset.range(size)
    if seed is not None:
        numbers = numbers.seed(seed).shuffle()
    return numbers.batch(batch_size, batch_fn=tuple).repeat(epochs)


def drawn_order(batch_size: int, batches: int) -> Order:
    """Return the order of drawn examples."""
    return _grain().MapDataset.range(batches * batch_size).batch(batch_size, batch_fn=tuple)


def example_order(
    source: ExampleSource, layout: ExampleLayout, placement: Placement, *, seed: int | None = None, epochs: int | None
) -> Order:
    """Return the order of a sequence of examples, in batches by number, or by frames if the layout says so."""
    assert source.size is not None, "a sequence has a size"
    most, sequences = placement.batch_size, layout.sequences
    if sequences.batch_frames is None:
        return sequence_order(source.size, most, seed=seed, epochs=epochs)
    lengths = []
    with progress_bar("measuring examples", source.size) as show:
        for number in range(source.size):
            lengths.append(_frames(source, layout, number))
            show(number + 1)
    longest = int(np.argmax(lengths))
    if -(-lengths[longest] // sequences.bucket) * sequences.bucket > sequences.batch_frames:
        raise InputError(
            f"batch_frames={sequences.batch_frames:,} is less than the {lengths[longest]:,} frames of "
            f"{source.label(longest)}, in multiples of bucket={sequences.bucket:,}"
        )
    batches = _ByFrames(np.array(lengths), sequences.batch_frames, sequences.bucket, most, placement.devices, seed)
    return _grain().MapDataset.range(len(batches)).repeat(epochs).map_with_index(lambda index, _: batches[index])


def _frames(source: ExampleSource, layout: ExampleLayout, number: int) -> int:
    if source.outline is not None:
        with suppress(KeyError, IndexError):  # of an example that does not fit, which reading explains
            return layout.frames(source.outline(number))
    return layout.frames(layout.read(*source.get(number)))


class _ByFrames:
    """Batches of examples of similar lengths, as many as keep the padded frames of a batch below a number.

    An epoch has each example once. Lengths are cut into classes, with `RATIO` from one to the next. The examples of a
    class that do not fill a batch go to the class of the next longer ones, so that only one batch of an epoch is
    smaller, and all epochs have the same number of batches.
    """

    def __init__(self, lengths: np.ndarray, frames: int, unit: int, most: int, devices: int, seed: int | None):
        self._seed, self._classes = seed, list[tuple[np.ndarray, int]]()
        left = np.arange(len(lengths))
        while left.size:
            longest = -(-int(lengths[left].min() * RATIO) // unit) * unit
            here = lengths[left] <= longest
            # The longest example, of which a padded batch is a multiple, may be shorter than the class.
            rows = min(most, frames // min(longest, -(-int(lengths.max()) // unit) * unit))
            self._classes.append((left[here], max(1, rows // devices * devices if rows > devices else rows)))
            left = left[~here]
        self._epoch = functools.lru_cache(2)(self._made)
        self._count = len(self._epoch(0))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[int, ...]:
        epoch, place = divmod(index, self._count)
        return self._epoch(epoch)[place]

    def _made(self, epoch: int) -> list[tuple[int, ...]]:
        """Return the batches of an epoch."""
        rng = None if self._seed is None else np.random.default_rng([self._seed, epoch])
        batches, left = list[tuple[int, ...]](), np.zeros(0, int)
        for members, rows in self._classes:
            members = np.concatenate([left, members])
            members = members if rng is None else rng.permutation(members)
            full = len(members) // rows * rows
            batches += map(tuple, members[:full].reshape(-1, rows).tolist())
            left = members[full:]
        batches += [tuple(left.tolist())] if left.size else []
        return batches if rng is None else [batches[place] for place in rng.permutation(len(batches))]


def made_ahead(order: Order, start: int, make: Callable[[int, tuple[int, ...]], T]) -> Generator[T | BaseException]:
    """Call a function for each batch in a background thread, and yield the results or exceptions.

    Exceptions are yielded, because all processes must learn of an error in one process. In addition, an exception such
    as KeyboardInterrupt would end Grain's thread silently, and the reader would wait forever.
    """
    grain = _grain()
    context = contextvars.copy_context()  # a new thread has no context variables, such as the reader of messages

    def attempt(batch: int, numbers: tuple[int, ...]) -> Any:
        try:
            return context.run(make, batch, numbers)
        except BaseException as error:
            return error

    sequential = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    batches = order.map_with_index(attempt)[start:].to_iter_dataset(sequential)
    # Closing waits for the thread: after a training, nobody reads the caller's data.
    ahead = iter(grain.experimental.ThreadPrefetchIterDataset(batches, prefetch_buffer_size=1))
    try:
        yield from ahead
    finally:
        for _ in range(100):
            with suppress(RuntimeError):  # if an interrupt came while the thread starts, nobody can wait for it yet
                ahead.close()
                break
            time.sleep(0.01)


def _grain() -> Any:
    with optional_package("grain", "training", "train"):
        import grain
    return grain
