"""How a training infers its mode, its time axes and its buffers, and that each refusal says what to write instead."""

from __future__ import annotations

import re
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from onnx import helper
from small_models import graph_of, make_model
from training_cases import examples, flat_fit, mean_square, recurrent_model, same

import jaxrnn
from jaxrnn._files.readers import for_reader
from jaxrnn.demo import PACKAGED
from jaxrnn.training import Sequences, Validation, fit
from jaxrnn.training.layout import make_layout
from jaxrnn.training.parameters import kind_of, patterns_for, untrained_buffers

#: Samples that a step of `window_model` takes: a few more or less make one frame, too, but not several times as many.
WINDOW = 40


def window_model():
    """A detector of windows of samples, ``x[batch, samples]``, both open: a strided convolution, and a recurrence."""
    rng = np.random.default_rng(0)
    shapes = {"kernel": (4, 1, 32), "W": (4, 4), "R": (4, 4), "P": (4, 1)}
    weights = {name: 0.5 * rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    graph = graph_of(
        [
            helper.make_node("Unsqueeze", ["x", "one"], ["channels"]),
            helper.make_node("Conv", ["channels", "kernel"], ["frames"], strides=[32]),
            helper.make_node("Squeeze", ["frames", "two"], ["frame"]),
            helper.make_node("MatMul", ["frame", "W"], ["projected"]),
            helper.make_node("MatMul", ["h", "R"], ["carried"]),
            helper.make_node("Add", ["projected", "carried"], ["sum"]),
            helper.make_node("Tanh", ["sum"], ["h_out"]),
            helper.make_node("MatMul", ["h_out", "P"], ["y"]),
        ],
        {"x": ["batch", "sequence"], "h": ["batch", 4]},
        {"y": ["batch", 1], "h_out": ["batch", 4]},
        weights | {"one": np.array([1]), "two": np.array([2])},
    )
    return jaxrnn.load(make_model(graph), state={"h": "h_out"})


def squares(outputs, example, mask):
    return jnp.mean(jnp.square(outputs["y"] - 1))


def draw(*shape):
    return {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}


WINDOWS, SEQUENCES, STEPS = window_model(), recurrent_model("time"), recurrent_model()
#: A model, an example, what a caller says; the mode and the time axes that are inferred, and why.
INFERRED = {
    "windows": (WINDOWS, draw(6, 1, WINDOW), {}, "scan", {"x": 0}, "'x' has one axis more than in a step"),
    "windows, axis": (WINDOWS, draw(1, 6, WINDOW), {"time_axis": 1}, "scan", {"x": 1}, "has one axis more"),
    "a window": (WINDOWS, draw(1, WINDOW), {}, "step", None, "each example has the shape of one step"),
    "sequences": (SEQUENCES, examples([5])[0], {}, "step", {"x": 1}, "takes any number of frames along 'time'"),
    "frames of sequences": (SEQUENCES, draw(6, 1, 1, 3), {}, "scan", {"x": 0}, "'x' has one axis more"),
    "frames": (STEPS, draw(6, 1, 1, 3), {}, "scan", {"x": 0}, "'x' has one axis more"),
    "joined frames, axis": (STEPS, draw(1, 6, 3), {"time_axis": 1}, "scan", {"x": 1, "target": 1}, "takes one frame"),
    "joined frames": (STEPS, draw(1, 6, 3), {}, "scan", {"x": 1}, "takes one frame"),
    "one frame": (STEPS, draw(1, 1, 3), {}, "scan", {"x": 0}, "takes one frame"),
}


@pytest.mark.parametrize("case", INFERRED)
def test_what_is_inferred(case):
    model, example, options, mode, axes, reason = INFERRED[case]
    layout = make_layout(model, Sequences(**options), "it", example)
    used = layout.used_sequences
    assert (used.mode, used.time_axis) == (mode, {k: v for k, v in axes.items() if k in example} if axes else None)
    assert reason in layout.reason
    assert make_layout(model, used, "it", example).axes == layout.axes
    assert not make_layout(model, used, "it", example).reason


def test_a_training_says_what_it_inferred(caplog, capsys):
    """In a line of its log, with its progress, and in its result; said again, it is the same training."""
    data, options = [draw(6, 1, WINDOW)], {"steps": 1, "batch_size": 1}
    with caplog.at_level("INFO", logger="jaxrnn.training"):
        fitted = fit(WINDOWS, data, squares, **options, progress=True)
    (said,) = [record.getMessage() for record in caplog.records if record.name == "jaxrnn.training"]
    assert "in mode 'scan', time along x=0, because 'x' has one axis more than in a step; mode and" in said
    assert said in capsys.readouterr().err
    caplog.clear()
    again = fit(WINDOWS, data, squares, **options, sequences=fitted.sequences, progress=False)
    assert same(fitted.params, again.params)
    assert not caplog.records
    assert capsys.readouterr().err == ""
    assert len(repr(fitted)) < 200
    assert len(repr(Validation(data * 50, every=3))) < 200
    assert "mode='scan'" in repr(fitted)


@pytest.mark.thorough
def test_a_window_alone_is_one_step():
    """From the state before the first frame, as a scan over one frame."""
    alone = flat_fit(WINDOWS, [draw(1, WINDOW)], squares, steps=1, batch_size=1)
    framed = flat_fit(WINDOWS, [draw(1, 1, WINDOW)], squares, steps=1, batch_size=1)
    for name, value in framed.params.items():
        np.testing.assert_allclose(alone.params[name], value, rtol=0, atol=1e-6)


def test_a_file_of_settings_is_answered_in_its_own_words():
    with pytest.raises(jaxrnn.InputError) as caught:
        make_layout(SEQUENCES, Sequences(), "the first", examples([5])[0]).read("another", examples([6])[0])
    (line,) = re.findall("sequences: .*", for_reader(str(caught.value), "settings"))
    assert yaml.safe_load(line) == {"sequences": {"mode": "step", "time_axis": {"x": 1, "target": 1}}}


def frames_of(array):
    """Samples, or frames where the batch is, with an axis for frames in front."""
    return {"x": array["x"].reshape(-1, 1, WINDOW)}


def unchanged(example):
    return example


#: A model, examples and options that are refused; what the refusal says, and what it asks to do with the examples.
REFUSED = {
    "frames, apply": (WINDOWS, [draw(6, 1, WINDOW)], {"mode": "apply"}, "in mode 'apply' examples hold the", unchanged),
    "frames, step": (WINDOWS, [draw(6, 1, WINDOW)], {"mode": "step"}, "one axis more than mode 'step'", unchanged),
    "window, scan": (WINDOWS, [draw(1, WINDOW)], {"mode": "scan"}, "'scan' takes a recording", unchanged),
    "window, frames": (WINDOWS, [draw(1, WINDOW)], {"mode": "scan"}, r"\[frames, 1, 40\]", frames_of),
    "samples": (WINDOWS, [draw(1, 6 * WINDOW)], {}, "the example is not a step of", frames_of),
    "samples, axis": (WINDOWS, [draw(1, 6 * WINDOW)], {"time_axis": 1}, "the example is not a step of", frames_of),
    "samples, step": (WINDOWS, [draw(1, 6 * WINDOW)], {"mode": "step"}, "the example is not a step of", frames_of),
    "rows": (WINDOWS, [draw(6, WINDOW)], {}, "has the size 6 where its batch 'batch' is", frames_of),
    "rows of frames": (WINDOWS, [draw(3, 2, WINDOW)], {}, "has the size 2 where its batch 'batch' is", frames_of),
    "one window, axis": (WINDOWS, [draw(1, WINDOW)], {"time_axis": 1}, "without time_axis, each example", unchanged),
    "lengths": (WINDOWS, [draw(6, 1, WINDOW), draw(4, 1, WINDOW)], {}, "to train on unequal lengths", unchanged),
    "lengths, step": (SEQUENCES, examples([5, 6]), {}, "to train on unequal lengths", unchanged),
    "lengths, frames": (STEPS, examples([5, 6], stacked=True), {}, "to train on unequal lengths", unchanged),
    "axis": (SEQUENCES, examples([5]), {"time_axis": 2}, "time is axis 1 in mode 'step'", unchanged),
}


def read(model, data, options):
    first, *others = data
    layout = make_layout(model, Sequences(**options), "the first", first)
    for other in others:
        layout.read("another", other)


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_refusal_asks_for_works(case):
    """To the letter: the options that it names, or those without what it says to leave out."""
    model, data, options, said, change = REFUSED[case]
    with pytest.raises(jaxrnn.InputError, match=said) as caught:
        read(model, data, options)
    text, data = str(caught.value), [change(example) for example in data]
    named = re.findall(r"sequences=Sequences\(([^()]*)\)", text)
    mended = [] if change is unchanged else [options]
    mended += [eval(f"dict({each})") for each in named if "..." not in each]
    mended += [{**options, "time_axis": eval(each)} for each in re.findall(r": time_axis=({.*})$", text)]
    if "leave mode out" in text:
        mended.append({})
    if "without time_axis" in text:
        mended.append({key: value for key, value in options.items() if key != "time_axis"})
    worked = []
    for each in mended:
        try:
            read(model, data, each)
        except jaxrnn.InputError:
            continue
        worked.append(each)
    assert worked, (text, mended)
    if case in ("lengths", "axis"):
        loss = squares if model is WINDOWS else mean_square
        assert flat_fit(model, data, loss, steps=1, batch_size=1, **worked[0]).step == 1


KINDS_OF_WINDOW = {
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
    return np.concatenate([np.cos(angles), -np.sin(angles)]) * KINDS_OF_WINDOW[window](size)


def mel(bands, bins):
    """Triangles that overlap, evenly spaced in mel, ``[bands, bins]``."""
    edges = 700 * (10 ** (np.linspace(0, 2840, bands + 2) / 2595) - 1)
    places = np.linspace(0, 8000, bins)
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    return np.maximum(0, np.minimum((places - low) / (middle - low), (high - places) / (high - middle)))


@pytest.mark.parametrize("window", KINDS_OF_WINDOW)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("bins", "size"), [(64, 64), (512, 400)])
def test_a_fourier_basis_is_one_in_every_layout(window, dtype, bins, size):
    """A convolution's kernel or a matrix, cosines and sines apart, one after the other or in turn."""
    basis = fourier(bins, size, window).astype(dtype)
    cosines, sines = np.split(basis, 2)
    for array in (basis, basis[:, None], basis.T, cosines, sines, np.stack([cosines, sines], 1).reshape(-1, size)):
        assert kind_of(array) == "a Fourier basis"
    if dtype == np.float32 and window != "rectangular":
        assert kind_of(KINDS_OF_WINDOW[window](size).astype(dtype)) == "a window"


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
    rng = np.random.default_rng(0)
    constants = {"basis": fourier(64, 64, "hann").T, "scale": np.ones(66), "bias": np.zeros(66), "P": np.ones((66, 1))}
    constants |= {"norm.mean": rng.standard_normal(66), "norm.var": rng.uniform(1, 2, 66)}
    statistics = ["scale", "bias", "norm.mean", "norm.var"]
    branches = {
        f"{branch}_branch": graph_of([helper.make_node(operator, inputs, [branch])], {}, {branch: None}, name=branch)
        for branch, operator, inputs in (
            ("then", "BatchNormalization", ["spectrum", *statistics]),
            ("else", "Identity", ["spectrum"]),
        )
    }
    nodes = [
        helper.make_node("MatMul", ["x", "basis"], ["spectrum"]),
        helper.make_node("If", ["normalised"], ["scaled"], **branches),
        helper.make_node("MatMul", ["scaled", "P"], ["y"]),
    ]
    constants = {name: array.astype(np.float32) for name, array in constants.items()} | {"normalised": np.array(True)}
    return jaxrnn.load(make_model(graph_of(nodes, {"x": ["batch", 64]}, {"y": ["batch", 1]}, constants)))


@pytest.mark.thorough
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
