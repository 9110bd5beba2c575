"""A graph attribute as an operator of control flow receives it."""

from __future__ import annotations

from typing import Protocol

import onnx_ir as ir

from jaxrnn.onnx.blocks import Block
from jaxrnn.onnx.values import Value


class Subgraph(Protocol):
    """A function of values that can also read those of outer graphs; `evaluate` makes it."""

    @property
    def block(self) -> Block:
        """The graph."""
        ...

    @property
    def output_count(self) -> int:
        """The number of outputs of the subgraph."""
        ...

    def with_block(self, block: Block) -> Subgraph:
        """Bind another graph to the same scope."""
        ...

    def value_outside(self, key: ir.Value) -> Value:
        """A value of the enclosing graphs, or None where it is not computed yet."""
        ...

    def __call__(self, *inputs: Value) -> tuple[Value, ...]:
        """Evaluate the subgraph on values of its inputs."""
        ...
