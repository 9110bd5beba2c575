"""Operators that move elements: reshaping, concatenating, slicing, repeating, padding, reversing.

The operators accept static and traced values, including symbolic dimensions.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import max_dim, min_dim

from jaxrnn.onnx import symbols
from jaxrnn.onnx.evaluate import demand
from jaxrnn.onnx.limits import current
from jaxrnn.onnx.operators.arithmetic import of_one_type, shapes_of
from jaxrnn.onnx.registry import Foldable, Movement, Pair, Static, Versions, as_attributes, bounded, earlier, since
from jaxrnn.onnx.values import (
    TEXT,
    Value,
    check_choice,
    dimensions,
    dtype_of,
    elements_of,
    holds_text,
    is_static,
    is_symbolic,
    is_text,
    operands,
    size_between,
    static,
    text_array,
    traced,
)


def moves_text(function: Callable[..., Any]) -> Callable[..., Any]:
    """Extend an operator that moves elements, or fills with empty strings, to arrays of strings.

    The operator moves the numbers of strings in a list of all strings, outside of traces. The result is checked
    against the limits before it is computed.
    """

    @functools.wraps(function)
    def moving(*inputs: Value, **attributes: Any) -> Any:
        if not any(map(holds_text, inputs)):
            return function(*inputs, **attributes)
        if attributes.get("reduction", "none") != "none":
            raise TypeError(f"strings cannot be combined by reduction={attributes['reduction']!r}")
        operands, strings = _numbered(inputs)
        places = [place for place, value in enumerate(inputs) if holds_text(value)]

        def moved(numbers: Sequence[Value]) -> Any:
            arguments = list(operands)
            for place, value in zip(places, numbers, strict=True):
                arguments[place] = value
            return function(*arguments, **attributes)

        numbers = [operands[place] for place in places]
        for leaf in jax.tree.leaves(jax.eval_shape(moved, numbers)):
            current().check(leaf.shape, TEXT, constant=True)
        with jax.ensure_compile_time_eval():
            return jax.tree.map(lambda leaf: strings[static(leaf)], moved(numbers))

    return moving


def _numbered(inputs: Sequence[Value]) -> tuple[list[Value], np.ndarray]:
    """Return inputs with a number for each string, and the strings by number, beginning with the empty string."""
    places = {"": 0}

    def number(value: Value) -> Value:
        if isinstance(value, tuple):
            return tuple(map(number, value))
        if not is_text(value):
            return value if value is None else static(value, "an input beside strings")
        flat = [places.setdefault(item, len(places)) for item in value.ravel().tolist()]
        return np.array(flat, np.int64).reshape(value.shape)

    return list(map(number, inputs)), text_array(list(places))


@moves_text
def concat(*inputs: Value, axis: int) -> Value:
    """Concat along an axis."""
    np_or_jnp, arrays = of_one_type(*inputs)
    (axis,) = axes_of([axis], len(arrays[0].shape))
    return np_or_jnp.concatenate(arrays, axis=axis)


@moves_text
def split(x: Value, split: Static | None = None, *, axis: int = 0, num_outputs: int | None = None, output_count: int):
    """Split into parts of known sizes, or evenly with a smaller last part."""
    (axis,) = axes_of([axis], len(x.shape))
    size = x.shape[axis]
    if split is not None:
        sizes: Sequence[Any] = dimensions(split)
    else:
        parts = output_count if num_outputs is None else num_outputs
        if parts != output_count:
            raise ValueError(f"num_outputs is {parts}, but the node has {output_count} outputs")
        if num_outputs is None and size % parts != 0:
            raise ValueError(f"axis {axis} of size {size} does not divide into {parts} equal parts")
        each = -(-size // parts)
        sizes = [each] * (parts - 1) + [size - each * (parts - 1)]
    negative = any(isinstance(part, int) and part < 0 for part in sizes)
    if sum(sizes) != size or len(sizes) != output_count or negative:
        raise ValueError(f"sizes {list(sizes)} for {output_count} outputs do not add up to axis {axis} of size {size}")
    return parts_of(x, axis, sizes)


def parts_of(x: Value, axis: int, sizes: Sequence[Any]) -> list[Value]:
    """Return consecutive parts of these sizes along an axis."""
    parts: list[Value] = []
    start: Any = 0
    for size in sizes:
        parts.append(cut(x, axis, start, start + size))
        start = start + size
    return parts


def cut(x: Value, axis: int, start: Any, stop: Any, step: int = 1) -> Value:
    """Slice along one axis with bounds inside of the axis."""
    index = (slice(None),) * axis + (slice(start, stop, step),)
    if isinstance(x, np.ndarray) or step < 0:
        return x[index]
    return lax.slice_in_dim(x, start, stop, step, axis)


def padded(x: jax.Array, axis: int, before: Any, after: Any, between: Any = 0) -> jax.Array:
    """Insert zeros along one axis; negative numbers crop."""
    widths: list[tuple[Any, Any, Any]] = [(0, 0, 0)] * x.ndim
    widths[axis] = before, after, between
    return lax.pad(x, jnp.zeros((), x.dtype), widths)


def on_axis(values: Any, axis: int | None, rank: int) -> Any:
    """Reshape a vector to an axis of arrays of this rank; without an axis, the vector has a single element."""
    return values.reshape([-1 if d == axis else 1 for d in range(rank)])


#: Bounds of slices from here on mean the end: PyTorch writes the largest integer, tf2onnx a billion.
_BEYOND = 1_000_000_000


@moves_text
def slice_(data: Value, starts: Static, ends: Static, axes: Static | None = None, steps: Static | None = None) -> Value:
    """Slice: bounds are clamped to the axis; a negative step reverses."""
    rank = len(data.shape)
    chosen = range(starts.size) if axes is None else axes_of(axes, rank)
    strides = (1,) * starts.size if steps is None else dimensions(steps)
    if not starts.size == ends.size == len(chosen) == len(strides):
        raise ValueError("starts, ends, axes and steps must have equal lengths")
    for axis, start, end, step in zip(chosen, dimensions(starts), dimensions(ends), strides, strict=True):
        data = _slice_axis(data, axis, start, end, step)
    return data


def _slice_axis(data: Value, axis: int, start: Any, end: Any, step: int) -> Value:
    size = data.shape[axis]
    if any(isinstance(bound, symbols.Place) for bound in (start, end, step)):
        return _slice_at(traced(data), axis, start, size_between(start, end), size_between(0, step))
    if step == 0:
        raise ValueError("a step must not be 0")
    forwards = step > 0
    if forwards:
        first, last = _clamp(start, size, 0, size), _clamp(end, size, 0, size)
        return cut(data, axis, first, max_dim(first, last), step)
    if not isinstance(size, int):
        if start == -1 and isinstance(end, int) and end <= -_BEYOND:  # the whole axis
            return _flip(data, axis)[(slice(None),) * axis + (slice(None, None, -step),)]
        raise ValueError(
            "a negative step along a symbolic dimension needs the whole axis: start -1, end of int minimum"
        )
    first, last = _clamp(start, size, -1, size - 1), _clamp(end, size, -1, size - 1)
    count = max(-((first - last) // step), 0)
    if count == 0:
        return cut(data, axis, 0, 0)
    flipped = cut(_flip(data, axis), axis, size - 1 - first, size)
    return cut(flipped, axis, 0, (count - 1) * -step + 1, -step)


def _slice_at(data: jax.Array, axis: int, start: symbols.Place, count: Any, step: int) -> Value:
    """Slice `count` elements at a traced place. ONNX returns fewer if the axis ends; here, the rest is NaN."""
    if step < 0 or (isinstance(count, int) and count < 0):
        raise ValueError("a slice at a place that depends on data must go forward")
    size = jnp.asarray(data.shape[axis], jnp.int64)
    first = start.value.astype(jnp.int64)
    where = jnp.where(first < 0, first + size, first) + step * jnp.arange(-(-count // step), dtype=jnp.int64)
    inside = (where >= 0) & (where < jnp.where(first < 0, size - 1, size))  # from -2, the end 0 is before the start
    demand(lambda: inside)
    return read(data, (slice(None),) * axis + (jnp.where(inside, where, size).astype(jnp.int32),))


def read(data: jax.Array, index: tuple[Any, ...]) -> jax.Array:
    """Return the elements at an index; outside of the axis NaN, or the extreme of an integer type."""
    known = all(isinstance(part, (slice, np.ndarray)) for part in index)
    return data.at[index].get(mode="promise_in_bounds" if known else "fill", wrap_negative_indices=False)


def _flip(data: Value, axis: int) -> Value:
    return np.flip(data, axis) if isinstance(data, np.ndarray) else lax.rev(data, (axis,))


def _clamp(bound: Any, size: Any, low: Any, high: Any) -> Any:
    """Return a slice bound as an index in ``[low, high]``; negative bounds count from the end."""
    if isinstance(bound, int) and abs(bound) >= _BEYOND and not isinstance(size, int):
        return high if bound > 0 else low  # beyond any size, and not comparable with a symbol
    # The sign of a symbolic bound may be undecided; JAX's error then names the missing constraint.
    bound = bound + size if bound < 0 else bound
    return min_dim(max_dim(bound, low), high)


@moves_text
def expand(x: Value, shape: Static) -> Value:
    """Expand: broadcasting both ways, so a 1 in the shape keeps the input's dimension."""
    sizes = dimensions(shape)
    if not all(isinstance(size, int) for size in sizes):
        x = traced(x)  # NumPy's arrays have no symbolic sizes
    np_or_jnp, (x,) = operands(x)
    return np_or_jnp.broadcast_to(x, jnp.broadcast_shapes(tuple(x.shape), sizes))


@moves_text
def tile(x: Value, repeats: Static) -> Value:
    """Tile: repeat along all axes."""
    if is_symbolic(repeats):
        x = traced(x)
    elif np.any(np.asarray(repeats) < 0):
        raise ValueError(f"repeats must be from 0 on, not {np.asarray(repeats).tolist()}")
    np_or_jnp, (x,) = operands(x)
    return np_or_jnp.tile(x, dimensions(repeats))


@moves_text
def pad(
    data: Value, pads: Static, constant_value: Foldable = None, axes: Static | None = None, *, mode: str = "constant"
) -> Value:
    """Pad, or crop where a pad is negative. ``pads`` lists all beginnings, then all ends."""
    rank = len(data.shape)
    chosen = range(rank) if axes is None else axes_of(axes, rank)
    amounts = dimensions(pads)
    if len(amounts) != 2 * len(chosen):
        raise ValueError(f"pads has {len(amounts)} entries for {len(chosen)} axes; two for each are expected")
    widths: list[tuple[Any, Any]] = [(0, 0)] * rank
    for index, axis in enumerate(chosen):
        widths[axis] = (amounts[index], amounts[index + len(chosen)])
    if mode == "constant":
        fill = np.zeros((), dtype_of(data)) if constant_value is None else constant_value.reshape(())
        if is_static(data, fill) and all(low >= 0 and high >= 0 for low, high in widths):
            return np.pad(data, widths, constant_values=fill)
        return lax.pad(traced(data), traced(fill).astype(dtype_of(data)), [(low, high, 0) for low, high in widths])
    check_choice("mode", mode, ("constant", "reflect", "edge", "wrap"))
    for axis, (low, high) in enumerate(widths):
        data = _slice_axis(data, axis, max(-low, 0), data.shape[axis] - max(-high, 0), 1)
        is_known = all(isinstance(number, int) for number in (low, high, data.shape[axis]))
        if mode == "reflect" and is_known and 1 < data.shape[axis] < max(low, high) // _REFLECTIONS:
            data = _reflected(data, axis, max(low, 0), max(high, 0))
            widths[axis] = (0, 0)
    return jnp.pad(traced(data), [(max(low, 0), max(high, 0)) for low, high in widths], mode=mode)


#: From this number of reflections on, a pad is a gather: JAX appends the reflections one by one.
_REFLECTIONS = 16


def _reflected(data: Value, axis: int, low: int, high: int) -> Value:
    size = data.shape[axis]
    current().check((*data.shape[:axis], low + size + high, *data.shape[axis + 1 :]), dtype_of(data))
    current().check((low + size + high,), np.int64)
    places = np.mod(np.arange(-low, size + high), 2 * (size - 1))
    return jnp.take(traced(data), np.minimum(places, 2 * (size - 1) - places), axis)


@moves_text
def pad_2(data: Value, *, pads: tuple[int, ...], mode: str = "constant", value: float = 0.0) -> Value:
    """Pad, amounts and value as attributes."""
    return pad(data, np.asarray(pads, np.int64), np.asarray(value, dtype_of(data)), mode=mode)


@moves_text
def triangle(x: Value, k: Static | None = None, *, upper: int = 1) -> Value:
    """Trilu: the part above or below a diagonal; the rest is 0."""
    offset = 0 if k is None else int(k.reshape(()))
    return (jnp.triu if upper else jnp.tril)(traced(x), offset)


@moves_text
def reverse_sequence(x: Value, sequence_lens: Value, *, batch_axis: int = 1, time_axis: int = 0) -> Value:
    """ReverseSequence: reverse the first ``sequence_lens`` frames of each row; later frames stay."""
    size = x.shape[time_axis]
    if is_static(sequence_lens) and _all_are(sequence_lens, size):
        return _flip(traced(x), time_axis % len(x.shape))
    x, lengths = jnp.moveaxis(traced(x), (batch_axis, time_axis), (0, 1)), traced(sequence_lens).astype(jnp.int64)
    steps = jnp.arange(x.shape[1])[None, :]
    source = jnp.where(steps < lengths[:, None], lengths[:, None] - 1 - steps, steps)
    result = jax.vmap(lambda row, index: row[index])(x, source)
    return jnp.moveaxis(result, (0, 1), (batch_axis, time_axis))


def _all_are(numbers: np.ndarray, size: Any) -> bool:
    """Return True if all numbers are a size; equal texts mean equal symbolic dimensions."""
    if numbers.dtype != object:
        return not numbers.size or (isinstance(size, int) and bool((numbers == size).all()))
    return all(str(number) == str(size) for number in {id(each): each for each in numbers.flat}.values())


def _equal_in_concat(attributes: Mapping[str, Any], operands: Sequence[Any], open_sizes: Any) -> Iterator[Pair]:
    present = [shape for shape in shapes_of(operands) if shape is not None]
    axis = attributes["axis"] % max(len(present[0]) if present else 0, 1)  # numbers have no axis, and are refused later
    for first, second in itertools.combinations(present, 2):
        pairs = zip(first, second, strict=False)
        yield from (pair for index, pair in enumerate(pairs) if index != axis)


def axes_of(axes: Value, rank: int) -> tuple[int, ...]:
    """Return axes as non-negative ints; refuse axes out of range and duplicates."""
    for axis in np.ravel(axes):
        if isinstance(axis, symbols.Place):
            static(axis.value, "its input 'axes'")
    normalized = []
    for axis in dimensions(np.asarray(axes, np.int64)):
        if not -rank <= axis < rank:
            raise ValueError(f"axis {axis} is out of range for rank {rank}")
        normalized.append(axis % rank)
    if len(set(normalized)) < len(normalized):
        raise ValueError(f"an axis is given twice: {normalized}")
    return tuple(normalized)


@moves_text
def reshape(data: Value, shape: Static, *, allowzero: int = 0) -> Value:
    """Reshape: 0 keeps a dimension (unless ``allowzero``), -1 is inferred."""
    sizes = list(dimensions(shape))
    for index, size in enumerate(sizes):
        if isinstance(size, int) and size == 0 and not allowzero:
            if index >= len(data.shape):
                raise ValueError(f"shape {sizes}: the 0 at {index} copies a dimension that the input does not have")
            sizes[index] = data.shape[index]
    if any(isinstance(size, int) and size < -1 for size in sizes) or sizes.count(-1) > 1:
        raise ValueError(f"shape {sizes}: sizes are at least 0, and at most one is -1")
    return data.reshape(tuple(sizes))


@moves_text
def transpose(data: Value, *, perm: tuple[int, ...] | None = None) -> Value:
    """Transpose; the axes are reversed without a permutation."""
    return data.transpose(perm) if perm is not None else data.transpose()


@moves_text
def squeeze(data: Value, axes: Static | None = None) -> Value:
    """Squeeze some axes, or each axis of size 1."""
    rank = len(data.shape)
    chosen = [index for index, size in enumerate(data.shape) if size == 1] if axes is None else axes_of(axes, rank)
    for axis in chosen:
        if data.shape[axis] != 1:
            raise ValueError(f"axis {axis} has size {data.shape[axis]}, not 1")
    return data.reshape(tuple(size for index, size in enumerate(data.shape) if index not in chosen))


@moves_text
def unsqueeze(data: Value, axes: Static) -> Value:
    """Unsqueeze: the axes count in the output."""
    chosen = axes_of(axes, len(data.shape) + axes.size)
    sizes = iter(data.shape)
    return data.reshape(tuple(1 if i in chosen else next(sizes) for i in range(len(data.shape) + len(chosen))))


@moves_text
def flatten(x: Value, *, axis: int = 1) -> Value:
    """Flatten to two dimensions, cut at an axis."""
    rank = len(x.shape)
    if not -rank <= axis <= rank:
        raise ValueError(f"axis {axis} is out of range for rank {rank}")
    cut = axis + rank if axis < 0 else axis
    return x.reshape((math.prod(x.shape[:cut]), math.prod(x.shape[cut:])))


@moves_text
def depth_to_space(x: Value, *, blocksize: int, mode: str = "DCR") -> Value:
    """DepthToSpace: blocks of channels become blocks of pixels."""
    n, c, h, w = x.shape
    check_choice("mode", mode, ("DCR", "CRD"))
    if mode == "DCR":
        blocks = x.reshape((n, blocksize, blocksize, c // blocksize**2, h, w)).transpose((0, 3, 4, 1, 5, 2))
    else:
        blocks = x.reshape((n, c // blocksize**2, blocksize, blocksize, h, w)).transpose((0, 1, 4, 2, 5, 3))
    return blocks.reshape((n, c // blocksize**2, h * blocksize, w * blocksize))


@moves_text
def space_to_depth(x: Value, *, blocksize: int, mode: str = "DCR") -> Value:
    """SpaceToDepth: blocks of pixels become blocks of channels."""
    n, c, h, w = x.shape
    blocks = x.reshape((n, c, h // blocksize, blocksize, w // blocksize, blocksize))
    order = {"DCR": (0, 3, 5, 1, 2, 4), "CRD": (0, 1, 3, 5, 2, 4)}
    check_choice("mode", mode, order)
    return blocks.transpose(order[mode]).reshape((n, c * blocksize**2, h // blocksize, w // blocksize))


def _equal_in_squeeze(attributes: Mapping[str, Any], operands: Sequence[Any], open_sizes: Any) -> Iterator[Pair]:
    (shape,) = shapes_of(operands[:1])
    for axis in _integers(operands[1:]) or attributes.get("axes") or ():
        if shape and -len(shape) <= axis < len(shape):
            yield shape[axis], 1


def _equal_in_reshape(
    attributes: Mapping[str, Any], operands: Sequence[Any], open_sizes: Collection[int]
) -> Iterator[Pair]:
    """Yield the open size that follows from constants, because a reshape keeps the number of elements."""
    (shape,), target = shapes_of(operands[:1]), _integers(operands[1:])
    if not shape or not target or -1 in target:
        return
    wanted = [shape[index] if size == 0 and index < len(shape) else size for index, size in enumerate(target)]
    rest = list(shape)
    for size in tuple(wanted):
        if size in rest:
            rest.remove(size)
            wanted.remove(size)
    unknown = [size for size in rest if size in open_sizes]
    total, constant = math.prod(wanted), math.prod(size for size in rest if size not in open_sizes)
    if len(unknown) == 1 and constant and total % constant == 0:
        yield unknown[0], total // constant
    elif total == constant:
        yield from ((size, 1) for size in unknown)


def _integers(operands: Sequence[Any]) -> tuple[int, ...] | None:
    """Return the elements of the first operand if the value is static, and not a float."""
    if not operands or not isinstance(operands[0], np.ndarray) or operands[0].dtype.kind in "fc":
        return None
    return tuple(map(int, operands[0].ravel()))


OPERATORS: dict[str, Versions] = {
    "Concat": since(concat, 4, 11, 13, moves=Movement.JOINS, equal_sizes=_equal_in_concat),
    "Expand": since(expand, 8, 13, moves=Movement.REPEATS, most=lambda x, shape: x.size * elements_of(shape)),
    "Pad": since(pad_2, 2) | since(pad, 11, 13, 18, 19, 21, 23, 24, 25),
    "ReverseSequence": since(reverse_sequence, 10, 28, moves=Movement.REARRANGES),
    "Slice": since(earlier(as_attributes(slice_, "starts", "ends", "axes"), "steps"), 1)
    | since(slice_, 10, 11, 13, moves=Movement.PICKS, reads="range", of_places=True),
    "Split": since(earlier(as_attributes(split, "split"), "num_outputs"), 2, 11)
    | since(split, 13, 18, moves=Movement.PICKS),
    "Tile": since(tile, 6, 13, moves=Movement.REPEATS),
    "Trilu": bounded(triangle, 14, selects=True),
    "DepthToSpace": since(depth_to_space, 1, 11, 13, 28, moves=Movement.REARRANGES),
    "Flatten": since(flatten, 1, 9, 11, 13, 21, 23, 24, 25, moves=Movement.REARRANGES),
    "Reshape": since(reshape, 5, 13, 14, 19, 21, 23, 24, 25, moves=Movement.REARRANGES, equal_sizes=_equal_in_reshape),
    "SpaceToDepth": since(space_to_depth, 1, 13, 28, moves=Movement.REARRANGES),
    "Squeeze": since(as_attributes(squeeze, "axes"), 1, 11)
    | since(squeeze, 13, 21, 23, 24, 25, moves=Movement.REARRANGES, equal_sizes=_equal_in_squeeze),
    "Transpose": since(transpose, 1, 13, 21, 23, 24, 25, moves=Movement.REARRANGES),
    "Unsqueeze": since(as_attributes(unsqueeze, "axes"), 1, 11)
    | since(unsqueeze, 13, 21, 23, 24, 25, moves=Movement.REARRANGES),
}
