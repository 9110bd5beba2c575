"""`load`: a file, checked, as a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxrnn._jax.context import exact_types
from jaxrnn.model import Model
from jaxrnn.onnx.checking import check_proto
from jaxrnn.onnx.graph import read_graph
from jaxrnn.onnx.inference import check_shapes
from jaxrnn.onnx.interface import name_dimensions
from jaxrnn.onnx.limits import Limits
from jaxrnn.onnx.operators import OwnOperators, own_operators
from jaxrnn.onnx.program import bind, bound_loops
from jaxrnn.onnx.reading import Source, SourceFile, label_of, labelled, read_source
from jaxrnn.onnx.state import read_facts


def load(
    source: Source,
    *,
    static: Mapping[str, Any] | None = None,
    state: Mapping[str, str] | None = None,
    dims: Mapping[str, int | str] | None = None,
    max_trip_count: int | Mapping[str, int] | None = None,
    limits: Limits | None = None,
    operators: OwnOperators | None = None,
) -> Model:
    """Read an ONNX model and make it ready to run as a JAX function.

    Example::

        model = jaxrnn.load("denoiser.onnx")
        step = jax.jit(model.step)
        outputs, state = step(model.params, model.init(), {"magnitude": frame})

    Args:
        source: path, bytes or ``onnx.ModelProto``. External data is read only from beside the file.
        static: values for inputs that are fixed from here on, such as ``{"sr": 16000}``. They are known while tracing,
            so that branches on them fold; the model no longer has these inputs.
        state: pairs of a state input and the output that carries its updated value, where neither the flow of data nor
            names tell. What a recurrence or a buffer carries is found besides; ``{}`` says that there is no state.
            An input that the file also gives a value (an initializer of the same name) is state only if it is named
            here; the value is then where it starts.
        dims: names and sizes of dimensions that the file leaves open, by the names that ``model.inputs`` shows. A name
            renames a dimension, one name for several ties them, a number fixes a dimension, and a multiple relates it:
            ``{"unk__351": "time", "unk__353": "time", "unk__350": 1, "T": "4*U"}``.
        max_trip_count: how many trips an ONNX ``Loop`` makes at most where that depends on data: one number, or one
            for each node by name. Such a loop then has reverse-mode derivatives, and takes the time of so many trips.
            A loop that goes on beyond it raises a `NodeError` where it can. Under a transformation, in compiled code
            and inside another loop it cannot: what it carries then comes out as NaN, derivatives too, integers as
            their type's extreme and booleans as True.
        limits: how much the file may ask for, beyond what it holds: memory for values, nodes out of functions, trips
            of loops. The defaults stand in the way of no real network that we know of, and of hostile files.
        operators: additional operators, ``{(domain, name): function}``. They take precedence over the operators of
            jaxrnn in every opset. The signature is the schema: positional parameters are the inputs (None stands for
            an absent optional input, ``*name`` for any number of inputs). Keyword-only parameters are the attributes;
            an attribute without a default is required. Inputs are JAX arrays, or NumPy arrays if they are known while
            tracing; an input annotated with `jaxrnn.onnx.registry.Static` is always known. The function is pure and
            returns its output, or a list of several outputs. To state facts too, such as what the operator carries
            from step to step, give `jaxrnn.onnx.registry.since` of the function in place of the function.

    Raises:
        ModelError: the file is malformed, inconsistent or unsafe, or its metadata say of another graph what is state.
        LimitError: it asks for more than its limits; so may every call of the model.
        UnsupportedError: the file uses operators that neither jaxrnn has nor ``operators``; lists all of them.
        InputError: ``static``, ``state``, ``dims`` or ``max_trip_count`` does not fit the file, or one of ``operators``
            is none.
    """
    label, own = label_of(source), own_operators(operators)
    options = {"dims": dims, "max_trip_count": max_trip_count, "limits": limits, "operators": own or None}
    with labelled(label), exact_types():
        return model_of(*read_model(source, limits), label, options, static=static, state=state)


def read_model(source: Source, limits: Limits | None) -> tuple[SourceFile, ir.Model]:
    """A file and its graph, checked as far as that needs no operator.

    Raises:
        ModelError: it is malformed, inconsistent or unsafe.
        LimitError: its functions or sparse tensors go beyond the limits.
        UnsupportedError: its format, not one of its operators, is not supported.
    """
    file = read_source(source, limits)
    check_proto(file.proto, file.folder)
    graph = read_graph(file.proto, limits)
    if file.folder is not None:
        ir.external_data.set_base_dir(graph.graph, file.folder)
    return file, graph


def model_of(
    file: SourceFile,
    graph: ir.Model,
    label: str,
    options: Mapping[str, Any],
    *,
    static: Mapping[str, Any] | None = None,
    state: Mapping[str, str] | None = None,
) -> Model:
    """The model of a file and its graph; ``options`` is what else `load` takes, whose errors it raises."""
    name_dimensions(graph.graph, options.get("dims") or {})
    initial = _take_initial_values(graph.graph, state or {})
    facts = read_facts(file.proto, graph.graph)
    if facts is not None:
        carried = facts.first_inputs.keys() if state is None else state
        first = facts.first_inputs.items()
        initial |= {name: array for name, array in first if name in carried and name not in (static or {})}
    program = bind(graph, options["limits"], options["operators"])
    bound_loops(program, options["max_trip_count"])
    check_shapes(file.proto)
    model = Model(file, program, static=static or {}, state=state, label=label, initial=initial, step_file=facts)
    model._load_options |= options
    return model


def _take_initial_values(graph: ir.Graph, state: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Inputs that are state and have a value in the file become inputs without one; the values, by name."""
    initial = {}
    for value in graph.inputs:
        name = str(value.name)
        if name in state and name in graph.initializers and value.const_value is not None:
            initial[name] = np.array(value.const_value.numpy())
            del graph.initializers[name]
            value.const_value = None
    return initial
