"""Rules by operator: which sizes of its inputs have to be equal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from jaxrnn.onnx.blocks import BoundNode
from jaxrnn.onnx.carries import CELL_CARRIES, CELLS

Pair = tuple[int, int]
Shapes = Sequence[tuple[int, ...] | None]


def equal_sizes(node: BoundNode, operands: Sequence[Any], open_sizes: Collection[int]) -> Iterator[Pair]:
    """Yield pairs of sizes that a node needs to be equal.

    Args:
        node: the node.
        operands: what is known of its inputs: arrays, or shapes; None where there is nothing.
        open_sizes: the sizes that stand for open dimensions.
    """
    shapes = [getattr(each, "shape", each) for each in operands]
    if node.operator.name in ("Squeeze", "Reshape"):
        shapes[1:] = [_known(operands)]
    yield from _RULES.get(node.operator.name, _broadcast)(node, shapes, open_sizes)


def _known(operands: Sequence[Any]) -> tuple[int, ...] | None:
    """Return the integers of the second input of a node, if they are known while tracing."""
    second = operands[1] if len(operands) > 1 else None
    return tuple(int(each) for each in second.ravel()) if isinstance(second, np.ndarray) else None


def _broadcast(node: BoundNode, shapes: Shapes, open_sizes: Collection[int]) -> Iterator[Pair]:
    """Sizes of one axis are equal, except those that are 1."""
    for column in itertools.zip_longest(*([*reversed(shape)] for shape in shapes if shape is not None), fillvalue=1):
        yield from itertools.combinations([size for size in column if size != 1], 2)


def _matmul(node: BoundNode, shapes: Shapes, open_sizes: Collection[int]) -> Iterator[Pair]:
    first, second = shapes[:2]
    if first and second:
        yield first[-1], second[max(0, len(second) - 2)]
        if len(first) > 2 and len(second) > 2:
            yield from _broadcast(node, [first[:-2], second[:-2]], open_sizes)


def _gemm(node: BoundNode, shapes: Shapes, open_sizes: Collection[int]) -> Iterator[Pair]:
    first, second = shapes[:2]
    if first and second and len(first) == len(second) == 2:
        a, b = (
            shape[::-1] if node.attributes.get(key) else shape for shape, key in ((first, "transA"), (second, "transB"))
        )
        yield a[1], b[0]
        if len(shapes) > 2 and shapes[2] is not None:
            yield from _broadcast(node, [(a[0], b[1]), shapes[2]], open_sizes)


def _concat(node: BoundNode, shapes: Shapes, open_sizes: Collection[int]) -> Iterator[Pair]:
    present = [shape for shape in shapes if shape is not None]
    axis = node.attributes["axis"] % len(present[0])
    for first, second in itertools.combinations(present, 2):
        pairs = zip(first, second, strict=False)
        yield from (pair for index, pair in enumerate(pairs) if index != axis)


def _convolution(node: BoundNode, shapes: Shapes, open_sizes: Collection[int]) -> Iterator[Pair]:
    x, weight = shapes[:2]
    if x and weight and len(x) > 1:
        group = node.attributes.get("group", 1)
        yield x[1], weight[1] * group if node.operator.name == "Conv" else weight[0]


def _recurrent(node: BoundNode, shapes: Shapes, open_sizes: Collection[int]) -> Iterator[Pair]:
    x, w, r, _, lengths, *initial = [*shapes, *[None] * 7][:7]
    batch = 0 if node.attributes.get("layout", 0) else 1
    if x is None or len(x) != 3:
        return
    if w:
        yield x[2], w[2]
    for start in initial[: len(CELL_CARRIES[node.operator.name])]:
        if start and r and len(start) == 3:
            yield start[2], r[2]
            yield start[1 - batch], r[0]
            yield start[batch], x[batch]
    if lengths:
        yield lengths[0], x[batch]


def _squeeze(node: BoundNode, shapes: Shapes, open_sizes: Collection[int]) -> Iterator[Pair]:
    shape, axes = shapes
    for axis in axes or node.attributes.get("axes") or ():
        if shape and -len(shape) <= axis < len(shape):
            yield shape[axis], 1


def _reshape(node: BoundNode, shapes: Shapes, open_sizes: Collection[int]) -> Iterator[Pair]:
    """A reshape to constants keeps the number of elements, from which a single open size follows."""
    shape, target = shapes
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


_RULES: dict[str, Callable[[BoundNode, Shapes, Collection[int]], Iterator[Pair]]] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Concat": _concat,
    "Squeeze": _squeeze,
    "Reshape": _reshape,
    **dict.fromkeys(("Conv", "ConvTranspose"), _convolution),
    **dict.fromkeys(CELLS, _recurrent),
}
