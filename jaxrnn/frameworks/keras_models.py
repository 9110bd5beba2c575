"""Keras models as models of pure functions, and tuned weights back in Keras."""

# pyright: reportMissingImports=false

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from jaxrnn.errors import InputError, ModelError, optional_package
from jaxrnn.frameworks.agreement import check_agreement, check_stream, output_shapes, repeats
from jaxrnn.frameworks.keras_complex import write_real_forms
from jaxrnn.frameworks.keras_layers import exportable
from jaxrnn.frameworks.weights import (
    check_after,
    check_constants,
    check_names,
    check_other_weights,
    check_states,
    check_weights,
    declare_shapes,
    quiet,
    read_for,
    rename_values,
    state_weights,
)
from jaxrnn.jaxprs.held import Held
from jaxrnn.model import Model
from jaxrnn.model.loading import load
from jaxrnn.onnx.tensors import graphs_below
from jaxrnn.steps.specs import Arrays

if TYPE_CHECKING:
    import keras

#: The batch in the first comparison, and lengths, of which the first at which the network gives outputs is taken.
_BATCH, _LENGTHS = 2, (12, 120, 1200, 12000)
#: Words in the name of an operator, and what to write instead.
_ADVICE = {
    "PartitionedCall": "call the function without tf.function or jit_compile",
    "TensorList": "keras.ops.scan or a recurrent layer in place of the TensorArray",
}
#: The route for networks that tf2onnx cannot write.
_JAX_ROUTE = (
    "With Keras' backend JAX the network is a JAX function, `network.stateless_call`, which jaxrnn.stream takes as it "
    'is: docs/keras.md, "Keras on JAX"'
)
#: The end of the name of the output with the next value of a state.
_NEXT = "_next"


def from_keras(
    network: keras.Model,
    *,
    example: Any = None,
    shortest: int | None = None,
    dims: Mapping[str, int | str] | None = None,
    constants: Sequence[str] = (),
    verify: bool = False,
    **options: Any,
) -> Model:
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
        example: inputs for the comparison, as a list or a dict; by default, random numbers of 2 recordings of 12
            frames, or of 120, 1200 or 12000 where fewer frames give no output. An example also relates inputs at
            several rates: with 5 and 20 frames, the dimension of the second input is ``4*time``.
        shortest: the smallest size of the time dimensions that is compared, as in `jaxrnn.from_torch`.
        dims: names and sizes of open dimensions as in `jaxrnn.load`.
        constants: trainable weights that may be constants of the file, as in `jaxrnn.from_torch`.
        verify: True to compare the model at more sizes, as in `jaxrnn.from_torch`.
        options: other arguments of `jaxrnn.load`, such as ``state``.

    Raises:
        InputError: the argument is not a built Keras model, the backend is not TensorFlow, the example does not fit or
            does not run, or two calls on equal inputs differ.
        ModelError: the file differs from Keras; the message lists the differences.
        StateError: the option ``state`` lacks a state of the network.
        MissingPackageError: Keras, TensorFlow or tf2onnx is not installed.
    """
    _check(network, "from_keras")
    with optional_package("tf2onnx", "from_keras", "keras"):
        import tf2onnx as tf2onnx
    with quiet(logging.CRITICAL), contextlib.redirect_stdout(io.StringIO()), _unchanged(network) as held:
        pure = _PureNetwork(network, held, example)
        if not repeats(pure.run_again, pure.example):
            raise InputError(
                f"{network.name} returns other outputs when it is called again with equal inputs: it draws random "
                "numbers, or keeps a state that is not a keras.Variable"
            )
        weights = {name: variable.numpy().copy() for name, variable in pure.weights.items()}
        check_names(constants, weights, network.name)
        proto = pure.exported()
        state_weights(proto, weights)
        _write_erfc(proto)
        _check_operators(proto, network.name, write_real_forms(proto))
        try:
            model = load(proto, dims=dims, **options)
            plain = load(proto, **{key: value for key, value in options.items() if key != "static"})
            checked = check_agreement(plain, pure.run, pure.example, pure.axes, "Keras", held, shortest, verify)
            found = check_other_weights(plain, pure.run, weights, pure.example, "Keras")
            check_constants(found, {name for name, each in pure.weights.items() if each.trainable}, constants)
            check_stream(plain, pure.run, pure.example, pure.axes, "Keras", checked.shortest)
        except ModelError as error:
            raise ModelError(
                f"{network.name}: tf2onnx writes another function than Keras. {error}\n{_JAX_ROUTE}"
            ) from error
    model.label = network.name
    check_states(model, {name: f"{name}{_NEXT}" for name in pure.states}, options.get("state"))
    checked.report(model.label, "Keras", [name for name in found if name not in constants])
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
    with quiet(logging.WARNING), _unchanged(network) as held:
        pure = _PureNetwork(network, held)
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
            f"{exporting} exports with Keras' backend TensorFlow, and the backend is {keras.config.backend()}. "
            f"{_JAX_ROUTE}. For an ONNX file, save the network, set os.environ['KERAS_BACKEND'] = 'tensorflow' before "
            "keras is imported, and read the network with keras.models.load_model"
        )


class _Variables:
    """Variables of TensorFlow that are not variables of Keras."""

    are_weights = False

    def read(self, array: Any) -> np.ndarray:
        return array.numpy().copy()

    def differs(self, array: Any, contents: np.ndarray) -> bool:
        return array.numpy().tobytes() != contents.tobytes()

    def write(self, array: Any, contents: np.ndarray) -> None:
        array.assign(contents)


class _KerasTensors:
    """Tensors of TensorFlow, which never change."""

    are_weights = False

    def read(self, array: Any) -> None:
        pass

    def differs(self, array: Any, contents: None) -> bool:
        return False

    def write(self, array: Any, contents: None) -> None:
        pass


@contextlib.contextmanager
def _unchanged(network: keras.Model) -> Iterator[Held]:
    """Yield and then restore the contents of a network; variables of Keras never change in `_PureNetwork`."""
    import keras

    layers = {layer.name: layer for layer in network._flatten_layers()}
    kinds = {}
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        kinds = {tf.Variable: _Variables(), tf.Tensor: _KerasTensors()}
    held = Held(layers, (keras.Layer,), kinds)
    try:
        yield held
    finally:
        held.restore()


def _plain(name: str) -> str:
    return name.split(":")[0]


class _PureNetwork:
    """A Keras model as a pure function of inputs, states and weights.

    Each run starts from the first contents of the layers: no run reads the cache of another run. All runs are in a
    `keras.StatelessScope`, so they never change the variables of the network. States are the variables that a run
    would change, such as the states of a layer with ``stateful=True``.
    """

    def __init__(self, network: keras.Model, held: Held, example: Any = None):
        self.network, self.held = network, held
        self.states: dict[str, keras.Variable] = {}
        tensors = {_plain(tensor.name): tensor for tensor in network.inputs}
        self.inputs = names = list(tensors)
        self.axes = {name: _open_axes(tensor.shape) for name, tensor in tensors.items()}
        given = (
            [_given(tensors, example)]
            if example is not None
            else [
                {name: _example(tensor, self.axes[name], length) for name, tensor in tensors.items()}
                for length in _LENGTHS
            ]
        )
        example, updated = self._first_that_runs(given)
        _relate_rates(self.axes, example)
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

    def _first_that_runs(self, examples: Sequence[Arrays]) -> tuple[Arrays, list[keras.Variable]]:
        """Return the first example for which the network gives outputs, and the variables that a run would change."""
        problem = ""
        for example in examples:
            try:
                self._check_sizes(example)
                self.held.restore()
                outputs, updated = self._call(list(example.values()), [])
            except Exception as error:  # networks refuse sizes with errors of any type
                problem = problem or f"{type(error).__name__}: {_reason(error)}"
            else:
                if all(np.prod(value.shape) for value in outputs):
                    return example, updated
        shapes = ", ".join(f"{name}{list(array.shape)}" for name, array in examples[0].items())
        problem = problem or "its outputs are empty"
        raise InputError(f"{self.network.name} does not run on {shapes}: {problem}; give inputs that fit: `example=`")

    def _check_sizes(self, inputs: Arrays) -> None:
        """Refuse inputs shorter than a window, for which TensorFlow's convolutions return memory that was not written.

        Raises:
            ValueError: as Keras raises it when a network of such a size is built.
        """
        shapes = [inputs[name].shape for name in self.inputs]
        try:
            self.network.compute_output_shape(shapes[0] if len(shapes) == 1 else shapes)
        except ValueError as error:
            if "negative" in str(error):
                raise
        except Exception:  # a layer computes no shape from sizes, and runs
            return

    def run(self, inputs: Mapping[str, Any], weights: Mapping[str, Any] = MappingProxyType({})) -> list[np.ndarray]:
        """Return outputs and next states for dicts of inputs and states, with other weights if given."""
        self._check_sizes(inputs)  # calls layers, too
        self.held.restore()
        return self.run_again(inputs, weights)

    def run_again(
        self, inputs: Mapping[str, Any], weights: Mapping[str, Any] = MappingProxyType({})
    ) -> list[np.ndarray]:
        """Run the network with the contents that earlier runs have left."""
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

        class StatelessScope(keras.StatelessScope):
            def add_update(self, update: tuple[keras.Variable, Any]) -> None:
                super().add_update(update)
                if all(update[0] is not variable for variable in updated):
                    updated.append(update[0])

        with StatelessScope(values) as scope:
            result = self.network(inputs[0] if len(inputs) == 1 else list(inputs), training=False)
        states = [scope.get_current_value(variable) for variable in self.states.values()]
        kinds = getattr(self.network, "_outputs_struct", None)
        leaves = _leaves_by_name(result, kinds) if isinstance(kinds, Mapping) else None
        return [*(keras.tree.flatten(result) if leaves is None else leaves.values()), *states], updated

    def exported(self) -> onnx.ModelProto:
        """Export the network with states and weights as inputs, so that tf2onnx cannot compute with their values."""
        import tensorflow as tf
        import tf2onnx

        self.held.restore()
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

        traced: Any = function
        with exportable():
            proto: onnx.ModelProto = tf2onnx.convert.from_function(traced, signature, opset=16)[0]
            captured = traced.get_concrete_function().graph.captures
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
        """Drop states with other names from the inputs and outputs; the network then uses its variables."""
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
    """Return unique names of the outputs: the keys of a dict, or names of layers."""
    names: list[str] = []
    kinds = getattr(network, "_outputs_struct", None)
    known = [*_leaves_by_name(kinds, kinds)] if isinstance(kinds, Mapping) else getattr(network, "output_names", None)
    for index, name in enumerate(known or [network.layers[-1].name]):
        taken = {*names, *(_plain(tensor.name) for tensor in network.inputs)}
        names.append(name if name not in taken else f"{name}_{index}")
    return names


def _leaves_by_name(result: Any, kinds: Any, name: str = "") -> dict[str, Any]:
    """Return the tensors of a structure by keys and numbers, in the order in which the network lists these."""
    if not isinstance(kinds, (Mapping, list, tuple)):
        return {name: result}
    keys = kinds if isinstance(kinds, Mapping) else range(len(kinds))
    inner = (_leaves_by_name(result[key], kinds[key], f"{name}_{key}" if name else str(key)) for key in keys)
    return {key: value for each in inner for key, value in each.items()}


def _open_axes(shape: Sequence[int | None]) -> dict[int, str]:
    axes: dict[int, str] = {}
    for axis, size in enumerate(shape):
        if size is None:
            later = len(axes) - ("batch" in axes.values())
            axes[axis] = "batch" if axis == 0 else "time" if not later else f"time_{later + 1}"
    return axes


def _example(tensor: Any, axes: Mapping[int, str], length: int) -> np.ndarray:
    """Return random numbers for an input; integers are 0 or 1."""
    sizes = {axis: _BATCH if name == "batch" else length for axis, name in axes.items()}
    shape: Any = [sizes.get(axis, size) for axis, size in enumerate(tensor.shape)]
    rng = np.random.default_rng(0)
    dtype = np.dtype(tensor.dtype)
    return rng.standard_normal(shape).astype(dtype) if dtype.kind == "f" else rng.integers(0, 2, shape).astype(dtype)


def _given(tensors: Mapping[str, Any], example: Any) -> dict[str, np.ndarray]:
    """Return the example of a caller by input, after a check of names, shapes and types."""
    single = not isinstance(example, (Mapping, list, tuple))
    values = (
        example if isinstance(example, Mapping) else dict(zip(tensors, [example] if single else example, strict=False))
    )
    if values.keys() != tensors.keys() or (not single and len(example) != len(tensors)):
        raise InputError(f"`example` must have an array for each input: {', '.join(tensors)}")
    arrays = {name: np.asarray(values[name]) for name in tensors}
    for name, array in arrays.items():
        shape, dtype = tensors[name].shape, np.dtype(tensors[name].dtype)
        fits = len(shape) == array.ndim and all(a in (None, b) for a, b in zip(shape, array.shape, strict=True))
        if not fits or not np.can_cast(array.dtype, dtype, "same_kind"):
            raise InputError(f"`example` for {name!r} is {array.dtype}{list(array.shape)}, not {dtype}{list(shape)}")
        arrays[name] = array.astype(dtype)
    return arrays


def _relate_rates(axes: Mapping[str, dict[int, str]], example: Arrays) -> None:
    """Write a multiple, such as ``4*time``, for a dimension that is longer than in the shortest input.

    A length that is not a multiple becomes a separate dimension.
    """
    found = [(name, axis, symbol) for name, each in axes.items() for axis, symbol in each.items()]
    for name, axis, symbol in found:
        least = min(example[other].shape[each] for other, each, its in found if its == symbol)
        factor, rest = divmod(example[name].shape[axis], least)
        if symbol != "batch" and (factor > 1 or rest):
            axes[name][axis] = f"{symbol}_{name}" if rest else f"{factor}*{symbol}"


def _reason(error: Exception) -> str:
    """Return the cause that an error of TensorFlow in a layer names, in one line."""
    lines = [line.strip(" \x1b[0m1") for line in str(error).splitlines() if line.strip()]
    return (lines[1] if len(lines) > 1 and "encountered when calling" in lines[0] else lines[0] if lines else "")[:300]


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


def _check_operators(proto: onnx.ModelProto, name: str, left: Sequence[onnx.NodeProto]) -> None:
    nodes = (node for graph in graphs_below(proto.graph) for node in graph.node)
    plain = [node for node in nodes if node.domain in ("", "ai.onnx") and not onnx.defs.has(node.op_type)]
    unknown = {node.op_type: node.name for node in [*left, *plain]}
    if unknown:
        listed = ", ".join(f"{operator} (node {place!r})" for operator, place in unknown.items())
        advice = {text for word, text in _ADVICE.items() if any(word in operator for operator in unknown)}
        if left:
            advice.add("compute with real and imaginary parts, as keras.ops.rfft and keras.ops.stft return them")
        raise ModelError(
            f"{name}: tf2onnx has left operators of TensorFlow in the file: {listed}\n"
            + "\n".join([*sorted(advice), _JAX_ROUTE])
        )
