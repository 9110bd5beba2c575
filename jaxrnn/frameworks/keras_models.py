"""Keras models as models of pure functions, and tuned weights back in Keras."""

# pyright: reportMissingImports=false

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from jaxrnn.errors import InputError, ModelError, StateError, optional_package
from jaxrnn.frameworks.agreement import check_agreement, check_stream, output_shapes, repeats
from jaxrnn.frameworks.keras_layers import exportable
from jaxrnn.frameworks.weights import (
    check_after,
    check_other_weights,
    check_weights,
    declare_shapes,
    quiet,
    read_for,
    rename_values,
    state_weights,
)
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
#: The end of the name of the output with the next value of a state.
_NEXT = "_next"


def from_keras(network: keras.Model, *, dims: Mapping[str, int | str] | None = None, **options: Any) -> Model:
    """Export a Keras model in memory, load the file, and compare the model with Keras.

    The open dimensions of an input are called ``batch``, ``time``, ``time_2`` and so on; inputs and outputs have the
    names of Keras. `Model.params` contains the weights under their paths in Keras, such as ``gru/gru_cell/kernel``, in
    Keras' layout. The model must agree with Keras for several batches and lengths, and for other weights, and so must
    its stream over time, unless `Model.stream` refuses the model.

    Variables that a call changes, such as the states of layers with ``stateful=True``, are states of the model: inputs
    under their paths, and outputs with ``_next`` at the end. `Model.init` starts from zeros, as after
    ``network.reset_states()``.

    Example::

        model = jaxrnn.from_keras(network)
        streamed = model.stream("time", pulse=4)

    Args:
        network: a functional or sequential model, built, with the backend TensorFlow. Its variables do not change.
        dims: names and sizes of open dimensions as in `jaxrnn.load`.
        options: other arguments of `jaxrnn.load`, such as ``state``.

    Raises:
        InputError: the argument is not a built Keras model, the backend is not TensorFlow, or two calls on equal inputs
            differ.
        ModelError: the file differs from Keras; the message lists the differences.
        StateError: the option ``state`` lacks a state of the network.
        MissingPackageError: Keras, TensorFlow or tf2onnx is not installed.
    """
    _check(network, "from_keras")
    with optional_package("tf2onnx", "from_keras", "keras"):
        import tf2onnx as tf2onnx
    with quiet(logging.CRITICAL), contextlib.redirect_stdout(io.StringIO()):
        pure = _PureNetwork(network)
        if not repeats(pure.run, pure.example):
            raise InputError(
                f"{network.name} returns other outputs when it is called again with equal inputs: it draws random "
                "numbers, or keeps a state that is not a keras.Variable"
            )
        weights = {name: variable.numpy().copy() for name, variable in pure.weights.items()}
        proto = pure.exported()
        state_weights(proto, weights)
        _write_erfc(proto)
        _check_operators(proto, network.name)
        try:
            model = load(proto, dims=dims, **options)
            plain = load(proto, **{key: value for key, value in options.items() if key != "static"})
            check_agreement(plain, pure.run, pure.example, pure.axes, "Keras")
            check_other_weights(plain, pure.run, weights, pure.example, "Keras")
            check_stream(plain, pure.run, pure.example, pure.axes, "Keras")
        except ModelError as error:
            raise ModelError(
                f"{network.name}: tf2onnx writes another function than Keras. {error}\n{_ADVICE}"
            ) from error
    if pure.states:
        carried = {(variable.input, variable.output) for variable in model.state}
        missing = {name: f"{name}{_NEXT}" for name in pure.states if (name, f"{name}{_NEXT}") not in carried}
        if missing:
            given = {**(options.get("state") or {}), **missing}
            raise StateError(f"{network.name} keeps states that the model does not: `state={given}`")
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
        ModelError: Keras with the new weights differs from the model. The Keras model is unchanged.
    """
    _check(network, None)
    with quiet(logging.WARNING):
        pure = _PureNetwork(network)
        shapes = {name: tuple(variable.shape) for name, variable in pure.weights.items()}
        arrays = check_weights(params, shapes, network.name, model)
        if model is not None:
            pure.keep_states([each.name for each in model.inputs])
            names = [*pure.inputs, *pure.states]
            if len(names) != len(model.inputs):
                raise InputError(
                    f"{network.name} has the inputs {names}, but the model has {[*map(str, model.inputs)]}"
                )
            check_after(
                model, params, lambda inputs: pure.run(dict(zip(names, inputs.values(), strict=True)), arrays), "Keras"
            )
    old = {name: pure.weights[name].numpy().copy() for name in arrays}
    try:
        for name, array in arrays.items():
            pure.weights[name].assign(array)
    except BaseException:
        for name, array in old.items():
            pure.weights[name].assign(array)
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


class _PureNetwork:
    """A Keras model as a pure function of inputs, states and weights.

    All runs are in a `keras.StatelessScope`, so they never change the variables of the network. States are the
    variables that a run would change, such as the states of a layer with ``stateful=True``.
    """

    def __init__(self, network: keras.Model):
        self.network = network
        names = [_plain(tensor.name) for tensor in network.inputs]
        self.axes = {name: _open_axes(tensor.shape) for name, tensor in zip(names, network.inputs, strict=True)}
        example = {name: _example(tensor, self.axes[name]) for name, tensor in zip(names, network.inputs, strict=True)}
        self.inputs = names
        self.states: dict[str, keras.Variable] = {}
        _, updated = self._call(list(example.values()), [])
        taken = {*names, *_output_names(network)}
        self.states = _by_path(updated, taken)
        floats = [
            variable
            for variable in network.weights
            if _is_float(variable) and all(variable is not state for state in updated)
        ]
        self.weights = _by_path(floats, {*taken, *self.states})
        self.axes |= {name: {} for name in self.states}
        self.example = {**example, **{name: variable.numpy().copy() for name, variable in self.states.items()}}

    def run(self, inputs: Mapping[str, Any], weights: Mapping[str, Any] = MappingProxyType({})) -> list[np.ndarray]:
        """Return outputs and next states for dicts of inputs and states, with other weights if given."""
        import keras

        values = [(self.states[name], inputs[name]) for name in self.states]
        values += [(self.weights[name], array) for name, array in weights.items()]
        outputs, _ = self._call([inputs[name] for name in self.inputs], values)
        return [np.asarray(keras.ops.convert_to_numpy(value)) for value in outputs]

    def _call(
        self, inputs: Sequence[Any], values: Sequence[tuple[keras.Variable, Any]]
    ) -> tuple[list[Any], list[keras.Variable]]:
        """Return the outputs and the next values of the given states, and the variables that a run would change."""
        import keras

        updated: list[keras.Variable] = []

        class Scope(keras.StatelessScope):
            def add_update(self, update: tuple[keras.Variable, Any]) -> None:
                super().add_update(update)
                if all(update[0] is not variable for variable in updated):
                    updated.append(update[0])

        with Scope(values) as scope:
            result = self.network(inputs[0] if len(inputs) == 1 else list(inputs), training=False)
        states = [scope.get_current_value(variable) for variable in self.states.values()]
        return [*keras.tree.flatten(result), *states], updated

    def exported(self) -> onnx.ModelProto:
        """Export the network with states and weights as inputs, so that tf2onnx cannot compute with their values."""
        import tensorflow as tf
        import tf2onnx

        with contextlib.suppress(ImportError):  # Keras' repairs of tf2onnx for NumPy 2
            from keras.src.export.tf2onnx_lib import patch_tf2onnx

            patch_tf2onnx()
        variables = {**self.states, **self.weights}
        tensors = dict(zip(self.inputs, self.network.inputs, strict=True))
        given = {**tensors, **variables}
        places = {f"argument_{index}": name for index, name in enumerate(given)}
        signature = [tf.TensorSpec(given[name].shape, given[name].dtype, place) for place, name in places.items()]

        @tf.function(input_signature=signature)
        def function(*arguments: Any) -> list[Any]:
            inputs, values = arguments[: len(tensors)], arguments[len(tensors) :]
            outputs, _ = self._call(inputs, list(zip(variables.values(), values, strict=True)))
            return [tf.identity(value) for value in outputs]

        with exportable():
            proto: onnx.ModelProto = tf2onnx.convert.from_function(function, signature)[0]
            captured = function.get_concrete_function().graph.captures
        outputs = [*_output_names(self.network), *(f"{name}{_NEXT}" for name in self.states)]
        # Tensors of layers, such as the mean of a `Normalization`, are inputs of the function.
        inner = {place.name: value for value, place in captured if place.dtype != tf.resource}
        for entry in [each for each in proto.graph.input if each.name in inner]:
            proto.graph.input.remove(entry)
            proto.graph.initializer.append(onnx.numpy_helper.from_array(inner[entry.name].numpy(), entry.name))
        rename_values(proto, places | dict(zip((entry.name for entry in proto.graph.output), outputs, strict=True)))
        for entry in proto.graph.input:
            for axis, symbol in self.axes.get(entry.name, {}).items():
                entry.type.tensor_type.shape.dim[axis].dim_param = symbol
        declare_shapes(proto, output_shapes(self.run, self.example, self.axes))
        self._drop_unread_states(proto)
        return proto

    def _drop_unread_states(self, proto: onnx.ModelProto) -> None:
        """Drop states on which no output depends, such as the seeds of dropout."""
        needed = read_for(proto.graph, _output_names(self.network))
        while more := {f"{name}{_NEXT}" for name in self.states if name in needed} - needed:
            needed |= read_for(proto.graph, sorted(more))
        dropped = self.states.keys() - needed
        self.keep_states(needed)
        inputs = [entry for entry in proto.graph.input if entry.name not in dropped]
        outputs = [entry for entry in proto.graph.output if entry.name in needed]
        nodes = [node for node in proto.graph.node if needed.intersection(node.output)]
        del proto.graph.input[:], proto.graph.output[:], proto.graph.node[:]
        proto.graph.input.extend(inputs)
        proto.graph.output.extend(outputs)
        proto.graph.node.extend(nodes)

    def keep_states(self, names: Collection[str]) -> None:
        """Drop states with other names from the inputs and outputs; the network then runs with its own values."""
        for name in self.states.keys() - set(names):
            del self.states[name], self.axes[name], self.example[name]


def _is_float(variable: keras.Variable) -> bool:
    import keras

    return bool(keras.backend.is_float_dtype(variable.dtype))


def _by_path(variables: Sequence[keras.Variable], taken: Collection[str]) -> dict[str, keras.Variable]:
    """Return variables by path, with numbers for equal paths."""
    found: dict[str, keras.Variable] = {}
    for variable in variables:
        name, count = variable.path, 1
        while name in found or name in taken:
            count += 1
            name = f"{variable.path}_{count}"
        found[name] = variable
    return found


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
