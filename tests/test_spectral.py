"""Fourier transforms and windows against NumPy, both engines, as streams, and their gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads
from node_models import by_reference, check, computed, invalid, one_node
from onnx import helper
from small_models import graph_of, make_model
from streaming_verifier import check_values
from tiers import of_tiers
from verifier import peer_outputs

import jaxrnn
from jaxrnn._jax.context import exact_types
from jaxrnn.onnx.operators.spectral import dft, stft


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def number(value):
    return np.array(value, np.int64)


@pytest.mark.thorough
@settings(max_examples=20, deadline=None)
@given(st.data())
def test_dft(data):
    """ONNX Runtime goes wrong where the inverse of one side is shorter than that side; the reference does not."""
    x = normal(2, data.draw(st.integers(1, 6)), data.draw(st.integers(2, 7)), data.draw(st.integers(1, 2)))
    x = x.astype(data.draw(st.sampled_from((np.float32, np.float64))))
    axis = data.draw(st.sampled_from((0, 1, 2, -2, -3)))
    inverse, onesided = data.draw(st.integers(0, 1)), data.draw(st.integers(0, 1))
    length = data.draw(st.one_of(st.none(), st.integers(1, 9)))
    if onesided and inverse:
        x = np.concatenate([x, x], -1)[..., :2]
        axis = 2
    elif onesided:
        x = x[..., :1]
    inputs = {"x": x, "n": None if length is None else number(length)}
    attributes = {"inverse": inverse, "onesided": onesided, "atol": 1e-5}
    found = check("DFT", {**inputs, "axis": number(axis)}, opset=20, engines=(by_reference,), **attributes)
    older = one_node("DFT", inputs, opset=17, axis=axis, inverse=inverse, onesided=onesided)
    np.testing.assert_array_equal(computed(*older), found)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_stft(data):
    length, step = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 6))
    onesided = data.draw(st.integers(0, 1))
    signal = normal(2, data.draw(st.integers(length, 30)), 1 if onesided else data.draw(st.integers(1, 2)))
    window = normal(length, seed=1) if data.draw(st.booleans()) else None
    said = number(length) if window is None or data.draw(st.booleans()) else None
    inputs = {"signal": signal, "step": number(step), "window": window, "length": said}
    check("STFT", inputs, opset=17, atol=1e-5, onesided=onesided)


def test_precision():
    """As precise as a transform in float32 can be: its error is that of its rounding, not that of a long sum."""
    signal, window = normal(1, 16000, 1), np.hanning(512).astype(np.float32)
    with exact_types():
        found = np.asarray(jax.jit(lambda x: stft(x, number(128), window))(signal))[0]
    frames = np.lib.stride_tricks.sliding_window_view(signal[0, :, 0].astype(np.float64), 512)[::128]
    expected = np.fft.rfft(frames * window)
    error = np.abs(found[..., 0] + 1j * found[..., 1] - expected)
    # log2(512) stages, each with a rounding of the values that grow to the norm of a frame.
    assert np.max(error) < 9 * np.finfo(np.float32).eps * np.max(np.linalg.norm(frames * window, axis=1))


def test_mirrored_halves_are_exact():
    x = normal(1, 9, 1)
    with exact_types():
        y = np.asarray(dft(x))[0]
    np.testing.assert_array_equal(y[1:], y[:0:-1] * [1, -1])


@pytest.mark.thorough
def test_no_frames_and_no_signals():
    """A signal shorter than a frame has none; neither engine has an answer."""
    with exact_types():
        assert stft(normal(2, 5, 1), number(2), None, number(8)).shape == (2, 0, 5, 2)
        assert stft(normal(0, 9, 1), number(2), None, number(4)).shape == (0, 3, 3, 2)
        assert dft(normal(0, 9, 1), onesided=1).shape == (0, 5, 2)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_types(dtype):
    x, window = normal(1, 32, 1).astype(dtype), np.hanning(8).astype(dtype)
    inputs = {"signal": x, "step": number(4), "window": window}
    check("STFT", inputs, opset=17, engines=(by_reference,), atol=float(ml_dtypes.finfo(dtype).eps) * 8)
    check("DFT", {"x": x}, opset=20, engines=(by_reference,), atol=float(ml_dtypes.finfo(dtype).eps) * 32)


@pytest.mark.thorough
def test_gradients():
    with jax.enable_x64(True):
        signal, window = normal(1, 14, 1, dtype=np.float64), normal(6, dtype=np.float64)
        for function, point in (
            (lambda x, w: stft(x, number(4), w), (signal, window)),
            (lambda x: dft(x, number(6), inverse=1, onesided=1), (normal(2, 5, 2, dtype=np.float64),)),
            (lambda x: dft(x, number(7)), (normal(2, 5, 1, dtype=np.float64),)),
        ):
            summed = jax.jit(lambda *point, f=function: jnp.sum(jnp.sin(f(*point))))
            check_grads(summed, point, order=1, modes=("rev", "fwd"), atol=1e-6, rtol=1e-6)


WINDOW = np.hanning(8).astype(np.float32)
STREAMS = {
    "frames that overlap": (lambda x: stft(x, number(4), WINDOW), (1, 1, 1), 4),
    "steps that do not divide a frame": (lambda x: stft(x, number(3), WINDOW), (1, 1, 1), 3),
    "complex": (lambda x: stft(x, number(2), None, number(4), onesided=0), (1, 1, 2), 2),
    "another axis": (lambda x: dft(x, number(8), number(2), onesided=1), (1, 1, 6, 1), 1),
    "its inverse": (lambda x: dft(x, None, number(2), onesided=1, inverse=1), (1, 1, 5, 2), 1),
}


@pytest.mark.parametrize(
    "name", of_tiers(STREAMS, {*STREAMS} - {"complex", "steps that do not divide a frame"}, ["complex"])
)
def test_streams(name):
    function, shape, pulse = STREAMS[name]
    streamed = check_values(function, shape, 1, lengths=(3, 8, 21), chunkings=((1, 2),))
    assert streamed.smallest_pulse == pulse


@pytest.mark.thorough
def test_a_model_streams():
    """From samples to the logarithm of mel bands, as files have it: windows and mel matrix from their operators."""
    node = helper.make_node
    constants = {"size": 32, "step": 16, "bands": 6, "rate": 8000, "last": [-1]}
    constants |= {"low": np.float32(100), "high": np.float32(3800)}
    nodes = [
        node("HannWindow", ["size"], ["window"]),
        node("STFT", ["signal", "step", "window"], ["spectrum"]),
        node("ReduceSumSquare", ["spectrum", "last"], ["power"], keepdims=0),
        node("MelWeightMatrix", ["bands", "size", "rate", "low", "high"], ["mel"]),
        node("MatMul", ["power", "mel"], ["energies"]),
    ]
    graph = graph_of(nodes, {"signal": [1, "S", 1]}, {"energies": None}, constants, "features")
    model = jaxrnn.load(make_model(graph, opset=18))
    assert not model.params
    x = {"signal": normal(1, 200, 1)}
    found = jax.jit(model.stream(pulse=48).run)(model.params, x)["energies"]
    expected = peer_outputs(model.proto, x)["energies"]
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.max(expected))


@pytest.mark.parametrize("operator", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("periodic", [0, 1])
def test_windows(operator, periodic):
    """Both engines divide 0 by 0 for a symmetric window of one sample; here it is its middle, 1."""
    for size, kind in ((2, 1), (15, 11), (15, 6), (16, 10), (301, 1)):
        atol = 1e-6 if kind != 10 else 1e-3
        check(operator, {"n": number(size)}, opset=17, kind=kind, output_datatype=kind, periodic=periodic, atol=atol)
    one = computed(*one_node(operator, {"n": number(1)}, opset=17, kind=1, periodic=0))
    np.testing.assert_array_equal(one, [1])


@pytest.mark.thorough
@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from((4, 8, 20)),
    st.sampled_from((64, 100, 257, 512)),
    st.sampled_from((8000, 16000)),
    st.sampled_from((0.0, 20.0, 125.0)),
    st.sampled_from((2000.0, 3800.0, 4000.0)),
)
def test_mel_weight_matrix(bands, length, rate, low, high):
    inputs = {"bands": number(bands), "length": number(length), "rate": number(rate)}
    inputs |= {"low": np.float32(low), "high": np.float32(high)}
    check("MelWeightMatrix", inputs, opset=17, constants=("low", "high"), kind=1)


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "message"),
    [
        ("DFT", {"x": normal(1, 4, 3)}, {}, "size 1 or 2|must be 1 or 2"),
        ("DFT", {"x": normal(1, 4, 1), "n": None, "axis": number(2)}, {}, "not transformed|axis"),
        ("DFT", {"x": normal(1, 4, 1), "n": number(0)}, {}, "at least 1"),
        ("DFT", {"x": normal(1, 4, 2)}, {"onesided": 1}, "real"),
        ("DFT", {"x": normal(1, 4, 1)}, {"onesided": 1, "inverse": 1}, "complex"),
        ("STFT", {"x": normal(1, 9, 1), "step": number(0), "w": WINDOW}, {}, "frame_step"),
        ("STFT", {"x": normal(1, 9, 1), "step": number(2), "w": WINDOW, "n": number(7)}, {}, "must be equal|length"),
        ("STFT", {"x": normal(1, 9, 2), "step": number(2), "w": WINDOW}, {}, "onesided"),
        ("HannWindow", {"n": number(-1)}, {}, "negative|size"),
    ],
)
def test_what_does_not_fit_is_refused(operator, inputs, attributes, message):
    error = invalid(operator, inputs, opset=20, kind=1, **attributes)
    assert any(part in error for part in message.split("|")), error


def test_all_of_time_is_not_transformed():
    with pytest.raises(ValueError, match="dft_length"):
        jaxrnn.stream(lambda x: dft(x, None, number(1)), normal(1, 4, 1), axes=1)
