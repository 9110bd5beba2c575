"""Evaluation of a bound graph node by node, on static and traced values.

This module is the whole interpreter. Under ``jax.jit`` it runs once, while tracing, and only JAX operations remain.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax.extend.core import InconclusiveDimensionOperation, get_opaque_trace_state

from jaxrnn._files.messages import whole_message
from jaxrnn.errors import JaxrnnError, NodeError, StaticValueError
from jaxrnn.jaxprs.own import Carried, are_visible, visible
from jaxrnn.onnx import symbols
from jaxrnn.onnx.limits import Limits, check_ahead, current, spending
from jaxrnn.onnx.registry import Operator
from jaxrnn.onnx.values import Value, describe, is_known, is_sequence, is_static, settle, static, traced


@dataclass(frozen=True)
class BoundNode:
    """A node bound to an operator, with the attributes read; a graph attribute is a `Block`."""

    name: str
    operator: Operator
    inputs: tuple[ir.Value | None, ...]
    outputs: tuple[ir.Value, ...]
    attributes: Mapping[str, Any]

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The subgraphs among the attributes."""
        return tuple(value for value in self.attributes.values() if isinstance(value, Block))

    def applies(self, name: str) -> bool:
        """Return True for ONNX's operator of this name, and False for the operator of a caller."""
        return self.operator.name == name and not self.operator.domain and not self.operator.own


@dataclass
class Block:
    """A graph or subgraph: constants, parameter names, nodes in order, and limits."""

    name: str
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    constants: dict[ir.Value, np.ndarray] = field(default_factory=dict)
    parameters: dict[ir.Value, str] = field(default_factory=dict)
    nodes: list[BoundNode] = field(default_factory=list)
    limits: Limits = field(default_factory=Limits)

    def makers(self) -> dict[ir.Value, BoundNode]:
        """Return the node that computes each value."""
        return {output: node for node in self.nodes for output in node.outputs}

    def all_nodes(self) -> Iterator[BoundNode]:
        """Yield the nodes of the graph and of all subgraphs, each node before the nodes of its subgraphs."""
        for node in self.nodes:
            yield node
            for inner in node.blocks:
                yield from inner.all_nodes()

    def part(self, inputs: Iterable[ir.Value], outputs: Iterable[ir.Value]) -> Block:
        """Return the part of the graph that computes ``outputs`` from ``inputs``."""
        inputs, outputs = tuple(inputs), tuple(outputs)
        known, needed = set(inputs), set(outputs)
        nodes = []
        for node in reversed(self.nodes):
            if needed.intersection(node.outputs) - known:
                nodes.append(node)
                needed.update(reads_of(node))
        return dataclasses.replace(self, inputs=inputs, outputs=outputs, nodes=nodes[::-1])


#: A function like `call`, also for the nodes of subgraphs.
Caller = Callable[[BoundNode, Sequence[Value], "Scope"], tuple[Value, ...]]

#: Errors of JAX if Python needs the value of a tracer.
_TRACER_ERRORS = (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError)


@dataclass(eq=False)
class Scope:
    """The values of a graph during evaluation. The scope of a subgraph can read outer scopes."""

    params: Mapping[str, Value]
    outer: Scope | None = None
    caller: Caller | None = None
    block: Block | None = None
    _values: dict[ir.Value, Value] = field(default_factory=dict)

    def __setitem__(self, key: ir.Value, value: Value) -> None:
        self._values[key] = value

    def __getitem__(self, key: ir.Value) -> Value:
        scope = self._holder(key)
        if scope is None:
            raise KeyError(key)
        return scope._values[key]

    def find(self, key: ir.Value) -> Value:
        """Return the value of a key, or None if no scope has the key, as for values inside of a subgraph."""
        scope = self._holder(key)
        return None if scope is None else scope._values[key]

    def maker(self, key: ir.Value) -> BoundNode | None:
        """Return the node that computes a value, or None."""
        scope = self._holder(key)
        return None if scope is None or scope.block is None else scope.block.makers().get(key)

    def _holder(self, key: ir.Value) -> Scope | None:
        scope: Scope | None = self
        while scope is not None and key not in scope._values:
            scope = scope.outer
        return scope


@dataclass(eq=False)
class Subgraph:
    """A graph attribute, as operators receive it: a function that can also read values of outer graphs."""

    block: Block
    outer: Scope

    @property
    def output_count(self) -> int:
        """The number of outputs of the subgraph."""
        return len(self.block.outputs)

    def __call__(self, *inputs: Value) -> tuple[Value, ...]:
        """Evaluate the subgraph."""
        if len(inputs) != len(self.block.inputs):
            raise ValueError(
                f"the subgraph {self.block.name!r} takes {len(self.block.inputs)} inputs, but was given {len(inputs)}"
            )
        current().evaluate()
        return _evaluate(self.block, inputs, Scope(self.outer.params, self.outer, self.outer.caller))


def evaluate(block: Block, inputs: Sequence[Value], scope: Scope) -> tuple[Value, ...]:
    """Evaluate a graph; ``scope`` receives all intermediate values."""
    with spending(block.limits):
        return _evaluate(block, inputs, scope)


def _evaluate(block: Block, inputs: Sequence[Value], scope: Scope) -> tuple[Value, ...]:
    scope.block = block
    for key, array in block.constants.items():
        scope[key] = array
    for key, name in block.parameters.items():
        scope[key] = scope.params[name]
    for key, value in zip(block.inputs, inputs, strict=True):
        scope[key] = value
    for node in block.nodes:
        outputs = _run(node, scope)
        for key, value in zip(node.outputs, outputs, strict=False):
            scope[key] = value
    return tuple(scope[key] for key in block.outputs)


def _run(node: BoundNode, scope: Scope) -> tuple[Value, ...]:
    inputs = [None if key is None else scope[key] for key in node.inputs]
    try:
        with jax.named_scope(node.name):
            current().evaluate()
            return (scope.caller or call)(node, inputs, scope)
    except Exception as error:
        raise _located(error, node, inputs) from error


def call(node: BoundNode, inputs: Sequence[Value], scope: Scope) -> tuple[Value, ...]:
    """Call the operator of a node."""
    operator, budget = node.operator, current()
    attributes: dict[str, Any] = {
        name: Subgraph(value, scope) if isinstance(value, Block) else value for name, value in node.attributes.items()
    }
    if operator.wants_output_count:
        attributes["output_count"] = len(node.outputs)
    if operator.wants_output_name:
        attributes["output_name"] = str(node.outputs[0].name)
    arguments = list(inputs)
    for index, value in enumerate(arguments):
        slot = operator.slot(index)
        if slot is not None and slot.static and value is not None:
            if operator.traits.of_places and not is_known(value) and (key := node.inputs[index]) is not None:
                arguments[index] = _places(key, value, scope)
            else:
                arguments[index] = static(value, f"its input {slot.name!r}")
    check_sequences(node, arguments)
    check_ahead(operator, arguments, attributes, budget)
    result = operator.function(*arguments, **attributes)
    outputs = tuple(settle(value) for value in (result if isinstance(result, list) else [result]))
    named = max((place for place, key in enumerate(node.outputs, 1) if key.name), default=0)
    if named > len(outputs):
        raise ValueError(f"the node names {named} outputs, but the operator returns {len(outputs)}")
    if operator.traits.carries is not None and are_visible():
        # An equation around the outputs declares the registered carries.
        carries, starts, slots = operator.traits.carries, [], []
        for name, (start, place) in {} if carries.by_function else carries.states.items():
            if place < len(outputs) and outputs[place].size:
                slots.append(Carried(name, place, len(starts)))
                starts.append(None if start >= len(inputs) or arguments[start] is None else traced(arguments[start]))
        steps = 1 if carries.time_axis is None else arguments[0].shape[carries.time_axis]
        outputs = tuple(visible(outputs, starts, slots, steps if isinstance(steps, int) else None))
    budget.take(outputs, arguments)
    return outputs


#: Arrays of more traced integers are not written as sums.
_FEW = 16


def _places(key: ir.Value, value: Value, scope: Scope) -> Value:
    """Return the integers of a traced value as sums of traced integers and known numbers (`symbols.Place`).

    The nodes before are evaluated again, on sums. If a node fails on sums, the results are traced integers
    without parts.
    """
    known: dict[ir.Value, Value] = {}

    def of(key: ir.Value) -> Value:
        value = scope.find(key)
        if value is None or is_sequence(value) or not jnp.issubdtype(value.dtype, jnp.integer):
            return value
        if is_known(value):
            return np.asarray(value)
        if not all(isinstance(size, int) for size in value.shape) or value.size > _FEW:
            return value
        if key not in known:
            known[key] = computed(key, value)
        return known[key]

    def computed(key: ir.Value, value: Value) -> Value:
        maker = scope.maker(key)
        if maker is not None and not maker.blocks:
            operands = [None if each is None else of(each) for each in maker.inputs]
            if is_static(*(each for each in operands if each is not None)):
                with contextlib.suppress(Exception):  # an operator may raise any error for sums
                    found = call(maker, operands, scope)[maker.outputs.index(key)]
                    if is_static(found) and found.shape == value.shape:
                        return found
        items = [symbols.Place({(id(value), index): (value, 1)}, 0, value.dtype) for index in range(value.size)]
        return np.array([*items, None], object)[:-1].reshape(value.shape)

    found = of(key)
    if not is_static(found):
        return static(value)
    return symbols.each(
        lambda item: dataclasses.replace(item, element_type=value.dtype) if isinstance(item, symbols.Place) else item,
        found,
    )


def check_sequences(node: BoundNode, inputs: Sequence[Value]) -> None:
    """Refuse a sequence in place of a tensor."""
    for place, value in enumerate(inputs):
        if is_sequence(value) and (schema := node.operator.schema) is not None:
            declared = schema.inputs[min(place, len(schema.inputs) - 1)]
            if not any(kind.startswith(("seq(", "optional(")) for kind in declared.types):
                raise ValueError(f"the input {declared.name} is a sequence, but the operator takes a tensor")


def _located(error: Exception, node: BoundNode, inputs: Sequence[Value]) -> JaxrnnError:
    """Return the error with the node that raised it."""
    if isinstance(error, JaxrnnError) and error.located:
        return error
    kind: type[JaxrnnError] = type(error) if isinstance(error, JaxrnnError) else NodeError
    reason = whole_message(error)
    if isinstance(error, _TRACER_ERRORS):
        kind, reason = StaticValueError, "the operator needs a value that is not known while tracing"
    elif isinstance(error, InconclusiveDimensionOperation):
        advice = " Say what holds by constraints, such as 'S >= 3', or by `multiple=8` for recordings of whole windows"
        reason = whole_message(error, advice)
    shown = ", ".join(describe(value) for value in inputs) or "no inputs"
    place = f"node {node.name!r} ({node.operator}) on {shown}"
    located = kind(f"{place}: {reason}")
    located.located = True
    located.node = node
    located.operands = tuple(
        value if isinstance(value, np.ndarray) else getattr(value, "shape", None) for value in inputs
    )
    if isinstance(located, NodeError):
        located.place = place
    return located


def copied_from(value: ir.Value, makers: Mapping[ir.Value, BoundNode]) -> ir.Value:
    """Follow Identity nodes back to the value that they copy."""
    maker = makers.get(value)
    while maker is not None and maker.applies("Identity") and maker.inputs[0] is not None:
        value = maker.inputs[0]
        maker = makers.get(value)
    return value


def reads_of(node: BoundNode) -> Iterator[ir.Value]:
    """Yield the values that a node and its subgraphs read, including values of outer graphs."""
    yield from (key for key in node.inputs if key is not None)
    values: dict[ir.Value, None] = {}
    blocks = [*node.blocks]
    while blocks:
        block = blocks.pop()
        values |= dict.fromkeys(block.outputs)
        for inner in block.nodes:
            values |= dict.fromkeys(key for key in inner.inputs if key is not None)
            blocks += inner.blocks
    yield from values


_collector: ContextVar[tuple[list[Any], Any] | None] = ContextVar("demands", default=None)


@contextlib.contextmanager
def collecting() -> Iterator[list[Any]]:
    """Collect the conditions that `demand` records inside the context."""
    conditions: list[Any] = []
    token = _collector.set((conditions, get_opaque_trace_state()))
    try:
        yield conditions
    finally:
        _collector.reset(token)


def demand(condition: Callable[[], Any]) -> None:
    """Require that all elements of a condition on traced values are true. Conditions in loop bodies are ignored."""
    collector = _collector.get()
    if collector is not None and collector[1] == get_opaque_trace_state():
        collector[0].append(jnp.all(condition()))
