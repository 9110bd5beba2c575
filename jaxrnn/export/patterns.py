"""Patterns of nodes, and rewrites that replace nodes.

A pattern is written like a call of operators. ``Where(GreaterOrEqual(X, 0.0), X, Mul(X, ALPHA))`` matches four nodes
that compute a value from a value `X`, the constant 0 and a constant. Operands of commutative operators match in
either order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from jaxrnn.export.reshaping import reshape, source_of
from jaxrnn.export.writer import Operand, Writer, constant_of, dtype_of, operand_of, shape_of

_COMMUTE = frozenset({"Add", "And", "Equal", "Max", "Min", "Mul", "Or"})


@dataclass(frozen=True)
class Found:
    """A partial match: bound names, and the matched nodes, the last node of the graph first."""

    values: dict[str, Any]
    nodes: tuple[ir.Node, ...] = ()

    def bound(self, name: str, value: Any) -> Found | None:
        """Bind a name, or return None if the name is bound to a different value."""
        if name not in self.values:
            return replace(self, values={**self.values, name: value})
        known = self.values[name]
        same = known is value or (isinstance(known, float) and known == value)
        return self if same else None


@dataclass(frozen=True)
class NamedOperand:
    """A named operand. ``read`` returns the object to bind, or None without a match."""

    name: str
    read: Callable[[ir.Value | None], Any]

    def find(self, value: ir.Value | None, found: Found) -> Iterator[Found]:
        """Yield the matches of a value."""
        bound = self.read(value)
        if bound is not None and (more := found.bound(self.name, bound)) is not None:
            yield more


def number_of(value: ir.Value | None) -> float | None:
    """Return the number that all elements of a constant equal, or None."""
    array = constant_of(value)
    if array is None or not array.size or array.dtype.kind not in "fiu":
        return None
    first = array.reshape(-1)[0]
    return float(first) if np.all(array == first) and len(set(np.signbit(array).reshape(-1).tolist())) == 1 else None


def _constant(value: ir.Value | None) -> ir.Value | None:
    return None if constant_of(value) is None else value


#: Any value; equal names match the same value.
Value = functools.partial(NamedOperand, read=lambda value: value)
#: A constant array.
Known = functools.partial(NamedOperand, read=_constant)
#: A constant array of equal elements, bound as a float.
Number = functools.partial(NamedOperand, read=number_of)


class Either:
    """A term that matches any of several terms."""

    def __init__(self, *terms: Any):
        self.terms = terms

    def find(self, value: ir.Value | None, found: Found) -> Iterator[Found]:
        """Yield the matches of a value."""
        for term in self.terms:
            yield from find(term, value, found)


@dataclass(frozen=True)
class Op:
    """The result of a node. Operands after the written operands match any value."""

    operator: str
    operands: tuple[Any, ...]
    name: str = ""

    def find(self, value: ir.Value | None, found: Found) -> Iterator[Found]:
        """Yield the matches of a value."""
        node = None if value is None else value.producer()
        if node is None or node.op_type != self.operator or len(node.inputs) < len(self.operands):
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
        """Bind the node of the term to a name."""
        return replace(self, name=name)


def _find_all(terms: tuple[Any, ...], values: Any, found: Found) -> Iterator[Found]:
    if not terms:
        yield found
        return
    for here in find(terms[0], values[0], found):
        yield from _find_all(terms[1:], values[1:], here)


def find(term: Any, value: ir.Value | None, found: Found) -> Iterator[Found]:
    """Yield the matches of a term. A float matches a constant array with all elements equal to this number."""
    if not isinstance(term, float):
        yield from term.find(value, found)
        return
    number = number_of(value)
    if number is not None and value is not None and _is_number(number, term, dtype_of(value)):
        yield found


def _is_number(number: float, expected: float, dtype: np.dtype) -> bool:
    """Compare a constant with a literal, which the dtype may round, such as sqrt(0.5)."""
    expected = float(dtype.type(expected)) if dtype.kind == "f" else expected
    return number == expected and bool(np.signbit(number) == np.signbit(expected))


def operator(name: str) -> Callable[..., Op]:
    """Return a function that creates terms of an operator."""
    return lambda *operands: Op(name, operands)


#: Operators without float64 kernels in engines, though ONNX allows float64.
_NOT_IN_DOUBLE = frozenset(
    """
    AveragePool Elu Gelu HardSigmoid HardSwish InstanceNormalization Selu Softplus Softsign ThresholdedRelu
    """.split()  # noqa: SIM905
)


class Match:
    """A match of a pattern: the value to replace, the nodes found, and a writer for new nodes."""

    def __init__(self, writer: Writer, result: ir.Value, found: Found):
        self.writer, self.result, self.found = writer, result, found
        self.root = found.nodes[0]

    def __getitem__(self, name: str) -> Any:
        return self.found.values[name]

    def get(self, name: str, default: Any) -> Any:
        """Return the value of a name that only some alternatives bind."""
        return self.found.values.get(name, default)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return shape_of(self.result)

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the result."""
        return dtype_of(self.result)

    def number(self, value: float) -> np.ndarray:
        """Return a number of the result's dtype."""
        return np.array(value, self.dtype)

    def node(
        self,
        operator: str,
        x: Operand,
        *operands: Operand | None,
        shape: Sequence[int] | None = None,
        **attributes: Any,
    ) -> ir.Value | None:
        """Write a node of the result's dtype, by default of the shape of the first operand.

        Returns None if the opset lacks the operator, if engines lack it for the dtype, or if a float attribute, which
        is float32, would lose precision.
        """
        if not onnx.defs.has(operator, max_inclusive_version=self.writer.opset):
            return None
        if self.dtype.kind != "f" or (self.dtype == np.float64 and operator in _NOT_IN_DOUBLE):
            return None
        numbers = [each for each in attributes.values() if isinstance(each, float)]
        if self.dtype == np.float64 and any(float(np.float32(each)) != each for each in numbers):
            return None
        shape = shape_of(x) if shape is None else shape
        return self.writer.node(operator, x, *operands, shape=shape, dtype=self.dtype, **attributes)

    def like(self, node: ir.Node, *operands: Any) -> ir.Value | None:
        """Write a node like a given node, with the same first operand."""
        shape = shape_of(node.outputs[0])
        return self.node(node.op_type, source_of(node), *operands, shape=shape, **attributes_of(node))


def attributes_of(node: ir.Node) -> dict[str, Any]:
    """Return a dict of the attributes of a node."""
    return {name: each.value for name, each in node.attributes.items()}


def by_channel(match: Match, name: str) -> Operand | None:
    """Return a value for each channel, the second axis of the result, as a vector; None if the shapes differ."""
    value, shape = match[name], match.shape
    own = (1,) * (len(shape) - len(shape_of(value))) + shape_of(value)
    if len(shape) < 2 or dtype_of(value) != match.dtype or own not in (_channels(shape, shape[1]), _channels(shape, 1)):
        return None
    vector = reshape(match.writer, operand_of(value), (own[1],))
    if own[1] == shape[1]:
        return vector
    return np.broadcast_to(vector, shape[1:2]) if isinstance(vector, np.ndarray) else None


def _channels(shape: Sequence[int], count: int) -> tuple[int, ...]:
    return (1, count, *(1,) * (len(shape) - 2))


@dataclass(frozen=True)
class Rewrite:
    """A pattern, and a function that builds a replacement of the same shape and dtype.

    ``build`` returns None if further conditions fail. With ``shares``, other nodes may use the intermediate results.
    ``named`` is the index of the matched node that names the new nodes, by default the last node.
    """

    pattern: Op
    build: Callable[[Match], Operand | None]
    shares: bool = False
    named: int = -1

    def of(self, writer: Writer, result: ir.Value) -> Operand | None:
        """Return a replacement of a value, or None."""
        for found in find(self.pattern, result, Found({})):
            if not (self.shares or _is_alone(found.nodes)) or not _is_in_one_graph(found.nodes):
                continue
            writer.scope = found.nodes[self.named].meta.get("scope", "")
            built = self.build(Match(writer, result, found))
            if built is not None and (shape_of(built), dtype_of(built)) == (shape_of(result), dtype_of(result)):
                return built
            writer.nodes.clear()
        return None


def _is_alone(nodes: Sequence[ir.Node]) -> bool:
    """Return True if no other node uses the results of these nodes, apart from the first node's results."""
    inner = {id(node) for node in nodes}
    return all(
        not value.is_graph_output() and all(id(use.node) in inner for use in value.uses())
        for node in nodes[1:]
        for value in node.outputs
    )


def _is_in_one_graph(nodes: Sequence[ir.Node]) -> bool:
    """Return True if all nodes are in the same graph. A move into a loop would run a node in each trip."""
    return all(node.graph is nodes[0].graph for node in nodes)


def rewrite(graph: ir.Graph, writer: Writer, rewrites: Mapping[str, Sequence[Rewrite]]) -> None:
    """Replace patterns in a graph and all subgraphs until none is left."""
    changed = True
    while changed:
        changed = False
        for node in list(graph.all_nodes()):
            if node.graph is not None and _rewritten(writer.inside(), node, rewrites.get(node.op_type, ())):
                changed = True


def _rewritten(writer: Writer, node: ir.Node, rewrites: Sequence[Rewrite]) -> bool:
    for result in node.outputs:
        for each in rewrites if result.uses() or result.is_graph_output() else ():
            operand = each.of(writer, result)
            if operand is not None:
                value = writer.value(operand)
                assert node.graph is not None
                if result.is_graph_output() and not _is_own(value, node.graph, writer.nodes):
                    value = writer.node("Identity", value)
                node.graph.insert_before(node, writer.nodes)
                result.replace_all_uses_with(value, replace_graph_outputs=True)
                _remove(node)
                return True
    return False


def _is_own(value: ir.Value, graph: Any, nodes: Sequence[ir.Node]) -> bool:
    """Return True if a value can become a graph output: computed in the graph, and not yet an output."""
    maker = value.producer()
    return maker is not None and (maker.graph is graph or maker in nodes) and not value.is_graph_output()


def _remove(node: ir.Node) -> None:
    """Remove a node without uses, then the nodes that lose their last use."""
    if node.graph is None or any(value.uses() or value.is_graph_output() for value in node.outputs):
        return
    makers = [value.producer() for value in node.inputs if value is not None]
    node.graph.remove(node, safe=True)
    for maker in makers:
        if maker is not None:
            _remove(maker)
