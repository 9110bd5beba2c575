"""Equations between the open dimensions of a graph: which ones its operators need to be equal, constant, or 1."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jaxrnn.errors import LimitError
from jaxrnn.jaxprs.origins import DataFlow
from jaxrnn.onnx.blocks import BoundNode
from jaxrnn.onnx.interface import is_batch_name
from jaxrnn.onnx.operators.arithmetic import broadcast_sizes, shapes_of
from jaxrnn.onnx.state.tracing import NotFollowedError
from jaxrnn.steps.specs import Dimension

#: The first sizes of batches, and factors of other sizes: no graph has them as constants by accident.
_FACTORS = (7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)


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
        """Merge two classes, or set a class to a constant."""
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
        factors = itertools.chain(_FACTORS, itertools.count(101, 2))
        lengths = (factor * base for factor in factors) if spread else itertools.count(base + 1)
        batches = itertools.chain(_FACTORS, itertools.count(101, 2))
        taken: dict[str, int] = {}
        for name in self.classes:
            numbers = batches if is_batch_name(name) else lengths
            taken[name] = next(number for number in numbers if number not in taken.values())
        return taken


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
    changed = False
    rule = node.operator.traits.equal_sizes
    pairs = broadcast_sizes(shapes_of(operands)) if rule is None else rule(node.attributes, operands, class_of)
    for pair in pairs:
        first, second = (sizes.value[class_of[size]] if size in class_of else size for size in pair)
        if first != second and (isinstance(first, str) or isinstance(second, str)):
            sizes.unify(first, second)
            changed = True
    return changed
