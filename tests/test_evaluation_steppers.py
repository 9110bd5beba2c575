"""Evaluations of any stepper: a model in steps, a streamed function, a compiled file, and an object of one's own."""

from __future__ import annotations

import copy
import dataclasses
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import soundfile
from evaluation_cases import through
from onnx import TensorProto, helper
from quick_compiling import QUICK_COMPILER
from refusals import check_refused
from small_models import WIDTH, graph_of, make_model, step_model
from test_stepper import FLOAT, Delayed, Smoother

import jaxrnn
from jaxrnn.audio import Frames, Network, Waveform
from jaxrnn.errors import InputError
from jaxrnn.evaluation import Evaluation, Framed, Offline, from_folder
from jaxrnn.steps import ArraySpec, Flushed, nothing_left

SIZE, HOP, PULSE = WIDTH, 2, 3


def following(gain, x):
    """A recurrence over float32[time, 4], which a stage can be: every frame at once."""
    return {"y": jnp.cumsum(jnp.tanh(gain["a"] * x["x"]), axis=0), "last": x["x"].sum(0)}


def looking_ahead(gain, x):
    """Two frames of look-ahead, and every second of their sums."""
    padded = jnp.pad(x["x"], ((0, 2), (0, 0)))
    late = gain["a"] * x["x"] + padded[2:]
    return {"late": late, "halves": jnp.cumsum(late, axis=0)[::2]}


GAIN = {"a": np.linspace(0.5, 1, WIDTH, dtype=np.float32)}
EXAMPLE = {"x": jax.ShapeDtypeStruct((10, WIDTH), FLOAT)}


def streamed(function, pulse=PULSE):
    return jaxrnn.stream(function, EXAMPLE, axes=0, params=GAIN, pulse=pulse)


class Fading:
    """A hand-written stream in pulses of 2, each frame with half of the one before."""

    spec = dataclasses.replace(
        Delayed.spec,
        inputs=(ArraySpec("x", FLOAT, (2, WIDTH), time_axis=0),),
        outputs=(dataclasses.replace(Delayed.spec.outputs[1], shape=(2, WIDTH), delay=0),),
        state=(dataclasses.replace(Delayed.spec.state[0], shape=(WIDTH,)),),
    )

    def init(self, batch=None, *, params=None, constants=None):
        assert batch is None
        return {"last": jnp.zeros(WIDTH, jnp.float32)}

    def step(self, params, state, inputs):
        x = inputs["x"]
        return {"y": x + 0.5 * jnp.concatenate([state["last"][None], x[:-1]])}, {"last": x[-1]}

    def flush(self, params, state, tail=None, valid=None):
        assert tail is not None
        return Flushed(self.step(params, state, tail)[0], {"y": jnp.asarray(valid, jnp.int32)})


class Same(Fading):
    """Each frame as it is."""

    def step(self, params, state, inputs):
        return {"y": inputs["x"]}, state


def compiled(stepper, params, folder):
    path = folder / f"{len(list(folder.iterdir()))}.jaxrnn"
    jaxrnn.save_compiled(stepper, path, params=params)
    return jaxrnn.load_compiled(path)


def model_outputs(x):
    model = step_model()
    return {"y": np.asarray(model.run(model.params, {"x": x[:, None]})["y"])[:, 0]}


def faded(x):
    return {"y": x + 0.5 * np.concatenate([np.zeros((1, WIDTH), np.float32), x[:-1]])}


def plain(function):
    return lambda x: {name: np.asarray(y) for name, y in function(GAIN, {"x": x}).items() if y.ndim > 1}


def steppers(folder):
    """By name, steppers with parameters, and what each gives on a whole recording; the first group can be a stage."""
    model = step_model()
    at_once = {
        "model": (model, None, model_outputs),
        "compiled model": (compiled(model, None, folder), None, model_outputs),
        "stream": (streamed(following), GAIN, plain(following)),
        "packed stream": (streamed(following), streamed(following).pack(GAIN), plain(following)),
        "compiled stream": (compiled(streamed(following), GAIN, folder), None, plain(following)),
        "own": (Fading(), None, faded),
    }
    ahead = {
        "late stream": (streamed(looking_ahead, 4), GAIN, plain(looking_ahead)),
        "late file": (compiled(streamed(looking_ahead, 4), GAIN, folder), None, plain(looking_ahead)),
    }
    return at_once, ahead


def recordings(lengths, *frame):
    rng = np.random.default_rng(0)
    return [{"samples": rng.standard_normal((length, *frame)).astype(np.float32)} for length in lengths]


def equal(found, expected, said=""):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5, err_msg=f"{said} {name}")


@pytest.mark.nightly
def test_whole_recordings(tmp_path):
    """Recordings that end in the first frame, inside a pulse, with a pulse, with a chunk, and after it."""
    at_once, ahead = steppers(tmp_path)
    given = recordings((1, 7, 12, 24, 26, 36), WIDTH)
    for name, (stepper, params, expected) in (at_once | ahead).items():
        for x, found in zip(given, through(Offline(stepper, params), given, 12), strict=True):
            equal(found, expected(x["samples"]), name)


def framed(*networks, size=SIZE, hop=HOP, window="boxcar", synthesis="sum"):
    return Framed(Waveform(networks, Frames(size, hop, window, synthesis=synthesis)))


@pytest.mark.nightly
def test_networks_over_frames(tmp_path):
    """Each as the only network over frames, whose result is that of the plain function on all frames."""
    at_once, _ = steppers(tmp_path)
    given = recordings((1, 13, 24, 48, 50))
    for stepper, params, expected in at_once.values():
        system = framed(Network(stepper, params=params, gives="result", output="y"))
        assert system.multiple == HOP * stepper.spec.pulse
        for x, found in zip(given, through(system, given, 24), strict=True):
            equal(found, {"y": expected(frames_of(x["samples"]))["y"]})


@pytest.mark.thorough
def test_networks_over_frames_in_a_row(tmp_path):
    stream = compiled(streamed(following), GAIN, tmp_path)
    system = framed(Network(Fading()), Network(stream, gives="result", output="y"))
    assert system.multiple == HOP * 6
    (found,) = through(system, recordings((61,)), 24)
    x = frames_of(recordings((61,))[0]["samples"])
    np.testing.assert_allclose(found["y"], plain(following)(faded(x)["y"])["y"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "hop", "window"), [(WIDTH, 2, "hann"), (WIDTH, 2, "sqrt_hann"), (WIDTH, 1, "bartlett")]
)
def test_frames_restore_sound(size, hop, window):
    """Also with a window whose squares do not add up to a constant."""
    system = framed(Network(Same()), size=size, hop=hop, window=window, synthesis="window")
    given = recordings((1, 5, 24, 37))
    for x, found in zip(given, through(system, given, 12), strict=True):
        equal(found, {"audio": x["samples"]})


def counting():
    """The running sum of whole numbers of 64 bits."""
    node = helper.make_node("CumSum", ["x", "zero"], ["y"])
    graph = graph_of([node], {"x": ["S"]}, {"y": ["S"]}, {"zero": np.array(0)}, kind=TensorProto.INT64)
    model = jaxrnn.load(make_model(graph))
    return Offline(model.stream(pulse=2), model.params)


def test_integers_of_64_bits():
    """Whatever the caller's JAX makes of them."""
    system, x = counting(), 2**40 + np.arange(13)
    (found,) = through(system, [{"samples": x}], 4)
    np.testing.assert_array_equal(found["y"], np.cumsum(x))
    with pytest.raises(InputError, match=r"input x: int64\[2\] takes no float32 of a recording"):
        through(system, recordings((4,)), 4)


@pytest.mark.nightly
def test_integers_of_64_bits_on_several_devices():
    script = """
import numpy as np
import jax
from jaxrnn.evaluation.evaluator import sharded
from test_evaluation_steppers import counting

system, x = counting(), 2**40 + np.arange(32).reshape(8, 4)
assert jax.local_device_count() == 4
pieces, _ = sharded(system, 8, True)(system.start(8), {"samples": x}, np.full(8, 4, np.int32))
np.testing.assert_array_equal(pieces["y"].values[:, :4], np.cumsum(x, 1))
"""
    flags = f"{QUICK_COMPILER} --xla_force_host_platform_device_count=4"
    environment = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)


def frames_of(samples):
    padded = np.pad(samples, (SIZE - HOP, SIZE))
    return np.stack([padded[at : at + SIZE] for at in range(0, len(samples), HOP)])


def test_the_identity_is_that_of_the_program_and_the_numbers(tmp_path):
    """Equal for what is loaded or traced again; another for another program, other weights, another file."""
    other = {"a": GAIN["a"] + 1}
    file = compiled(streamed(following), GAIN, tmp_path)
    for same, again, *others in (
        tuple(map(Offline, (step_model(), step_model(), step_model(seed=1), step_model(transposed=True)))),
        (
            Offline(streamed(following), GAIN),
            Offline(streamed(following), copy.deepcopy(GAIN)),
            Offline(streamed(following), other),
            Offline(streamed(looking_ahead, 4), GAIN),
        ),
        (Offline(file), Offline(copy.copy(file)), Offline(compiled(streamed(following), other, tmp_path))),
        (Offline(Smoother()), Offline(Smoother()), Offline(Fading()), Offline(Smoother(), {"keep": jnp.float32(0.5)})),
    ):
        assert same.identity == again.identity
        assert all(same.identity != each.identity for each in others)


class Losing(Fading):
    """A stream whose flush gives nothing, although frames may be left."""

    def flush(self, params, state, tail=None, valid=None):
        return nothing_left(self.spec, tail, valid)


class Scaled(Smoother):
    """A stream with a constant."""

    spec = dataclasses.replace(Delayed.spec, inputs=(*Delayed.spec.inputs, ArraySpec("gain", FLOAT, (2,))))


def test_what_does_not_fit_is_refused():
    check_refused(InputError, "has no parameters of its own: give params", Offline, streamed(following))
    with pytest.raises(InputError, match=r"input gain: float32\[2\] has no time axis, and recordings have no such"):
        Offline(Scaled())
    with pytest.raises(InputError, match=r"'late' comes 2 frame\(s\) late.*Offline"):
        framed(Network(streamed(looking_ahead, 4), params=GAIN, gives="result", output="late"))
    last = Network(streamed(following), params=GAIN, gives="result", output="last")
    check_refused(InputError, "'last' has no frames of time", framed, last)
    check_refused(InputError, "does not fit frames of 8 samples", framed, Network(Fading()), size=8)
    with pytest.raises(InputError, match="do not reconstruct: sample 0 of each hop"):
        framed(Network(Fading()), hop=SIZE, window="hann", synthesis="window")
    centred = Waveform(Network(Same()), Frames(SIZE, HOP, padding="zeros"))
    check_refused(InputError, "run this waveform as its stream, Offline", Framed, centred)
    check_refused(
        InputError,
        "has a time axis: give the model itself",
        Waveform(Network(Same()), Frames(SIZE, HOP)),
        {"samples": np.zeros(8, np.float32)},
    )
    twice = [Network(Same(), gives="result"), Network(Same(), gives="result")]
    check_refused(InputError, "outputs have different names, not y, y", framed, *twice)
    with pytest.raises(InputError, match="its flush gives nothing of 'y', of which frames may be left"):
        through(Offline(Losing()), recordings((3,), WIDTH), 4)


def test_outputs_that_are_no_sound_are_arrays(tmp_path):
    """One number for each sample does not make a sound: it is a sound if the numbers are floats, of any precision."""

    def outputs_of(x):
        x = x["samples"]
        return {
            "on": x > 0,
            "class": (9 * x).astype(int),
            "pair": jax.lax.complex(x, -x),
            "half": x.astype(jnp.float16),
        }

    samples = np.linspace(-1, 1, 50, dtype=np.float32)
    np.save(tmp_path / "a.npy", samples)
    stepper = jaxrnn.stream(outputs_of, {"samples": samples}, axes=0)
    evaluation = Evaluation(Offline(stepper), from_folder(tmp_path), [], tmp_path / "out", batch=1, keep=True)
    evaluation.run()
    found = {path.name: path for path in (tmp_path / "out" / "outputs").iterdir()}
    expected = {name: np.asarray(array) for name, array in outputs_of({"samples": samples}).items()}
    np.testing.assert_array_equal(soundfile.read(found.pop("a.half.wav"))[0], expected.pop("half"))
    assert found.keys() == {f"a.{name}.npy" for name in expected}
    for name, array in expected.items():
        np.testing.assert_array_equal(np.load(found[f"a.{name}.npy"]), array)
