"""Evaluating a bound graph, node by node, on static and traced values.

This is the whole interpreter: under ``jax.jit`` it runs once, while tracing, and leaves only JAX operations behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import onnx
import onnx_ir as ir

from jaxrnn.errors import JaxrnnError, NodeError, StaticValueError
from jaxrnn.onnx.blocks import Block, BoundNode
from jaxrnn.onnx.foresight import check_ahead
from jaxrnn.onnx.limits import Budget, current, spending
from jaxrnn.onnx.values import Value, describe, is_sequence, settle, static

Watch = Callable[[BoundNode, Sequence[Value]], None]

#: What JAX raises when Python needs the value of a tracer.
_TRACER_ERRORS = (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError)


class Scope:
    """The values known at one place of the graph; an inner scope sees the outer ones."""

    def __init__(self, params: Mapping[str, Value], outer: Scope | None = None, watch: Watch | None = None):
        self.params = params
        self.outer = outer
        self.watch = watch
        self._values: dict[ir.Value, Value] = {}

    def __setitem__(self, key: ir.Value, value: Value) -> None:
        self._values[key] = value

    def __getitem__(self, key: ir.Value) -> Value:
        scope: Scope | None = self
        while scope is not None:
            if key in scope._values:
                return scope._values[key]
            scope = scope.outer
        raise KeyError(key)


class BoundSubgraph:
    """A subgraph in the scope that it sees: what `subgraphs.Subgraph` describes."""

    def __init__(self, block: Block, outer: Scope):
        self.block = block
        self.outer = outer

    @property
    def output_count(self) -> int:
        """How many outputs the subgraph gives."""
        return len(self.block.outputs)

    def with_block(self, block: Block) -> BoundSubgraph:
        """Another graph in the same scope."""
        return BoundSubgraph(block, self.outer)

    def value_outside(self, key: ir.Value) -> Value:
        """A value of the graphs around; None where they have none of that name yet."""
        try:
            return self.outer[key]
        except KeyError:
            return None

    def __call__(self, *inputs: Value) -> tuple[Value, ...]:
        """The outputs for values of the inputs."""
        if len(inputs) != len(self.block.inputs):
            raise ValueError(
                f"the subgraph {self.block.name!r} takes {len(self.block.inputs)} inputs, but was given {len(inputs)}"
            )
        budget = current()
        budget.evaluate()
        return _evaluate(self.block, inputs, Scope(self.outer.params, self.outer), budget)


def evaluate(block: Block, inputs: Sequence[Value], scope: Scope) -> tuple[Value, ...]:
    """The outputs of a graph for its inputs; ``scope`` is filled with every value on the way.

    Raises:
        LimitError: it asks for more than the graph's limits.
        NodeError: a node cannot be evaluated on these values.
    """
    with spending(block.limits) as budget:
        return _evaluate(block, inputs, scope, budget)


def _evaluate(block: Block, inputs: Sequence[Value], scope: Scope, budget: Budget) -> tuple[Value, ...]:
    for key, array in block.constants.items():
        scope[key] = array
    for key, name in block.parameters.items():
        scope[key] = scope.params[name]
    for key, value in zip(block.inputs, inputs, strict=True):
        scope[key] = value
    for node in block.nodes:
        outputs = _run(node, scope, budget)
        for key, value in zip(node.outputs, outputs, strict=False):
            scope[key] = value
        if scope.watch is not None:
            scope.watch(node, outputs)
    return tuple(scope[key] for key in block.outputs)


def _run(node: BoundNode, scope: Scope, budget: Budget) -> tuple[Value, ...]:
    inputs = [None if key is None else scope[key] for key in node.inputs]
    attributes: dict[str, Any] = {
        name: BoundSubgraph(value, scope) if isinstance(value, Block) else value
        for name, value in node.attributes.items()
    }
    if node.operator.wants_output_count:
        attributes["output_count"] = len(node.outputs)
    if node.operator.wants_output_name:
        attributes["output_name"] = str(node.outputs[0].name)
    try:
        with jax.named_scope(node.name):
            for index, value in enumerate(inputs):
                slot = node.operator.slot(index)
                if slot is not None and slot.static and value is not None:
                    inputs[index] = static(value, f"its input {slot.name!r}")
            budget.evaluate()
            check_sequences(node, inputs)
            check_ahead(node.operator, inputs, attributes, budget)
            result = node.operator.function(*inputs, **attributes)
            outputs = tuple(settle(value) for value in (result if isinstance(result, list) else [result]))
            check_outputs(node, outputs)
            budget.take(outputs, inputs)
    except Exception as error:
        raise _located(error, node, inputs) from error
    return outputs


def check_sequences(node: BoundNode, inputs: Sequence[Value]) -> None:
    """Refuse a sequence where the operator takes a tensor."""
    operator = node.operator
    for place, value in enumerate(inputs):
        if is_sequence(value) and onnx.defs.has(operator.name, operator.since, operator.domain):
            formal = onnx.defs.get_schema(operator.name, operator.since, operator.domain).inputs
            declared = formal[min(place, len(formal) - 1)]
            if not any(kind.startswith(("seq(", "optional(")) for kind in declared.types):
                raise ValueError(f"the input {declared.name} is a sequence, but the operator takes a tensor")


def check_outputs(node: BoundNode, outputs: Sequence[Value]) -> None:
    """Refuse a node that names more outputs than its operator gives: what reads them would find nothing."""
    named = max((place for place, key in enumerate(node.outputs, 1) if key.name), default=0)
    if named > len(outputs):
        raise ValueError(f"the node names {named} outputs, but the operator gives {len(outputs)}")


def _located(error: Exception, node: BoundNode, inputs: Sequence[Value]) -> JaxrnnError:
    """The error with the node that it came from."""
    if isinstance(error, JaxrnnError) and error.located:
        return error
    kind: type[JaxrnnError] = type(error) if isinstance(error, JaxrnnError) else NodeError
    reason = str(error).strip() or type(error).__name__
    if isinstance(error, _TRACER_ERRORS):
        kind, reason = StaticValueError, "the operator needs a value that is not known while tracing"
    elif isinstance(error, jax.errors.InconclusiveDimensionOperation):
        reason = f"{reason.splitlines()[0]} Say what holds, as in model.symbolic_inputs(constraints=['S >= 3'])"
    elif not isinstance(error, JaxrnnError):
        reason = reason.splitlines()[0]
    shown = ", ".join(describe(value) for value in inputs) or "no inputs"
    located = kind(f"node {node.name!r} ({node.operator}) on {shown}: {reason}")
    located.located = True
    return located
