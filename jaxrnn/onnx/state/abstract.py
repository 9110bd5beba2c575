"""Operators called outside an evaluation: on what is known, and for the shapes of what is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import onnx_ir as ir

from jaxrnn.onnx.evaluate import BoundSubgraph, Scope, check_outputs
from jaxrnn.onnx.foresight import check_ahead
from jaxrnn.onnx.limits import current
from jaxrnn.onnx.program import Block, BoundNode
from jaxrnn.onnx.state.flows import Flow
from jaxrnn.onnx.values import Value, settle, static, traced


def call(node: BoundNode, arguments: Sequence[Value], scope: Scope | None = None) -> list[Value]:
    """The outputs of a node's operator; ``scope`` is what its subgraphs see."""
    for index, value in enumerate(arguments):
        slot = node.operator.slot(index)
        if slot is not None and slot.static and value is not None:
            static(value, f"its input {slot.name!r}")
    attributes = {
        key: BoundSubgraph(value, scope) if isinstance(value, Block) and scope is not None else value
        for key, value in node.attributes.items()
    }
    if node.operator.wants_output_count:
        attributes["output_count"] = len(node.outputs)
    budget = current()
    budget.evaluate()
    check_ahead(node.operator, arguments, attributes, budget)
    result = node.operator.function(*arguments, **attributes)
    outputs = [settle(value) for value in (result if isinstance(result, list) else [result])]
    check_outputs(node, outputs)
    budget.take(outputs, arguments)
    return outputs


def output_shapes(
    node: BoundNode,
    inputs: Sequence[Flow | None],
    outer: Mapping[ir.Value, Flow],
    parameters: Mapping[str, np.ndarray],
) -> list[jax.ShapeDtypeStruct]:
    """Shapes and dtypes of a node's outputs, from its operator.

    Args:
        node: the node.
        inputs: what is known of its inputs.
        outer: what is known of the values that its subgraphs may see.
        parameters: the program's parameters.
    """
    seen = [key for key in captured(node) if key in outer]
    flows = [*inputs, *(outer[key] for key in seen)]
    unknown = [flow for flow in flows if flow is not None and flow.value is None]

    def run(*arrays: Value) -> list[Any]:
        remaining = iter(arrays)
        values = [None if f is None else f.value if f.value is not None else next(remaining) for f in flows]
        scope = Scope(parameters)
        for key, value in zip(seen, values[len(inputs) :], strict=True):
            scope[key] = value
        return [traced(value) for value in call(node, values[: len(inputs)], scope)]

    return jax.eval_shape(run, *(jax.ShapeDtypeStruct(flow.shape or (), flow.dtype) for flow in unknown))


def captured(node: BoundNode) -> list[ir.Value]:
    """What the subgraphs of a node read of the graphs around them."""
    found: dict[ir.Value, None] = {}
    blocks = [value for value in node.attributes.values() if isinstance(value, Block)]
    while blocks:
        block = blocks.pop()
        found |= dict.fromkeys(block.outputs)
        for inner in block.nodes:
            found |= dict.fromkeys(key for key in inner.inputs if key is not None)
            blocks += [value for value in inner.attributes.values() if isinstance(value, Block)]
    return list(found)
