"""An evaluator of jaxprs that traces each element of the results back to its source, an element of an input.

The evaluator runs on codes for the origins of elements (`jaxrnn.jaxprs.flows`). Values that only depend on parameters
have no codes. Constants are computed, so that masks and index arithmetic fold.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn, Literal, Var

from jaxrnn._jax.versions import Scan
from jaxrnn.jaxprs import flows as of
from jaxrnn.jaxprs.equations import bind, called, evaluate, shape_of, type_of
from jaxrnn.jaxprs.flows import (
    DataFlow,
    Flow,
    Site,
    carry,
    combined,
    constant,
    half_of,
    is_all,
    union,
    without_neutral,
)
from jaxrnn.jaxprs.moves import computed, move, moved_operands
from jaxrnn.jaxprs.own import Carried
from jaxrnn.jaxprs.primitives import Rules, entry_of

#: Kinds of equations that call a function on their operands.
_CALLS = frozenset({"call", "checkpoint", "custom rule"})
#: Rules ``(following, label, equation, flows) -> flows`` of primitives with a meaning of their own.
_RULES = Rules[Callable[..., list[Flow]]]()
_FOLDED = 1 << 16  # elements of a value that XLA computes while elements are followed


class Following:
    """An evaluator of jaxprs that follows elements from inputs to outputs; ``result`` is the data flow so far."""

    def __init__(
        self,
        operators: Mapping[str, str],
        written: Collection[str],
        keep: Callable[[int], None],
        *,
        elements: bool = True,
    ):
        self.written = written
        self.operators, self.keep, self.elements = operators, keep, elements
        self.result = DataFlow()
        self._next = 1

    def source(self, name: str, shape: tuple[int, ...], dtype: Any, *, followed: bool) -> Flow:
        """Return the flow of an input; its elements get codes if ``followed``."""
        flow = self._create((), shape, dtype, ())
        flow.deps = frozenset({name})
        if followed and self.elements:
            flow.codes[name], flow.depth[name] = of.source_codes(shape), 0
        return flow

    def follow(self, inner: Any, arguments: Sequence[Flow], label: str = "") -> list[Flow]:
        """Evaluate a jaxpr inside the node with this label."""
        results = evaluate(inner, arguments, functools.partial(self._apply, label))
        return [each if isinstance(each, Flow) else _known(each) for each in results]

    def _create(
        self, labels: tuple[str, ...], shape: tuple[int, ...], dtype: Any, inputs: Sequence[Flow], depth: int = 0
    ) -> Flow:
        """Return new elements that depend on all elements of the inputs, ``depth`` products later."""
        read = union(inputs)
        flow = Flow(shape, dtype, deps=read.deps, ancestors=read.ancestors)
        if not self.elements:
            return flow
        count = math.prod(shape)
        sources = {name for item in inputs for name in item.depth}
        self.keep(np.dtype(np.int64).itemsize * count * (1 + len(sources)))
        flow.ids = np.arange(self._next, self._next + count, dtype=np.int64).reshape(shape)
        flow.ancestors |= 1 << len(self.result.producers)
        self.result.producers.append((self._next, labels))
        self._next += count
        for name in sources:
            flow.depth[name] = depth + min(item.depth[name] for item in inputs if name in item.depth)
            flow.codes[name] = np.full(shape, of.DENSE)
        return flow

    def _apply(self, label: str, equation: JaxprEqn, operands: list[Any]) -> list[Flow]:
        name, entry, carries = equation.primitive.name, entry_of(equation), CARRIES.of(equation)
        stack = equation.source_info.name_stack.stack
        label = next((s.name for s in reversed(stack) if getattr(s, "name", None) in self.operators), label)
        pairs = zip(equation.invars, operands, strict=True)
        flows = [x if isinstance(x, Flow) else _known(x, atom) for atom, x in pairs]
        if entry.kind in _CALLS:
            return self.follow(called(equation), flows, label)
        if carries is not None and label in self.written:
            return self._loop(label, equation, flows, carries(equation))
        if (rule := _RULES.of(equation)) is not None:
            return rule(self, label, equation, flows)
        if (axes := _sliding(equation)) is not None:
            self.result.lengths.append((label, tuple(shape_of(equation.invars[0])[axis] for axis in axes)))
        if all(flow.value is not None for flow in flows) and (found := _folded(equation, flows)) is not None:
            return found
        types = [(shape_of(variable), type_of(variable)) for variable in equation.outvars]
        if not self.elements or not any(flow.deps for flow in flows):
            deps = union(flows).deps
            return [Flow(shape, dtype, deps=deps) for shape, dtype in types]
        if entry.arithmetic == "convert":
            return [dataclasses.replace(flows[0], value=None, dtype=types[0][1])]
        if (found := self._moved(label, equation, flows)) is not None:
            return found
        if entry.kind == "elementwise":
            return [self._elementwise(label, equation, flows)]
        # Between the state of a cell and its update, there is at most one sum with weights, and no product of two
        # values that depend on data, as in attention.
        depth = sum(bool(flow.deps) for flow in flows) if entry.absorbs else 2 * (carries is not None)
        results = [self._create((label,), *each, flows, depth) for each in types]
        if entry.kind == "scatter" or name == "dynamic_update_slice":
            # The places of the write may depend on data; elements that are not overwritten are kept.
            results[0].codes = combined("write", types[0][0], flows[:1], flows[1:])
        return results

    def _moved(self, label: str, equation: JaxprEqn, flows: Sequence[Flow]) -> list[Flow] | None:
        """Evaluate an equation that moves elements to known places."""
        places = moved_operands(equation)
        if places is None or any(flow.value is None for index, flow in enumerate(flows) if index not in places):
            return None
        moving = [flows[index] for index in places]
        if equation.primitive.name == "pad":  # refused before memory is taken, because pads may be huge
            size = np.dtype(np.int64).itemsize * math.prod(shape_of(equation.outvars[0]))
            self.keep(size)
            self.keep(-size)

        def moved(planes: Sequence[np.ndarray | None]) -> list[np.ndarray] | None:
            arrays: list[Any] = [flow.value for flow in flows]
            for index, plane in zip(places, planes, strict=True):
                arrays[index] = np.broadcast_to(np.int64(0), flows[index].shape or ()) if plane is None else plane
            return move(equation, arrays)

        ids = moved([flow.ids for flow in moving])
        if ids is None:
            return None
        sources = dict.fromkeys(name for flow in moving for name in flow.codes)
        planes = {name: moved([flow.codes.get(name) for flow in moving]) or [] for name in sources}
        read, results = union(moving), []
        for index, array in enumerate(ids):
            shape, dtype = array.shape, type_of(equation.outvars[index])
            result = Flow(shape, dtype, ids=array, deps=read.deps, ancestors=read.ancestors)
            self.keep(array.nbytes if array.base is None else 0)
            for name in sources:
                if planes[name][index].any():
                    result.codes[name] = planes[name][index]
                    result.depth[name] = min(flow.depth[name] for flow in moving if name in flow.depth)
            results.append(result)
        if entry_of(equation).joins:
            self.result.joins.append((label, results[0]))
        return results

    def _elementwise(self, label: str, equation: JaxprEqn, flows: list[Flow]) -> Flow:
        entry, shape, dtype = entry_of(equation), shape_of(equation.outvars[0]), type_of(equation.outvars[0])
        kind = entry.arithmetic
        operands, conditions = (flows[1:], flows[:1]) if kind == "select" else (flows, [])
        neutral = without_neutral(entry, operands)
        if len(neutral) == 1 < len(operands) and neutral[0].shape == shape:
            return neutral[0]
        if entry.absorbs and any(is_all(flow, 0) for flow in operands):
            return constant(np.broadcast_to(np.zeros((), dtype), shape))
        if kind == "add" and np.dtype(dtype).kind in "iu":
            kind = "count"
        divided = entry.divides and bool(operands[1].deps)
        if divided:
            # Only elements of the dividend pass through a division.
            conditions, operands = operands[1:], operands[:1]
        flow = self._create((label,), shape, dtype, flows)
        flow.codes = combined(kind, shape, operands, conditions)
        arguments = [_argument(label, each) for each in flows if each.deps]
        if label and all(each is arguments[0] for each in arguments):
            # Arithmetic of one node on a value and itself is a function of one argument.
            flow.argument = label, arguments[0]
            for source, codes in flow.codes.items():
                before = arguments[0].codes.get(source)
                if before is not None and before.shape == shape:
                    lost = (codes >= of.STEP) & (divided | (codes % of.STEP == of.OTHER))
                    flow.codes[source] = np.where(lost, of.alone("other", before, True), codes)
        return flow

    @_RULES.add("recurrence")
    def _recurrence(self, label: str, equation: JaxprEqn, flows: list[Flow]) -> list[Flow]:
        params, count = equation.params, equation.params["count"]
        return self._carried(label, flows[:count], flows[count:], params["carried"], params["steps"], params["shown"])

    @_RULES.add("cond")
    def _cond(self, label: str, equation: JaxprEqn, flows: list[Flow]) -> list[Flow]:
        condition, *operands = flows
        branches = equation.params["branches"]
        if condition.value is not None:
            place = min(max(int(condition.value), 0), len(branches) - 1)
            return self.follow(branches[place], operands, label)
        merged = []
        # The branch for True is the last branch in JAX, and the first branch in a file.
        for cases in zip(*(self.follow(branch, operands, label) for branch in reversed(branches)), strict=True):
            if all(case is cases[0] for case in cases):
                merged.append(cases[0])
                continue
            ids = [case.ids for case in cases if case.ids is not None]
            labels = tuple(dict.fromkeys(each for array in ids for each in self.result.labels_of(array)))
            shape = cases[0].shape or ()
            flow = self._create(labels or (label,), shape, cases[0].dtype, (*cases, condition))
            if self.elements:
                flow.codes = combined("select", shape, cases, (condition,))
            merged.append(flow)
        return merged

    def _loop(self, label: str, equation: JaxprEqn, flows: list[Flow], carries: LoopCarries) -> list[Flow]:
        """Evaluate a loop or layer with carries that are read from its jaxpr."""
        results = [Flow(shape_of(variable), type_of(variable)) for variable in equation.outvars]
        found = self._carried(label, results, flows, carries.slots, carries.steps)
        for result, operand in carries.unchanged.items():
            found[result] = flows[operand]
        return found

    def _carried(
        self,
        label: str,
        results: Sequence[Flow],
        starts: Sequence[Flow],
        slots: Sequence[Carried],
        steps: int | None,
        shown: int | None = None,
    ) -> list[Flow]:
        """Return new elements with final values that continue the initial values, and record the sites."""
        self.result.lengths.append((label, (steps,)))
        read = [*results, *starts]
        results = [self._create((label,), flow.shape or (), flow.dtype, read, 2) for flow in results]
        for slot in slots:
            start = None if slot.start is None else starts[slot.start]
            final = results[slot.result]
            if slot.forward and slot.half is None and self.elements:
                carry(final, start)
            final = half_of(final, slot.half)
            start = None if start is None else half_of(start, slot.half)
            operator = self.operators.get(label, "")
            self.result.sites.append(Site(label, operator, slot.slot, steps, slot.forward, start, final))
        if shown is not None and steps != 0:
            last = (*[slice(None)] * shown, -1)
            for source, codes in starts[0].codes.items():
                results[0].codes[source][last] = of.shown(of.carried(codes))
        return results


@dataclasses.dataclass(frozen=True)
class LoopCarries:
    """The carries of a loop or layer."""

    slots: Sequence[Carried]
    steps: int | None  # the number of steps, or None if it depends on data
    unchanged: Mapping[int, int] = dataclasses.field(default_factory=dict)  # results, and the operands that they are


CARRIES: Rules[Callable[[JaxprEqn], LoopCarries]] = Rules()


@CARRIES.add("recurrent_layer")
def _of_layer(equation: JaxprEqn) -> LoopCarries:
    places = jax.tree.unflatten(equation.params["structure"], range(len(equation.invars)))[1]
    forward = equation.params["direction"] == "forward"
    slots = [Carried("hc"[n], 1 + n, place, forward) for n, place in enumerate(places)]
    return LoopCarries(slots, shape_of(equation.invars[0])[0])


@CARRIES.add("scan")
def _of_scan(equation: JaxprEqn) -> LoopCarries:
    params = equation.params
    (first, count), body = Scan.of(equation), params["jaxpr"].jaxpr
    before = body.invars[first : first + count]
    return _of_body(body, before, first, params["length"], forward=not params["reverse"])


@CARRIES.add("while")
def _of_while(equation: JaxprEqn) -> LoopCarries:
    body, first = equation.params["body_jaxpr"].jaxpr, equation.params["body_nconsts"]
    return _of_body(body, body.invars[first:], equation.params["cond_nconsts"] + first, None)


def _of_body(body: Any, before: Sequence[Var], first: int, steps: int | None, *, forward: bool = True) -> LoopCarries:
    """Return the carries of a body; operand number ``first`` is the initial value of the first carry."""
    pairs = list(enumerate(zip(before, body.outvars, strict=False)))
    slots = [
        Carried("carry" if len(pairs) == 1 else f"carry {n}", n, first + n, forward)
        for n, (old, new) in pairs
        if old is not new and not _counts(body, old, new)
    ]
    return LoopCarries(slots, steps, {n: first + n for n, (old, new) in pairs if old is new})


def _counts(body: Any, old: Var, new: Any) -> bool:
    """Return True if a step adds a constant to an integer."""
    maker = next((equation for equation in body.eqns if new in equation.outvars), None)
    if maker is None or entry_of(maker).signs != (1, 1) or np.dtype(type_of(old)).kind not in "iu":
        return False
    return any(atom is old for atom in maker.invars) and any(isinstance(atom, Literal) for atom in maker.invars)


def _sliding(equation: JaxprEqn) -> Sequence[int] | None:
    """Return the axes of the first operand that a window slides along, or None without a window."""
    params = equation.params
    if entry_of(equation).kind != "window":
        return None
    if "dimension_numbers" in params:
        return params["dimension_numbers"].lhs_spec[2:]
    return [axis for axis, size in enumerate(params["window_dimensions"]) if size > 1]


def _argument(label: str, flow: Flow) -> Flow:
    """Return the value from which a node computes a value."""
    return flow.argument[1] if flow.argument is not None and flow.argument[0] == label else flow


def _known(value: Any, atom: Any = None) -> Flow:
    """Return the flow of a constant of a jaxpr."""
    if isinstance(atom, Literal):
        return constant(np.asarray(value, type_of(atom)))
    if not isinstance(getattr(value, "dtype", None), np.dtype):  # a key of random numbers
        return Flow(tuple(np.shape(value)), getattr(value, "dtype", None))
    return constant(value)


def _folded(equation: JaxprEqn, flows: Sequence[Flow]) -> list[Flow] | None:
    """Compute an equation on known values; return None if the results exceed `_FOLDED`."""
    arrays = [flow.value for flow in flows]
    if equation.effects or not all(isinstance(type_of(variable), np.dtype) for variable in equation.outvars):
        return None
    if (found := computed(equation, arrays)) is not None:
        return list(map(constant, found))
    if max((math.prod(shape_of(each)) for each in (*equation.outvars, *equation.invars)), default=0) > _FOLDED:
        return None
    with jax.ensure_compile_time_eval():
        return [constant(each) for each in bind(equation, list(map(jnp.asarray, arrays)))]
