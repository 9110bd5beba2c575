"""Models of one node, and what ONNX Runtime and ONNX's reference make of them."""

from __future__ import annotations

import jax
import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from small_models import make_model
from verifier import peer_outputs

import jaxrnn
from jaxrnn._jax.context import exact_types


def one_node(operator, inputs, *, opset, constants=(), kind=None, **attributes):
    """A model of one node with the output ``y``, and the arrays of its inputs; an input of None is absent.

    Args:
        operator: its name.
        inputs: arrays by name, in order.
        opset: of the file.
        constants: names of inputs that are initializers, as are all of integers with one axis at most.
        kind: the element type of the output, in ONNX's number; of the first input where absent.
        attributes: of the node.
    """
    given = {name: np.asarray(value) for name, value in inputs.items() if value is not None}
    names = [name if name in given else "" for name in inputs]
    while names and not names[-1]:
        names.pop()
    fixed = {name for name, value in given.items() if name in constants or (value.dtype == np.int64 and value.ndim < 2)}
    graph = helper.make_graph(
        [helper.make_node(operator, names, ["y"], name="node", **attributes)],
        operator,
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in given.items()
            if name not in fixed
        ],
        [helper.make_tensor_value_info("y", kind or _kind_of(next(iter(given.values()))), None)],
        [numpy_helper.from_array(value, name) for name, value in given.items() if name in fixed],
    )
    return make_model(graph, opset=opset), {name: value for name, value in given.items() if name not in fixed}


def _kind_of(value):
    return helper.np_dtype_to_tensor_dtype(value.dtype) if value.dtype.kind != "O" else TensorProto.STRING


def computed(model, arrays):
    """What jaxrnn makes of it, compiled."""
    loaded = jaxrnn.load(model)
    with exact_types():
        return np.asarray(jax.jit(loaded.apply)(loaded.params, arrays)["y"])


def by_reference(model, arrays):
    """What ONNX's reference makes of it, or None where it fails."""
    try:
        with np.errstate(all="ignore"):
            return ReferenceEvaluator(model).run(None, arrays)[0]
    except Exception:
        return None


def by_onnx_runtime(model, arrays):
    """What ONNX Runtime makes of it, or None where it has no implementation."""
    try:
        return peer_outputs(model, arrays)["y"]
    except (ort.capi.onnxruntime_pybind11_state.Fail, ort.capi.onnxruntime_pybind11_state.NotImplemented):
        return None
    except ort.capi.onnxruntime_pybind11_state.RuntimeException:
        return None


def is_close(found, expected, atol):
    """Equal types and shapes, and values within a tolerance."""
    if expected is None or found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    if found.dtype.kind in "OTUSb":
        return np.array_equal(found, expected)
    wide = np.complex128 if found.dtype.kind == "c" else np.float64
    return np.allclose(found.astype(wide), expected.astype(wide), rtol=0, atol=atol, equal_nan=True)


def check(operator, inputs, *, atol=2e-5, engines=(by_reference, by_onnx_runtime), **settings):
    """Where the engines agree, jaxrnn agrees with them; where they do not, with one of them. At least one must run."""
    model, arrays = one_node(operator, inputs, **settings)
    found = computed(model, arrays)
    expected = [value for value in (engine(model, arrays) for engine in engines) if value is not None]
    assert expected, f"no engine runs {operator} {settings}"
    assert any(is_close(found, value, atol) for value in expected), (found, expected)
    return found


def one_of(*dtypes):
    """NumPy types by name, ml_dtypes among them."""
    return [np.dtype(getattr(ml_dtypes, name, name)) for name in dtypes]


def invalid(operator, inputs, **settings):
    """The error that running it raises, as text."""
    try:
        model, arrays = one_node(operator, inputs, **settings)
        loaded = jaxrnn.load(model)
        loaded.apply(loaded.params, arrays)
    except (jaxrnn.errors.JaxrnnError, onnx.onnx_cpp2py_export.shape_inference.InferenceError) as error:
        return str(error)
    raise AssertionError(f"{operator} {settings} was not refused")
