"""Keras models as models of pure functions, and tuned weights back in Keras."""

# pyright: reportMissingImports=false

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from jaxrnn.errors import InputError, ModelError, optional_package
from jaxrnn.frameworks.agreement import check_after, check_agreement, check_stream, check_weights
from jaxrnn.frameworks.weights import declare_shapes, export_with_names, quiet
from jaxrnn.model import Model
from jaxrnn.model.loading import load
from jaxrnn.onnx.tensors import graphs_below

if TYPE_CHECKING:
    import keras

#: Alternatives to layers that tf2onnx writes wrongly or not at all.
_ADVICE = """Layers that tf2onnx writes wrongly or not at all, and what to write instead:
  - TimeDistributed(Dense(...)) and other layers that take [batch, time, features]: the layer itself
  - convolutions with groups: one convolution for each group, and Concatenate
  - keras.ops.stft, Normalization: compute them before the network, for example with jaxrnn.audio.stft"""
#: Sizes of open dimensions in the first comparison.
_BATCH, _LENGTH = 2, 12


def from_keras(network: keras.Model, *, dims: Mapping[str, int | str] | None = None, **options: Any) -> Model:
    """Export a Keras model in memory, load the file, and compare the model with Keras.

    The open dimensions of an input are called ``batch``, ``time``, ``time_2`` and so on; inputs and outputs have the
    names of Keras. `Model.params` contains the weights under their paths in Keras, such as ``gru/gru_cell/kernel``, in
    Keras' layout. The model must agree with Keras for several batches and lengths, and so must its stream over time,
    unless `Model.stream` refuses the model.

    Example::

        model = jaxrnn.from_keras(network)
        streamed = model.stream("time", pulse=4)

    Args:
        network: a functional or sequential model, built, with the backend TensorFlow.
        dims: names and sizes of open dimensions as in `jaxrnn.load`.
        options: other arguments of `jaxrnn.load`, such as ``state``.

    Raises:
        InputError: the argument is not a built Keras model, or the backend is not TensorFlow.
        ModelError: the file differs from Keras; the message lists the differences.
        MissingPackageError: Keras, TensorFlow or tf2onnx is not installed.
    """
    _check(network, "from_keras")
    with optional_package("tf2onnx", "from_keras", "keras"):
        import tf2onnx as tf2onnx
    names = [_plain(tensor.name) for tensor in network.inputs]
    outputs = _output_names(network)
    axes = {name: _open_axes(tensor.shape) for name, tensor in zip(names, network.inputs, strict=True)}
    example = {name: _example(tensor, axes[name]) for name, tensor in zip(names, network.inputs, strict=True)}

    def run(arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return _run(network, [arrays[name] for name in names])

    with quiet(logging.CRITICAL), contextlib.redirect_stdout(io.StringIO()):
        proto = export_with_names(_weights(network), lambda weights: _exported(network, weights, example))
        for entry, name in zip(proto.graph.input, names, strict=True):
            for axis, symbol in axes[name].items():
                entry.type.tensor_type.shape.dim[axis].dim_param = symbol
        _rename(proto, dict(zip((entry.name for entry in proto.graph.input), names, strict=True)))
        _rename(proto, dict(zip((entry.name for entry in proto.graph.output), outputs, strict=True)))
        shapes = [
            ["batch" if axis == 0 and size is None else size for axis, size in enumerate(tensor.shape)]
            for tensor in network.outputs
        ]
        declare_shapes(proto, shapes)
        _write_erfc(proto)
        _check_operators(proto, network.name)
        try:
            model = load(proto, dims=dims, **options)
            whole = load(proto)
            check_agreement(whole, run, example, axes, "Keras")
            check_stream(whole, run, example, axes, "Keras")
        except ModelError as error:
            raise ModelError(
                f"{network.name}: tf2onnx writes another function than Keras. {error}\n{_ADVICE}"
            ) from error
    model.label = network.name
    return model


def to_keras(params: Mapping[str, Any], network: keras.Model, *, model: Model | None = None) -> None:
    """Copy the parameters of a model of `from_keras` back to the Keras model.

    Args:
        params: a dict of NumPy or JAX arrays, as in `Model.params`.
        network: the Keras model, with any backend.
        model: the model of these parameters. If given, Keras runs on random inputs with the new weights and must agree
            with the model.

    Raises:
        InputError: a name or a shape does not fit. The Keras model is unchanged.
        ModelError: Keras with the new weights differs from the model. The old weights are restored.
    """
    _check(network, None)
    variables = _variables(network)
    shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
    arrays = check_weights(params, shapes, network.name, model)
    old = {name: variable.numpy().copy() for name, variable in variables.items()}
    try:
        for name, array in arrays.items():
            variables[name].assign(array)
        if model is not None:
            check_after(model, params, lambda inputs: _run(network, list(inputs.values())), "Keras")
    except BaseException:
        for name, array in old.items():
            variables[name].assign(array)
        raise


def _check(network: Any, exporting: str | None) -> None:
    with optional_package("keras", exporting or "to_keras", "keras"):
        import keras
    if not isinstance(network, keras.Model):
        raise InputError(f"expected a keras.Model, not {type(network).__name__}")
    if not network.built or not getattr(network, "inputs", None):
        raise InputError(
            f"{network.name} has no declared inputs: build a functional model, keras.Model(keras.Input((None, 8)), y), "
            "or a Sequential with an Input"
        )
    if exporting and keras.config.backend() != "tensorflow":
        raise InputError(
            f"{exporting} needs Keras' backend TensorFlow, not {keras.config.backend()}: other backends unroll "
            "loops over frames. Save the model, network.save('network.keras'), set "
            "os.environ['KERAS_BACKEND'] = 'tensorflow' before keras is imported, and load the model again with "
            "keras.models.load_model"
        )


def _plain(name: str) -> str:
    return name.split(":")[0]


def _output_names(network: keras.Model) -> list[str]:
    """Return unique names of the outputs, taken from the last layer if Keras does not name outputs."""
    names: list[str] = []
    for index, name in enumerate(getattr(network, "output_names", None) or [network.layers[-1].name]):
        taken = {*names, *(_plain(tensor.name) for tensor in network.inputs)}
        names.append(name if name not in taken else f"{name}_{index}")
    return names


def _open_axes(shape: Sequence[int | None]) -> dict[int, str]:
    axes: dict[int, str] = {}
    for axis, size in enumerate(shape):
        if size is None:
            later = len(axes) - ("batch" in axes.values())
            axes[axis] = "batch" if axis == 0 else "time" if not later else f"time_{later + 1}"
    return axes


def _example(tensor: Any, axes: Mapping[int, str]) -> np.ndarray:
    """Return random numbers for an input; integers are 0 or 1."""
    shape = [
        {"batch": _BATCH}.get(axes[axis], _LENGTH) if axis in axes else size for axis, size in enumerate(tensor.shape)
    ]
    rng = np.random.default_rng(0)
    dtype = np.dtype(tensor.dtype)
    return rng.standard_normal(shape).astype(dtype) if dtype.kind == "f" else rng.integers(0, 2, shape).astype(dtype)


def _weights(network: keras.Model) -> dict[str, np.ndarray]:
    return {name: variable.numpy().copy() for name, variable in _variables(network).items()}


def _variables(network: keras.Model) -> dict[str, Any]:
    """Return the float weights by path, with numbers for equal paths."""
    found: dict[str, Any] = {}
    for variable in network.weights:
        if np.dtype(variable.dtype).kind == "f":
            name, count = variable.path, 1
            while name in found:
                count += 1
                name = f"{variable.path}_{count}"
            found[name] = variable
    return found


def _run(network: keras.Model, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    import keras

    result = network(arrays[0] if len(arrays) == 1 else list(arrays), training=False)
    return [np.asarray(keras.ops.convert_to_numpy(value)) for value in keras.tree.flatten(result)]


def _exported(
    network: keras.Model, weights: Mapping[str, np.ndarray], example: Mapping[str, np.ndarray]
) -> onnx.ModelProto:
    """Export a network with the given weights, and restore the original weights."""
    variables = _variables(network)
    old = {name: variables[name].numpy().copy() for name in weights}
    try:
        for name, array in weights.items():
            variables[name].assign(array)
        _run(network, list(example.values()))  # Keras exports only models that were called
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "network.onnx"
            network.export(str(path), format="onnx", verbose=False)
            return onnx.load(str(path))
    finally:
        for name, array in old.items():
            variables[name].assign(array)


def _rename(proto: onnx.ModelProto, names: Mapping[str, str]) -> None:
    """Rename values of a graph."""
    taken = {name for graph in graphs_below(proto.graph) for node in graph.node for name in node.output}
    taken |= {tensor.name for tensor in proto.graph.initializer} | {entry.name for entry in proto.graph.input}
    changes = {old: new for old, new in names.items() if old != new}
    changes |= {new: f"{new}.inner" for new in changes.values() if new in taken and new not in changes}
    for graph in graphs_below(proto.graph):
        for node in graph.node:
            for values in (node.input, node.output):
                values[:] = [changes.get(name, name) for name in values]
        if isinstance(graph, onnx.GraphProto):
            for entry in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
                entry.name = changes.get(entry.name, entry.name)


def _write_erfc(proto: onnx.ModelProto) -> None:
    """Replace ``Erfc`` of TensorFlow's gelu, which is not an ONNX operator, by ``1 - Erf``."""
    for graph in graphs_below(proto.graph):
        for index, node in reversed(list(enumerate(graph.node))):
            if node.op_type == "Erfc":
                one, inner = f"{node.output[0]}.one", f"{node.output[0]}.erf"
                value = onnx.numpy_helper.from_array(np.ones((), np.float32))
                graph.node.remove(node)
                graph.node.insert(index, onnx.helper.make_node("Sub", [one, inner], node.output, name=node.name))
                graph.node.insert(index, onnx.helper.make_node("Erf", node.input, [inner]))
                graph.node.insert(index, onnx.helper.make_node("Constant", [], [one], value=value))


def _check_operators(proto: onnx.ModelProto, name: str) -> None:
    unknown = {
        node.op_type: node.name
        for graph in graphs_below(proto.graph)
        for node in graph.node
        if node.domain in ("", "ai.onnx") and not onnx.defs.has(node.op_type)
    }
    if unknown:
        listed = ", ".join(f"{operator} (node {place!r})" for operator, place in unknown.items())
        raise ModelError(f"{name}: tf2onnx has left operators of TensorFlow in the file: {listed}\n{_ADVICE}")
