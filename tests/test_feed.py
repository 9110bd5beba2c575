"""A runner writes its inputs into memory that JAX reads: nothing that a caller or JAX keeps may change."""

from __future__ import annotations

import copy
import threading

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest

import jaxrnn

PULSE = 4
X = jax.ShapeDtypeStruct((20, 3), jnp.float32)


def pulses_of(seed, count=50):
    return np.random.default_rng(seed).standard_normal((count, PULSE, 3)).astype(np.float32)


def runner_of(function):
    return jaxrnn.Runner(jaxrnn.stream(lambda x: {"y": function(x["x"])}, {"x": X}, axes=0, pulse=PULSE))


def delayed(x):
    """Frames of two pulses ago: inputs are the state."""
    return jnp.pad(x, ((2 * PULSE, 0), (0, 0)))[: x.shape[0]]


@pytest.mark.parametrize("function", [lambda x: x, delayed, lambda x: x.reshape(-1, 3), lambda x: jnp.cumsum(x, 0)])
def test_results_of_earlier_calls_do_not_change(function):
    run, pulses = runner_of(function), pulses_of(0)
    outputs, states = [], []
    for pulse in pulses:
        given = pulse.copy()
        outputs.append(run({"x": given})["y"])
        given[:] = np.nan  # the caller's memory is the caller's
        states.append(run.state)
    assert run._feed._arrays is not None, "the memory is shared"
    expected = np.asarray(function(pulses.reshape(-1, 3)))
    found, delay = np.concatenate(outputs), len(pulses) * PULSE - len(expected)
    np.testing.assert_allclose(found, expected[: len(found) - delay], rtol=1e-5, atol=1e-5)
    again = runner_of(function)
    for pulse, state in zip(pulses, states, strict=True):
        again({"x": pulse})
        jax.tree.map(np.testing.assert_array_equal, dict(again.state), state)


def test_an_input_that_is_an_output_and_the_next_state():
    graph = """<ir_version: 9, opset_import: ["" : 18]>
    g (float[4] x, float[4] h) => (float[4] y, float[4] h_out, int32[4] z) {
        y = Identity (x)  h_out = Identity (x)  sum = Add (x, h)  z = Cast <to = 6> (sum)
    }"""
    model = jaxrnn.load(onnx.parser.parse_model(graph), state={"h": "h_out"})
    run, frames = jaxrnn.Runner(model), np.round(10 * pulses_of(3, 20)[:, :, 0])
    outputs = [run({"x": frame}) for frame in frames]
    np.testing.assert_array_equal([each["y"] for each in outputs], frames)
    np.testing.assert_array_equal([each["z"] for each in outputs[1:]], (frames[1:] + frames[:-1]).astype(np.int32))


def test_a_callback_keeps_its_arguments():
    kept = []

    def seen(array):
        kept.append(array)
        return np.asarray(array)

    def function(x):
        return jax.pure_callback(seen, jax.ShapeDtypeStruct((3,), x.dtype), x, vmap_method="sequential")

    run, pulses = runner_of(jax.vmap(function)), pulses_of(1, 10)
    for pulse in pulses:
        np.testing.assert_array_equal(run({"x": pulse})["y"], pulse)
    of_frames = [np.asarray(each) for each in kept[-PULSE * len(pulses) :]]
    np.testing.assert_array_equal(of_frames, pulses.reshape(-1, 3))


def test_copies_run_in_threads():
    run = runner_of(lambda x: jnp.cumsum(jnp.tanh(x), 0))
    run({"x": pulses_of(9)[0]})
    runs, found = [copy.copy(run) for _ in range(6)], {}

    def work(index):
        found[index] = np.concatenate([runs[index]({"x": pulse})["y"] for pulse in pulses_of(index, 200)])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index in range(6):
        alone = copy.copy(run)
        expected = np.concatenate([alone({"x": pulse})["y"] for pulse in pulses_of(index, 200)])
        np.testing.assert_array_equal(found[index], expected)


def test_other_shapes_and_types_are_refused_or_converted():
    run, pulses = runner_of(lambda x: jnp.cumsum(x, 0)), pulses_of(2)
    first = run({"x": pulses[0]})["y"]
    for wrong in (pulses[0][0], pulses[0][:1], pulses[0][None]):  # shapes that NumPy would broadcast
        with pytest.raises(jaxrnn.InputError, match="input x: float32"):
            run({"x": wrong})
    listed = run({"x": pulses[1].tolist()})["y"]
    strided = run({"x": pulses[2].astype(np.float64)[:, ::-1].astype(np.float32)[:, ::-1]})["y"]
    np.testing.assert_allclose(
        np.concatenate([first, listed, strided]), np.cumsum(pulses[:3].reshape(-1, 3), 0), rtol=1e-5, atol=1e-5
    )
