"""Operators that give the same elements another shape.

They accept static and traced values, symbolic dimensions included.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrnn.onnx.operators.arithmetic import shapes_of
from jaxrnn.onnx.registry import Movement, Pair, Static, as_attributes, since
from jaxrnn.onnx.text import moves_text
from jaxrnn.onnx.values import Value, dimensions


def axes_of(axes: Value, rank: int) -> tuple[int, ...]:
    """Axes as non-negative ints, each in range and none twice."""
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
    """Transpose; the axes are reversed where no permutation is given."""
    return data.transpose(perm) if perm is not None else data.transpose()


@moves_text
def squeeze(data: Value, axes: Static | None = None) -> Value:
    """Squeeze some axes, or all of size 1."""
    rank = len(data.shape)
    if axes is None:
        chosen = [index for index, size in enumerate(data.shape) if isinstance(size, int) and size == 1]
    else:
        chosen = axes_of(axes, rank)
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
    if mode == "DCR":
        blocks = x.reshape((n, blocksize, blocksize, c // blocksize**2, h, w)).transpose((0, 3, 4, 1, 5, 2))
    elif mode == "CRD":
        blocks = x.reshape((n, c // blocksize**2, blocksize, blocksize, h, w)).transpose((0, 1, 4, 2, 5, 3))
    else:
        raise ValueError(f"mode must be DCR or CRD, not {mode!r}")
    return blocks.reshape((n, c // blocksize**2, h * blocksize, w * blocksize))


@moves_text
def space_to_depth(x: Value, *, blocksize: int, mode: str = "DCR") -> Value:
    """SpaceToDepth: blocks of pixels become blocks of channels."""
    n, c, h, w = x.shape
    blocks = x.reshape((n, c, h // blocksize, blocksize, w // blocksize, blocksize))
    order = {"DCR": (0, 3, 5, 1, 2, 4), "CRD": (0, 1, 3, 5, 2, 4)}
    if mode not in order:
        raise ValueError(f"mode must be DCR or CRD, not {mode!r}")
    return blocks.transpose(order[mode]).reshape((n, c * blocksize**2, h // blocksize, w // blocksize))


def _equal_in_squeeze(attributes: Mapping[str, Any], operands: Sequence[Any], open_sizes: Any) -> Iterator[Pair]:
    (shape,) = shapes_of(operands[:1])
    for axis in _integers(operands[1:]) or attributes.get("axes") or ():
        if shape and -len(shape) <= axis < len(shape):
            yield shape[axis], 1


def _equal_in_reshape(
    attributes: Mapping[str, Any], operands: Sequence[Any], open_sizes: Collection[int]
) -> Iterator[Pair]:
    """Yield the single open size that follows from constants, because a reshape keeps the number of elements."""
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
    if len(unknown) == 1 and total % constant == 0:
        yield unknown[0], total // constant
    elif total == constant:
        yield from ((size, 1) for size in unknown)


def _integers(operands: Sequence[Any]) -> tuple[int, ...] | None:
    """Return the elements of the first operand if its value is known while tracing."""
    return tuple(map(int, operands[0].ravel())) if operands and isinstance(operands[0], np.ndarray) else None


OPERATORS = {
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
