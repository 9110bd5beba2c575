"""Operators of ONNX Runtime against it: every integer the same, every float to its last digits."""

from __future__ import annotations

import jax
import ml_dtypes
import numpy as np
import onnx
import pytest
from node_models import check_node_refused, one_operator
from node_models import compare as check
from onnx import TensorProto, helper
from refusals import check_refused
from small_models import graph_of
from verifier import peer_outputs

import jaxrnn
from jaxrnn.export.verification import verify_export
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


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_quantised_images(kind):
    low = np.iinfo(kind).min
    draw = lambda *shape: np.random.default_rng(0).integers(low, low + 256, shape).astype(kind)  # noqa: E731
    one = {"sx": np.float32(0.03), "zx": kind(7), "sy": np.float32(0.02), "zy": kind(60)}
    # Sums of floats that end on a half are rounded by the order of the sum.
    pool = {"atol": 1, "kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    check("com.microsoft::QLinearAveragePool", {"x": draw(2, 8, 9, 9), **one}, ceil_mode=1, **pool)
    check("com.microsoft::QLinearAveragePool", {"x": draw(2, 9, 9, 8), **one}, channels_last=1, **pool)
    check("com.microsoft::NhwcMaxPool", {"x": draw(2, 9, 9, 8)}, **{**pool, "atol": 0})
    w = np.random.default_rng(1).integers(-60, 60, (6, 8, 3, 3)).astype(np.int8)
    rest = {"w": w, "sw": np.float32(0.01), "zw": np.int8(0), "sy": np.float32(0.5), "zy": kind(20)}
    rest["b"] = np.arange(6, dtype=np.int32) * 50
    image = {"x": draw(1, 9, 9, 8), "sx": np.float32(0.03), "zx": kind(5), **rest}
    check("com.microsoft::QLinearConv", image, channels_last=1, constants=("w", "zw", "sw", "b"), pads=[1, 1, 0, 0])
    other = {"y": draw(1, 4), "sy": np.float32(0.02), "zy": kind(9), "sz": np.float32(0.05), "zz": kind(33)}
    where = {"c": floats(2, 3, 4) > 0, "x": draw(3, 4), "sx": np.float32(0.03), "zx": kind(5), **other}
    check("com.microsoft::QLinearWhere", where)
    soft = {"x": draw(3, 4, 10), "sx": np.float32(0.05), "zx": kind(7), "sy": np.float32(1 / 256), "zy": kind(low)}
    for opset, axis in ((13, 1), (12, 1)):
        model, arrays = one_operator("com.microsoft::QLinearSoftmax", soft, axis=axis)
        model.graph.node[0].attribute.append(onnx.helper.make_attribute("opset", opset))
        expected = peer_outputs(model, arrays)["y0"]
        np.testing.assert_array_equal(jaxrnn.load(model)(arrays)["y0"], expected)


def packed(seed, bits, rows, blocks, block, kind=np.float32):
    """Weights of blocks: bytes, scales, and packed zero points."""
    draw = np.random.default_rng(seed)
    b = draw.integers(0, 256, (rows, blocks, block * bits // 8)).astype(np.uint8)
    scales = draw.uniform(0.02, 0.03, (rows, blocks)).astype(kind)
    return b, scales, draw.integers(0, 256, (rows, -(-blocks * bits // 8))).astype(np.uint8)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_products_with_weights_of_few_bits(bits):
    for size, block in ((64, 32), (40, 16)):
        b, scales, zero = packed(0, bits, 9, -(-size // block), block)
        common = {"atol": 1e-5, "rtol": 1e-5, "constants": ("b", "s", "z", "bias")}
        common |= {"K": size, "N": 9, "bits": bits, "block_size": block}
        given = {"a": floats(1, 2, 3, size), "b": b, "s": scales}
        check("com.microsoft::MatMulNBits", {**given, "z": zero}, **common)
        check("com.microsoft::MatMulNBits", {**given, "z": None, "g": None, "bias": floats(2, 9)}, **common)
        if bits < 8:  # ONNX Runtime has no floats for 8 bits
            check("com.microsoft::MatMulNBits", {**given, "z": floats(3, *scales.shape) + 5}, **common)
    table = {"d": b.reshape(9, -1), "i": np.array([[0, 3], [2, -1]]), "s": scales, "z": zero}
    for zeros in (zero, None):
        rows = {**table, "z": zeros}
        options = {"constants": ("d", "s", "z"), "bits": bits, "block_size": 16, "atol": 1e-6}
        check("com.microsoft::GatherBlockQuantized", rows, **options)


def test_rows_and_products_of_integers_of_4_bits():
    draw, low = np.random.default_rng(0), {ml_dtypes.int4: -8, ml_dtypes.uint4: 0}
    for kind, least in low.items():
        steps = draw.integers(least, least + 16, (6, 32)).astype(kind)
        zero = draw.integers(least, least + 16, (6, 2)).astype(kind)
        table = {"d": steps, "i": np.array([5, 0, 3]), "s": np.abs(floats(1, 6, 2)), "z": zero}
        options = {"constants": ("d", "s", "z"), "block_size": 16, "atol": 1e-6}
        check("com.microsoft::GatherBlockQuantized", table, **options)
        turned = {**table, "s": np.abs(floats(1, 1, 32)), "z": None}
        check("com.microsoft::GatherBlockQuantized", turned, quantize_axis=0, gather_axis=1, **options)
    b = draw.integers(0, 256, 64 * 5 // 2).astype(np.uint8)
    product = {"a": floats(1, 2, 3, 64), "b": b, "m": np.abs(floats(2, 20))}
    for kind in (0, 1):
        options = {"K": 64, "N": 5, "block_size": 16, "quant_type": kind, "constants": ("b", "m")}
        check("com.microsoft::MatMulBnb4", product, atol=1e-5, rtol=1e-5, **options)


def test_a_group_for_each_column():
    """``g_idx`` orders the columns by group: the same product with the columns in the order of the blocks."""
    b, scales, zero = packed(0, 4, 9, 2, 16)
    given = {"a": floats(1, 3, 32), "b": b, "s": scales, "z": zero}
    order = np.random.default_rng(2).permutation(32)
    options = {"K": 32, "N": 9, "bits": 4, "block_size": 16, "constants": ("b", "s", "z", "g")}
    plain, arrays = one_operator("com.microsoft::MatMulNBits", given, **options)
    nibbles = np.stack([b & 15, b >> 4], -1).reshape(9, 32)[:, order].astype(np.uint8)
    moved = (nibbles[:, ::2] | nibbles[:, 1::2] << 4).reshape(b.shape)
    ordered = {**given, "a": given["a"][:, order], "b": moved, "g": (order // 16).astype(np.int32)}
    grouped, turned = one_operator("com.microsoft::MatMulNBits", ordered, **options)
    expected = jaxrnn.load(plain)(arrays)["y0"]
    np.testing.assert_allclose(jaxrnn.load(grouped)(turned)["y0"], expected, atol=1e-5)


def network_of_4_bits():
    """A GRU behind a product with weights of 4 bits; `x` is ``[T, 1, 32]``."""
    b, scales, zero = packed(0, 4, 48, 2, 16)
    weights = {"W": 0.2 * floats(1, 1, 96, 48), "R": 0.2 * floats(2, 1, 96, 32), "axis": np.array([1])}
    nodes = [
        helper.make_node(
            "MatMulNBits", ["x", "b", "s", "z"], ["m"], domain="com.microsoft", K=32, N=48, bits=4, block_size=16
        ),
        helper.make_node("Relu", ["m"], ["r"]),
        helper.make_node("GRU", ["r", "W", "R"], ["Y"], hidden_size=32, name="gru"),
        helper.make_node("Squeeze", ["Y", "axis"], ["y"]),
    ]
    arrays = {"b": b, "s": scales, "z": zero, **weights}
    graph = graph_of(nodes, {"x": ["T", 1, 32]}, {"y": ["T", 1, 32]}, arrays)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def test_weights_of_4_bits_stay_so_in_a_stream(tmp_path):
    model = jaxrnn.load(network_of_4_bits())
    assert set(model.params) == {"W", "R", "s"}
    x = {"x": floats(3, 7, 1, 32)}
    np.testing.assert_allclose(model(x)["y"], peer_outputs(network_of_4_bits(), x)["y"], atol=2e-6)
    streamed = model.stream("T")
    for opset, kind in ((None, TensorProto.UINT4), (17, None)):
        path = tmp_path / f"{opset}.onnx"
        jaxrnn.export_onnx(streamed, model.params, path, opset=opset)
        assert verify_export(streamed, model.params, path).ok
        written = onnx.load(path)
        kinds = {each.data_type for each in written.graph.initializer if 32 * 48 in (np.prod(each.dims),)}
        assert kinds == {kind or TensorProto.FLOAT}
        assert written.opset_import[0].version == (opset or 21)


BATCH, TOKENS, HEADS, SIZE = 2, 5, 3, 4
MASKS = {
    "lengths": np.array([4, 5], np.int32),
    "ends and starts": np.array([4, 5, 1, 0], np.int32),
    "keys": np.array([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]], np.int32),
    "all hidden": np.zeros((2, 5), np.int32),
    "scores": (floats(9, BATCH, TOKENS, TOKENS) > -0.3).astype(np.int32),
}


def attended(operator, names, given, **options):
    """Compare an operator of attention, with absent inputs in between."""
    inputs = {name: given.get(name) for name in names.split()}
    check(f"com.microsoft::{operator}", inputs, num_heads=HEADS, atol=2e-6, rtol=1e-5, **options)


@pytest.mark.parametrize("mask", [None, *MASKS])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention_of_one_tensor(mask, causal):
    features = HEADS * SIZE
    one = {"x": floats(0, BATCH, TOKENS, 6), "w": floats(1, 6, 3 * features), "b": floats(2, 3 * features)}
    masked = {**one, "m": None if mask is None else MASKS[mask]}
    attended("Attention", "x w b m p ab", masked, unidirectional=causal)
    steps = {"x": integers(3, np.uint8, BATCH, TOKENS, 6), "w": integers(4, np.int8, 6, 3 * features), "b": one["b"]}
    steps |= {"sx": np.float32(0.02), "sw": np.float32(0.01), "zx": np.uint8(120), "zw": np.int8(2)}
    if mask in (None, "lengths"):
        quantised = {**steps, "m": masked["m"]}
        attended("QAttention", "x w b sx sw m zx zw", quantised, constants=("w", "zw"), unidirectional=causal)
    if mask is None:
        past = floats(5, 2, BATCH, HEADS, 3, SIZE)
        attended("Attention", "x w b m p ab", {**one, "p": past}, outputs=2, unidirectional=causal)
        wide = {"x": one["x"], "w": floats(6, 6, 4 * features), "b": floats(7, 4 * features)}
        wide["ab"] = floats(8, BATCH, HEADS, TOKENS, TOKENS)
        sizes = [features, features, 2 * features]
        attended("Attention", "x w b m p ab", wide, qkv_hidden_sizes=sizes, scale=0.3)


@pytest.mark.parametrize("mask", [None, *(name for name in MASKS if name != "ends and starts")])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention_of_three_tensors(mask, causal):
    features, names = HEADS * SIZE, "q k v b m ab pk pv"
    one = {name: floats(seed, BATCH, TOKENS, features) for seed, name in enumerate("qkv")}
    attended("MultiHeadAttention", names, {**one, "m": None if mask is None else MASKS[mask]}, unidirectional=causal)
    if mask is None:
        past = {"pk": floats(3, BATCH, HEADS, 3, SIZE), "pv": floats(4, BATCH, HEADS, 3, SIZE)}
        options = {"outputs": 3, "unidirectional": causal, "mask_filter_value": -3e4}
        attended("MultiHeadAttention", names, {**one, **past, "b": floats(5, 3 * features)}, **options)
        encoder = {"q": one["q"], "k": floats(6, BATCH, HEADS, 7, SIZE), "v": floats(7, BATCH, HEADS, 7, SIZE)}
        attended("MultiHeadAttention", names, {**encoder, "ab": floats(8, 1, 1, TOKENS, 7)}, scale=0.3)


def test_rotated_and_embedded_tokens():
    features, ids = HEADS * SIZE, np.random.default_rng(0).integers(0, 9, (BATCH, TOKENS))
    caches = {"c": floats(0, 20, SIZE // 2), "s": floats(1, 20, SIZE // 2)}
    for interleaved in (0, 1):
        whole = {"x": floats(2, BATCH, TOKENS, features), "p": np.array([3]), **caches}
        check("com.microsoft::RotaryEmbedding", whole, interleaved=interleaved, atol=1e-6)
        heads = {"x": floats(3, BATCH, HEADS, TOKENS, SIZE), "p": ids, **caches}
        check("com.microsoft::RotaryEmbedding", heads, interleaved=interleaved, atol=1e-6)
    wide = {"x": floats(4, BATCH, TOKENS, HEADS * 8), "p": np.array([3]), **caches}
    check("com.microsoft::RotaryEmbedding", wide, num_heads=HEADS, rotary_embedding_dim=4, atol=1e-6)
    ids = ids.astype(np.int32)
    tables = {"w": floats(5, 9, features), "p": floats(6, 12, features), "t": floats(7, 2, features)}
    embedded = {"i": ids, "s": ids % 2, **tables, "g": floats(8, features), "b": floats(9, features), "m": ids % 3}
    check("com.microsoft::EmbedLayerNormalization", {**embedded, "m": ids % 2}, outputs=3, atol=1e-5)
    alone = {**embedded, "s": None, "t": None, "m": None, "q": ids}
    check("com.microsoft::EmbedLayerNormalization", alone, outputs=2, epsilon=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("operator", "words"),
    [
        ("com.microsoft::GroupQueryAttention", "caches are buffers that a server shares"),
        ("com.microsoft::BiasSoftmax", "for GPUs only; optimise the file for the CPU"),
        ("com.microsoft.nchwc::Conv", "ORT_ENABLE_EXTENDED"),
    ],
)
def test_an_operator_that_is_left_out_has_a_reason(operator, words):
    domain, _, name = operator.partition("::")
    node = helper.make_node(name, ["x"], ["y"], domain=domain)
    graph = graph_of([node], {"x": [1, 2]}, {"y": [1, 2]}, {})
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)])
    check_refused(jaxrnn.UnsupportedError, words, jaxrnn.load, model)


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
