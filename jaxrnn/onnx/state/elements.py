"""New elements: identities for what a node computes, and what they depend on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxrnn.onnx.blocks import BoundNode, captured
from jaxrnn.onnx.limits import current
from jaxrnn.onnx.program import Program
from jaxrnn.onnx.state import provenance
from jaxrnn.onnx.state.abstract import Abstract, Result
from jaxrnn.onnx.state.flows import DataFlow, Flow, union


class Elements:
    """The elements of every value seen so far.

    Attributes:
        program: the bound graph.
        result: what is to be returned.
        values: what is known of each value of the graph.
    """

    def __init__(self, program: Program):
        self.program = program
        self.result = DataFlow()
        self.values: dict[ir.Value, Flow] = {}
        self._next = 1

    def abstract(self, node: BoundNode, inputs: Sequence[Flow | None]) -> Abstract:
        """A node to call on shapes."""
        return Abstract(node, inputs, self.values, self.program.parameters)

    def reads(self, node: BoundNode, inputs: Iterable[Flow | None]) -> list[Flow]:
        """Everything a node reads: its inputs, and what its subgraphs read of the enclosing graphs."""
        outer = (self.values[key] for key in captured(node) if key in self.values)
        return [*(flow for flow in inputs if flow is not None), *outer]

    def create(self, labels: tuple[str, ...], shape: tuple[int, ...], dtype: Any, inputs: Sequence[Flow]) -> Flow:
        """New elements that depend on every element of the inputs."""
        count = math.prod(shape)
        sources = {name for item in inputs for name in item.depth}
        current().keep(np.dtype(np.int64).itemsize * count * (1 + len(sources)))
        ids = np.arange(self._next, self._next + count, dtype=np.int64).reshape(shape)
        read = union(inputs)
        flow = Flow(shape, dtype, ids=ids, deps=read.deps, ancestors=read.ancestors | 1 << len(self.result.producers))
        self.result.producers.append((self._next, labels))
        self._next += count
        for item in inputs:
            for name, depth in item.depth.items():
                flow.depth[name] = min(depth, flow.depth.get(name, depth))
                flow.codes[name] = np.full(shape, provenance.DENSE)
        return flow

    def outputs(
        self, node: BoundNode, results: Iterable[Result], inputs: Sequence[Flow], contractions: int = 0
    ) -> list[Flow]:
        """New elements for the outputs of a node, some contractions after the inputs."""
        flows = []
        for result in results:
            flow = self.create((node.name,), result.shape, result.dtype, inputs)
            flow.sequence = result.sequence
            flow.depth = {name: depth + contractions for name, depth in flow.depth.items()}
            flows.append(flow)
        return flows
