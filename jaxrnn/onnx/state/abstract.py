"""Operators called outside an evaluation: on what is known, and for the shapes of what is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir

from jaxrnn.onnx.blocks import Block, BoundNode, captured
from jaxrnn.onnx.evaluate import BoundSubgraph, Scope, check_outputs
from jaxrnn.onnx.foresight import check_ahead
from jaxrnn.onnx.limits import current
from jaxrnn.onnx.state.flows import Flow
from jaxrnn.onnx.time_loops import TimeLoop
from jaxrnn.onnx.values import Stacked, Value, is_sequence, settle, static, traced


def call(
    node: BoundNode, arguments: Sequence[Value], scope: Scope | None = None, count: int | None = None
) -> list[Value]:
    """The outputs of a node's operator.

    Args:
        node: the node.
        arguments: its inputs.
        scope: what its subgraphs see.
        count: how many outputs are asked for, also ones that the node does not name; None for those that it names.
    """
    for index, value in enumerate(arguments):
        slot = node.operator.slot(index)
        if slot is not None and slot.static and value is not None:
            static(value, f"its input {slot.name!r}")
    attributes = {
        key: BoundSubgraph(value, scope) if isinstance(value, Block) and scope is not None else value
        for key, value in node.attributes.items()
    }
    if node.operator.wants_output_count:
        attributes["output_count"] = len(node.outputs) if count is None else count
    budget = current()
    budget.evaluate()
    check_ahead(node.operator, arguments, attributes, budget)
    result = node.operator.function(*arguments, **attributes)
    outputs = [settle(value) for value in (result if isinstance(result, list) else [result])]
    check_outputs(node, outputs)
    budget.take(outputs, arguments)
    return outputs


class Result(NamedTuple):
    """What is known of an output without computing it: of a sequence, the shape of its elements stacked."""

    shape: tuple[int, ...]
    dtype: Any
    sequence: bool


class Abstract:
    """A node called on values of which only shapes are known.

    Args:
        node: the node.
        inputs: what is known of its inputs.
        outer: what is known of the values that its subgraphs may see.
        parameters: the program's parameters.
    """

    def __init__(
        self,
        node: BoundNode,
        inputs: Sequence[Flow | None],
        outer: Mapping[ir.Value, Flow],
        parameters: Mapping[str, np.ndarray],
    ):
        self.node, self.count, self.parameters = node, len(inputs), parameters
        self.seen = [key for key in captured(node) if key in outer]
        self.flows = [*inputs, *(outer[key] for key in self.seen)]

    def _run(self, function: Callable[[Sequence[Value], Scope], Any]) -> Any:
        unknown = [flow for flow in self.flows if flow is not None and flow.value is None]

        def run(*arrays: Value) -> Any:
            remaining = iter(arrays)
            values = [None if flow is None else _argument(flow, remaining) for flow in self.flows]
            scope = Scope(self.parameters)
            for key, value in zip(self.seen, values[self.count :], strict=True):
                scope[key] = value
            return function(values[: self.count], scope)

        return jax.eval_shape(run, *(jax.ShapeDtypeStruct(flow.shape or (), flow.dtype) for flow in unknown))

    def results(self, count: int | None = None) -> list[Result]:
        """What is known of the outputs, from the operator; of so many as `call` says."""
        sequences: list[bool] = []

        def outputs(arguments: Sequence[Value], scope: Scope) -> list[Any]:
            values = call(self.node, arguments, scope, count)
            sequences[:] = map(is_sequence, values)
            return [traced(_stacked(value)) for value in values]

        structs = self._run(outputs)
        return [Result(x.shape, x.dtype, sequence) for x, sequence in zip(structs, sequences, strict=True)]

    def trips(self) -> int | None:
        """How often a Loop runs; None where that depends on data."""
        found: list[Any] = []

        def count(arguments: Sequence[Value], scope: Scope) -> None:
            limit, go_on, *carried = arguments
            loop = TimeLoop(BoundSubgraph(self.node.attributes["body"], scope), carried)
            found.append(loop.trips(limit, np.asarray(True) if go_on is None else go_on))

        self._run(count)
        return found[0]


def _argument(flow: Flow, arrays: Iterator[Value]) -> Value:
    if flow.value is not None:
        return flow.value
    return Stacked(next(arrays)) if flow.sequence else next(arrays)


def _stacked(value: Value) -> Value:
    if isinstance(value, Stacked):
        return value.array
    return jnp.stack([traced(item) for item in value]) if isinstance(value, tuple) else value
