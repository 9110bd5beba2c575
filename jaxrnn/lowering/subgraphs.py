"""Graphs inside of nodes: the bodies of branches and loops, which read what is written around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from jaxrnn.lowering.lowering import Lowering
from jaxrnn.lowering.writer import Operand, make_value

#: The shape and the element type of a value.
Kind = tuple[Sequence[int], Any]


def subgraph(
    lowering: Lowering, name: str, inputs: Sequence[Kind], write: Callable[..., Sequence[Operand]]
) -> ir.Graph:
    """A graph inside of a node.

    Args:
        lowering: what is around it.
        name: of the graph, and the beginning of its inputs' names.
        inputs: their shapes and types.
        write: its results, from a lowering of its own and its inputs.
    """
    inside = lowering.inside()
    writer = inside.writer
    values = [make_value(writer.unused(f"{writer.scope}/{name}"), *kind) for kind in inputs]
    # Each result is a value that the graph itself computes.
    ends = [writer.node("Identity", result) for result in write(inside, *values)]
    return ir.Graph(values, ends, nodes=writer.nodes, name=name)
