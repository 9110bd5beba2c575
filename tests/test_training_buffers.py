"""Parameters that are buffers: found by their role or by what they are, and nothing that is trained taken for one."""

from __future__ import annotations

import re
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import make_model
from training_cases import flat_fit, same

import jaxrnn
from jaxrnn.demo import PACKAGED
from jaxrnn.training.parameters import kind_of, patterns_for, untrained_buffers

WINDOWS = {
    "rectangular": np.ones,
    "hann": np.hanning,
    "periodic": lambda size: np.hanning(size + 1)[:-1],
    "hamming": np.hamming,
    "blackman": np.blackman,
    "root": lambda size: np.sqrt(np.hanning(size)),
    "sine": lambda size: np.sin(np.pi * (np.arange(size) + 0.5) / size),
}


def fourier(bins, size, window):
    """Cosines, then sines, ``[2 * (bins // 2 + 1), size]``."""
    angles = 2 * np.pi * np.arange(bins // 2 + 1)[:, None] * np.arange(size) / bins
    return np.concatenate([np.cos(angles), -np.sin(angles)]) * WINDOWS[window](size)


def mel(bands, bins):
    """Triangles that overlap, evenly spaced in mel, ``[bands, bins]``."""
    edges = 700 * (10 ** (np.linspace(0, 2840, bands + 2) / 2595) - 1)
    places = np.linspace(0, 8000, bins)
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    return np.maximum(0, np.minimum((places - low) / (middle - low), (high - places) / (high - middle)))


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("bins", "size"), [(64, 64), (512, 400)])
def test_a_fourier_basis_is_one_in_every_layout(window, dtype, bins, size):
    """A convolution's kernel or a matrix, cosines and sines apart, one after the other or in turn."""
    basis = fourier(bins, size, window).astype(dtype)
    cosines, sines = np.split(basis, 2)
    for array in (basis, basis[:, None], basis.T, cosines, sines, np.stack([cosines, sines], 1).reshape(-1, size)):
        assert kind_of(array) == "a Fourier basis"
    if dtype == np.float32 and window != "rectangular":
        assert kind_of(WINDOWS[window](size).astype(dtype)) == "a window"


@pytest.mark.parametrize(("bands", "bins"), [(40, 257), (80, 201), (128, 257)])
def test_a_filterbank(bands, bins):
    assert kind_of(mel(bands, bins).astype(np.float32)) == "a fixed filterbank"
    assert kind_of(mel(bands, bins).T.astype(np.float32)) == "a fixed filterbank"


def test_what_is_trained_is_no_buffer():
    """Weights as layers begin with them, pruned ones, scales, an embedding of positions, kernels of a few samples."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        shape = rng.integers(1, 90, 2)
        weights = rng.standard_normal(shape)
        noise = 0.02 * rng.standard_normal((66, 64))
        for array in (
            weights,
            weights * (rng.random(shape) < 0.1),
            np.maximum(weights, 0),
            np.eye(*shape),
            np.ones(shape),
            np.zeros(shape),
            weights[0],
            np.abs(weights[:, 0]),
            rng.uniform(0, 1, shape[:1]),
            fourier(64, 64, "hann") + noise * np.abs(rng.standard_normal()) * 10 + noise,
        ):
            assert kind_of(array.astype(np.float32)) is None
    for shape in ((), (0,), (3, 3, 3), (0, 40)):
        assert kind_of(np.zeros(shape, np.float32)) is None
    assert kind_of(np.full((40, 40), np.nan, np.float32)) is None


@pytest.mark.thorough
def test_no_weight_of_real_networks_is_taken_for_a_buffer(models):
    expected = {
        "silero_vad": (["*_buffer"], {"sr": 16_000}),
        "silero_vad_16k_op15": (["model.stft.forward_basis_buffer"], {"sr": 16_000}),
        "gtcrn": (["*_mean", "*_var", "onnx::MatMul_3414", "onnx::MatMul_3932"], {}),
        **{name: ([], {}) for name in ("dtln_1", "dtln_2", "keyword_net", "predictor_net", "filter_net", "ocr_net")},
    }
    for name, (patterns, static) in expected.items():
        model = jaxrnn.load(models / f"{name}.onnx", static=static)
        names = list(model.params)
        assert patterns_for(untrained_buffers(model, model.params, names), names) == patterns, name
    packaged = jaxrnn.load(PACKAGED)
    assert untrained_buffers(packaged, packaged.params, list(packaged.params)) == {}


def normalised_model(own=False):
    """``x[batch, 64]`` by a windowed Fourier basis, normalised by running statistics inside of a branch."""
    rng, info = np.random.default_rng(0), helper.make_tensor_value_info
    constants = {"basis": fourier(64, 64, "hann").T, "scale": np.ones(66), "bias": np.zeros(66), "P": np.ones((66, 1))}
    constants |= {"norm.mean": rng.standard_normal(66), "norm.var": rng.uniform(1, 2, 66)}
    statistics = ["scale", "bias", "norm.mean", "norm.var"]
    branches = {
        f"{branch}_branch": helper.make_graph(
            [helper.make_node(operator, inputs, [branch])], branch, [], [info(branch, TensorProto.FLOAT, None)]
        )
        for branch, operator, inputs in (
            ("then", "BatchNormalization", ["spectrum", *statistics]),
            ("else", "Identity", ["spectrum"]),
        )
    }
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "basis"], ["spectrum"]),
            helper.make_node("If", ["normalised"], ["scaled"], **branches),
            helper.make_node("MatMul", ["scaled", "P"], ["y"]),
        ],
        "normalised",
        [info("x", TensorProto.FLOAT, ["batch", 64])],
        [info("y", TensorProto.FLOAT, ["batch", 1])],
        [
            numpy_helper.from_array(np.array(True), "normalised"),
            *(numpy_helper.from_array(array.astype(np.float32), name) for name, array in constants.items()),
        ],
    )
    return jaxrnn.load(make_model(graph))


def test_a_training_warns_of_buffers_and_how_to_freeze_them():
    """The options that it names, to the letter, freeze them; so does not naming them; a name in full trains one."""
    model = normalised_model()
    data = [{"x": np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32)}]

    def run(**options):
        return flat_fit(model, data, lambda o, e, mask: jnp.mean(jnp.square(o["y"])), steps=1, batch_size=1, **options)

    said = (
        r"'basis' \(a Fourier basis\), 'norm.mean' \(running statistics\), 'norm.var' \(running statistics\)\. To keep"
    )
    with pytest.warns(UserWarning, match=said) as caught:
        run()
    assert [warning.filename for warning in caught] == [flat_fit.__code__.co_filename]
    (freeze,) = re.findall(r"Optimizer\(freeze=(\[.*?\])\)", str(caught[0].message))
    with pytest.warns(UserWarning, match=re.escape("freeze=['scale', ")):
        run(freeze="scale")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = {name: value for name, value in model.params.items() if name not in ("scale", "bias", "P")}
        for options in ({"freeze": eval(freeze)}, {"train": ["scale", "bias", "P"]}):
            fitted = run(**options)
            assert same({name: fitted.params[name] for name in kept}, kept)
        fitted = run(train=["*", *kept])
        assert not any(np.array_equal(fitted.params[name], value) for name, value in kept.items())
