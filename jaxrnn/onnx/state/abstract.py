"""Calling an operator on shapes: what is known of its outputs without computing them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir

from jaxrnn.errors import LimitError
from jaxrnn.onnx.blocks import BoundNode, captured
from jaxrnn.onnx.evaluate import Scope, Subgraph, call
from jaxrnn.onnx.limits import current
from jaxrnn.onnx.state.flows import Flow
from jaxrnn.onnx.time_loops import TimeLoop
from jaxrnn.onnx.values import Stacked, Value, is_sequence, traced


class Result(NamedTuple):
    """The shape and dtype of an output; of a sequence, those of its elements stacked along a new first axis."""

    shape: tuple[int, ...]
    dtype: Any
    sequence: bool


class Abstract:
    """A node and what is known of its inputs.

    Args:
        node: the node.
        inputs: what is known of its inputs.
        outer: what is known of the values that its subgraphs can read.
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
        self.captured = [key for key in captured(node) if key in outer]
        self.flows = [*inputs, *(outer[key] for key in self.captured)]

    def _eval_shape(self, function: Callable[[Sequence[Value], Scope], Any], *, computing: bool) -> Any:
        """``jax.eval_shape`` of a function of the inputs; ``computing`` what follows from known ones alone."""
        unknown = [flow for flow in self.flows if flow is not None and flow.value is None]

        def run(*arrays: Value) -> Any:
            remaining = iter(arrays)
            values = [None if flow is None else _argument(flow, remaining) for flow in self.flows]
            scope = Scope(self.parameters)
            for key, value in zip(self.captured, values[self.count :], strict=True):
                scope[key] = value
            return function(values[: self.count], scope)

        with _computing() if computing else contextlib.nullcontext():
            return jax.eval_shape(run, *(jax.ShapeDtypeStruct(flow.shape or (), flow.dtype) for flow in unknown))

    def results(self, output_count: int | None = None) -> list[Result]:
        """The shapes and dtypes of the outputs; ``output_count`` is that of `evaluate.call`."""
        sequences: list[bool] = []

        def outputs(arguments: Sequence[Value], scope: Scope) -> list[Any]:
            current().evaluate()
            values = call(self.node, arguments, scope, output_count)
            sequences[:] = map(is_sequence, values)
            return [traced(_stacked(value)) for value in values]

        try:
            structs = self._eval_shape(outputs, computing=False)
        except LimitError:
            raise
        except Exception:  # a shape may depend on what is computed, which compiles a program for each operation
            structs = self._eval_shape(outputs, computing=True)
        return [Result(x.shape, x.dtype, sequence) for x, sequence in zip(structs, sequences, strict=True)]

    def trips(self) -> int | None:
        """How many trips a Loop makes; None where that depends on data."""
        trips: list[Any] = []

        def count(arguments: Sequence[Value], scope: Scope) -> None:
            limit, condition, *carried = arguments
            loop = TimeLoop(Subgraph(self.node.attributes["body"], scope), carried)
            trips.append(loop.trips(limit, np.asarray(True) if condition is None else condition))

        self._eval_shape(count, computing=True)
        return trips[0]


@contextlib.contextmanager
def _computing() -> Iterator[None]:
    """JAX computes what is known while it traces."""
    budget = current()
    around, budget.computing = budget.computing, True
    try:
        with jax.ensure_compile_time_eval():
            yield
    finally:
        budget.computing = around


def _argument(flow: Flow, arrays: Iterator[Value]) -> Value:
    if flow.value is not None:
        return flow.value
    return Stacked(next(arrays)) if flow.sequence else next(arrays)


def _stacked(value: Value) -> Value:
    if isinstance(value, Stacked):
        return value.array
    return jnp.stack([traced(item) for item in value]) if isinstance(value, tuple) else value
