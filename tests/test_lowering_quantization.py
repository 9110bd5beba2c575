"""Quantised operators are in a graph what they were in the file, and weights stay integers of a byte."""

from __future__ import annotations

import jax
import numpy as np
import onnx
import pytest
from lowering_verifier import verify_lowering

import jaxrnn
from jaxrnn.cells.products import plain_forms
from jaxrnn.onnx.operators import quantization as q

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 6, 8)).astype(np.float32)
BYTES = RNG.integers(0, 255, (6, 8)).astype(np.uint8)
WEIGHT = RNG.integers(-99, 99, (8, 9)).astype(np.int8)
SCALES, ZEROS = np.abs(RNG.normal(size=9)).astype(np.float32), RNG.integers(-9, 9, 9).astype(np.int8)
S, Z = np.float32(0.05), np.uint8(7)

CASES = {
    "QuantizeLinear": (lambda x: q.quantize_linear(x, S, Z), X),
    "DequantizeLinear": (lambda x: q.dequantize_linear(x, S, Z), BYTES),
    "DynamicQuantizeLinear": (q.dynamic_quantize_linear, X),
    "MatMulInteger": (lambda x: q.matmul_integer(x, WEIGHT, Z, ZEROS), BYTES),
    "QLinearMatMul": (lambda x: q.q_linear_matmul(x, S, Z, WEIGHT, SCALES, ZEROS, np.float32(9), Z), BYTES),
    "ConvInteger": (lambda x: q.conv_integer(x, BYTES.reshape(8, 6, 1)[:, :, :1], Z, pads=[0, 1]), BYTES[None]),
    "QLinearConv": (
        lambda x: q.q_linear_conv(
            x, S, Z, WEIGHT[:6, :6, None], S, np.int8(0), np.float32(1), Z, np.arange(6, dtype=np.int32), pads=[1, 1]
        ),
        BYTES[None],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_operators_stay_what_they_are(name):
    """One node for each, which gives the same integers."""
    function, x = CASES[name]
    with plain_forms():
        model = verify_lowering(function, x, roundings=1)
    assert name in [node.op_type for node in model.graph.node]
    assert sum(node.op_type not in ("Reshape", "Squeeze", "Unsqueeze") for node in model.graph.node) == 1


def test_weights_stay_integers():
    """What is dequantised in the graph is bytes in the file."""
    x = RNG.normal(size=WEIGHT.shape).astype(np.float32)
    with plain_forms():
        model = verify_lowering(lambda x: x * q.dequantize_linear(WEIGHT, SCALES, ZEROS, axis=1), x)
    (weight,) = [each for each in model.graph.initializer if np.prod(each.dims) == WEIGHT.size]
    assert weight.data_type == onnx.TensorProto.INT8


def test_what_an_opset_lacks_is_written_out():
    """Blocks of a scale, and types that came later."""
    blocks = np.abs(RNG.normal(size=(2, 8))).astype(np.float32)
    with plain_forms():
        verify_lowering(lambda x: q.quantize_linear(x, blocks, axis=0, block_size=3), X[0])
        verify_lowering(lambda x: q.quantize_linear(x, S, np.int16(7)), X)
        verify_lowering(lambda x: q.dequantize_linear(x, np.float16(0.5), Z), BYTES)


def test_streams_keep_them():
    """On elements and on rows of frames; what sees several frames is what it computes."""

    def function(x):
        small = q.quantize_linear(x, S, Z)
        product = q.q_linear_matmul(small, S, Z, WEIGHT[:3], SCALES, ZEROS, np.float32(9), Z)
        return q.dequantize_linear(product, S, Z)

    with plain_forms():
        streamed = jaxrnn.stream(function, X[0, :, :3], axes=0, pulse=2)
        state = streamed.init()
        names = {each.primitive.name for each in jax.make_jaxpr(streamed.step)(None, state, X[0, :2, :3]).eqns}
        assert "onnx_operator" in names
        np.testing.assert_array_equal(streamed.run(None, X[0, :, :3]), function(X[0, :, :3]))
