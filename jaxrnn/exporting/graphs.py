"""The functions that become files: a step, its flush, or a function without state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import onnx_ir as ir
from jax.extend.core import ClosedJaxpr

from jaxrnn._files.messages import describe
from jaxrnn.errors import InputError, StateError
from jaxrnn.exporting.names import AFTER, BEFORE, COUNT, INPUT, OUTPUT, VALID, Key, Names
from jaxrnn.exporting.sources import Source, check_params, exact
from jaxrnn.exporting.tracing import Traced, to_pairs, trace
from jaxrnn.lowering import Argument, lower
from jaxrnn.onnx.stepfile import FLUSH, FUNCTION, STEP, StepFile
from jaxrnn.steps.specs import ArraySpec
from jaxrnn.steps.stepspec import OutputSpec, StepSpec
from jaxrnn.streaming.modules import as_function, explained
from jaxrnn.streaming.plan import shape_of

Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class Graph:
    """What becomes a file.

    Attributes:
        closed: the function.
        arguments: what it takes: the parameters, which are known, and the inputs.
        results: the names of what it gives.
        facts: what the file says of itself.
    """

    closed: ClosedJaxpr
    arguments: Sequence[Argument]
    results: Sequence[str]
    facts: StepFile

    def lowered(self, opset: int) -> ir.Model:
        """The function as nodes.

        Raises:
            UnsupportedError: part of it has no counterpart in that opset.
        """
        return lower(self.closed, self.arguments, self.results, opset=opset, label=self.facts.spec.label)


def step_graph(source: Source, names: Names) -> Graph:
    """The step of a source, and the state before its first frame.

    Raises:
        StateError: the state after the step has another shape or type than before.
        InputError: parameters do not fit, or what it gives is no dict of arrays by name.
    """
    spec, first = source.spec, source.first()

    def step(params: Any, arrays: Mapping[Key, Any]) -> dict[Key, Any]:
        outputs, state = source.step(params, _of(BEFORE, arrays), _of(INPUT, arrays))
        _check_steady(spec, source.lead, state)
        return _keyed(OUTPUT, outputs) | _keyed(AFTER, {each.name: state[each.name] for each in spec.state})

    with source.types():
        inputs, state = _structs(spec.inputs, source.lead), _structs(spec.state, source.lead)
        traced = trace(step, source.params, _keyed(INPUT, inputs) | _keyed(BEFORE, state))
    start = {name: to_pairs(array) for name, array in first.items()}
    facts = StepFile(STEP, spec, source.batch, state=names.state(after=True), first=start)
    return _graph(traced, names, facts, source.lead)


def flush_graph(source: Source, names: Names) -> Graph:
    """The flush of a source.

    Raises:
        InputError: the source keeps nothing back, so that there is none.
    """
    spec, streams = source.spec, source.spec.streams

    def flush(params: Any, arrays: Mapping[Key, Any]) -> dict[Key, Any]:
        tail = (_of(INPUT, arrays), arrays[VALID, ""]) if streams else ()
        outputs, counts = source.flush(params, _of(BEFORE, arrays), *tail)
        if not outputs:
            raise InputError(f"{spec.label} keeps nothing back when a recording ends: there is no flush to write")
        return _keyed(OUTPUT, outputs) | _keyed(COUNT, counts)

    with source.types():
        tail = _keyed(INPUT, _structs(spec.inputs, source.lead)) if streams else {}
        valid = {(VALID, ""): jax.ShapeDtypeStruct(source.lead, np.int32)} if streams else {}
        state = _keyed(BEFORE, _structs(spec.state, source.lead))
        traced = trace(flush, source.params, tail | valid | state)
    entry = names[VALID, ""] if streams else None
    facts = StepFile(FLUSH, spec, source.batch, state=names.state(after=False), valid=entry)
    return _graph(traced, names, facts, source.lead)


def function_graph(function: Callable[..., Any], params: Any, example: Any, label: str | None) -> Graph:
    """A function without state.

    Args:
        function: ``function(params, x)``, or ``function(x)`` where params is None.
        params: the parameters.
        example: of x: an array, or a dict of arrays by name.
        label: what the file calls it.

    Raises:
        InputError: the example or what the function gives is no array and no dict of arrays by name.
    """
    check_params(params)
    callee = as_function(function)
    label = str(label or getattr(function, "__name__", type(function).__name__))
    inputs = {name: shape_of(array) for name, array in _by_name(example, "x", "the example of a function").items()}
    single = not isinstance(example, Mapping)

    def call(params: Any, arrays: Mapping[Key, Any]) -> dict[Key, Any]:
        x = arrays[INPUT, "x"] if single else _of(INPUT, arrays)
        given = callee(x) if params is None else callee(params, x)
        return _keyed(OUTPUT, _by_name(given, "y", f"what {label} gives"))

    with exact(False), explained():
        traced = trace(call, params, _keyed(INPUT, inputs))
    outputs = tuple(OutputSpec(name, np.dtype(each.dtype), each.shape) for (_, name), each in traced.results.items())
    taken = tuple(ArraySpec(name, np.dtype(each.dtype), each.shape) for name, each in inputs.items())
    spec = StepSpec(label, taken, outputs, ())
    return _graph(traced, Names(spec), StepFile(FUNCTION, spec), ())


def _graph(traced: Traced, names: Names, facts: StepFile, lead: tuple[int, ...]) -> Graph:
    """A function under the names of its file."""
    known = map(Argument, names.of_params(traced.paths), traced.params)
    facts = dataclasses.replace(
        facts,
        spec=_as_in_file(facts.spec, traced, lead),
        inputs=names.of(INPUT, traced.inputs),
        outputs=names.of(OUTPUT, traced.results),
        counts=names.of(COUNT, traced.results),
    )
    taken = [*known, *(Argument(names[key]) for key in traced.inputs)]
    return Graph(traced.closed, taken, [names[key] for key in traced.results], facts)


def _as_in_file(spec: StepSpec, traced: Traced, lead: tuple[int, ...]) -> StepSpec:
    """The facts with the shapes and types of a file; the inputs that it does not have left out."""

    def seen(each: Any, struct: jax.ShapeDtypeStruct | None) -> Any:
        if struct is None:
            return each.batched(lead)
        axis = None if each.time_axis is None else each.time_axis + len(lead)
        return dataclasses.replace(each, dtype=np.dtype(struct.dtype), shape=tuple(struct.shape), time_axis=axis)

    taken, given = traced.inputs, traced.results
    return dataclasses.replace(
        spec,
        inputs=tuple(seen(each, taken[INPUT, each.name]) for each in spec.inputs if (INPUT, each.name) in taken),
        outputs=tuple(seen(each, given.get((OUTPUT, each.name))) for each in spec.outputs),
        state=tuple(seen(each, taken[BEFORE, each.name]) for each in spec.state),
        joined=False,
        needs_params=False,
    )


def _structs(specs: Sequence[ArraySpec], lead: tuple[int, ...]) -> dict[str, jax.ShapeDtypeStruct]:
    return {each.name: each.batched(lead).struct() for each in specs}


def _keyed(kind: str, arrays: Arrays) -> dict[Key, Any]:
    return {(kind, name): array for name, array in arrays.items()}


def _of(kind: str, arrays: Mapping[Key, Any]) -> dict[str, Any]:
    return {name: array for (own, name), array in arrays.items() if own == kind}


def _check_steady(spec: StepSpec, lead: tuple[int, ...], after: Arrays) -> None:
    """Refuse a state that is not the same after a step as before, such as a cache that grows.

    Raises:
        StateError: names the entry.
    """
    for name, before in _structs(spec.state, lead).items():
        array = after.get(name)
        if array is None or (array.shape, array.dtype) != (before.shape, before.dtype):
            raise StateError(
                f"{spec.label} cannot be written as a file: its state {name!r} is {describe(before)} before a step, "
                f"and {'missing' if array is None else describe(array)} after it; in a file, a state keeps its shape"
            )


def _by_name(value: Any, single: str, what: str) -> dict[str, Any]:
    """Arrays by name; one array alone goes by ``single``.

    Raises:
        InputError: it is neither an array nor a dict of arrays by name.
    """
    arrays = dict(value) if isinstance(value, Mapping) else {single: value}
    for name, array in arrays.items():
        number = isinstance(array, (bool, int, float, complex))
        if not isinstance(name, str) or not (number or (hasattr(array, "shape") and hasattr(array, "dtype"))):
            raise InputError(
                f"{what} must be an array, or a dict of arrays with strings for keys, not {jax.tree.structure(value)}"
            )
    if not arrays:
        raise InputError(f"{what} has no arrays")
    return arrays
