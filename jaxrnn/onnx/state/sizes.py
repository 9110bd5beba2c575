"""Equations between the open dimensions of a graph, and numbers for dimensions that fit the graph."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrnn.errors import LimitError
from jaxrnn.jaxprs.origins import DataFlow
from jaxrnn.onnx.evaluate import BoundNode
from jaxrnn.onnx.interface import is_batch_name, spec_of
from jaxrnn.onnx.operators.arithmetic import broadcast_sizes, shapes_of
from jaxrnn.onnx.program import Program
from jaxrnn.onnx.state.tracing import NotFollowedError, follow
from jaxrnn.steps.specs import ArraySpec, Dimension

#: The first sizes of batches, and factors of other sizes: no graph has them as constants by accident.
_FACTORS = (7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)


class Sizes:
    """Open dimensions in classes: all dimensions of a class are equal, and some are constants.

    Attributes:
        value: for each open dimension the first name of its class, or the constant that it must be.
    """

    def __init__(self, symbols: Iterable[str]):
        self.value: dict[str, Dimension] = {symbol: symbol for symbol in symbols}
        named = {name: name.partition("*") for name in self.value}
        #: The declared multiples of other dimensions: ``4*U`` is 4 times ``U``.
        self._multiples = {
            name: (int(factor), base.strip())
            for name, (factor, _, base) in named.items()
            if factor.strip().isdecimal() and base.strip() in self.value
        }

    @property
    def classes(self) -> list[str]:
        """Return the first names of the classes that are neither constants nor multiples of others."""
        return [name for name, value in self.value.items() if name == value and name not in self._multiples]

    def unify(self, first: Dimension, second: Dimension) -> None:
        """Merge two classes, or set a class to a constant."""
        if not isinstance(first, str):
            first, second = second, first
        elif isinstance(second, str):  # a multiple stays, else the name that comes first in the file
            names = list(self.value)
            second, first = sorted((first, second), key=lambda name: (name not in self._multiples, names.index(name)))
        for name, value in self.value.items():
            if value == first:
                self.value[name] = second

    def base(self, name: str) -> Dimension:
        """Return the class of a dimension, or for a multiple the class of the other dimension."""
        value = self.value[name]
        return self.base(self._multiples[value][1]) if value in self._multiples else value

    def numbers(self, of_class: Mapping[str, int]) -> dict[str, int]:
        """Return a number for every open dimension."""
        return {name: self._number(name, of_class) for name in self.value}

    def _number(self, name: str, of_class: Mapping[str, int]) -> int:
        value = self.value[name]
        if value in self._multiples:
            factor, other = self._multiples[value]
            return factor * self._number(other, of_class)
        return of_class[value] if isinstance(value, str) else value

    def distinct(self, base: int, spread: bool) -> dict[str, int]:
        """Return a number for each class, and for each multiple, that differs from other classes and from constants."""
        factors = itertools.chain(_FACTORS, itertools.count(101, 2))
        lengths = (factor * base for factor in factors) if spread else itertools.count(base + 1)
        batches = itertools.chain(_FACTORS, itertools.count(101, 2))
        taken: dict[str, int] = {}
        for name in self.classes:
            numbers = batches if is_batch_name(name) else lengths
            taken[name] = next(number for number in numbers if number not in taken.values())
        multiples = {name: self._number(name, taken) for name in self._multiples if self.value[name] == name}
        return taken | multiples


def solve(
    sizes: Sizes, base: int, spread: bool, attempt: Callable[[Mapping[str, int]], DataFlow]
) -> tuple[DataFlow, dict[int, str]] | None:
    """Unify the sizes that operators need to be equal, until the graph can be followed.

    Returns the flow with these numbers, and the class of each number; None if no equation helps a failing operator.
    Earlier unifications stay.
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
    """Unify the sizes that a node needs to be equal; return False if all are equal."""
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


#: Sizes to try for open dimensions until the graph accepts them; the first one is long enough for loops to be loops.
_SIZES = (16, 64, 256, 512, 1024, 4096)
_BATCH_SIZE = 2
#: The difference between the numbers of the first and a second trial.
_APART = 37


class Probe:
    """A graph that is followed with sizes that fit: its open dimensions, their numbers, and the flow."""

    def __init__(
        self,
        program: Program,
        inputs: Sequence[ArraySpec],
        static: Mapping[str, np.ndarray],
        sources: Sequence[str],
        said: Sequence[tuple[str, str]],
    ):
        self._program, self._static = program, static
        self.symbols = list(dict.fromkeys(s for info in inputs for s in info.shape or () if isinstance(s, str)))
        #: The sizes of bound inputs along open dimensions of the file.
        self._bound: dict[str, int] = {}
        self.equations = Sizes(self.symbols)
        self._solved: tuple[DataFlow, dict[int, str]] | None = None
        for info in map(spec_of, program.block.inputs):
            if info.name in static:
                sizes = zip(info.shape or (), static[info.name].shape, strict=False)
                self._bound.update({name: size for name, size in sizes if name in self.symbols})
        self.sizes, self.flow = self._fit(sources, said)
        self._longer: dict[frozenset[str], DataFlow | None] = {}

    def _fit(self, sources: Sequence[str], said: Sequence[tuple[str, str]]) -> tuple[dict[str, int], DataFlow]:
        """Solve the equations with distinct numbers, and follow the graph with small numbers."""
        size = self._solve()
        self._tie(said)
        for of_class in ({name: _BATCH_SIZE if is_batch_name(name) else size for name in self.equations.classes}, {}):
            sizes = self.equations.numbers(dict.fromkeys(self.equations.classes, size) | of_class)
            with contextlib.suppress(NotFollowedError):
                return sizes, follow(self._program, sizes, self._static, sources, strict=True)
        return sizes, follow(self._program, sizes, self._static, sources, strict=False)

    def _solve(self) -> int:
        """Solve the equations, and return a size that all dimensions can have together."""
        if not self.symbols or self._solves(_SIZES[0], False):
            return _SIZES[0]
        # Windows and loops need some length, and some graphs a multiple.
        accepted = next((size for size in _SIZES if self._accepts(dict.fromkeys(self.symbols, size))), None)
        for size, spread in itertools.product(_SIZES[::2] if accepted is None else (accepted,), (False, True)):
            if self._solves(size, spread):
                return size
        return accepted or _SIZES[0]

    def _solves(self, size: int, spread: bool) -> bool:
        self.equations = self._unsolved()
        self._solved = solve(
            self.equations, size, spread, lambda sizes: follow(self._program, sizes, self._static, None, strict=True)
        )
        # A size that was a constant by accident, such as four times another size, differs with other numbers.
        again = self.equations.distinct(2 * size if spread else size + _APART, spread)
        if self._solved is not None and self._accepts(self.equations.numbers(again)):
            return True
        self.equations, self._solved = self._unsolved(), None
        return False

    def _unsolved(self) -> Sizes:
        sizes = Sizes(self.symbols)
        for name, bound in self._bound.items():
            sizes.unify(name, bound)
        return sizes

    def _tie(self, said: Sequence[tuple[str, str]]) -> None:
        """Set open dimensions of state to 1 if the next value has size 1, because the exporter fixed the batch."""
        if self._solved is None:
            return
        flow, class_of = self._solved
        for name, updated in said:
            shapes = [flow.inputs[name].shape, flow.outputs[updated].shape]
            if None in shapes or len(shapes[0] or ()) != len(shapes[1] or ()):
                continue
            for pair in zip(*shapes, strict=True):
                first, second = (self.equations.value[class_of[size]] if size in class_of else size for size in pair)
                if first != second and 1 in (first, second):
                    self.equations.unify(first, second)

    def _accepts(self, sizes: Mapping[str, int]) -> bool:
        try:
            follow(self._program, {**sizes, **self._bound}, self._static, None, strict=True)
        except (NotFollowedError, LimitError):
            return False
        return True

    def longer(self, symbol: str) -> DataFlow | None:
        """Return the flow with a class of dimensions twice as long, or None if that size does not fit."""
        first = self.equations.base(symbol)
        return self._doubled(frozenset(name for name in self.symbols if self.equations.base(name) == first))

    def _doubled(self, names: frozenset[str]) -> DataFlow | None:
        if names not in self._longer:
            sizes = {name: size * 2 if name in names else size for name, size in self.sizes.items()}
            try:
                self._longer[names] = follow(self._program, sizes, self._static, None, strict=True)
            except (NotFollowedError, LimitError):
                self._longer[names] = None
        return self._longer[names]

    @property
    def dimensions(self) -> dict[str, Dimension]:
        """Return for each open dimension the first name of its class, or the constant that nodes need."""
        return self.equations.value

    @functools.cached_property
    def time(self) -> tuple[str, ...]:
        """Return the open dimensions along which a recurrence or a window slides."""
        flows = {symbol: self.longer(symbol) for symbol in self.symbols if isinstance(self.dimensions[symbol], str)}
        return tuple(s for s, flow in flows.items() if flow is not None and flow.lengths != self.flow.lengths)

    def grows_with_time(self, index: int) -> bool:
        """Return True if this site has more steps when time is longer."""
        flows = map(self.longer, self.time)
        return any(flow is not None and flow.sites[index].length != self.flow.sites[index].length for flow in flows)

    def carry_shape(self, index: int) -> tuple[Dimension, ...]:
        """Return the shape of the carry of a site, with names of open dimensions."""
        sizes = self.flow.sites[index].final.shape or ()
        return tuple(self._named(size, self._growth(index, axis)) for axis, size in enumerate(sizes))

    def open_in_carry(self, index: int) -> set[str]:
        """Return the classes of dimensions on which the shape of the carry of a site depends."""
        axes = range(len(self.flow.sites[index].final.shape or ()))
        return {symbol for axis in axes for symbol in self._growth(index, axis)}

    def _growth(self, index: int, axis: int) -> dict[str, int]:
        """Return by how much an axis of a carry grows with each class of dimensions that it depends on."""
        size = (self.flow.sites[index].final.shape or ())[axis]
        flows = {symbol: self.longer(symbol) for symbol in self.equations.classes}
        others = {symbol: (flow.sites[index].final.shape or ())[axis] for symbol, flow in flows.items() if flow}
        return {symbol: other - size for symbol, other in others.items() if other != size}

    def _named(self, size: int, growth: Mapping[str, int]) -> Dimension:
        if not growth:
            return size
        sizes = [self.sizes[symbol] for symbol in growth]
        factor = next(iter(growth.values())) / math.prod(sizes)
        return "*".join([*([] if factor == 1 else [f"{factor:g}"]), *growth])
