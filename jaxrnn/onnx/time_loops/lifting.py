"""Reads inside the branches and the loops of a loop's body, moved out of them, so that they can be scanned inputs."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from jaxrnn.onnx.blocks import Block, BoundNode, reads_of

#: Operators that only move elements or find places, and may as well run where their result is not used.
_LIGHT = frozenset({"Add", "Cast", "Gather", "Identity", "Shape", "Slice", "Squeeze", "Sub", "Transpose", "Unsqueeze"})


def lifted(block: Block) -> Block:
    """A graph in which light nodes of subgraphs that need nothing of these stand before the node that holds them."""
    nodes: list[BoundNode] = []
    constants, parameters = dict(block.constants), dict(block.parameters)
    for node in block.nodes:
        attributes = dict(node.attributes)
        for key, value in node.attributes.items():
            if not isinstance(value, Block):
                continue
            inner = lifted(value)
            local: set[ir.Value] = set(inner.inputs)
            kept = []
            for each in inner.nodes:
                light = each.is_default and each.operator.name in _LIGHT and not each.blocks
                if light and local.isdisjoint(reads_of(each)):
                    nodes.append(each)
                else:
                    kept.append(each)
                    local.update(each.outputs)
            if len(kept) < len(inner.nodes):
                constants |= inner.constants
                parameters |= inner.parameters
            attributes[key] = dataclasses.replace(inner, nodes=kept)
        nodes.append(dataclasses.replace(node, attributes=attributes) if attributes != node.attributes else node)
    return dataclasses.replace(block, nodes=nodes, constants=constants, parameters=parameters)
