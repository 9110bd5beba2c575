"""Examples: where they come from, in which order, and as which arrays."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from jaxrnn.errors import InputError
from jaxrnn.onnx.interface import TensorInfo
from jaxrnn.onnx.values import describe

#: One example: arrays by name, those of the model's inputs and any others.
Example = dict[str, np.ndarray]

#: What JAX makes of wide types without ``jax_enable_x64``.
_NARROW = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}


class Source(Protocol):
    """Where examples come from."""

    #: How many there are; None if they are drawn without end.
    size: int | None

    def get(self, epoch: int, batch: int, row: int, batch_size: int) -> tuple[str, Any]:
        """An example and what to call it, for a place in the order of a training."""
        ...


class Listed:
    """Examples of a sequence, in an order that is drawn anew for every epoch from the seed and the epoch's number."""

    def __init__(self, data: Sequence[Any], seed: int | None):
        self.size: int | None = len(data)
        self._data, self._seed, self._length = data, seed, len(data)
        self._label: Callable[[int], str] = getattr(data, "label", "example {}".format)
        self._order: tuple[int, np.ndarray] | None = None

    def get(self, epoch: int, batch: int, row: int, batch_size: int) -> tuple[str, Any]:
        """The example at this place of the epoch's order."""
        index = int(self._epoch_order(epoch)[batch * batch_size + row])
        try:
            return self._label(index), self._data[index]
        except Exception as error:
            error.add_note(f"in getting example {index}")
            raise

    def _epoch_order(self, epoch: int) -> np.ndarray:
        if self._order is None or self._order[0] != epoch:
            plain = np.arange(self._length)
            order = plain if self._seed is None else np.random.default_rng([self._seed, epoch]).permutation(plain)
            self._order = epoch, order
        return self._order[1]


class Drawn:
    """Examples that a function draws, each with a generator of its own: from the seed, the batch and the row."""

    size: int | None = None

    def __init__(self, draw: Callable[[np.random.Generator], Any], seed: int):
        self._draw, self._seed = draw, seed

    def get(self, epoch: int, batch: int, row: int, batch_size: int) -> tuple[str, Any]:
        """The example drawn for this place."""
        label = f"example {row} of batch {batch}"
        try:
            return label, self._draw(np.random.default_rng([self._seed, batch, row]))
        except Exception as error:
            error.add_note(f"in drawing {label}")
            raise


@dataclasses.dataclass(frozen=True, order=True)
class Position:
    """A place in the order of a training: the next update is of this chunk of this batch of this epoch."""

    epoch: int = 0
    batch: int = 0
    chunk: int = 0


def make_source(data: Any, seed: int | None, *, what: str = "data") -> Source:
    """The source of what a caller gave: a sequence of examples, or a function that draws one.

    Args:
        data: the examples.
        seed: of their order; None for the order of the sequence.
        what: the name of the argument, for messages.

    Raises:
        InputError: it is neither, or empty.
    """
    if isinstance(data, Mapping):
        raise InputError(f"{what} must be a sequence of examples, not one dict: [{{name: array}}, ...]")
    if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        if not len(data):
            raise InputError(f"{what} is empty: there is nothing to train on")
        return Listed(data, seed)
    if callable(data) and seed is not None:
        return Drawn(data, seed)
    forms = "a sequence of examples" + ("" if seed is None else ", or a function that draws one from a NumPy generator")
    raise InputError(f"{what} must be {forms}, not a {type(data).__name__}")


def batches_from(
    position: Position, size: int | None, batch_size: int, epochs: int | None
) -> Iterator[tuple[Position, int]]:
    """The batches from a position on, each with how many examples it has: the last one of an epoch may have fewer."""
    epoch, batch = position.epoch, position.batch
    while epochs is None or epoch < epochs:
        count = batch_size if size is None else min(batch_size, size - batch * batch_size)
        if count <= 0:
            epoch, batch = epoch + 1, 0
            continue
        yield Position(epoch, batch), count
        batch += 1


def behind(position: Position, chunks: int, size: int | None, batch_size: int) -> Position:
    """The place behind an update of this chunk of a batch of so many."""
    if position.chunk + 1 < chunks:
        return dataclasses.replace(position, chunk=position.chunk + 1)
    batch = position.batch + 1
    if size is not None and batch * batch_size >= size:
        return Position(position.epoch + 1)
    return Position(position.epoch, batch)


def read_example(value: Any, infos: Sequence[TensorInfo], state: Iterable[str], *, wide: bool) -> Example:
    """An example as NumPy arrays: the model's inputs in the types of the file, the others as JAX would take them.

    Args:
        value: what the source gave.
        infos: the model's inputs.
        state: names that are state, and so no part of an example.
        wide: whether 64-bit types stay so, as ``jax_enable_x64`` says.

    Raises:
        InputError: an input is missing or of another type, or an array cannot be one.
    """
    if not isinstance(value, Mapping):
        raise InputError(f"an example is a dict of arrays by name, not a {type(value).__name__}")
    extra = {name: array for name, array in value.items() if name not in {info.name for info in infos}}
    missing = [info for info in infos if info.name not in value]
    if missing:
        raise InputError(f"the model's input {missing[0]} is missing{near(missing[0].name, extra)}")
    stray = [name for name in state if name in value]
    if stray:
        raise InputError(f"{stray[0]!r} is state, which training carries itself: leave it out of the examples")
    example = {info.name: _as_input(info, value[info.name]) for info in infos}
    return example | {name: _as_extra(name, array, wide) for name, array in extra.items()}


def near(name: str, known: Iterable[str]) -> str:
    """A hint for a name that is not there."""
    names = [str(each) for each in known]
    spelled = {each.casefold(): each for each in names}
    close = [spelled[each] for each in difflib.get_close_matches(str(name).casefold(), spelled, n=1, cutoff=0.5)]
    listed = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    return f" (did you mean {close[0]!r}?)" if close else f"; there is: {listed}" if names else ""


def _as_input(info: TensorInfo, value: Any) -> np.ndarray:
    if info.dtype is None:
        raise InputError(f"input {info}: sequences and optionals cannot be batched, so they cannot be trained on")
    array = np.asarray(value)
    python = not hasattr(value, "dtype")
    widened = isinstance(value, jax.Array) and f"{info.dtype.name}" == array.dtype.name.replace("32", "64")
    if python or (widened and info.dtype.kind in "iu"):
        array = array.astype(info.dtype)
    if array.dtype != info.dtype:
        raise InputError(f"input {info} got {describe(array)}; convert it with .astype({info.dtype.name!r})")
    return array


def _as_extra(name: Any, value: Any, wide: bool) -> np.ndarray:
    if not isinstance(name, str):
        raise InputError(f"the arrays of an example go by strings, not by {name!r}")
    array = np.asarray(value)
    if array.dtype.kind in "OUSMm":
        raise InputError(f"{name!r} must be an array of numbers, not {type(value).__name__} of {array.dtype}")
    return array if wide else array.astype(_NARROW.get(array.dtype.name, array.dtype), copy=False)
