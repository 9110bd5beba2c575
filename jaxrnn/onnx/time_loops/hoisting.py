"""Reads inside the branches and loops of a loop's body, moved out of them so that they can become scanned inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import onnx_ir as ir

from jaxrnn.onnx.blocks import Block, BoundNode, reads_of
from jaxrnn.onnx.registry import Movement, Traits


def _is_light(traits: Traits) -> bool:
    """Return True if a result that may not be used costs little: moved elements, sizes, or sums for an index."""
    moves = traits.moves in (Movement.REARRANGES, Movement.CASTS, Movement.PICKS)
    return moves or traits.of_shape or traits.linear == "all"


def hoist_reads(block: Block, is_fixed: Callable[[ir.Value], bool]) -> Block:
    """Move light nodes out of the subgraphs of a graph, where they read nothing that the subgraph computes.

    Args:
        block: the graph.
        is_fixed: whether a value is the same in every trip. Branches on such a condition are left alone: exporters
            write nodes into them that fail where the other branch is taken, such as a Squeeze of an axis of any size.
    """
    nodes: list[BoundNode] = []
    constants, parameters = dict(block.constants), dict(block.parameters)
    for node in block.nodes:
        condition = node.inputs[0] if node.applies("If") else None
        if not node.blocks or (condition is not None and is_fixed(condition)):
            nodes.append(node)
            continue
        attributes = dict(node.attributes)
        for key, value in node.attributes.items():
            if not isinstance(value, Block):
                continue
            inner = hoist_reads(value, is_fixed)
            local: set[ir.Value] = set(inner.inputs)
            remaining = []
            for each in inner.nodes:
                light = _is_light(each.operator.traits) and not each.blocks
                if light and local.isdisjoint(reads_of(each)):
                    nodes.append(each)
                else:
                    remaining.append(each)
                    local.update(each.outputs)
            constants |= inner.constants
            parameters |= inner.parameters
            attributes[key] = dataclasses.replace(inner, nodes=remaining)
        nodes.append(dataclasses.replace(node, attributes=attributes))
    return dataclasses.replace(block, nodes=nodes, constants=constants, parameters=parameters)
