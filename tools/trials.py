"""Trials of operators on the test cases of onnx: derivatives, and primitives that streaming supports."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from onnx import numpy_helper

from jaxrnn._jax.context import exact_types
from jaxrnn.jaxprs.canonical import canonical
from jaxrnn.jaxprs.equations import walk
from jaxrnn.jaxprs.own import is_platform_index
from jaxrnn.onnx.binding import BoundGraph, bind
from jaxrnn.onnx.evaluate import Scope, evaluate
from jaxrnn.onnx.graph import normal_domain, read_graph
from jaxrnn.streaming.rules import RULES

Key = tuple[str, str]
#: The largest number of cases per operator; a case with a derivative ends the trial.
_TRIES = 3
#: Shapes of float inputs for operators without a case in onnx.
_SHAPES = ((2, 3), (2, 3, 4), (1, 2, 4, 4), (3,))


@dataclass(frozen=True)
class Evidence:
    """The result of the trial of an operator.

    Attributes:
        differentiable: True if a derivative of a float output by a float input is not zero everywhere; None if the
            operator has no float inputs or no float outputs.
        missing: the JAX primitives of the operator that lack a streaming rule; None if the operator cannot be traced,
            because shapes or results depend on data.
        fed: True if the operator has an input that is not static.
    """

    differentiable: bool | None
    missing: tuple[str, ...] | None
    fed: bool = True


def try_operators(
    keys: list[Key], versions: Mapping[Key, int], watch: Callable[[Key], None] | None = None
) -> dict[Key, Evidence | None]:
    """Collect the evidence on each operator; None for an operator without a case that runs.

    ``keys`` are pairs of domain and name, ``versions`` the versions of operators without a case. ``watch`` is called
    with each tried operator, because all operators take some minutes.
    """
    cases, evidence = _cases(), {}
    for key in keys:
        evidence[key] = _try(list(_limited(cases[key])) or _invented(key, versions[key]))
        if watch is not None:
            watch(key)
    return evidence


def _limited(cases: list[Any]) -> Iterator[tuple[onnx.ModelProto, list[Any]]]:
    """Return the model and inputs of a few cases: cases with differentiable floats first, then cases with few elements.

    The first input is the operand of most operators; other inputs can be options.
    """

    def order(case: Any) -> tuple[bool, bool, int]:
        inputs, results = ([leaf for v in side for leaf in jax.tree.leaves(_array(v))] for side in case.data_sets[0])
        floats = all(
            any(getattr(leaf, "dtype", np.dtype(bool)).kind == "f" for leaf in side) for side in (inputs, results)
        )
        first = bool(inputs) and getattr(inputs[0], "dtype", np.dtype(bool)).kind == "f"
        return not floats, not first, sum(getattr(leaf, "size", 0) for leaf in inputs)

    for case in sorted(cases, key=order)[:_TRIES]:
        yield case.model, [_array(value) for value in case.data_sets[0][0]]


def _cases() -> defaultdict[Key, list[Any]]:
    """Return the cases with a single node by operator."""
    cases: defaultdict[Key, list[Any]] = defaultdict(list)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite computes the cases on import, with overflows
        from onnx.backend.test.loader import load_model_tests

        for case in load_model_tests(kind="node"):
            if case.model is None or case.data_sets is None or "_expanded" in case.name:
                continue  # an expanded case has the nodes of the function body of an operator
            nodes = case.model.graph.node
            if len(nodes) == 1:
                cases[normal_domain(nodes[0].domain), nodes[0].op_type].append(case)
    return cases


def _array(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, onnx.SequenceProto):
        return tuple(numpy_helper.to_list(value))
    return numpy_helper.to_optional(value) if isinstance(value, onnx.OptionalProto) else value


def _invented(key: Key, version: int) -> list[tuple[onnx.ModelProto, list[Any]]]:
    """Return models of a single node with float inputs of several shapes."""
    domain, name = key
    cases = []
    for shape in _SHAPES:
        for count in (1, 2, 3):
            names = [f"x{index}" for index in range(count)]
            graph = onnx.helper.make_graph(
                [onnx.helper.make_node(name, names, ["y"], domain=domain)],
                "invented",
                [onnx.helper.make_tensor_value_info(each, onnx.TensorProto.FLOAT, shape) for each in names],
                [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
            )
            imports = [onnx.helper.make_opsetid(*pair) for pair in {"": 17, domain: version}.items()]
            numbers = np.random.default_rng(0)
            values = [numbers.uniform(0.1, 0.9, shape).astype(np.float32) for _ in names]
            cases.append((onnx.helper.make_model(graph, opset_imports=imports, ir_version=8), values))
    return cases


def _try(cases: list[tuple[onnx.ModelProto, list[Any]]]) -> Evidence | None:
    differentiable: bool | None = None
    missing: tuple[str, ...] | None = None
    runs = fed = False
    for proto, values in cases:
        with exact_types():
            try:
                program = bind(read_graph(proto))
                missing_here = _missing(program, values) if missing is None else missing
                flows = _gradient_flows(program, values)
            except Exception:  # other tests cover cases that fail
                continue
        runs = True
        fed = fed or bool(_fed(program, values))
        missing = missing_here if missing is None else missing
        differentiable = flows if differentiable is None else bool(differentiable or flows)
        if differentiable and missing is not None:
            break
    return Evidence(differentiable, missing, fed) if runs else None


def _function(program: BoundGraph, values: list[Any], chosen: list[int]) -> Callable[..., list[Any]]:
    """Return the node as a function of some inputs."""

    def function(*arrays: Any) -> list[Any]:
        arguments = list(values)
        for place, array in zip(chosen, arrays, strict=True):
            arguments[place] = array
        outputs = evaluate(program.block, arguments, Scope(program.parameters))
        return [leaf for leaf in jax.tree.leaves(outputs) if not _is_text(leaf)]

    return function


def _missing(program: BoundGraph, values: list[Any]) -> tuple[str, ...] | None:
    """Return the primitives of the node's jaxpr that lack a streaming rule; None if tracing fails."""
    chosen = _fed(program, values)
    try:
        jaxpr = jax.make_jaxpr(_function(program, values, chosen))(*(values[place] for place in chosen))
    except Exception:  # JAX raises many types if a shape depends on data
        return None
    equations = [each for each in walk(canonical(jaxpr).jaxpr) if not is_platform_index(each)]
    return tuple(sorted({each.primitive.name for each in equations if RULES.of(each) is None}))


def _fed(program: BoundGraph, values: list[Any]) -> list[int]:
    """Return the positions of array inputs that can be traced."""
    needed = _static_inputs(program)
    return [place for place, value in enumerate(values) if _is_numbers(value) and place not in needed]


def _static_inputs(program: BoundGraph) -> set[int]:
    """Return the positions of the graph inputs that must be static."""
    places = {key: place for place, key in enumerate(program.block.inputs)}
    needed = set()
    for node in program.block.nodes:
        for index, key in enumerate(node.inputs):
            slot = node.operator.slot(index)
            if key in places and slot is not None and slot.static:
                needed.add(places[key])
    return needed


def _gradient_flows(program: BoundGraph, values: list[Any]) -> bool | None:
    """Return True if a derivative of a float output is not zero; None without float inputs or outputs."""
    needed = _static_inputs(program)
    chosen = [place for place, value in enumerate(values) if _is_floats(value) and place not in needed]
    function = _function(program, values, chosen)
    arrays = [jnp.asarray(values[place]) for place in chosen]
    if not chosen or not any(map(_is_floats, jax.eval_shape(function, *arrays))):
        return None

    def loss(*arrays: Any) -> Any:
        floats = [output for output in function(*arrays) if _is_floats(output)]
        weights = [np.cos(np.arange(1, output.size + 1)).reshape(output.shape) for output in floats]
        return sum(jnp.sum(jnp.nan_to_num(o.astype(jnp.float64)) * w) for o, w in zip(floats, weights, strict=True))

    try:
        gradients = jax.jit(jax.grad(loss, tuple(range(len(chosen)))))(*arrays)
    except Exception:  # JAX raises many types if a derivative is missing
        return False
    return any(bool(jnp.any(jnp.nan_to_num(gradient.astype(jnp.float32)) != 0)) for gradient in gradients)


def _is_text(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "OSTU"


def _is_numbers(value: Any) -> bool:
    return hasattr(value, "dtype") and not _is_text(value)


def _is_floats(value: Any) -> bool:
    return _is_numbers(value) and jnp.issubdtype(value.dtype, jnp.floating)
