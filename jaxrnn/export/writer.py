"""The writer of a graph: nodes with results of exact shapes and types, and initializers."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from jax.extend.core import Literal

from jaxrnn.errors import UnsupportedError
from jaxrnn.export import kernels
from jaxrnn.export.quantized import BLOCKS_SINCE, Quantized
from jaxrnn.jaxprs.casts import kept

#: Temporary nodes: functions that ONNX lacks, which are written out after the rewrites, and the ends of a graph.
OWN = frozenset({"Erfc", "Expm1", "Log1p", "Result"})
OWN_DOMAIN = "jaxrnn"
#: The key in an initializer's ``meta``: True if the array depends on shapes and literals only, not on parameters.
MADE = "made"

#: An array that is known while the graph is written, or a value of the graph.
Operand = np.ndarray | ir.Value


def shape_of(operand: Any) -> tuple[int, ...]:
    """Return the shape of an array, or of a value of a graph."""
    if not isinstance(operand, ir.Value):
        return operand.shape
    assert operand.shape is not None
    return tuple(int(size) for size in operand.shape)  # pyright: ignore[reportArgumentType]


def dtype_of(operand: Any) -> np.dtype:
    """Return the dtype of an array, or of a value of a graph."""
    if not isinstance(operand, ir.Value):
        return operand.dtype
    assert operand.dtype is not None
    return operand.dtype.numpy()


def make_value(name: str, shape: Sequence[int], dtype: Any) -> ir.Value:
    """Make a value of a graph."""
    return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.from_numpy(np.dtype(dtype))))


class Made:
    """Arrays that depend on no parameter, such as Fourier matrices; their initializers are marked `MADE`."""

    def __init__(self) -> None:
        self._arrays: dict[int, np.ndarray] = {}

    def add(self, array: np.ndarray) -> np.ndarray:
        """Add an array, and return it."""
        self._arrays[id(array)] = array
        return array

    def __contains__(self, array: Any) -> bool:
        """Return True if an array, or the array that it is a view of, depends on no parameter."""
        while array is not None and id(array) not in self._arrays:
            array = getattr(array, "base", None)
        return array is not None

    def follow(self, atoms: Sequence[Any], operands: Sequence[Any], results: Iterable[Any]) -> None:
        """Add the known results of an equation if no operand depends on a parameter."""
        if all(isinstance(atom, Literal) or each in self for atom, each in zip(atoms, operands, strict=True)):
            for each in results:
                self.add(each)


class Writer:
    """The nodes of a graph or subgraph in order.

    ``scope`` is the prefix of the next nodes' names. ``target`` is the engine of the file, by default all engines.
    """

    def __init__(self, opset: int, target: str | None = None, outer: Writer | None = None):
        self.opset, self.target = opset, target
        self.nodes: list[ir.Node] = []
        self.scope = "" if outer is None else outer.scope
        self._names: set[str] = set() if outer is None else outer._names
        self._initializers: dict[Any, ir.Value] = {} if outer is None else outer._initializers
        self._parameters: dict[int, tuple[str, np.ndarray]] = {} if outer is None else outer._parameters
        self._equal_parameters: dict[Any, np.ndarray] = {} if outer is None else outer._equal_parameters
        self.made: Made = Made() if outer is None else outer.made

    def inside(self) -> Writer:
        """Return the writer of a subgraph, which can read the values of this graph."""
        return Writer(self.opset, self.target, self)

    def parameter(self, name: str, array: np.ndarray) -> None:
        """Name an array. Uses of the array, or of an equal array, become an initializer with this name."""
        self._parameters[id(array)] = (self.unused(name), array)
        self._equal_parameters.setdefault(_content(array), array)

    def is_parameter(self, array: np.ndarray) -> bool:
        """Return True if an array is, or equals, a parameter."""
        return id(array) in self._parameters or _content(array) in self._equal_parameters

    def has(self, array: np.ndarray) -> bool:
        """Return True if the graph has an initializer with this content."""
        return _content(array) in self._initializers

    def unused(self, name: str) -> str:
        """Return the name, with a number if the name is taken, and take it."""
        return unused_name(name, self._names)

    def value(self, operand: Operand) -> ir.Value:
        """Return an operand as a value. Equal arrays share an initializer."""
        if isinstance(operand, ir.Value):
            return operand
        if isinstance(operand, Quantized) and operand.is_large and (quantized := self.quantized(operand)) is not None:
            return quantized
        content = "" if id(operand) in self._parameters else _content(operand)
        array = self._equal_parameters.get(content, operand)
        name, _ = self._parameters.get(id(array), ("", None))
        key = name or content
        if key not in self._initializers:
            if not isinstance(array, Quantized):
                array = np.ascontiguousarray(array).reshape(array.shape)
            value = make_value(name or self.unused(f"{self.scope or ''}/constant"), array.shape, array.dtype)
            value.const_value = ir.tensor(array, name=value.name)
            self._initializers[key] = value
            value.meta[MADE] = True
        if name or operand not in self.made:  # one use of a parameter suffices
            self._initializers[key].meta[MADE] = False
        elif self._initializers[key].meta[MADE]:
            self.made.add(array)
        return self._initializers[key]

    def quantized(self, array: Quantized) -> ir.Value | None:
        """Write DequantizeLinear of the integers of an array, or return None if the opset lacks the operator."""
        known = array.operands()
        if known is None or array.steps is None:
            return None
        attributes = known[1]
        blocks = "block_size" in attributes or array.steps.dtype.name.endswith("int4")
        if self.opset < (BLOCKS_SINCE if blocks else 13 if attributes else 10):
            return None
        return self.node("DequantizeLinear", *known[0], shape=array.shape, dtype=array.dtype, **known[1])

    @property
    def initializers(self) -> list[ir.Value]:
        """All initializers, including subgraphs."""
        return list(self._initializers.values())

    def nodes_of(
        self,
        operator: str,
        inputs: Iterable[Operand | None],
        results: Sequence[tuple[Sequence[int], Any]],
        **attributes: Any,
    ) -> list[ir.Value]:
        """Write a node and return the results.

        Operands are cast to a wider type, and results back, if engines lack a kernel for the type (`kernels`).
        ``inputs`` and ``attributes`` that are None are left out. ``results`` are shapes and dtypes.
        """
        own, inputs = operator in OWN, list(inputs)
        if not own:
            count = max((place + 1 for place, each in enumerate(inputs) if each is not None), default=0)
            used = frozenset(name for name, value in attributes.items() if value is not None)
            check_operator(operator, self.opset, count, used)
            types = [None if each is None else dtype_of(each) for each in inputs]
            if changed := kernels.substitutes(operator, self.opset, types, [np.dtype(dtype) for _, dtype in results]):
                return self._cast_around(operator, inputs, results, changed, attributes)
        scope = self.scope if self.scope.endswith(operator) else f"{self.scope}/{operator}"
        name = self.unused(scope)
        ends = [""] if len(results) == 1 else [f"_{index}" for index in range(len(results))]
        node = ir.node(
            operator,
            [None if each is None else self.value(each) for each in inputs],
            {key: _attribute(value) for key, value in attributes.items() if value is not None},
            outputs=[
                make_value(self.unused(f"{name}_output{end}"), *result)
                for end, result in zip(ends, results, strict=True)
            ],
            name=name,
            domain=OWN_DOMAIN if own else "",
        )
        node.meta["scope"] = self.scope
        self.nodes.append(node)
        return list(node.outputs)

    def _cast_around(
        self,
        operator: str,
        inputs: Sequence[Operand | None],
        results: Sequence[tuple[Sequence[int], Any]],
        changed: Mapping[str, np.dtype],
        attributes: Mapping[str, Any],
    ) -> list[ir.Value]:
        of_inputs, of_results = kernels.changed_types(operator, self.opset, changed, len(inputs), len(results))
        pairs = zip(inputs, of_inputs, strict=True)
        operands = [each if each is None or dtype is None else self.cast(each, dtype) for each, dtype in pairs]
        computed = [
            (shape, dtype if other is None else other)
            for (shape, dtype), other in zip(results, of_results, strict=True)
        ]
        values = self.nodes_of(operator, operands, computed, **attributes)
        return [self.value(self.cast(value, dtype)) for value, (_, dtype) in zip(values, results, strict=True)]

    def cast(self, x: Operand, dtype: Any) -> Operand:
        """Cast an operand. Integers wrap around, floats are truncated."""
        dtype = np.dtype(dtype)
        if dtype_of(x) == dtype:
            return x
        if isinstance(x, np.ndarray):
            with np.errstate(all="ignore"):
                return x.astype(dtype)
        node = maker_of(x, "Cast")
        source = None if node is None else node.inputs[0]
        if source is not None and dtype_of(source) == dtype and kept(dtype, dtype_of(x)).all:
            return source
        return self.node("Cast", x, dtype=dtype, to=int(ir.DataType.from_numpy(dtype)))

    def node(
        self,
        operator: str,
        *inputs: Operand | None,
        shape: Sequence[int] | None = None,
        dtype: Any = None,
        **attributes: Any,
    ) -> ir.Value:
        """Write a node with a single result, by default of the broadcast shape and the first operand's dtype."""
        known = [each for each in inputs if each is not None]
        shape = np.broadcast_shapes(*map(shape_of, known)) if shape is None else shape
        return self.nodes_of(operator, inputs, [(shape, dtype_of(known[0]) if dtype is None else dtype)], **attributes)[
            0
        ]


def unused_name(name: str, taken: set[str]) -> str:
    """Return the name, with a number if the name is taken, and add it to the taken names."""
    candidate, count = name, 0
    while candidate in taken:
        count += 1
        candidate = f"{name}_{count}"
    taken.add(candidate)
    return candidate


def _content(array: np.ndarray) -> tuple[Any, ...]:
    return array.shape, array.dtype.str, array.dtype.name, array.tobytes()


@functools.cache
def _versions() -> dict[str, list[tuple[int, int, frozenset[str]]]]:
    """Return the versions of each operator: the opset, the most inputs, and the names of the attributes."""
    result: dict[str, list[tuple[int, int, frozenset[str]]]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain:
            entry = schema.since_version, schema.max_input, frozenset(schema.attributes)
            result.setdefault(schema.name, []).append(entry)
    return result


def check_operator(operator: str, opset: int, inputs: int, attributes: frozenset[str]) -> None:
    """Refuse an operator that an opset does not have, or not in this form, and name the opset that added the form."""
    versions = _versions()[operator]
    here = max((first for first, _, _ in versions if first <= opset), default=0)
    fitting = [first for first, most, names in versions if inputs <= most and attributes <= names]
    later = [first for first in fitting if first > opset]
    if here in fitting or not later:
        return
    first = min(later)
    raise UnsupportedError(f"{operator} needs opset {first}, and the file gets opset {opset}: give `opset={first}`")


def maker_of(operand: Operand | None, *operators: str) -> ir.Node | None:
    """Return the node that computes an operand if the operator is in ``operators``."""
    node = operand.producer() if isinstance(operand, ir.Value) else None
    return node if node is not None and node.op_type in operators else None


def constant_of(value: ir.Value | None) -> np.ndarray | None:
    """Return the array of an initializer, or None if the value is computed."""
    return None if value is None or value.const_value is None else value.const_value.numpy()


def operand_of(value: ir.Value) -> Operand:
    """Return the array of an initializer, or the value itself."""
    known = constant_of(value)
    return value if known is None else known


def _attribute(value: Any) -> Any:
    """Convert NumPy numbers in an attribute, such as computed axes, to Python numbers."""
    if isinstance(value, np.generic):
        return value.item()
    return [_attribute(each) for each in value] if isinstance(value, (list, tuple)) else value
