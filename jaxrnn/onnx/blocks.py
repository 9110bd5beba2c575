"""A graph ready to evaluate, as data: nodes bound to operators, constants read; and parts of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxrnn.onnx.limits import Limits
from jaxrnn.onnx.registry import Operator


@dataclass(frozen=True)
class BoundNode:
    """A node with its operator found and its attributes read; a graph attribute is a `Block`."""

    name: str
    operator: Operator
    inputs: tuple[ir.Value | None, ...]
    outputs: tuple[ir.Value, ...]
    attributes: Mapping[str, Any]

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The subgraphs among the attributes."""
        return tuple(value for value in self.attributes.values() if isinstance(value, Block))

    @property
    def is_default(self) -> bool:
        """Whether the operator is one of ONNX's own domain."""
        return not self.operator.domain


@dataclass
class Block:
    """A graph or subgraph: its constants, its parameters by name, its nodes in order, and what it may ask for."""

    name: str
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    constants: dict[ir.Value, np.ndarray] = field(default_factory=dict)
    parameters: dict[ir.Value, str] = field(default_factory=dict)
    nodes: list[BoundNode] = field(default_factory=list)
    limits: Limits = field(default_factory=Limits)

    def makers(self) -> dict[ir.Value, BoundNode]:
        """The node that each value of the graph is computed by."""
        return {output: node for node in self.nodes for output in node.outputs}

    def part(self, inputs: Iterable[ir.Value], outputs: Iterable[ir.Value]) -> Block:
        """The graph that computes some values from others: with the nodes that this needs, and no others."""
        inputs, outputs = tuple(inputs), tuple(outputs)
        given, needed = set(inputs), set(outputs)
        kept = []
        for node in reversed(self.nodes):
            if needed.intersection(node.outputs) - given:
                kept.append(node)
                needed.update(reads_of(node))
        return dataclasses.replace(self, inputs=inputs, outputs=outputs, nodes=kept[::-1])


def captured(node: BoundNode) -> list[ir.Value]:
    """What the subgraphs of a node read; among it what they read of the graphs around them."""
    found: dict[ir.Value, None] = {}
    blocks = [*node.blocks]
    while blocks:
        block = blocks.pop()
        found |= dict.fromkeys(block.outputs)
        for inner in block.nodes:
            found |= dict.fromkeys(key for key in inner.inputs if key is not None)
            blocks += inner.blocks
    return list(found)


def reads_of(node: BoundNode) -> Iterator[ir.Value]:
    """Every value that a node reads, those that its subgraphs read too."""
    yield from (key for key in node.inputs if key is not None)
    yield from captured(node)
