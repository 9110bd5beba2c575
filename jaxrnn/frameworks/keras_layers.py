"""Layers, loops and slices of Keras and TensorFlow, in forms that tf2onnx writes."""

# pyright: reportMissingImports=false

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import onnx


@contextlib.contextmanager
def exportable() -> Iterator[None]:
    """Replace layers and functions that tf2onnx refuses or writes wrongly by equal ones.

    Each replacement is a different form of the same function; `from_keras` compares the file with the network outside
    of this context.
    """
    import keras
    import tensorflow as tf
    import tf2onnx
    from tf2onnx.onnx_opset import signal

    replaced: list[tuple[Any, str, Any]] = [
        (keras.layers.TimeDistributed, "call", _merged_frames),
        (tf, "scan", _scan(tf.scan)),
        (tf.Tensor, "__getitem__", _by_gather(tf.Tensor.__getitem__)),
        (tf.nn, "convolution", _padded_before(tf.nn.convolution)),
        (keras.src.backend.core, "scan", _keras_scan),
        (keras.src.backend.core, "associative_scan", _keras_associative_scan),
        (tf2onnx.graph.Node, "get_attr_value", _always_where(tf2onnx.graph.Node.get_attr_value)),
        # These write magnitudes only; `write_real_forms` writes all of the operators on complex numbers.
        *((owner, "any_version", lambda *_, **__: None) for owner in (signal.CommonFFTOp, signal.ComplexAbsOp)),
    ]
    # tf2onnx writes float16 for bfloat16.
    types: Any = tf.bfloat16.as_datatype_enum, onnx.TensorProto.BFLOAT16, tf.bfloat16.as_numpy_dtype
    eager = tf.config.functions_run_eagerly()
    with contextlib.ExitStack() as stack:
        for owner, name, function in replaced:
            stack.enter_context(mock.patch.object(owner, name, function))
        stack.enter_context(mock.patch.dict(tf2onnx.tf_utils.TF_TO_ONNX_DTYPE, {types[0]: types[1]}))
        stack.enter_context(mock.patch.dict(tf2onnx.utils.ONNX_TO_NUMPY_DTYPE, {types[1]: types[2]}))
        # A compiled function inside of a layer, such as a convolution with groups, is then not a call in the graph.
        tf.config.run_functions_eagerly(True)
        stack.callback(tf.config.run_functions_eagerly, eager)
        yield


def _merged_frames(self: Any, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
    """`TimeDistributed.call` as one call of the layer on all frames; tf2onnx writes a wrong shape for the original."""
    from keras import ops

    def merged(data: Any) -> Any:
        return ops.reshape(data, (-1, *data.shape[2:]))

    options: dict[str, Any] = {"training": training} if self.layer._call_has_training_arg else {}
    if self.layer._call_has_mask_arg and mask is not None:
        options["mask"] = merged(mask)
    result = self.layer.call(merged(inputs), **options)
    return ops.reshape(result, (-1, ops.shape(inputs)[1], *result.shape[1:]))


def _scan(scan: Callable[..., Any]) -> Callable[..., Any]:
    """Return `tf.scan` in which a loop without an initializer starts from zeros, and keeps the first frame."""
    import tensorflow as tf

    def with_initializer(fn: Callable[..., Any], elems: Any, initializer: Any = None, **options: Any) -> Any:
        if initializer is not None:
            return scan(fn, elems, initializer, **options)

        def step(state: Any, frame: Any) -> Any:
            is_first, carry = state
            chosen = tf.nest.map_structure(lambda one, other: tf.where(is_first, one, other), frame, fn(carry, frame))
            return tf.constant(False), chosen

        zeros = tf.nest.map_structure(lambda value: tf.zeros_like(value[0]), elems)
        return scan(step, elems, (tf.constant(True), zeros), **options)[1]

    return with_initializer


def _keras_scan(
    f: Callable[..., Any], init: Any, xs: Any = None, length: Any = None, reverse: bool = False, unroll: Any = 1
) -> Any:
    """`keras.ops.scan` as a `tf.scan`; results have the structure and the shapes of the carry, as in Keras."""
    import tensorflow as tf

    frames = tf.range(length) if xs is None else xs

    def step(state: Any, frame: Any) -> Any:
        return f(state[0], None if xs is None else frame)

    carries, results = tf.scan(step, frames, (init, init), reverse=reverse)
    return tf.nest.map_structure(lambda value: value[0 if reverse else -1], carries), results


def _keras_associative_scan(f: Callable[..., Any], elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    """`keras.ops.associative_scan` as a `tf.scan`; for an open length, TensorFlow traces 32 levels, in minutes."""
    import tensorflow as tf
    from keras import ops

    each = tf.nest.map_structure

    def step(carry: Any, frame: Any) -> Any:
        pair = (each(lambda value: ops.expand_dims(value, axis), values) for values in (carry, frame))
        return each(lambda value: ops.squeeze(value, axis), f(*pair))

    frames = each(lambda value: ops.moveaxis(value, axis, 0), elems)
    return each(lambda value: ops.moveaxis(value, 0, axis), tf.scan(step, frames, reverse=reverse))


def _by_gather(get: Callable[..., Any]) -> Callable[..., Any]:
    """Return `Tensor.__getitem__` in which an index that is a tensor, as in `x[:, t]`, selects by a gather.

    tf2onnx writes a slice, with arithmetic on the index for all cases that TensorFlow knows.
    """
    import tensorflow as tf

    def item(tensor: Any, key: Any) -> Any:
        keys = list(key) if isinstance(key, tuple) else [key]
        chosen = [isinstance(each, tf.Tensor) and each.shape == () and each.dtype.is_integer for each in keys]
        plain = all(isinstance(each, (tf.Tensor, slice, int)) for each in keys)
        if not any(chosen) or not plain:
            return get(tensor, key)
        for axis in reversed(range(len(keys))):
            if chosen[axis]:
                tensor = tf.gather(tensor, keys[axis], axis=axis)
        rest = tuple(each for each, gathered in zip(keys, chosen, strict=True) if not gathered)
        return get(tensor, rest) if rest else tensor

    return item


def _padded_before(convolution: Callable[..., Any]) -> Callable[..., Any]:
    """Return `tf.nn.convolution` in which the padding "SAME" of a dilated convolution is a separate first step.

    TensorFlow divides a dilated convolution into blocks, and tf2onnx undoes this division only without padding.
    """
    import tensorflow as tf

    def padded(
        x: Any,
        filters: Any,
        strides: Any = None,
        padding: str = "VALID",
        data_format: Any = None,
        dilations: Any = None,
    ) -> Any:
        rank = len(x.shape) - 2
        rates = [dilations] * rank if isinstance(dilations, int) else [*(dilations or ()), *[1] * rank][:rank]
        if padding == "SAME" and max(rates) > 1:
            sizes = [(size - 1) * rate for size, rate in zip(filters.shape, rates, strict=False)]
            pads = [(size // 2, size - size // 2) for size in sizes]
            kept = [(0, 0)]
            is_first = data_format is not None and data_format.startswith("NC")
            x, padding = tf.pad(x, kept * 2 + pads if is_first else kept + pads + kept), "VALID"
        return convolution(x, filters, strides, padding, data_format, dilations)

    return padded


def _always_where(attribute: Callable[..., Any]) -> Callable[..., Any]:
    """Return tf2onnx's reader of attributes, for which each choice may meet NaN.

    tf2onnx writes other choices as sums of products with 0 and 1, which are NaN where the other value is infinite.
    """

    def read(node: Any, name: str, *default: Any) -> Any:
        return name == "handles_nan" or attribute(node, name, *default)

    return read
