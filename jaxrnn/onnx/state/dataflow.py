"""Following every element of every value through a graph, without computing anything.

`follow` walks a program as the evaluator does, on shapes. What is known while tracing is computed, so that branches and
index arithmetic fold. Operators that move elements are called on identities and codes (`provenance`) instead of values.
All others create new elements and record what these depend on. Open dimensions are given sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import jax
import numpy as np

from jaxrnn.errors import JaxrnnError, LimitError
from jaxrnn.messages import first_line
from jaxrnn.onnx.blocks import Block, BoundNode
from jaxrnn.onnx.evaluate import Scope, call, check_outputs
from jaxrnn.onnx.interface import spec_of
from jaxrnn.onnx.limits import current, spending
from jaxrnn.onnx.operators import activations, arithmetic, logic
from jaxrnn.onnx.program import Program
from jaxrnn.onnx.state import provenance
from jaxrnn.onnx.state.elements import Elements
from jaxrnn.onnx.state.flows import (
    DataFlow,
    Flow,
    NotFollowedError,
    combined,
    constant,
    is_all,
    operand,
    union,
    without_neutral,
)
from jaxrnn.onnx.state.movements import MOVED_INPUTS, SCATTERS, moved
from jaxrnn.onnx.state.recurrent import follow_recurrent, is_recurrent

#: Operators that sum over a whole axis with weights; two of them between a state and its update are no cell.
_CONTRACTIONS = frozenset(
    {"Attention", "Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul", "MatMulInteger", "QLinearMatMul"}
)
_NOT_ELEMENTWISE = {"Softmax", "LogSoftmax", "Hardmax"}
_ELEMENTWISE = {*activations.OPERATORS, *arithmetic.OPERATORS, *logic.OPERATORS} - _NOT_ELEMENTWISE
_BOOLEAN = frozenset(logic.OPERATORS) - {"Where"}
_SLIDING = frozenset({"Conv", "ConvTranspose", "AveragePool", "MaxPool", "LpPool"})


def follow(
    program: Program, sizes: Mapping[str, int], known: Mapping[str, np.ndarray], sources: Iterable[str], strict: bool
) -> DataFlow:
    """Follow every element from the inputs to the outputs.

    Args:
        program: the bound graph.
        sizes: the size of every open dimension of the inputs, by symbol.
        known: the values of bound inputs.
        sources: the inputs whose elements to follow.
        strict: raise where a node cannot be followed, instead of leaving its outputs unknown.

    Raises:
        NotFollowedError: a node cannot be followed with these sizes, if ``strict``.
    """
    with spending(program.block.limits, loading=True):
        return _Walk(program, strict).run(sizes, known, set(sources))


class _Walk(Elements):
    def __init__(self, program: Program, strict: bool):
        super().__init__(program)
        self.strict = strict

    def run(self, sizes: Mapping[str, int], known: Mapping[str, np.ndarray], sources: set[str]) -> DataFlow:
        for key in self.program.block.inputs:
            info = spec_of(key)
            if info.name in known:
                flow = Flow(known[info.name].shape, known[info.name].dtype, known[info.name])
            elif info.shape is None or info.dtype is None:
                flow = Flow(None, info.dtype, deps=frozenset({info.name}))
            else:
                shape = tuple(sizes[size] if isinstance(size, str) else size for size in info.shape)
                flow = self.create((), shape, info.dtype, ())
                flow.deps = frozenset({info.name})
                if info.name in sources:
                    flow.codes[info.name], flow.depth[info.name] = provenance.source_codes(shape), 0
            self.values[key] = self.result.inputs[info.name] = flow
        self._block(self.program.block)
        for key in self.program.block.outputs:
            self.result.outputs[str(key.name)] = self.values[key]
        return self.result

    def _block(self, block: Block) -> list[Flow]:
        for key, array in block.constants.items():
            self.values[key] = Flow(array.shape, array.dtype, array)
        for key, name in block.parameters.items():
            array = self.program.parameters[name]
            self.values[key] = Flow(array.shape, array.dtype)
        for node in block.nodes:
            inputs = [None if key is None else self.values[key] for key in node.inputs]
            for key, flow in zip(node.outputs, self._node(node, inputs), strict=False):
                self.values[key] = flow
        return [self.values[key] for key in block.outputs]

    def _node(self, node: BoundNode, inputs: list[Flow | None]) -> list[Flow]:
        present = [flow for flow in inputs if flow is not None]
        try:
            if any(flow.shape is None for flow in present):
                raise NotFollowedError("an input is unknown")
            outputs = self._outputs(node, inputs, present)
            check_outputs(node, outputs)
            if all(0 in (flow.shape or ()) and flow.value is None for flow in outputs):
                raise NotFollowedError("nothing is left of an axis")
            return outputs
        except LimitError:
            raise
        except Exception as error:  # JAX raises errors of many types while it evaluates shapes
            if self.strict and isinstance(error, NotFollowedError) and error.node is not None:
                raise  # of a node in a branch
            if self.strict and isinstance(error, JaxrnnError) and error.node is not None:  # of one in a loop
                operands = [None if each is None else operand(each) for each in error.operands]
                raise NotFollowedError(str(error), error.node, operands) from error
            if self.strict:
                raise NotFollowedError(f"node {node.name!r}: {error}", node, inputs) from error
            if is_recurrent(node):
                self.result.lost.append((node.name, first_line(error)))
        read = union(present)
        return [Flow(None, None, deps=read.deps, ancestors=read.ancestors) for _ in node.outputs]

    def _outputs(self, node: BoundNode, inputs: list[Flow | None], present: list[Flow]) -> list[Flow]:
        name = node.operator.name if node.is_default else str(node.operator)
        if name in ("Shape", "Size"):
            (flow,) = present
            assert flow.shape is not None
            sizes = np.asarray(node.operator.function(np.broadcast_to(np.int8(0), flow.shape), **node.attributes))
            return [constant(sizes.astype(np.int64))]
        if name == "SequenceLength" and present[0].sequence:
            assert present[0].shape is not None
            return [constant(np.asarray(present[0].shape[0], np.int64))]
        if name == "If":
            return self._if(node, present[0])
        if name in _SLIDING:
            self.result.lengths[id(node)] = (present[0].shape or ())[2:]
        if not node.blocks and all(flow.value is not None for flow in present):
            current().evaluate()
            with jax.ensure_compile_time_eval():
                return [constant(value) for value in call(node, [flow and flow.value for flow in inputs], Scope({}))]
        if name in MOVED_INPUTS:
            outputs = moved(node, inputs)
            if outputs is not None:
                if name == "Concat":
                    self.result.joins.append((node.name, outputs[0]))
                return outputs
        if name in _ELEMENTWISE:
            return [self._elementwise(node, name, present)]
        if is_recurrent(node):
            return follow_recurrent(self, node, inputs)
        # A product of two values that depend on data, as in attention, is no cell's product with weights.
        contractions = sum(bool(flow.deps) for flow in present) if name in _CONTRACTIONS else 0
        results = self.abstract(node, inputs).results()
        outputs = self.outputs(node, results, self.reads(node, inputs), contractions)
        if name in SCATTERS:  # an element that is not written, at a place that depends on data, is kept
            outputs[0].codes = combined("write", outputs[0].shape or (), present[:1], present[1:])
        return outputs

    def _if(self, node: BoundNode, condition: Flow) -> list[Flow]:
        branches = [node.attributes["then_branch"], node.attributes["else_branch"]]
        if condition.value is not None:
            return self._block(branches[0 if condition.value.reshape(()) else 1])
        merged = []
        for first, second in zip(self._block(branches[0]), self._block(branches[1]), strict=True):
            if first.shape is None or first.shape != second.shape:
                raise NotFollowedError("the branches give different shapes")
            if first is second:
                merged.append(first)
                continue
            ids = [flow.ids for flow in (first, second) if flow.ids is not None]
            labels = tuple(dict.fromkeys(label for array in ids for label in self.result.labels_of(array)))
            flow = self.create(labels or (node.name,), first.shape, first.dtype, (first, second, condition))
            flow.codes = combined("select", flow.shape or (), (first, second), (condition,))
            merged.append(flow)
        return merged

    def _elementwise(self, node: BoundNode, name: str, inputs: Sequence[Flow]) -> Flow:
        shape = np.broadcast_shapes(*(flow.shape or () for flow in inputs))
        operands, conditions = (inputs[1:], inputs[:1]) if name == "Where" else (inputs, [])
        dtype = np.dtype(bool) if name in _BOOLEAN else operands[0].dtype
        neutral = without_neutral(name, operands)
        if len(neutral) == 1 < len(operands) and neutral[0].shape == shape:
            return neutral[0]
        if name == "Mul" and any(is_all(flow, 0) for flow in operands):
            return constant(np.zeros(shape, dtype))
        flow = self.create((node.name,), shape, dtype, inputs)
        kind = provenance.KINDS.get(name, "other")
        if kind == "add" and np.dtype(dtype).kind in "iu":
            kind = "count"
        if name in ("Div", "Mod") and operands[1].deps:
            # Only the first operand comes through a division.
            conditions, operands = operands[1:], operands[:1]
        flow.codes = combined(kind, shape, operands, conditions)
        return flow
