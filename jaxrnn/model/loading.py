"""`load`: a file, checked, as a model."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import onnx
import onnx_ir as ir
from jax.core import Tracer

from jaxrnn._files.files import check_writable
from jaxrnn._files.messages import describe
from jaxrnn._jax.context import exact_types
from jaxrnn._jax.precision import check_names
from jaxrnn.errors import InputError, JaxrnnError, ModelError, UnsupportedError
from jaxrnn.jaxprs.packing import Packed
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
from jaxrnn.onnx.tensors import tensors_of
from jaxrnn.onnx.writing import write_model

if TYPE_CHECKING:
    from jaxrnn.model import Model


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
    """A file and its graph, checked as far as that needs no operator."""
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


def contents_of(model: Model) -> tuple[bytes, dict[str, Any], str]:
    """What `reloaded` makes the model of again: its file, with all of its tensors inside, and arguments."""
    arguments = {**model._load_options, "static": model.static, "state": model.declared_state}
    try:
        pickle.dumps(arguments.get("operators"))
    except Exception as error:  # what pickle raises has many types
        reason = f"one of its own operators cannot be: {error}; give functions that a module defines"
        raise _refused(model, reason) from error
    file, proto = model._file, model.proto
    outside = any(tensor.data_location == onnx.TensorProto.EXTERNAL for _, tensor in tensors_of(proto.graph))
    if file.data is not None and not outside:
        return file.data, arguments, model.label
    proto = copy.deepcopy(proto)
    try:
        if outside:
            onnx.load_external_data_for_model(proto, str(file.folder))
        data = proto.SerializeToString()
    except (OSError, onnx.checker.ValidationError) as error:
        raise _refused(model, f"its external data cannot be read: {error}") from error
    except (ValueError, MemoryError) as error:
        raise _refused(model, f"it is too large for one file: {error}") from error
    if outside and not _is_same_model(model, data, arguments):
        raise _refused(model, "its external data is no longer what it was when the model was loaded")
    return data, arguments, model.label


def reloaded(data: bytes, arguments: Mapping[str, Any], label: str) -> Model:
    """The model of `contents_of`."""
    model = load(data, **arguments)
    model.label = label
    return model


def _is_same_model(model: Model, data: bytes, arguments: Mapping[str, Any]) -> bool:
    try:
        again = reloaded(data, arguments, model.label)
    except JaxrnnError:
        return False
    arrays, others = model.program.parameters, again.program.parameters
    return model.fingerprint == again.fingerprint and all(
        array.tobytes() == others[name].tobytes() for name, array in arrays.items()
    )


def _refused(model: Model, reason: str) -> ModelError:
    return ModelError(f"{model.label} cannot be pickled, because {reason}")


def write_graph(model: Model, params: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write the ONNX file that a model was loaded from, with these parameters in it.

    Each parameter goes where the file has it and is stored as it is there: as raw bytes, in a typed field, in a file of
    external data, in an initializer or a ``Constant`` node, in subgraphs and local functions. Every other byte of the
    file stays as it was, so that unchanged parameters give an identical file. A model loaded from a ``ModelProto`` is
    written as that was when it was loaded.

    External data is written beside the new file under its old name, or under ``<name>.data`` where the folder has
    another file of that name; then the file says so. What was there before is not touched, and everything in the data
    but the parameters is copied. The file appears whole or not at all, and may take the place of the one that the model
    was loaded from.

    Args:
        model: as `jaxrnn.load` gives it, also with ``static`` and ``state``.
        params: arrays of JAX or NumPy by name, as in `Model.params`. Another float type than the file's is cast.
        path: the file to write.

    Raises:
        InputError: a name is missing or unknown, a shape or type does not fit, a value is beyond what the file's type
            can hold or not a number where the file has one, or parameters that share bytes differ in them.
        UnsupportedError: not a model but something made of one, or a tensor that cannot be told in the file.
        ModelError: the file of external data is not there any more, or has become too short.
    """
    _check_model(model)
    path = Path(path)
    check_writable(path)
    with labelled(model.label):
        arrays = stored_params(model, params)
        changed = frozenset(
            name for name, array in arrays.items() if not _has_same_bits(array, model.program.parameters[name])
        )
        origins = {name: origin for name, origin in model.program.origins.items() if origin is not None}
        for name in sorted(changed - origins.keys()):
            raise UnsupportedError(
                f"params[{name!r}] has changed, but its floats are an attribute that a local function gets from its "
                "caller, or a sparse tensor, which cannot be written; give it the values of model.params"
            )
        known = {name: array for name, array in arrays.items() if name in origins}
        write_model(model._file, known, changed, origins, path)


def stored_params(model: Model, params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Parameters in the element types of the file, by name, in its order."""
    if isinstance(params, Packed):
        raise InputError("params are packed: pass the plain ones that were given to pack, packed.params")
    expected = model.program.parameters
    check_names(params, expected)
    return {name: _stored(name, params[name], old) for name, old in expected.items()}


def _stored(name: str, value: Any, old: np.ndarray) -> np.ndarray:
    where = f"params[{name!r}]"
    if isinstance(value, Tracer):
        raise InputError(f"{where} is being traced and has no values; call export_onnx outside of jit")
    if not hasattr(value, "shape") or np.asarray(value).dtype == object:
        raise InputError(f"{where} must be an array of JAX or NumPy, not {type(value).__name__}")
    given = np.asarray(value)
    if not jnp.issubdtype(given.dtype, jnp.floating):
        raise InputError(f"{where} is {given.dtype}, but the file has {old.dtype}: float arrays are expected")
    if given.shape != old.shape:
        raise InputError(f"{where} must be {describe(old)}, not {describe(given)}")
    with np.errstate(all="ignore"):
        array = given if given.dtype == old.dtype else given.astype(old.dtype)
        _refuse(name, given, np.isinf(array) & ~np.isinf(given), f"is beyond what the file's {old.dtype} can hold")
        _refuse(name, given, np.isnan(array) & ~np.isnan(old), "is not a number, but the file has one there")
    return array


def _refuse(name: str, given: np.ndarray, wrong: np.ndarray, reason: str) -> None:
    if wrong.any():
        index = tuple(map(int, np.argwhere(wrong)[0]))
        count = f", and {int(wrong.sum()) - 1:,} more" if wrong.sum() > 1 else ""
        raise InputError(f"params[{name!r}]{list(index)} = {given[index]} {reason}{count}; nothing was written")


def _has_same_bits(array: np.ndarray, old: np.ndarray) -> bool:
    """Whether all bits are the same: -0 is not 0, and NaNs may differ."""
    return array.tobytes() == old.tobytes()


def _check_model(model: Any) -> None:
    if isinstance(model, Model):
        return
    if hasattr(model, "step"):
        raise UnsupportedError(
            f"a {type(model).__name__} cannot be written as ONNX yet: only the graph of a file, with other parameters. "
            "Export the model that it was made of"
        )
    raise InputError(f"expected a model as jaxrnn.load gives it, not {type(model).__name__}")
