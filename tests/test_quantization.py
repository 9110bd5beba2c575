"""Quantised operators against ONNX Runtime: every integer must be the same, eagerly, compiled and with known scales."""

from __future__ import annotations

from collections import Counter
from unittest import mock

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from node_models import check_node_refused, one_operator
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from streaming_verifier import check_values
from tiers import of_tiers
from verifier import assert_same, peer_outputs, verify

import jaxrnn
from jaxrnn.export import verify_export
from jaxrnn.streaming import transform
from jaxrnn.streaming.checking import POISON

BYTES = (np.uint8, np.int8)


def check(operator, inputs, outputs, constants=(), expected=None, **attributes):
    """`verify` with no tolerance, and again compiled with the parameters as known numbers."""
    model, arrays = one_operator(
        operator, inputs, outputs=outputs, kinds=outputs.values(), constants=constants, **attributes
    )
    expected = peer_outputs(model, arrays) if expected is None else expected
    loaded = verify(model, arrays, expected=expected, atol=0, eager=False)
    assert_same(jax.jit(lambda values: loaded.apply(loaded.params, values))(arrays), expected, 0)


def kind_of(dtype):
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def with_ties(rng, shape, scale):
    """Values of which many lie half-way between two multiples of the scale, and some out of range."""
    halves = rng.integers(-600, 600, shape).astype(np.float32) / 2
    return np.asarray(halves * np.asarray(scale, np.float32), np.float32)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
@pytest.mark.parametrize("scale", [0.1, 5 / 255, 0.25])
def test_quantize_rounds_half_to_even(dtype, scale, known):
    rng = np.random.default_rng(0)
    inputs = {"x": with_ties(rng, (8, 64), scale), "s": np.float32(scale), "z": np.asarray(3, dtype)}
    check("QuantizeLinear", inputs, {"y": kind_of(dtype)}, ("s", "z") if known else ())


GRANULARITIES = {
    "axis": ((4,), {"axis": 1}),
    "last axis": ((7,), {"axis": -1}),
    "blocks": ((3, 2, 7), {"axis": 1, "block_size": 2}),
    "blocks with a rest": ((3, 4, 3), {"axis": 2, "block_size": 3}),
}


@pytest.mark.parametrize("dtype", [np.uint8, np.int16])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_scales_by_axis_and_by_block(granularity, dtype):
    rng = np.random.default_rng(1)
    shape, attributes = GRANULARITIES[granularity]
    info = np.iinfo(dtype)
    scale = rng.uniform(0.01, 0.2, shape).astype(np.float32)
    zero = rng.integers(info.min // 2, info.max // 2, shape).astype(dtype)
    x = rng.normal(size=(3, 4, 7)).astype(np.float32)
    check("QuantizeLinear", {"x": x, "s": scale, "z": zero}, {"y": kind_of(dtype)}, ("s", "z"), **attributes)
    q = rng.integers(info.min, info.max, x.shape).astype(dtype)
    check("DequantizeLinear", {"x": q, "s": scale, "z": zero}, {"y": TensorProto.FLOAT}, ("s", "z"), **attributes)


#: With the compiler options of the tests, XLA of JAX 0.10.0 casts by way of float16. With the default options, it casts
#: directly, as later versions do.
ROUNDED_TWICE = pytest.mark.skipif(jax.__version_info__ < (0, 10, 2), reason="this XLA rounds to float16 first")


@pytest.mark.parametrize(
    "dtype",
    [
        *("int4", "uint4", "int2", "uint2", "float8_e4m3fn", "float8_e4m3fnuz", "float4_e2m1fn"),
        pytest.param("float8_e5m2", marks=ROUNDED_TWICE),
    ],
)
def test_small_types_there_and_back(dtype):
    rng = np.random.default_rng(2)
    dtype = np.dtype(getattr(ml_dtypes, dtype))
    scale, zero = np.float32(0.1), np.zeros((), dtype)
    x = with_ties(rng, (8, 16), scale)
    quantized = with_reference("QuantizeLinear", {"x": x, "s": scale, "z": zero}, kind_of(dtype))
    with_reference("DequantizeLinear", {"x": quantized, "s": scale, "z": zero}, TensorProto.FLOAT)


def with_reference(operator, inputs, kind):
    """Check against ONNX's reference, which has more types than ONNX Runtime; returns its result."""
    model, arrays = one_operator(operator, inputs, outputs=("y",), kinds=[kind], constants=("s", "z"), opset=25)
    (expected,) = ReferenceEvaluator(model).run(None, arrays)
    verify(model, arrays, expected={"y": expected}, atol=0)
    return expected


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_the_quotient_is_rounded_to_the_type_of_the_scale(dtype):
    x = np.arange(-400, 400, dtype=np.float32).astype(dtype).reshape(8, 100)
    scale = np.asarray(1.7, dtype)
    expected = np.clip(np.rint((x / scale).astype(np.float32)), -128, 127).astype(np.int8)
    inputs = {"x": x, "s": scale, "z": np.int8(0)}
    check("QuantizeLinear", inputs, {"y": TensorProto.INT8}, ("s", "z"), expected={"y": expected}, opset=23)


@pytest.mark.parametrize("case", ["mixed", "positive", "negative", "zero", "one"])
def test_dynamic_quantization(case):
    x = np.random.default_rng(3).normal(size=(5, 33)).astype(np.float32)
    x = {"mixed": x, "positive": abs(x), "negative": -abs(x) - 1, "zero": 0 * x, "one": x[:1, :1]}[case]
    outputs = {"y": TensorProto.UINT8, "s": TensorProto.FLOAT, "z": TensorProto.UINT8}
    check("DynamicQuantizeLinear", {"x": x}, outputs)


def integers(rng, dtype, shape):
    """Random bytes; signed ones of 7 bits, beyond which ONNX Runtime's products saturate on some processors."""
    return rng.integers(*((0, 256) if dtype is np.uint8 else (-64, 64)), shape).astype(dtype)


def byte_names(kinds):
    return " x ".join(kind.__name__ for kind in kinds)


PAIRS = [pytest.param((a, b), marks=[pytest.mark.nightly] * (a is b)) for a in BYTES for b in BYTES]


@pytest.mark.parametrize("kinds", PAIRS, ids=byte_names)
@pytest.mark.parametrize("shapes", [((5, 33), (33, 7)), ((2, 3, 5, 16), (2, 3, 16, 4)), ((1, 300), (300, 2))], ids=str)
def test_matrix_products(shapes, kinds):
    rng = np.random.default_rng(4)
    a, b = (integers(rng, dtype, shape) for dtype, shape in zip(kinds, shapes, strict=True))
    zero_a = integers(rng, kinds[0], ())
    zero_b = integers(rng, kinds[1], b.shape[-1:] if b.ndim == 2 else ())
    inputs = {"a": a, "b": b, "za": zero_a, "zb": zero_b}
    check("MatMulInteger", inputs, {"y": TensorProto.INT32}, ("b", "zb"))
    check("MatMulInteger", inputs | {"za": None, "zb": None}, {"y": TensorProto.INT32})
    if kinds == (np.int8, np.uint8):
        return  # ONNX Runtime has no QLinearMatMul of these
    scales = {"sa": np.float32(0.013), "sb": rng.uniform(0.01, 0.05, zero_b.shape).astype(np.float32)}
    quantised = {"a": a, "sa": scales["sa"], "za": zero_a, "b": b, "sb": scales["sb"], "zb": zero_b}
    quantised |= {"sy": np.float32(0.21), "zy": integers(rng, kinds[0], ())}
    check("QLinearMatMul", quantised, {"y": kind_of(kinds[0])}, ("sa", "sb", "zb", "sy"))


def test_zero_points_by_row():
    rng = np.random.default_rng(5)
    a, b, zero = integers(rng, np.uint8, (3, 4)), integers(rng, np.uint8, (4, 3)), integers(rng, np.uint8, (3,))
    expected = (a.astype(np.int32) - zero[:, None]) @ b.astype(np.int32)
    check("MatMulInteger", {"a": a, "b": b, "za": zero}, {"y": TensorProto.INT32}, expected={"y": expected})


WINDOWS = {
    "plain": ((2, 4, 9), (6, 4, 3), {}),
    "groups": ((1, 6, 8, 7), (6, 1, 3, 2), {"group": 6, "pads": [1, 0, 2, 1], "strides": [2, 1]}),
    "dilated": ((1, 3, 11, 9), (4, 3, 3, 3), {"dilations": [2, 1], "pads": [2, 1, 2, 1]}),
    "same": ((2, 2, 10, 7), (3, 2, 4, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
}


@pytest.mark.parametrize("kinds", [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)], ids=byte_names)
@pytest.mark.parametrize("window", of_tiers(WINDOWS, ("groups",), ()))
def test_convolutions(window, kinds):
    rng = np.random.default_rng(6)
    shape_x, shape_w, attributes = WINDOWS[window]
    x, w = (integers(rng, dtype, shape) for dtype, shape in zip(kinds, (shape_x, shape_w), strict=True))
    zero_x, zero_w = integers(rng, kinds[0], ()), integers(rng, kinds[1], ())
    if kinds[0] is np.uint8:
        inputs = {"x": x, "w": w, "zx": zero_x, "zw": zero_w}
        check("ConvInteger", inputs, {"y": TensorProto.INT32}, ("w", "zw"), **attributes)
    inputs = {"x": x, "sx": np.float32(0.02), "zx": zero_x, "w": w}
    inputs |= {"sw": rng.uniform(0.01, 0.05, shape_w[:1]).astype(np.float32), "zw": np.full(shape_w[:1], zero_w)}
    inputs |= {"sy": np.float32(0.37), "zy": integers(rng, kinds[0], ())}
    inputs |= {"b": rng.integers(-3000, 3000, shape_w[:1]).astype(np.int32)}
    check("QLinearConv", inputs, {"y": kind_of(kinds[0])}, ("w", "sw", "zw", "b"), **attributes)


LSTM_BODY = """
    body (float[B, H] h, float[B, H] c, float[B, F] x) =>
         (float[B, H] h_next, float[B, H] c_next, float[B, H] y, uint8[B, F] x_q, uint8[B, H] h_q,
          int32[B, G] product) {
        x_q = QuantizeLinear (x, x_scale, x_zero)
        x_product = MatMulInteger (x_q, W, x_zero, W_zero)
        x_float = Cast <to = 1> (x_product)
        x_W_scale = Mul (x_scale, W_scale)
        x_gates = Mul (x_float, x_W_scale)
        h_q, h_scale, h_zero = DynamicQuantizeLinear (h)
        product = MatMulInteger (h_q, R, h_zero, R_zero)
        h_float = Cast <to = 1> (product)
        h_R_scale = Mul (h_scale, R_scale)
        h_gates = Mul (h_float, h_R_scale)
        gates = Add (x_gates, h_gates)
        B_float = DequantizeLinear <axis = 0> (B_q, B_scale)
        biased = Add (gates, B_float)
        i_in, o_in, f_in, c_in = Split <axis = -1, num_outputs = 4> (biased)
        i = Sigmoid (i_in)
        o = Sigmoid (o_in)
        f = Sigmoid (f_in)
        g = Tanh (c_in)
        kept = Mul (f, c)
        added = Mul (i, g)
        c_next = Add (kept, added)
        c_tanh = Tanh (c_next)
        h_next = Mul (o, c_tanh)
        y = Identity (h_next)
    }
"""


@pytest.mark.thorough
@pytest.mark.parametrize("direction", [0, 1])
def test_quantized_lstm_as_scan(direction):
    time, batch, features, hidden = 12, 3, 5, 8
    rng = np.random.default_rng(7)
    text = f"""
        <ir_version: 10, opset_import: ["" : 21]>
        lstm (float[T, B, F] xs, float[B, H] h_0, float[B, H] c_0) =>
             (float[B, H] h_n, float[B, H] c_n, float[T, B, H] ys, uint8[T, B, F] xs_q, uint8[T, B, H] hs_q,
              int32[T, B, G] products) {{
            h_n, c_n, ys, xs_q, hs_q, products = Scan <num_scan_inputs = 1, scan_input_directions = [{direction}],
                scan_output_directions = [{", ".join(4 * [str(direction)])}], body = {LSTM_BODY.strip()}> (h_0, c_0, xs)
        }}
    """
    model = onnx.parser.parse_model(text)
    gates = 4 * hidden
    constants = {
        "x_scale": np.float32(0.03),
        "x_zero": np.uint8(127),
        "W": integers(rng, np.int8, (features, gates)),
        "W_zero": np.zeros(gates, np.int8),
        "W_scale": rng.uniform(0.004, 0.01, gates).astype(np.float32),
        "R": integers(rng, np.uint8, (hidden, gates)),
        "R_zero": np.uint8(128),
        "R_scale": np.float32(0.004),
        "B_q": integers(rng, np.int8, (gates,)),
        "B_scale": np.full(gates, 0.01, np.float32),
    }
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items())
    inputs = {
        "xs": rng.normal(size=(time, batch, features)).astype(np.float32),
        "h_0": np.zeros((batch, hidden), np.float32),
        "c_0": rng.normal(size=(batch, hidden)).astype(np.float32),
    }
    exact = dict.fromkeys(("xs_q", "hs_q", "products"), 0)
    loaded = verify(model, inputs, atol={**dict.fromkeys(("h_n", "c_n", "ys"), 2e-6), **exact})
    assert {"x_scale", "W_scale", "R_scale", "B_scale"} <= set(loaded.params)


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        ({"s": np.ones(5, np.float32)}, {}, "axis 1 has size 4"),
        ({"s": np.ones((3, 3), np.float32)}, {"block_size": 2}, "blocks of 2"),
        ({"s": np.ones(4, np.float32), "z": np.zeros(3, np.uint8)}, {}, "equal shapes"),
        ({"s": np.float32(1), "z": np.uint8(0)}, {"output_dtype": TensorProto.INT8}, "output_dtype"),
        ({"s": np.float32(1)}, {"output_dtype": TensorProto.FLOAT6E2M3}, "FLOAT6E2M3"),
    ],
)
def test_what_does_not_fit_is_refused(inputs, attributes, message):
    x, options = {"x": np.ones((3, 4), np.float32)} | inputs, {"constants": inputs, "opset": 28, **attributes}
    check_node_refused(jaxrnn.JaxrnnError, message, "QuantizeLinear", x, **options)


#: A convolution with look-ahead, and its input added to its result, which waits for it.
FORMS = {
    "qdq": """
        x_d = DequantizeLinear (x_q, s, z)
        w_d = DequantizeLinear <axis = 0> (w, w_s, w_z)
        b_d = DequantizeLinear <axis = 0> (b, b_s)
        c = Conv <pads = [2, 1, 1, 1], strides = [1, 2]> (x_d, w_d, b_d)
        c_q = QuantizeLinear (c, c_s, c_z)
        x_few = Slice (x_d, zeros, ends, axes, steps)
        c_d = DequantizeLinear (c_q, c_s, c_z)
        a = Add (c_d, x_few)
        y_q = QuantizeLinear (a, y_s, y_z)
    """,
    "qop": """
        c_q = QLinearConv <pads = [2, 1, 1, 1], strides = [1, 2]> (x_q, s, z, w, w_s, w_z, c_s, c_z, b)
        x_few = Slice (x_q, zeros, ends, axes, steps)
        y_q = com.microsoft.QLinearAdd (c_q, c_s, c_z, x_few, s, z, y_s, y_z)
    """,
}


def quantized_net(form, dtype):
    text = f"""
        <ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        net (float[1, 3, T, 6] x) => (float[1, 3, U, 3] y) {{
            x_q = QuantizeLinear (x, s, z)
            {FORMS[form]}
            y = DequantizeLinear (y_q, y_s, y_z)
        }}
    """
    rng = np.random.default_rng(8)
    w_s = np.float32([0.02, 0.03, 0.025])
    constants = {
        "s": np.float32(0.0311),
        "z": np.asarray(13, dtype),
        "w": integers(rng, np.int8, (3, 3, 4, 3)),
        "w_s": w_s,
        "w_z": np.zeros(3, np.int8),
        "b": rng.integers(-900, 900, 3).astype(np.int32),
        "b_s": np.float32(0.0311) * w_s,
        "c_s": np.float32(0.0527),
        "c_z": np.asarray(9, dtype),
        "y_s": np.float32(0.0613),
        "y_z": np.asarray(7, dtype),
        "zeros": np.int64([0]),
        "ends": np.int64([9]),
        "axes": np.int64([3]),
        "steps": np.int64([2]),
    }
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items())
    return model


def fused(path, folder):
    """The operators of quantised arithmetic that ONNX Runtime runs."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(folder / "optimized.onnx"), 3
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    optimized = onnx.load(options.optimized_model_filepath)
    return Counter(node.op_type for node in optimized.graph.node if node.op_type.startswith("QLinear"))


@pytest.mark.parametrize(
    ("form", "dtype"),
    of_tiers([("qdq", np.uint8), ("qdq", np.int8), ("qop", np.uint8)], [], [("qdq", np.uint8)]),
)
def test_streams_keep_integers(form, dtype, tmp_path):
    proto = quantized_net(form, dtype)
    model = jaxrnn.load(proto)
    with mock.patch.object(transform, "PLACEHOLDER", POISON):
        streamed = model.stream("T")
    kept = [each for each in streamed.state if each.kind != "counter"]
    assert [each.dtype for each in kept] == [np.dtype(dtype)] * 2
    assert sum(each.nbytes for each in kept) == 3 * 3 * 6 + 3 * 3  # a byte for each element of three and one frames
    x = np.random.default_rng(9).normal(size=(1, 3, 11, 6)).astype(np.float32)
    for frames in (1, 2, 3, 11):
        found = streamed.run(model.params, {"x": x[:, :, :frames]})["y"]
        np.testing.assert_array_equal(found, model.apply(model.params, {"x": x[:, :, :frames]})["y"])
    path = tmp_path / "step.onnx"
    jaxrnn.export_onnx(streamed, model.params, path, flush=tmp_path / "flush.onnx")
    assert verify_export(streamed, model.params, path, offline=lambda x: model.apply(model.params, x)).ok
    onnx.save(proto, tmp_path / "offline.onnx")
    written, offline = fused(path, tmp_path), fused(tmp_path / "offline.onnx", tmp_path)
    # ONNX Runtime runs int8 activations as uint8 on some processors, and only inside of a file.
    assert written["QLinearConv"] == offline["QLinearConv"] == (dtype is np.uint8) or dtype is np.int8
    assert written == offline or (form, dtype) != ("qdq", np.uint8)


@pytest.mark.thorough
def test_verification_allows_one_step_in_few_elements(tmp_path):
    model = jaxrnn.load(quantized_net("qdq", np.uint8))
    streamed = model.stream("T")
    path = tmp_path / "step.onnx"
    jaxrnn.export_onnx(streamed, model.params, path)

    def offline(changed, by):
        def function(inputs):
            y = np.array(model.apply(model.params, inputs)["y"])
            y.reshape(-1)[:changed] += by
            return {"y": y}

        return verify_export(streamed, model.params, path, offline=function).cases[-1]

    one = offline(1, 0.0613)
    assert one.ok
    assert one.outputs[0].reason.startswith("within one step of quantisation (0.0613): 1 of ")
    assert not offline(1, 0.1226).ok  # two steps
    assert not offline(99, 0.0613).ok  # too many elements


def dequantized(x, zero, scale):
    return (x.astype(jnp.int32) - zero).astype(jnp.float32) * scale


WIDER = {
    "scaled": lambda x: dequantized(x, 3, 0.25),
    "scale in front": lambda x: jnp.float32(0.25) * (x.astype(jnp.int32) - 3).astype(jnp.float32),
    "moved": lambda x: dequantized(x.T, 3, 0.25).T,
    "by channel": lambda x: dequantized(x, 3, jnp.float32([0.25, 0.5])),
    "flags": lambda x: (x > 2).astype(jnp.float32),
    "half": lambda x: x.astype(jnp.float16).astype(jnp.float32) + 1,
}


WIDER_PADS = [(form, pad) for form in WIDER for pad in (0.0, 2.0)]


@pytest.mark.parametrize(("form", "pad"), of_tiers(WIDER_PADS, WIDER_PADS[::5] + WIDER_PADS[3::5], WIDER_PADS[1:3]))
def test_histories_keep_the_narrowest_type(form, pad):
    """Padded windows and delays; where no narrow value stands for the padding, the state is wide."""

    def function(x):
        wide = WIDER[form](x)
        before = jnp.pad(wide, ((2, 0), (0, 0)), constant_values=pad)
        return 2 * before[:-2] + before[1:-1] * wide, wide[:-3] - wide[3:]

    streamed = check_values(function, (7, 2), lengths=(3, 4, 8), dtype=np.uint8, tolerance=0)
    narrow = np.bool_ if form == "flags" else np.uint8
    widths = [each.dtype for each in streamed.state if each.kind != "counter"]
    assert narrow in widths
    assert (np.dtype(np.float32) in widths) == ((pad == 0) == (form == "half"))


@pytest.mark.parametrize(
    ("scale", "kept"), [(0.5, np.uint8), (-0.5, np.float32), (np.inf, np.float32), (None, np.float32)]
)
def test_factors_of_the_parameters_are_checked(scale, kept):
    """A padding of 0 is an integer 0 only if the factor is positive and finite; without a value, nobody knows."""

    def function(params, x):
        return 1 / jnp.pad(x.astype(jnp.float32) * params["scale"], ((2, 0), (0, 0)))[:-2]

    value = jax.ShapeDtypeStruct((), jnp.float32) if scale is None else jnp.float32(scale)
    streamed = jaxrnn.stream(function, jnp.zeros((7, 2), jnp.uint8), axes=0, params={"scale": value})
    assert [each.dtype for each in streamed.state if each.kind != "counter"] == [kept]
    params, x = {"scale": jnp.float32(scale or 0.5)}, np.arange(10, dtype=np.uint8).reshape(5, 2)
    np.testing.assert_array_equal(streamed.run(params, x), function(params, x))
