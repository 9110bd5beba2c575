"""A graph ready to evaluate: nodes bound to operators, constants read."""

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
    """A node bound to its operator, with its attributes read; a graph attribute is a `Block`."""

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
        """Return True if the operator is ONNX's of this name, and not a caller's, which may compute anything."""
        return self.operator.name == name and not self.operator.domain and not self.operator.own


@dataclass
class Block:
    """A graph or subgraph: its constants, its parameters by name, its nodes in order, and its limits."""

    name: str
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    constants: dict[ir.Value, np.ndarray] = field(default_factory=dict)
    parameters: dict[ir.Value, str] = field(default_factory=dict)
    nodes: list[BoundNode] = field(default_factory=list)
    limits: Limits = field(default_factory=Limits)

    def makers(self) -> dict[ir.Value, BoundNode]:
        """The node that computes each value."""
        return {output: node for node in self.nodes for output in node.outputs}

    def part(self, inputs: Iterable[ir.Value], outputs: Iterable[ir.Value]) -> Block:
        """The part of the graph that computes ``outputs`` from ``inputs``, with no other nodes."""
        inputs, outputs = tuple(inputs), tuple(outputs)
        known, needed = set(inputs), set(outputs)
        nodes = []
        for node in reversed(self.nodes):
            if needed.intersection(node.outputs) - known:
                nodes.append(node)
                needed.update(reads_of(node))
        return dataclasses.replace(self, inputs=inputs, outputs=outputs, nodes=nodes[::-1])


def origin(value: ir.Value, makers: Mapping[ir.Value, BoundNode]) -> ir.Value:
    """The value that a chain of Identity nodes copies; ``makers`` are those of the graph."""
    maker = makers.get(value)
    while maker is not None and maker.applies("Identity") and maker.inputs[0] is not None:
        value = maker.inputs[0]
        maker = makers.get(value)
    return value


def captured(node: BoundNode) -> list[ir.Value]:
    """All values that the subgraphs of a node read, their own and those of the enclosing graphs."""
    values: dict[ir.Value, None] = {}
    blocks = [*node.blocks]
    while blocks:
        block = blocks.pop()
        values |= dict.fromkeys(block.outputs)
        for inner in block.nodes:
            values |= dict.fromkeys(key for key in inner.inputs if key is not None)
            blocks += inner.blocks
    return list(values)


def reads_of(node: BoundNode) -> Iterator[ir.Value]:
    """Every value that a node or one of its subgraphs reads."""
    yield from (key for key in node.inputs if key is not None)
    yield from captured(node)
