"""The flow of elements through a graph: the graph is traced with sizes for open dimensions and followed as a jaxpr."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from jaxrnn._files.messages import first_line
from jaxrnn.cells import plain_forms
from jaxrnn.errors import JaxrnnError, LimitError, NodeError
from jaxrnn.jaxprs.origins import DataFlow, Flow, Following, union
from jaxrnn.jaxprs.primitives import visible_recurrences
from jaxrnn.onnx.evaluate import Block, BoundNode, Scope, call, evaluate
from jaxrnn.onnx.interface import spec_of
from jaxrnn.onnx.limits import current, spending
from jaxrnn.onnx.program import Program
from jaxrnn.onnx.values import Value, is_known, is_text


class NotFollowedError(Exception):
    """The error for sizes of open dimensions that do not fit the graph.

    ``node`` is the node that the sizes do not fit, if known; ``operands`` are known arrays or shapes of its inputs, or
    None.
    """

    def __init__(self, error: Exception):
        super().__init__(str(error))
        self.node: BoundNode | None = getattr(error, "node", None)
        self.operands: Sequence[Any] = getattr(error, "operands", ())


class _Lost:
    """A value that cannot be traced, the traced values that it depends on, and the reason."""

    def __init__(self, reads: Iterable[Any], why: str = ""):
        self.reads, self.why = list(reads), why


def follow(
    program: Program,
    sizes: Mapping[str, int],
    known: Mapping[str, np.ndarray],
    sources: Collection[str] | None,
    strict: bool,
) -> DataFlow:
    """Follow every element from the inputs to the outputs."""
    with spending(program.block.limits, loading=True) as budget:
        nodes = list(_nodes(program.block))
        operators = {node.name: node.operator.name for node in nodes}
        written = {node.name for node in nodes if node.operator.own and node.operator.traits.carries is None}
        following = Following(operators, written, budget.keep, elements=sources is not None)
        return _Trace(program, strict, following).run(sizes, known, sources or ())


def _nodes(block: Block) -> Iterator[BoundNode]:
    for node in block.nodes:
        yield node
        for inner in node.blocks:
            yield from _nodes(inner)


class _Trace:
    def __init__(self, program: Program, strict: bool, following: Following):
        self.program, self.strict, self.following = program, strict, following
        self.result = following.result

    def run(self, sizes: Mapping[str, int], known: Mapping[str, np.ndarray], sources: Collection[str]) -> DataFlow:
        block, following, flows = self.program.block, self.following, self.result.inputs
        places: dict[str, Any] = {}
        for info in map(spec_of, block.inputs):
            if info.name in known:
                flows[info.name] = Flow(known[info.name].shape, known[info.name].dtype, known[info.name])
            elif info.shape is None or info.dtype is None or info.dtype.kind == "T":
                flows[info.name] = Flow(None, info.dtype, deps=frozenset({info.name}))
            else:
                shape = tuple(sizes[size] if isinstance(size, str) else size for size in info.shape)
                flows[info.name] = following.source(info.name, shape, info.dtype, followed=info.name in sources)
                places[info.name] = jax.ShapeDtypeStruct(shape, info.dtype)
        parameters = self.program.parameters
        outputs: list[Value] = []

        def traced(params: Mapping[str, Any], arrays: Mapping[str, Any]) -> list[Any]:
            values = [
                arrays[name] if name in arrays else _Lost([name]) if flow.value is None else flow.value
                for name, flow in flows.items()
            ]
            outputs[:] = evaluate(block, values, Scope(params, caller=self._call))
            return [leaf for leaf in _leaves(outputs) if isinstance(leaf, Tracer)]

        structs = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in parameters.items()}
        try:
            with plain_forms(), visible_recurrences():
                closed = jax.make_jaxpr(traced)(structs, places)
        except LimitError:
            raise
        except JaxrnnError as error:
            raise NotFollowedError(error) from error
        arguments = [Flow(array.shape, array.dtype) for _, array in sorted(parameters.items())]
        arguments += [flows[name] for name in sorted(places)]
        followed = iter(following.run(closed, arguments))
        for key, value in zip(block.outputs, outputs, strict=True):
            self.result.outputs[str(key.name)] = self._output(value, followed)
        return self.result

    def _output(self, value: Value, followed: Iterator[Flow]) -> Flow:
        if isinstance(value, np.ndarray):
            return Flow(value.shape, value.dtype, value)
        if not isinstance(value, Tracer):
            inputs = self.result.inputs
            leaves = [x for x in _leaves([value]) if isinstance(x, (str, Tracer))]
            return union([inputs[x] if isinstance(x, str) else next(followed) for x in leaves])
        flow = next(followed)
        if flow.deps or flow.ids is not None:
            return flow
        return dataclasses.replace(flow, ids=np.zeros(flow.shape or (), np.int64))  # depends only on parameters

    def _call(self, node: BoundNode, inputs: Sequence[Value], scope: Scope) -> tuple[Value, ...]:
        try:
            outputs = self._outputs(node, inputs, scope)
            shapes = [getattr(value, "shape", None) for value in outputs if not isinstance(value, np.ndarray)]
            if shapes and len(shapes) == len(outputs) and all(0 in (shape or ()) for shape in shapes):
                raise ValueError("nothing is left of an axis")
            return outputs
        except LimitError:
            raise
        except Exception as error:
            if self.strict:
                raise
            before = next((value.why for value in inputs if isinstance(value, _Lost) and value.why), None)
            why = before or f"node {node.name!r} fails: {first_line(error).partition('. ')[0].rstrip('.')}"
            if node.operator.traits.carries is not None:
                self.result.lost.append((node.name, why))
        reads = [leaf for leaf in _leaves(inputs) if isinstance(leaf, (str, Tracer))]
        return tuple(_Lost(reads, why) for _ in node.outputs)

    def _outputs(self, node: BoundNode, inputs: Sequence[Value], scope: Scope) -> tuple[Value, ...]:
        if any(isinstance(value, _Lost) for value in inputs):
            error = NodeError("an input is unknown")
            error.located = True  # the node is not known
            raise error
        if not node.blocks and all(map(is_known, jax.tree.leaves(list(inputs)))):
            with jax.ensure_compile_time_eval():
                return tuple(jax.tree.map(_settled, each) for each in call(node, inputs, scope))
        try:
            return call(node, inputs, scope)
        except LimitError:
            raise
        except Exception:  # a shape may depend on computed values, and computing compiles a program for each operation
            with _computing():
                return call(node, inputs, scope)


def _settled(value: Any) -> Any:
    return value if is_text(value) else np.asarray(value)


def _leaves(values: Any) -> Iterator[Any]:
    """Return the arrays inside values, and the names of inputs that are not traced."""
    for leaf in jax.tree.leaves(list(values)):
        if isinstance(leaf, _Lost):
            yield from leaf.reads
        else:
            yield leaf


@contextlib.contextmanager
def _computing() -> Iterator[None]:
    """Let JAX compute constants while it traces."""
    budget = current()
    around, budget.computing = budget.computing, True
    try:
        with jax.ensure_compile_time_eval():
            yield
    finally:
        budget.computing = around
