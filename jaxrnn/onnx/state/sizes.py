"""Equations between the open dimensions of a graph: which ones its operators need to be equal, constant, or 1."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrnn.errors import LimitError
from jaxrnn.jaxprs.origins import DataFlow
from jaxrnn.onnx.blocks import BoundNode
from jaxrnn.onnx.carries import CELL_CARRIES, CELLS
from jaxrnn.onnx.interface import is_batch_name
from jaxrnn.onnx.state.tracing import NotFollowedError
from jaxrnn.specs import Dimension

#: Factors that no graph has as a constant by accident: a size that is one of them times a base names its dimension.
_FACTORS = (7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)
Pair = tuple[int, int]


class Sizes:
    """Open dimensions in classes: all dimensions of a class are equal, and some are constants.

    Attributes:
        value: by open dimension, the first name of its class, or the constant that it has to be.
    """

    def __init__(self, symbols: Iterable[str]):
        self.value: dict[str, Dimension] = {symbol: symbol for symbol in symbols}

    @property
    def classes(self) -> list[str]:
        """The first names of the classes that are no constants."""
        return [name for name, value in self.value.items() if name == value]

    def unify(self, first: Dimension, second: Dimension) -> None:
        """Make two classes one, or a class a constant."""
        if not isinstance(first, str):
            first, second = second, first
        elif isinstance(second, str):  # the name that comes first in the file stays
            second, first = sorted((first, second), key=list(self.value).index)
        for name, value in self.value.items():
            if value == first:
                self.value[name] = second

    def numbers(self, of_class: Mapping[str, int]) -> dict[str, int]:
        """Return a number for every open dimension."""
        return {name: of_class[value] if isinstance(value, str) else value for name, value in self.value.items()}

    def distinct(self, base: int, spread: bool) -> dict[str, int]:
        """Return a number for each class that tells it from all others and from constants.

        Args:
            base: the least number of a class that is not called a batch.
            spread: multiples of ``base``, where graphs divide a length; otherwise the numbers after it.
        """
        numbers = (factor * base for factor in itertools.cycle(_FACTORS)) if spread else itertools.count(base + 1)
        batches = itertools.cycle(_FACTORS)
        return {name: next(batches) if is_batch_name(name) else next(numbers) for name in self.classes}


def solve(
    sizes: Sizes, base: int, spread: bool, attempt: Callable[[Mapping[str, int]], DataFlow]
) -> tuple[DataFlow, dict[int, str]] | None:
    """Unify what the operators of a graph need to be equal, until the graph can be followed.

    Args:
        sizes: the classes so far; changed in place.
        base, spread: as in `Sizes.distinct`; loops and windows need some length.
        attempt: follow the graph with numbers for its open dimensions.

    Returns:
        The flow with these numbers, and the class of each of them; None if an operator fails for a reason that no
        equation mends. What was unified before it stays.
    """
    for _ in range(len(sizes.value) + 1):
        of_class = sizes.distinct(base, spread)
        try:
            flow = attempt(sizes.numbers(of_class))
        except NotFollowedError as error:
            if error.node is None or not _unify_at(sizes, of_class, error.node, error.operands):
                return None
        except LimitError:
            return None
        else:
            return flow, {number: name for name, number in of_class.items()}
    return None


def _unify_at(sizes: Sizes, of_class: Mapping[str, int], node: BoundNode, operands: Sequence[Any]) -> bool:
    """Unify the sizes that a node needs to be equal and are not; return False if there are none."""
    class_of = {number: name for name, number in of_class.items()}
    shapes = [getattr(each, "shape", each) for each in operands]
    if node.operator.name in ("Squeeze", "Reshape"):
        shapes[1:] = [_known(operands)]
    changed = False
    for pair in _RULES.get(node.operator.name, _broadcast)(node, shapes, class_of):
        first, second = (sizes.value[class_of[size]] if size in class_of else size for size in pair)
        if first != second and (isinstance(first, str) or isinstance(second, str)):
            sizes.unify(first, second)
            changed = True
    return changed


def _known(operands: Sequence[Any]) -> tuple[int, ...] | None:
    """Return the integers of the second input of a node, if they are known while tracing."""
    second = operands[1] if len(operands) > 1 else None
    return tuple(int(each) for each in second.ravel()) if isinstance(second, np.ndarray) else None


Shapes = Sequence[tuple[int, ...] | None]


def _broadcast(node: BoundNode, shapes: Shapes, open_sizes: Collection[int]) -> Iterator[Pair]:
    """All sizes of one axis are equal, but for those that are 1."""
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
