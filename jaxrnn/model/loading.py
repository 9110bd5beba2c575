"""Reading of a file as a model, pickling of models, and writing of a file with new parameters."""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import itertools
import os
import pickle
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import onnx
from jax.core import Tracer

from jaxrnn._files.messages import describe
from jaxrnn._files.stores import check_writable, digests, local_path
from jaxrnn._jax.context import check_names, exact_types, without_collector
from jaxrnn.errors import InputError, JaxrnnError, ModelError, UnsupportedError, check_kind
from jaxrnn.jaxprs.schedule import Packed
from jaxrnn.model import Model
from jaxrnn.model.opening.writing import open_axes
from jaxrnn.onnx import ir
from jaxrnn.onnx.binding import BoundGraph, bind, bound_loops, read_constant
from jaxrnn.onnx.graph import name_dimensions, read_graph, spec_of
from jaxrnn.onnx.inference import check_shapes
from jaxrnn.onnx.limits import Limits
from jaxrnn.onnx.lists import separate_lists
from jaxrnn.onnx.operators import OwnOperators, operator_of, own_operators
from jaxrnn.onnx.parameters import needed_while_tracing, stated_parameters
from jaxrnn.onnx.reading import Source, SourceFile, check_proto, label_of, labelled, read_source
from jaxrnn.onnx.state import agree, read_facts
from jaxrnn.onnx.state.names import affinity
from jaxrnn.onnx.tensors import tensors_of
from jaxrnn.onnx.writing import write_model


def load(
    source: Source,
    *,
    static: Mapping[str, Any] | None = None,
    state: Mapping[str, str] | None = None,
    dims: Mapping[str, int | str | Mapping[Any, Any]] | None = None,
    max_trip_count: int | Mapping[str, int] | None = None,
    limits: Limits | None = None,
    operators: OwnOperators | None = None,
    declared: Literal["lenient", "strict"] = "lenient",
) -> Model:
    """Read an ONNX file as a model of pure JAX functions.

    Example::

        model = jaxrnn.load("denoiser.onnx")
        step = jax.jit(model.step)
        outputs, state = step(model.params, model.init(), {"magnitude": frame})

    Args:
        source: path, bytes or ``onnx.ModelProto``. External data is read only from the folder of the file.
        static: fixed values of inputs, such as ``{"sr": 16000}``. These values are constants while tracing, so
            that branches on the values fold. The model no longer has these inputs.
        state: pairs of a state input and the output with the updated value, if neither the flow of data nor names
            decide. The declaration is complete; ``{}`` declares that there is no state. An input with a value in the
            file (an initializer of the same name) is state if named here, or if the flow proves or the names say a
            pair and callers may override the value (from IR version 4 on). The value is then the initial state. An
            updated value in another shape or type is converted in each step; ``{"both": "h, c"}`` joins two outputs,
            and several inputs may name an output that holds all of them.
        dims: names and sizes of open dimensions, by the names in ``model.inputs``. A name renames a dimension, a shared
            name ties dimensions, a number fixes a dimension, and a multiple relates dimensions: ``{"unk__351": "time",
            "unk__353": "time", "unk__350": 1, "T": "4*U"}``. An axis of an array is also ``"<array>_dim_<axis>"``,
            for files that give one name to sizes that are not related. A dict by axis opens axes that the file fixes:
            ``{"x": {0: "time"}}``. Constants that follow from the length are computed, and the result is compared with
            the file (`Model.opened`). Where the graph does not decide whether a constant follows from the length, the
            error asks, and the answer stands beside: ``{"x": {0: "time"}, "Constant_7": {1: 16}}`` for a number of its
            own, or ``{1: "time"}``.
        max_trip_count: the most trips of an ONNX ``Loop`` with a number of trips that depends on data: a single
            number, or a dict with a number for each node. Such a loop has reverse-mode derivatives, and takes the time
            of all these trips. A loop with more trips raises a `NodeError` if possible. Under a transformation, in
            compiled code and inside of an outer loop, carried values and derivatives become NaN instead. Integers
            become the extreme of the type, and booleans become True.
        limits: limits on memory for values, on nodes after inlining, and on trips of loops. The defaults stop hostile
            files, and no real network that we know.
        operators: additional operators, ``{(domain, name): function}``. These take precedence over the operators of
            jaxrnn in all opsets. The signature is the schema: positional parameters are the inputs. An absent optional
            input is None, and ``*name`` accepts any number of inputs. Keyword-only parameters are the attributes; an
            attribute without a default is required. Inputs are JAX arrays, or NumPy arrays if the values are constant
            while tracing; an input annotated with `jaxrnn.onnx.registry.Static` is always constant. The function is
            pure and returns the output, or a list of several outputs. To declare further facts, such as the state that
            an operator carries, give `jaxrnn.onnx.registry.since` of the function in place of the function.
        declared: with ``"lenient"``, an output whose shape differs from the declared shape is a warning, as in ONNX
            Runtime, and has the shape that the nodes give. With ``"strict"`` it is a `ModelError`.

    Raises:
        ModelError: the file is malformed, inconsistent or unsafe, or the metadata describe the state of another graph;
            or an axis cannot be opened, because a node fixes its length.
        LimitError: the file exceeds the limits; calls of the model may also raise this error.
        UnsupportedError: the file uses operators that neither jaxrnn nor ``operators`` provide; the message lists all
            these operators.
        InputError: ``static``, ``state``, ``dims`` or ``max_trip_count`` does not fit the file, or an entry of
            ``operators`` cannot be used.
    """
    label, own = label_of(source), own_operators(operators)
    if declared not in ("lenient", "strict"):
        raise InputError(f"declared must be 'lenient' or 'strict', not {declared!r}")
    options = {"dims": dims, "max_trip_count": max_trip_count, "limits": limits, "operators": own or None}
    options["declared"] = declared
    with labelled(label), exact_types(), without_collector():
        file, graph = read_model(source, limits)
        file, graph, opened = opened_axes(file, graph, options, static)
        model = model_of(file, graph, label, options, static=static, state=state)
        model.opened = opened
        return model


def opened_axes(
    file: SourceFile, graph: ir.Model, options: dict[str, Any], static: Mapping[str, Any] | None
) -> tuple[SourceFile, ir.Model, tuple[str, ...]]:
    """Open the axes among the ``dims`` of the options of `load`; return the file, its graph, and what was done."""
    dims = options["dims"] or {}
    check_kind("dims", dims, Mapping, "a dict by name")
    # JSON has no numbers as keys.
    axes: dict[str, Any] = {
        name: {int(key) if isinstance(key, str) and key.isdecimal() else key: each for key, each in given.items()}
        for name, given in dims.items()
        if isinstance(given, Mapping)
    }
    if not axes:
        return file, graph, ()
    name_dimensions(graph.graph, {name: given for name, given in dims.items() if name not in axes})
    options["dims"] = None  # the opened file has the names
    limits, own = options["limits"], options["operators"]
    return open_axes(file, graph, axes, static=static, limits=limits, operators=own)


def read_model(source: Source, limits: Limits | None) -> tuple[SourceFile, ir.Model]:
    """Read a file and the graph, with all checks that do not need operators."""
    check_kind("limits", limits, Limits | None, "jaxrnn.Limits")
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
    """Bind the graph of a file as a model; ``options`` are the other arguments of `load`."""
    for name, given in {"static": static, "state": state, "dims": options.get("dims")}.items():
        check_kind(name, given, Mapping | None, "a dict by name")
    state = separate_lists(graph.graph, state)
    name_dimensions(graph.graph, options.get("dims") or {})
    facts = read_facts(file.proto, graph.graph)
    values = _InputsWithValue(graph.graph)
    given = {*(static or {}), *(state or {})} & values.tensors.keys()
    guessed: set[str] = set()
    if facts is None and state != {} and file.proto.ir_version >= _OVERRIDABLE:
        guessed = values.that_may_be_state(graph, options["operators"]) - given

    shapes = functools.cache(lambda: check_shapes(file.proto, strict=options["declared"] == "strict"))
    corrected: list[str] = []

    def made(opened: Collection[str]) -> Model:
        values.open(opened)
        program = bind(graph, options["limits"], options["operators"])
        bound_loops(program, options["max_trip_count"])
        corrected.extend(_corrected(program, shapes()))  # the outputs of the graph keep the correction
        first = {name: values.first[name] for name in opened}
        if facts is not None:
            first |= {name: array for name, array in facts.first_inputs.items() if state is None or name in state}
        initial = {name: array for name, array in first.items() if name not in (static or {})}
        return Model(
            file,
            program,
            static=static or {},
            state=state,
            label=label,
            initial=initial,
            step_file=facts,
            options=options,
        )

    model = made(given | guessed)
    if guessed and model._search is not None:
        paired = model._search.paired(guessed, chosen=values.tensors.keys() != values.initializers.keys())
        model = model if paired == guessed else made(given | paired)
    for text in corrected:
        warnings.warn(f"{label}: {text}", stacklevel=3)
    model.corrected = tuple(corrected)
    return model


#: From this version of the IR on, a caller may override an input with a value in the file.
_OVERRIDABLE = 4


class _InputsWithValue:
    """The inputs of a graph with a value in the file, which are constants or parameters unless they are opened."""

    def __init__(self, graph: ir.Graph):
        self.graph, self.initializers = graph, dict(graph.initializers)
        self.first: dict[str, np.ndarray] = {}  # the arrays of opened inputs
        named = ((str(value.name), value.const_value) for value in graph.inputs if value.name in self.initializers)
        self.tensors: dict[str, ir.TensorProtocol] = {name: tensor for name, tensor in named if tensor is not None}

    def open(self, names: Collection[str]) -> None:
        """Make these inputs without a value, and the others with theirs, in the order of the file."""
        if not self.tensors:
            return
        self.graph.initializers.clear()
        for name, value in self.initializers.items():
            value.const_value = self.tensors.get(name, value.const_value)
            if name in names:
                array = read_constant(value)
                assert array is not None, "the input has a value"
                self.first[name], value.const_value = np.array(array), None
            else:
                self.graph.initializers[name] = value

    def that_may_be_state(self, model: ir.Model, own: OwnOperators | None) -> set[str]:
        """Return the inputs that an output may update: no stated parameters, and no sizes unless names pair."""
        specs = [spec for spec in map(spec_of, self.graph.inputs) if spec.name in self.tensors]
        pairs = list(itertools.product(specs, map(spec_of, self.graph.outputs)))
        named = {spec.name for spec, output in pairs if affinity(spec.name, output.name) == 2}
        names = {spec.name for spec, output in pairs if agree(spec, output)} | named
        if not names:
            return names
        try:
            operators = {node: operator_of(node, own or {}) for node in self.graph.all_nodes()}
        except UnsupportedError:  # `bind` names all nodes
            return set()
        needed = needed_while_tracing(self.graph, operators.__getitem__)
        names -= {str(value.name) for value in needed} - named
        return names - (stated_parameters(model) or frozenset())


def _corrected(program: BoundGraph, found: Mapping[str, onnx.TypeProto]) -> Iterator[str]:
    """Give outputs the shapes that inference found, and describe the changes."""
    for value in program.block.outputs:
        if (kind := found.get(str(value.name))) is not None:
            declared = spec_of(value)
            value.shape = ir.serde.deserialize_type_proto_for_shape(kind)
            if (known := spec_of(value)) != declared:
                yield f"the file declares the output {declared}, but the nodes give {known}"


def contents_of(model: Model) -> tuple[bytes, dict[str, Any], str]:
    """Return the arguments from which `reloaded` restores a model: the file with all tensors, options and label."""
    arguments = {**model._load_options, "static": model.static, "state": model.declared_state}
    try:
        pickle.dumps(arguments.get("operators"))
    except Exception as error:  # pickle raises many types of errors
        reason = (
            f"an operator of the caller cannot be pickled: {error}; define the operator at the top level of a module"
        )
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
    if outside:
        changed = True
        with contextlib.suppress(JaxrnnError):
            again = reloaded(data, arguments, model.label)
            arrays, others = model.program.parameters, again.program.parameters
            changed = model.fingerprint != again.fingerprint or any(
                array.tobytes() != others[name].tobytes() for name, array in arrays.items()
            )
        if changed:
            raise _refused(model, "its external data has changed since the model was loaded")
    return data, arguments, model.label


def digests_of(model: Model, name: str) -> dict[str, str]:
    """Return the SHA-256 of the file of a model, under a name, and of its external data, by relative path."""
    file = model._file
    assert file.data is not None, "the model comes from a file"
    assert file.folder is not None
    tensors = (tensor for each in (file.proto.graph, *file.proto.functions) for _, tensor in tensors_of(each))
    entries = (entry for tensor in tensors for entry in tensor.external_data)
    outside = sorted({entry.value for entry in entries if entry.key == "location"})
    return {name: hashlib.sha256(file.data).hexdigest(), **digests(file.folder, outside)}


def reloaded(data: bytes, arguments: Mapping[str, Any], label: str) -> Model:
    """Restore the model of `contents_of`."""
    model = load(data, **arguments)
    model.label = label
    return model


def _refused(model: Model, reason: str) -> ModelError:
    return ModelError(f"{model.label} cannot be pickled, because {reason}")


def write_graph(model: Model, params: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write the ONNX file of a model with these parameters.

    Each parameter keeps the place and the form that it has in the file: raw bytes, a typed field, external data, an
    initializer or a ``Constant`` node, subgraphs and local functions. All other bytes stay unchanged, so that unchanged
    parameters result in an identical file. A model loaded from a ``ModelProto`` is written as the proto was at the time
    of loading.

    External data is written next to the new file under the old name, or as ``<name>.data`` if that name is taken.
    Existing files are not changed, and all other external data is copied. The file appears completely or not at all,
    and may replace the file from which the model was loaded. Parameters of other float types are cast to the file's
    type; a value that exceeds this type is refused.
    """
    if not isinstance(model, Model):
        if hasattr(model, "step"):
            raise UnsupportedError(
                f"a {type(model).__name__} cannot be written as the graph of a file with new parameters. Pass the "
                "model that it was made of"
            )
        raise InputError(f"expected a model from jaxrnn.load, not {type(model).__name__}")
    path = local_path(path)
    check_writable(path)
    with labelled(model.label):
        arrays = stored_params(model, params)
        # By bits: -0 differs from 0, and NaNs may differ.
        stored = model.program.parameters
        changed = frozenset(name for name, array in arrays.items() if array.tobytes() != stored[name].tobytes())
        origins = {name: origin for name, origin in model.program.origins.items() if origin is not None}
        for name in sorted(changed - origins.keys()):
            raise UnsupportedError(
                f"params[{name!r}] has changed, but its floats are an attribute that a local function gets from its "
                "caller, or a sparse tensor, which cannot be written; give it the values of model.params"
            )
        known = {name: array for name, array in arrays.items() if name in origins}
        write_model(model._file, known, changed, origins, path)


def stored_params(model: Model, params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return parameters in the element types and the order of the file."""
    if isinstance(params, Packed):
        raise InputError("params are packed: pass the plain parameters, packed.params")
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
        _refuse(name, given, np.isinf(array) & ~np.isinf(given), f"exceeds the range of the file's {old.dtype}")
        _refuse(name, given, np.isnan(array) & ~np.isnan(old), "is NaN, but the file has a number there")
    return array


def _refuse(name: str, given: np.ndarray, wrong: np.ndarray, reason: str) -> None:
    if wrong.any():
        index = tuple(map(int, np.argwhere(wrong)[0]))
        count = f", and {int(wrong.sum()) - 1:,} more" if wrong.sum() > 1 else ""
        raise InputError(f"params[{name!r}]{list(index)} = {given[index]} {reason}{count}; nothing was written")
