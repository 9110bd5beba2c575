"""Models of one node, and their results held against ONNX Runtime's."""

from __future__ import annotations

import jax
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import jaxrnn

VERSIONS = {"ai.onnx.ml": 3, "com.microsoft": 1, "ai.onnx.preview.training": 1}


def kind_of(array):
    """The element type of an array as the file names it."""
    return TensorProto.STRING if array.dtype.kind in "OU" else helper.np_dtype_to_tensor_dtype(array.dtype)


def one_operator(name, inputs, *, outputs=1, constants=(), opset=21, version=None, kinds=None, **attributes):
    """A model of one node, ``domain::name``, and its inputs; those of None are absent, ``constants`` initializers.

    The outputs are ``y0``, ``y1``, ...; ``kinds`` are their types, where the file must say them.
    """
    domain, _, plain = name.rpartition("::")
    given = {key: np.asarray(value) for key, value in inputs.items() if value is not None}
    names = [f"y{index}" for index in range(outputs)]
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
        [numpy_helper.from_array(given[key], key) for key in constants],
    )
    imports = [helper.make_opsetid("", opset)]
    if domain:
        imports.append(helper.make_opsetid(domain, version or VERSIONS[domain]))
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return model, {key: value for key, value in given.items() if key not in constants}


def runtime_outputs(model, inputs):
    """ONNX Runtime's outputs by name, from one thread: where it shares work out, it quantises each part by itself."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def holds_strings(arrays):
    return any(np.asarray(value).dtype.kind in "OU" for value in arrays.values())


def check(name, inputs, *, atol=0.0, rtol=0.0, **options):
    """The compiled model against ONNX Runtime; one with strings runs as it can."""
    model, arrays = one_operator(name, inputs, **options)
    expected = runtime_outputs(model, arrays)
    loaded = jaxrnn.load(model)
    if holds_strings(arrays) or holds_strings(expected):
        found = loaded(arrays)
    else:
        found = jax.jit(loaded.apply)(loaded.params, arrays)
    for key, value in expected.items():
        actual = np.asarray(found[key])
        assert (actual.dtype, actual.shape) == (value.dtype, value.shape), key
        if value.dtype == object:
            assert actual.tolist() == value.tolist(), key
        else:
            np.testing.assert_allclose(actual, value, atol=atol, rtol=rtol, err_msg=key)
    return found
