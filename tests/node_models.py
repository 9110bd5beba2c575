"""Models of one node, and what jaxrnn, ONNX Runtime and ONNX's reference make of them."""

from __future__ import annotations

import jax
import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from refusals import check_refused
from verifier import peer_outputs

import jaxrnn
from jaxrnn._jax.context import exact_types

RUNTIME = ort.capi.onnxruntime_pybind11_state
VERSIONS = {"ai.onnx.ml": 3, "com.microsoft": 1, "ai.onnx.preview.training": 1}


def kind_of(array):
    """The element type of an array as the file names it."""
    return TensorProto.STRING if array.dtype.kind in "OU" else helper.np_dtype_to_tensor_dtype(array.dtype)


def one_operator(operator, inputs, *, outputs=1, constants=(), opset=21, version=None, kinds=None, **attributes):
    """A model of one node, ``domain::name``, and its inputs; those of None are absent, ``constants`` initializers.

    The outputs are ``y0``, ``y1``, ..., or have the given names; ``kinds`` are their types, where the file must say
    them.
    """
    domain, _, plain = operator.rpartition("::")
    given = {key: np.asarray(value) for key, value in inputs.items() if value is not None}
    names = [f"y{index}" for index in range(outputs)] if isinstance(outputs, int) else [*outputs]
    node = helper.make_node(plain, [key if key in given else "" for key in inputs], names, domain=domain, **attributes)
    declared = [
        onnx.ValueInfoProto(name=key) if kinds is None else helper.make_tensor_value_info(key, kind, None)
        for key, kind in zip(names, kinds or names, strict=True)
    ]
    graph = helper.make_graph(
        [node],
        plain,
        [helper.make_tensor_value_info(k, kind_of(v), v.shape) for k, v in given.items() if k not in constants],
        declared,
        [numpy_helper.from_array(value, key) for key, value in given.items() if key in constants],
    )
    imports = [helper.make_opsetid("", opset)]
    if domain:
        imports.append(helper.make_opsetid(domain, version or VERSIONS[domain]))
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return model, {key: value for key, value in given.items() if key not in constants}


def one_node(operator, inputs, *, constants=(), kind=None, **options):
    """`one_operator` with the output ``y``, of the type of the first input by default.

    All inputs of integers with one axis at most are initializers too.
    """
    given = {name: np.asarray(value) for name, value in inputs.items() if value is not None}
    fixed = [name for name, value in given.items() if value.dtype == np.int64 and value.ndim < 2]
    kinds = [kind or kind_of(next(iter(given.values())))]
    return one_operator(operator, inputs, outputs=("y",), kinds=kinds, constants=(*fixed, *constants), **options)


def compare(operator, inputs, *, atol=0.0, rtol=0.0, **options):
    """The compiled model against ONNX Runtime; one with strings runs as it can."""
    model, arrays = one_operator(operator, inputs, **options)
    expected = peer_outputs(model, arrays)
    loaded = jaxrnn.load(model)
    has_strings = any(np.asarray(value).dtype.kind in "OU" for value in (*arrays.values(), *expected.values()))
    found = loaded(arrays) if has_strings else jax.jit(loaded.apply)(loaded.params, arrays)
    for key, value in expected.items():
        actual = np.asarray(found[key])
        assert (actual.dtype, actual.shape) == (value.dtype, value.shape), key
        if value.dtype == object:
            assert actual.tolist() == value.tolist(), key
        else:
            np.testing.assert_allclose(actual, value, atol=atol, rtol=rtol, err_msg=key)
    return found


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
    except (RUNTIME.Fail, RUNTIME.NotImplemented, RUNTIME.RuntimeException):
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


def check_node_refused(error, words, operator, inputs, **options):
    """The model of one node cannot be loaded or run."""
    model, arrays = one_operator(operator, inputs, **options)
    check_refused(error, words, lambda: jaxrnn.load(model)(arrays))


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
