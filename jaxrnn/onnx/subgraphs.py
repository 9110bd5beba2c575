"""A graph attribute as an operator of control flow receives it."""

from __future__ import annotations

from typing import Protocol

import onnx_ir as ir

from jaxrnn.onnx.blocks import Block
from jaxrnn.onnx.values import Value


class Subgraph(Protocol):
    """A function of values, which also sees the values of the graphs around it; `evaluate` makes it."""

    @property
    def block(self) -> Block:
        """The graph."""
        ...

    @property
    def output_count(self) -> int:
        """How many outputs the subgraph gives."""
        ...

    def with_block(self, block: Block) -> Subgraph:
        """Another graph in the same scope."""
        ...

    def value_outside(self, key: ir.Value) -> Value:
        """A value of the graphs around; None where they have none of that name yet."""
        ...

    def __call__(self, *inputs: Value) -> tuple[Value, ...]:
        """The outputs of the subgraph for values of its inputs."""
        ...
