"""Operators of ONNX Runtime against it: every integer the same, every float to its last digits."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from node_models import check_node_refused, one_operator
from node_models import compare as check
from verifier import peer_outputs

import jaxrnn
from jaxrnn.model.inspection import inspect_model


def floats(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def integers(seed, dtype, *shape):
    """Bytes; signed ones of 7 bits, beyond which ONNX Runtime's products saturate on some processors."""
    low, high = (0, 256) if dtype is np.uint8 else (-64, 64)
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


@pytest.mark.parametrize(
    ("a", "b", "attributes"),
    [
        ((3, 2, 5, 4), (3, 2, 4, 6), {"alpha": 0.5}),
        ((3, 2, 4, 5), (3, 2, 6, 4), {"transA": 1, "transB": 1}),
        ((5, 3, 2, 4), (3, 2, 4, 6), {"transBatchA": 1}),
        ((3, 2, 5, 4), (6, 3, 2, 4), {"transBatchB": 1, "transB": 1}),
    ],
)
def test_products_of_turned_operands(a, b, attributes):
    check("com.microsoft::FusedMatMul", {"a": floats(0, *a), "b": floats(1, *b)}, atol=1e-6, rtol=1e-5, **attributes)


@pytest.mark.parametrize(
    ("activation", "params"),
    [("Relu", ()), ("Tanh", ()), ("LeakyRelu", (0.2,)), ("Clip", (-0.5, 0.6)), ("HardSigmoid", (0.3, 0.4))],
)
def test_activations_behind_products(activation, params):
    x = {"x": floats(0, 1, 4, 8, 8), "w": floats(1, 4, 4, 3, 3), "b": floats(2, 4), "z": floats(3, 1, 4, 6, 6)}
    conv = {"activation_params": list(params)} if params else {}
    check("com.microsoft::FusedConv", x, activation=activation, atol=2e-5, **conv)
    if activation != "Clip":
        named = dict(zip(("activation_alpha", "activation_beta"), params, strict=False))
        x = {"a": floats(4, 4, 3), "b": floats(5, 5, 4), "c": floats(6, 5)}
        options = {"activation": activation, "transA": 1, "transB": 1, "alpha": 0.7, "beta": 0.3}
        check("com.microsoft::FusedGemm", x, atol=1e-5, **options, **named)


@pytest.mark.parametrize("activation", ["Nonsense", "Relu"])
def test_an_activation_that_does_not_fit_is_refused(activation):
    inputs = {"a": floats(0, 2, 2), "b": floats(1, 2, 2)}
    options = {"activation": activation, "activation_alpha": 0.5}
    check_node_refused(jaxrnn.NodeError, activation, "com.microsoft::FusedGemm", inputs, **options)


def test_gelus():
    x, bias = 3 * floats(0, 3, 40), floats(1, 40)
    check("com.microsoft::Gelu", {"x": x}, atol=1e-6)
    check("com.microsoft::FastGelu", {"x": x, "bias": bias}, atol=2e-6)
    check("com.microsoft::QuickGelu", {"x": x}, alpha=1.3, atol=2e-6)
    check("com.microsoft::BiasGelu", {"x": x, "bias": bias}, atol=2e-6)


def test_normalisations():
    x, skip, row = floats(0, 2, 3, 16), floats(1, 2, 3, 16), [floats(seed, 16) for seed in (2, 3, 4)]
    full = {"x": x, "skip": skip, "gamma": row[0], "beta": row[1], "bias": row[2]}
    check("com.microsoft::SkipLayerNormalization", full, outputs=4, atol=1e-5)
    check("com.microsoft::SkipLayerNormalization", {**full, "skip": skip[0], "bias": None}, epsilon=1e-3, atol=1e-5)
    simple = {"x": x, "skip": skip, "gamma": row[0], "bias": row[2]}
    check("com.microsoft::SkipSimplifiedLayerNormalization", simple, atol=1e-5)
    # In ONNX's own domain, as files of before opset 17 have them.
    for name in ("LayerNormalization", "SimplifiedLayerNormalization"):
        check(name, {"x": x, "scale": row[0]}, outputs=2, opset=12, atol=1e-5)
        half = {"x": x.astype(np.float16), "scale": row[0].astype(np.float16)}
        check(name, half, opset=12, atol=4e-3)


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_quantised_products(kind):
    a, b = integers(0, np.uint8, 5, 33), integers(1, kind, 33, 7)
    scales, zero = np.random.default_rng(2).uniform(0.01, 0.03, 7).astype(np.float32), integers(3, kind, 7)
    # The products are exact; what is left are the last digits of float32.
    common = {"sb": scales, "zb": zero, "bias": floats(4, 7)}
    dynamic = {"a": floats(5, 2, 5, 33), "b": b, **common}
    check("com.microsoft::DynamicQuantizeMatMul", dynamic, constants=("b", "zb"), rtol=1e-6, atol=1e-5)
    static = {"a": a, "b": b, "sa": np.float32(0.03), "sb": scales, "za": np.uint8(3), **common}
    check("com.microsoft::MatMulIntegerToFloat", static, constants=("b", "zb"), rtol=1e-6, atol=1e-4)
    gemm = {"a": a.T, "sa": np.float32(0.03), "za": np.uint8(5), "b": b.T, "sb": np.float32(0.02), "zb": zero[0]}
    options = {"transA": 1, "transB": 1, "alpha": 0.6}
    check("com.microsoft::QGemm", gemm, kinds=[1], rtol=1e-6, **options)
    gemm |= {"c": np.arange(-3, 4, dtype=np.int32) * 300, "sy": np.float32(0.3), "zy": np.uint8(110)}
    check("com.microsoft::QGemm", gemm, kinds=[2], **options)


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_quantised_elements(kind):
    low = np.iinfo(kind).min
    every = np.arange(low, low + 256).astype(kind).reshape(4, 64)
    random = np.random.default_rng(0).integers(low, low + 256, (64, 64)).astype(kind)
    zero = [kind(value) for value in (7, 100, 55)]
    for scales in ((0.031, 0.023, 0.047), (0.5, 0.25, 1.0)):
        a, b, c = map(np.float32, scales)
        pair = {"a": random, "sa": a, "za": zero[0], "b": random[::-1], "sb": b, "zb": zero[1], "sc": c, "zc": zero[2]}
        check("com.microsoft::QLinearAdd", pair)
        check("com.microsoft::QLinearMul", {**pair, "b": random[0]})
        one = {"x": every, "sx": a, "zx": zero[1], "sy": np.float32(0.0039), "zy": zero[0]}
        check("com.microsoft::QLinearSigmoid", one)
        check("com.microsoft::QLinearLeakyRelu", {**one, "sy": a * np.float32(1.3)}, alpha=0.1)
    parts = {"sy": np.float32(0.03), "zy": zero[1]}
    parts |= {"a": random[:3, :4], "sa": np.float32(0.02), "za": zero[0]}
    parts |= {"b": random[:3, :5], "sb": np.float32(0.05), "zb": zero[2]}
    check("com.microsoft::QLinearConcat", parts, axis=1)
    image = {"x": random.reshape(2, 8, 16, 16), "sx": np.float32(0.03), "zx": zero[1], "sy": np.float32(0.01)}
    for last in (0, 1):
        check("com.microsoft::QLinearGlobalAveragePool", {**image, "zy": zero[0]}, channels_last=last)


def lstm_inputs(seed, time, batch, directions, *, kind=np.int8, columns=False, state=False, peephole=False):
    rng = np.random.default_rng(seed)
    features, hidden = 7, 16
    shape = (directions, 4 * hidden) if columns else (directions,)
    scale = lambda: rng.uniform(0.002, 0.004, shape).astype(np.float32)  # noqa: E731
    offset = 128 if kind is np.uint8 else 0
    spread = 0 if columns else 5  # ONNX Runtime takes other zero points by column only where they are 0
    zero = lambda: (rng.integers(-spread, spread + 1, shape) + offset).astype(kind)  # noqa: E731
    low, high = (0, 256) if kind is np.uint8 else (-127, 128)
    return {
        "X": rng.standard_normal((time, batch, features)).astype(np.float32),
        "W": rng.integers(low, high, (directions, features, 4 * hidden)).astype(kind),
        "R": rng.integers(low, high, (directions, hidden, 4 * hidden)).astype(kind),
        "B": (0.1 * rng.standard_normal((directions, 8 * hidden))).astype(np.float32),
        "sequence_lens": None,
        "initial_h": (0.5 * rng.standard_normal((directions, batch, hidden))).astype(np.float32) if state else None,
        "initial_c": rng.standard_normal((directions, batch, hidden)).astype(np.float32) if state else None,
        "P": (0.2 * rng.standard_normal((directions, 3 * hidden))).astype(np.float32) if peephole else None,
        "W_scale": scale(),
        "W_zero_point": zero(),
        "R_scale": scale(),
        "R_zero_point": zero(),
    }


LSTM_WEIGHTS = ("W", "R", "B", "W_scale", "W_zero_point", "R_scale", "R_zero_point")
LSTMS = {
    "one step": (1, 1, 1, {}, None, {}),
    "columns": (20, 1, 1, {"columns": True}, None, {}),
    "unsigned": (20, 2, 1, {"kind": np.uint8}, None, {"direction": "reverse"}),
    "state, peepholes": (20, 1, 1, {"state": True, "peephole": True}, None, {"clip": 0.8}),
    "lengths": (20, 3, 2, {"state": True}, [15, 11, 5], {"direction": "bidirectional"}),
    "coupled": (
        20,
        1,
        1,
        {},
        None,
        {"activations": ["HardSigmoid", "Relu", "Tanh"], "activation_alpha": [0.3], "activation_beta": [0.4]}
        | {"input_forget": 1},
    ),
}


@pytest.mark.parametrize("case", LSTMS)
def test_quantised_lstm(case):
    """A state that were off by one step of its quantisation would differ by a thousandth."""
    time, batch, directions, kind, lengths, attributes = LSTMS[case]
    inputs = lstm_inputs(3, time, batch, directions, **kind)
    inputs["sequence_lens"] = None if lengths is None else np.array(lengths, np.int32)
    options = {"outputs": 3, "constants": LSTM_WEIGHTS, "hidden_size": 16, **attributes}
    check("com.microsoft::DynamicQuantizeLSTM", inputs, atol=1e-6, **options)


def test_a_quantised_lstm_in_pieces_is_the_whole():
    """Its hidden state is quantised step by step, and its input is when the pieces have the range of the whole."""
    inputs = lstm_inputs(5, 12, 1, 1, state=True)
    inputs["X"][:, :, 0], inputs["X"][:, :, 1] = 3, -3
    build = lambda values: one_operator(  # noqa: E731
        "com.microsoft::DynamicQuantizeLSTM", values, outputs=3, constants=LSTM_WEIGHTS, hidden_size=16
    )
    whole_model, arrays = build(inputs)
    expected = peer_outputs(whole_model, arrays)
    piece = jaxrnn.load(build({**inputs, "X": inputs["X"][:4]})[0])
    run = jax.jit(piece.apply)
    h, c, found = inputs["initial_h"], inputs["initial_c"], []
    for start in range(0, 12, 4):
        y = run(piece.params, {"X": inputs["X"][start : start + 4], "initial_h": h, "initial_c": c})
        found.append(y["y0"])
        h, c = y["y1"], y["y2"]
    np.testing.assert_allclose(np.concatenate(found), expected["y0"], atol=1e-6)
    np.testing.assert_allclose(c, expected["y2"], atol=1e-6)


@pytest.mark.thorough
def test_a_quantised_lstm_has_the_state_of_an_lstm():
    inputs = lstm_inputs(6, 1, 1, 1, state=True)
    built, _ = one_operator(
        "com.microsoft::DynamicQuantizeLSTM", inputs, outputs=3, constants=LSTM_WEIGHTS, kinds=[1] * 3, hidden_size=16
    )
    loaded = jaxrnn.load(built)
    pairs = [("initial_h", "y1", "external"), ("initial_c", "y2", "external")]
    assert [(each.input, each.output, each.kind) for each in loaded.state] == pairs
    x = floats(7, 5, 1, 1, 7)
    stacked, last = loaded.scan(loaded.params, loaded.init(), {"X": x})
    state, step = loaded.init(), jax.jit(loaded.step)
    for index, frame in enumerate(x):
        y, state = step(loaded.params, state, {"X": frame})
        np.testing.assert_allclose(y["y0"], stacked["y0"][index], atol=1e-6)
    np.testing.assert_allclose(state["initial_c"], last["initial_c"], atol=1e-6)
    (layer,) = inspect_model(built).recurrent
    assert (layer.operator, layer.input_size, layer.hidden_size) == ("DynamicQuantizeLSTM", 7, 16)
