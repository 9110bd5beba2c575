"""Patterns of nodes: what a value was computed by, written as operators are called.

``Where(GreaterOrEqual(X, 0.0), X, Mul(X, ALPHA))`` is a value that these four nodes compute of one value, `X`, with two
numbers, of which one is 0. Operands of operators that commute may come in either order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxrnn.lowering.writer import constant_of, dtype_of

_COMMUTE = frozenset({"Add", "And", "Equal", "Max", "Min", "Mul", "Or"})


@dataclass(frozen=True)
class Found:
    """What a pattern has met so far.

    Attributes:
        values: by the name of a term, a value of the graph, an array or a number.
        nodes: those that the pattern is made of, the last one of the graph first; those with a name by it too.
    """

    values: dict[str, Any]
    nodes: tuple[ir.Node, ...] = ()

    def bound(self, name: str, value: Any) -> Found | None:
        """With a value of that name; None if the name has another."""
        if name not in self.values:
            return replace(self, values={**self.values, name: value})
        known = self.values[name]
        same = known is value or (isinstance(known, float) and known == value)
        return self if same else None


@dataclass(frozen=True)
class Value:
    """Any value, the same wherever the name stands."""

    name: str

    def find(self, value: ir.Value | None, found: Found) -> Iterator[Found]:
        """All ways in which it is what computed a value."""
        if value is not None and (more := found.bound(self.name, value)) is not None:
            yield more


@dataclass(frozen=True)
class Known:
    """An array that is known."""

    name: str

    def find(self, value: ir.Value | None, found: Found) -> Iterator[Found]:
        """All ways in which it is what computed a value."""
        if constant_of(value) is not None and (more := found.bound(self.name, value)) is not None:
            yield more


@dataclass(frozen=True)
class Number:
    """A known array all of whose elements are one number, as a float."""

    name: str

    def find(self, value: ir.Value | None, found: Found) -> Iterator[Found]:
        """All ways in which it is what computed a value."""
        number = number_of(value)
        if number is not None and (more := found.bound(self.name, number)) is not None:
            yield more


@dataclass(frozen=True)
class Either:
    """One of several terms."""

    terms: tuple[Any, ...]

    def find(self, value: ir.Value | None, found: Found) -> Iterator[Found]:
        """All ways in which it is what computed a value."""
        for term in self.terms:
            yield from find(term, value, found)


@dataclass(frozen=True)
class Op:
    """The result of a node; operands after those that are written may be anything."""

    operator: str
    operands: tuple[Any, ...]
    name: str = ""

    def find(self, value: ir.Value | None, found: Found) -> Iterator[Found]:
        """All ways in which it is what computed a value."""
        node = None if value is None else value.producer()
        if node is None or node.op_type != self.operator:
            return
        if len(node.inputs) < len(self.operands):
            return
        here: Found | None = replace(found, nodes=(*found.nodes, node))
        if self.name:
            here = here.bound(self.name, node)
        if here is None:
            return
        orders = [node.inputs]
        if self.operator in _COMMUTE:
            orders.append(node.inputs[::-1])
        for inputs in orders:
            yield from _find_all(self.operands, inputs, here)

    def named(self, name: str) -> Op:
        """With its node under a name."""
        return replace(self, name=name)


def _find_all(terms: tuple[Any, ...], values: Any, found: Found) -> Iterator[Found]:
    if not terms:
        yield found
        return
    for here in find(terms[0], values[0], found):
        yield from _find_all(terms[1:], values[1:], here)


def find(term: Any, value: ir.Value | None, found: Found) -> Iterator[Found]:
    """All ways in which a term is what computed a value; a float is a known array of that number."""
    if not isinstance(term, float):
        yield from term.find(value, found)
        return
    number = number_of(value)
    if number is not None and value is not None and _is_number(number, term, dtype_of(value)):
        yield found


def _is_number(number: float, expected: float, dtype: np.dtype) -> bool:
    if number == expected:
        return bool(np.signbit(number) == np.signbit(expected))
    return dtype.kind == "f" and 0 < abs(number - expected) <= float(np.finfo(dtype).eps) * abs(expected) < np.inf


def number_of(value: ir.Value | None) -> float | None:
    """The number that all elements of a known array are; None for another value."""
    array = constant_of(value)
    if array is None or not array.size or array.dtype.kind not in "fiu":
        return None
    first = array.reshape(-1)[0]
    return float(first) if np.all(array == first) and len(set(np.signbit(array).reshape(-1).tolist())) == 1 else None


def operator(name: str) -> Callable[..., Op]:
    """A function that writes the term of an operator."""
    return lambda *operands: Op(name, operands)


def either(*terms: Any) -> Either:
    """One of several terms."""
    return Either(terms)
