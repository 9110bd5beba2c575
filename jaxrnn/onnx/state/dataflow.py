"""Following every element of every value through a graph, without computing anything.

`follow` walks a program like the evaluator does, on shapes: what is known while tracing is computed, so that branches
and index arithmetic fold; operators that move elements are run on identities and codes (`provenance`) instead of
values; all others make new elements and say what they depend on. Open dimensions are given sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxrnn.errors import LimitError
from jaxrnn.onnx.blocks import Block, BoundNode, captured
from jaxrnn.onnx.carries import STATEFUL
from jaxrnn.onnx.evaluate import check_outputs
from jaxrnn.onnx.interface import tensor_info
from jaxrnn.onnx.limits import current, spending
from jaxrnn.onnx.operators import activations, arithmetic, logic, operator_table
from jaxrnn.onnx.program import Program
from jaxrnn.onnx.state import provenance
from jaxrnn.onnx.state.abstract import Abstract, call
from jaxrnn.onnx.state.flows import (
    DataFlow,
    Flow,
    NotFollowedError,
    Site,
    carry,
    combined,
    constant,
    deeper,
    halves,
    is_all,
    origin,
    scan_facts,
    union,
    without_neutral,
)
from jaxrnn.onnx.state.movements import MOVED_INPUTS, SCATTERS, moved
from jaxrnn.onnx.time_loops import LoopBody

#: Operators that sum over a whole axis with weights; two of them between a state and its update are no cell.
_CONTRACTIONS = frozenset(
    {"Attention", "Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul", "MatMulInteger", "QLinearMatMul"}
)
_NOT_ELEMENTWISE = {"Softmax", "LogSoftmax", "Hardmax"}
_ELEMENTWISE = {*activations.OPERATORS, *arithmetic.OPERATORS, *logic.OPERATORS} - _NOT_ELEMENTWISE
_BOOLEAN = frozenset(logic.OPERATORS) - {"Where"}
_SLIDING = frozenset({"Conv", "ConvTranspose", "AveragePool", "MaxPool", "LpPool"})
_CARRIES = {"LSTM": ("h", "c"), "GRU": ("h",), "RNN": ("h",), "DynamicQuantizeLSTM": ("h", "c")}


def _is_foreign(node: BoundNode) -> bool:
    """Whether a node's operator is a user's alone, of which its name tells nothing."""
    return node.operator.own and (node.operator.domain, node.operator.name) not in operator_table()


def follow(
    program: Program, sizes: Mapping[str, int], known: Mapping[str, np.ndarray], sources: Iterable[str], strict: bool
) -> DataFlow:
    """Follow every element from the inputs to the outputs.

    Args:
        program: the bound graph.
        sizes: the size of every open dimension of the inputs, by symbol.
        known: values of inputs that are bound.
        sources: the inputs whose elements are to be followed.
        strict: raise where a node cannot be followed, instead of leaving its outputs unknown.

    Raises:
        NotFollowedError: only if ``strict``.
    """
    with spending(program.block.limits, loading=True):
        return _Walk(program, strict).run(sizes, known, set(sources))


class _Walk:
    def __init__(self, program: Program, strict: bool):
        self.program = program
        self.strict = strict
        self.result = DataFlow()
        self.values: dict[ir.Value, Flow] = {}
        self._next = 1

    def run(self, sizes: Mapping[str, int], known: Mapping[str, np.ndarray], sources: set[str]) -> DataFlow:
        for key in self.program.block.inputs:
            info = tensor_info(key)
            if info.name in known:
                flow = Flow(known[info.name].shape, known[info.name].dtype, known[info.name])
            elif info.shape is None or info.dtype is None:
                flow = Flow(None, info.dtype, deps=frozenset({info.name}))
            else:
                shape = tuple(sizes[size] if isinstance(size, str) else size for size in info.shape)
                flow = self._fresh((), shape, info.dtype, ())
                flow.deps = frozenset({info.name})
                if info.name in sources:
                    flow.codes[info.name], flow.depth[info.name] = provenance.source_codes(shape), 0
            self.values[key] = self.result.inputs[info.name] = flow
        self._block(self.program.block)
        for key in self.program.block.outputs:
            self.result.outputs[str(key.name)] = self.values[key]
        return self.result

    def _fresh(self, labels: tuple[str, ...], shape: tuple[int, ...], dtype: Any, inputs: Sequence[Flow]) -> Flow:
        """New elements that depend on every element of the inputs."""
        count = math.prod(shape)
        followed = {name for item in inputs for name in item.depth}
        current().keep(np.dtype(np.int64).itemsize * count * (1 + len(followed)))
        ids = np.arange(self._next, self._next + count, dtype=np.int64).reshape(shape)
        made = union(inputs).made | 1 << len(self.result.makers)
        self.result.makers.append((self._next, labels))
        self._next += count
        flow = Flow(shape, dtype, ids=ids, made=made)
        flow.deps = frozenset().union(*(item.deps for item in inputs))
        for item in inputs:
            for name, depth in item.depth.items():
                flow.depth[name] = min(depth, flow.depth.get(name, depth))
                flow.codes[name] = np.full(shape, provenance.DENSE)
        return flow

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
        given = [flow for flow in inputs if flow is not None]
        try:
            if any(flow.shape is None for flow in given):
                raise NotFollowedError("an input is unknown")
            outputs = self._outputs(node, inputs, given)
            check_outputs(node, outputs)
            if any(0 in (flow.shape or ()) and flow.value is None for flow in outputs):
                raise NotFollowedError("nothing is left of an axis")
            return outputs
        except LimitError:
            raise
        except Exception as error:  # what JAX raises while it looks at shapes has many types
            if self.strict:
                raise NotFollowedError(f"node {node.name!r}: {error}") from error
            if not _is_foreign(node) and node.operator.name in (*_CARRIES, *STATEFUL, "Scan", "Loop"):
                self.result.lost.append((node.name, str(error).splitlines()[0]))
        read = union(given)
        return [Flow(None, None, deps=read.deps, made=read.made) for _ in node.outputs]

    def _outputs(self, node: BoundNode, inputs: list[Flow | None], given: list[Flow]) -> list[Flow]:
        name = node.operator.name if not node.operator.domain else str(node.operator)
        if name in ("Shape", "Size"):
            (flow,) = given
            assert flow.shape is not None
            sizes = np.asarray(node.operator.function(np.broadcast_to(np.int8(0), flow.shape), **node.attributes))
            return [constant(sizes.astype(np.int64))]
        if name == "SequenceLength" and given[0].sequence:
            assert given[0].shape is not None
            return [constant(np.asarray(given[0].shape[0], np.int64))]
        if name == "If":
            return self._if(node, given[0])
        if name in _SLIDING:
            self.result.lengths[id(node)] = (given[0].shape or ())[2:]
        blocks = any(isinstance(value, Block) for value in node.attributes.values())
        if not blocks and all(flow.value is not None for flow in given):
            return [constant(value) for value in call(node, [f and f.value for f in inputs])]
        if name in MOVED_INPUTS:
            outputs = moved(node, inputs)
            if outputs is not None:
                if name == "Concat":
                    self.result.joins.append((node.name, outputs[0]))
                return outputs
        if name in _ELEMENTWISE:
            return [self._elementwise(node, name, given)]
        abstract = Abstract(node, inputs, self.values, self.program.parameters)
        if node.operator.name in _CARRIES and not _is_foreign(node):
            # Whether or not a node names its final values, it has them.
            return self._cell(node, inputs, abstract.results(1 + len(_CARRIES[node.operator.name])))
        shapes = abstract.results()
        if name in STATEFUL:
            return self._stateful(node, inputs, shapes)
        if name == "Scan":
            skipped, steps, forward = scan_facts(node, inputs)
            carried = inputs[skipped : len(inputs) - node.attributes["num_scan_inputs"]]
            return self._recurrence(node, carried, 0, steps, forward, shapes, given)
        if name == "Loop":
            return self._recurrence(node, inputs[2:], 1, abstract.trips(), True, shapes, given)
        outputs = self._made(node, shapes, self._read(node, given))
        if name in SCATTERS:  # what is not written at some place that depends on data is kept
            outputs[0].codes = combined("write", outputs[0].shape or (), given[:1], given[1:])
        # A product of two values that depend on data, as in attention, is no cell's product with weights.
        products = sum(bool(flow.deps) for flow in given) if name in _CONTRACTIONS else 0
        return [deeper(flow, products) for flow in outputs]

    def _read(self, node: BoundNode, given: list[Flow]) -> list[Flow]:
        """Everything a node reads: its inputs, and what its subgraphs see of the graph around them."""
        return [*given, *(self.values[key] for key in captured(node) if key in self.values)]

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
            flow = self._fresh(labels or (node.name,), first.shape, first.dtype, (first, second, condition))
            flow.codes = combined("select", flow.shape or (), (first, second), (condition,))
            merged.append(flow)
        return merged

    def _elementwise(self, node: BoundNode, name: str, given: list[Flow]) -> Flow:
        shape = np.broadcast_shapes(*(flow.shape or () for flow in given))
        operands, conditions = (given[1:], given[:1]) if name == "Where" else (given, [])
        dtype = np.dtype(bool) if name in _BOOLEAN else operands[0].dtype
        neutral = without_neutral(name, operands)
        if len(neutral) == 1 < len(operands) and neutral[0].shape == shape:
            return neutral[0]
        if name == "Mul" and any(is_all(flow, 0) for flow in operands):
            return constant(np.zeros(shape, dtype))
        flow = self._fresh((node.name,), shape, dtype, given)
        kind = provenance.KINDS.get(name, "other")
        if kind == "add" and np.dtype(dtype).kind in "iu":
            kind = "count"
        if name in ("Div", "Mod") and operands[1].deps:
            # A divisor is not kept: only the first operand's elements come through.
            conditions, operands = operands[1:], operands[:1]
        flow.codes = combined(kind, shape, operands, conditions)
        return flow

    def _cell(self, node: BoundNode, inputs: list[Flow | None], shapes: list[Any]) -> list[Flow]:
        inputs = [*inputs, *[None] * 7][:7]
        x, lengths, initial = inputs[0], inputs[4], inputs[5:7]
        read = [flow for flow in inputs if flow is not None]
        direction, layout = (node.attributes.get(key, default) for key, default in (("direction", ""), ("layout", 0)))
        assert x is not None
        assert x.shape is not None
        steps = x.shape[1 if layout else 0]
        self.result.lengths[id(node)] = (steps,)
        forward = direction in ("", "forward") or steps == 1
        y, *finals = (deeper(self._fresh((node.name,), s.shape, s.dtype, read), 2) for s in shapes)
        both = direction == "bidirectional" and steps != 1
        for slot, start, final in zip(_CARRIES[node.operator.name], initial, finals, strict=False):
            if forward:
                carry(final, start)
            if not both:
                self.result.sites.append(Site(node.name, node.operator.name, slot, steps, forward, start, final))
                continue
            starts, ends = (halves(flow, 1 if layout else 0) for flow in (start, final))
            for name, ahead, begin, end in zip((slot, f"{slot}_reverse"), (True, False), starts, ends, strict=True):
                self.result.sites.append(Site(node.name, node.operator.name, name, steps, ahead, begin, end))
        last = (slice(None), -1) if layout else (-1,)
        if forward and lengths is None and initial[0] is not None:
            for name, codes in initial[0].codes.items():
                codes = provenance.shown(provenance.carried(codes))
                y.codes[name][last] = codes
        return [y, *finals]

    def _stateful(self, node: BoundNode, inputs: list[Flow | None], shapes: list[Any]) -> list[Flow]:
        operator = STATEFUL[node.operator.name]
        x, start = inputs[0], inputs[operator.past] if len(inputs) > operator.past else None
        assert x is not None
        assert x.shape is not None
        steps = x.shape[operator.time_axis]
        self.result.lengths[id(node)] = (steps,)
        read = [flow for flow in inputs if flow is not None]
        y, final = (deeper(self._fresh((node.name,), s.shape, s.dtype, read), 2) for s in shapes)
        if 0 in shapes[1].shape:
            return [y, constant(np.zeros(shapes[1].shape, shapes[1].dtype))]  # a kernel of one tap keeps no frame
        carry(final, start)
        site = Site(node.name, node.operator.name, operator.slot, steps, True, start, final)
        self.result.sites.append(site)
        return [y, final]

    def _recurrence(
        self,
        node: BoundNode,
        carried: list[Flow | None],
        head: int,
        steps: int | None,
        forward: bool,
        shapes: list[Any],
        given: list[Flow],
    ) -> list[Flow]:
        """A Scan or Loop whose body has ``head`` outputs, and twice as many inputs, before what is carried."""
        body: Block = node.attributes["body"]
        outputs = [deeper(flow, 2) for flow in self._made(node, shapes, self._read(node, given))]
        self.result.lengths[id(node)] = (steps or 0,)
        slots, results = body.inputs[2 * head :], body.outputs[head:]
        aside = self._aside(body, carried) if node.operator.name == "Loop" else set()
        for index, start in enumerate(carried):
            if start is None or start.shape != outputs[index].shape:
                continue
            slot = slots[index]
            if origin(results[index], body) is slot:
                outputs[index] = start  # the loop only hands it on
                continue
            if index in aside:
                continue
            if forward:
                carry(outputs[index], start)
            name = node.operator.name
            self.result.sites.append(Site(node.name, name, str(slot.name), steps, forward, start, outputs[index]))
        return outputs

    def _aside(self, body: Block, carried: list[Flow | None]) -> set[int]:
        """What a loop carries and no recurrence needs: counters, and what only grows."""

        def known(flow: Flow | None) -> np.ndarray | None:
            return flow.value if flow is not None and isinstance(flow.value, np.ndarray) else None

        sorted_body = LoopBody(body, lambda key: known(self.values.get(key)), [known(flow) for flow in carried])
        return {*sorted_body.counters, *sorted_body.growing}

    def _made(self, node: BoundNode, results: list[Any], read: list[Flow]) -> list[Flow]:
        """New elements for the outputs of a node."""
        flows = [self._fresh((node.name,), result.shape, result.dtype, read) for result in results]
        for flow, result in zip(flows, results, strict=True):
            flow.sequence = result.sequence
        return flows
