"""Sequences and optionals. A sequence is a tuple of known length, and an absent optional is None."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrnn.onnx.evaluate import Subgraph
from jaxrnn.onnx.limits import current
from jaxrnn.onnx.operators.indexing import gather
from jaxrnn.onnx.operators.shaping import axes_of, concat, moves_text, parts_of, squeeze, unsqueeze
from jaxrnn.onnx.operators.types import shape_of
from jaxrnn.onnx.registry import Static, bounded, since
from jaxrnn.onnx.values import Stacked, Value, describe, dimensions, is_sequence, traced

Sequence = tuple[Value, ...]


def _sequence(value: Value) -> Sequence:
    if isinstance(value, Stacked):
        return value.elements()
    if not isinstance(value, tuple):
        raise TypeError(f"a sequence is expected, not {describe(value)}")
    return value


def _tensor(value: Value) -> Value:
    """Refuse sequences of sequences, which could grow exponentially by nesting."""
    if not hasattr(value, "shape"):
        raise TypeError(f"a tensor is expected, not {'nothing' if value is None else 'a sequence'}")
    return value


def _position(position: np.ndarray, count: int, last: int) -> int:
    """Return a position as an index from the start; ``last`` is the highest allowed index."""
    index = int(position.reshape(()))
    if not -count <= index <= last:
        raise IndexError(f"position {index} is out of range for a sequence of {count}")
    return index + count if index < 0 else index


def sequence_construct(*inputs: Value) -> Value:
    """SequenceConstruct."""
    return tuple(map(_tensor, inputs))


def sequence_empty(*, dtype: int = 1) -> Value:
    """SequenceEmpty."""
    del dtype  # an empty tuple has no element type
    return ()


def sequence_at(input_sequence: Value, position: Static) -> Value:
    """SequenceAt: the element at a position, which may count from the end."""
    if isinstance(input_sequence, Stacked):
        return gather(input_sequence.array, position.reshape(()))
    sequence = _sequence(input_sequence)
    return sequence[_position(position, len(sequence), len(sequence) - 1)]


def sequence_insert(input_sequence: Value, tensor: Value, position: Static | None = None) -> Value:
    """SequenceInsert before a position, or at the end."""
    sequence = _sequence(input_sequence)
    index = len(sequence) if position is None else _position(position, len(sequence), len(sequence))
    return (*sequence[:index], _tensor(tensor), *sequence[index:])


def sequence_erase(input_sequence: Value, position: Static | None = None) -> Value:
    """SequenceErase the element at a position, or the last."""
    sequence = _sequence(input_sequence)
    index = _position(np.asarray(-1) if position is None else position, len(sequence), len(sequence) - 1)
    return sequence[:index] + sequence[index + 1 :]


def sequence_length(input_sequence: Value) -> Value:
    """SequenceLength."""
    if isinstance(input_sequence, Stacked):
        return shape_of(input_sequence.array, end=1).reshape(())
    return np.asarray(len(_sequence(input_sequence)), np.int64)


@moves_text
def split_to_sequence(input: Value, split: Static | None = None, *, axis: int = 0, keepdims: int = 1) -> Value:
    """SplitToSequence: parts of known sizes, equal parts with a smaller last part, or single slices."""
    (axis,) = axes_of([axis], len(input.shape))
    size = input.shape[axis]
    each = 1 if split is None else 0 if split.ndim else int(split)
    # PyTorch writes `unbind` as a split of 1 without the axis. The specification ignores `keepdims` beside a split.
    squeezed = each == 1 and not keepdims
    if split is not None and split.ndim:
        sizes = dimensions(split)
    else:
        if each == 1 and not isinstance(size, int):
            frames = jnp.moveaxis(traced(input), axis, 0)
            return Stacked(frames if squeezed else jnp.expand_dims(frames, 1 + axis))
        if each < 1 or not isinstance(size, int):
            raise ValueError(f"axis {axis} of size {size} cannot be cut into parts of {each}")
        current().evaluate(-(-size // each))
        sizes = tuple(min(each, size - start) for start in range(0, size, each))
    if sum(sizes) != size or any(isinstance(part, int) and part < 0 for part in sizes):
        raise ValueError(f"the sizes {list(sizes)} do not add up to axis {axis} of size {size}")
    parts = parts_of(input, axis, sizes)
    if squeezed:
        parts = [squeeze(part, np.asarray([axis])) for part in parts]
    return tuple(parts)


@moves_text
def concat_from_sequence(input_sequence: Value, *, axis: int, new_axis: int = 0) -> Value:
    """ConcatFromSequence along an axis, or with ``new_axis`` stacked along a new axis."""
    if isinstance(input_sequence, Stacked):
        stacked = input_sequence.array
        (axis,) = axes_of([axis], stacked.ndim if new_axis else stacked.ndim - 1)
        moved = jnp.moveaxis(stacked, 0, axis)
        if new_axis:
            return moved
        return moved.reshape((*moved.shape[:axis], moved.shape[axis] * moved.shape[axis + 1], *moved.shape[axis + 2 :]))
    sequence = _sequence(input_sequence)
    if not sequence:
        raise ValueError("an empty sequence cannot be concatenated")
    if new_axis:
        sequence = [unsqueeze(value, np.asarray([axis])) for value in sequence]
    return concat(*sequence, axis=axis)


def sequence_map(input_sequence: Value, *additional_inputs: Value, body: Subgraph) -> list[Value]:
    """SequenceMap: the body for each element of all sequences; a tensor is the same for all elements."""
    sequence = _sequence(input_sequence)
    additional_inputs = tuple(_sequence(each) if is_sequence(each) else each for each in additional_inputs)
    for other in additional_inputs:
        if isinstance(other, tuple) and len(other) != len(sequence):
            raise ValueError(f"the sequences must have equal lengths, not {len(sequence)} and {len(other)}")
    results = [
        body(element, *(other[index] if isinstance(other, tuple) else other for other in additional_inputs))
        for index, element in enumerate(sequence)
    ]
    return [tuple(result[output] for result in results) for output in range(body.output_count)]


def optional(input: Value = None, *, type: Any = None) -> Value:
    """Return the input, or None without an input."""
    if input is None and type is None:
        raise ValueError("an Optional without input needs the attribute 'type'")
    return input


def optional_has_element(input: Value = None) -> Value:
    """OptionalHasElement."""
    return np.asarray(input is not None)


def optional_get_element(input: Value) -> Value:
    """OptionalGetElement."""
    if input is None:
        raise ValueError("the optional has no element")
    return input


OPERATORS = {
    "ConcatFromSequence": bounded(concat_from_sequence, 11),
    "Optional": since(optional, 15, 28),
    "OptionalGetElement": since(optional_get_element, 15, 18, 28),
    "OptionalHasElement": since(optional_has_element, 15, 18, 28),
    "SequenceAt": bounded(sequence_at, 11, reads="element"),
    "SequenceConstruct": bounded(sequence_construct, 11),
    "SequenceEmpty": since(sequence_empty, 11),
    "SequenceErase": bounded(sequence_erase, 11),
    "SequenceInsert": bounded(sequence_insert, 11),
    "SequenceLength": since(sequence_length, 11),
    "SequenceMap": bounded(sequence_map, 17),
    "SplitToSequence": bounded(split_to_sequence, 11, 24),
}
