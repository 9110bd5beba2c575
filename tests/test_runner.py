"""One live stream: as steps one by one, whatever it is given; and errors that change nothing."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import of_tiers

import jaxrnn
from jaxrnn import Runner


def draws(infos, seed, **sizes):
    rng = np.random.default_rng(seed)
    return {
        info.name: rng.uniform(
            0, 1, [sizes.get(size, 1) if isinstance(size, str) else size for size in info.shape]
        ).astype(info.dtype)
        for info in infos
    }


NETWORKS = [
    ("dtln_1", {}),
    ("dtln_2", {}),
    ("gtcrn", {}),
    ("predictor_net", {}),
    ("silero_vad", {"static": {"sr": 16000}}),
]


class Watched:
    """A stream whose steps list their threads."""

    def __init__(self, stream):
        self._stream, self.spec, self.threads = stream, stream.spec, []
        self.init, self.flush = stream.init, stream.flush

    def step(self, params, state, inputs):
        outputs, state = self._stream.step(params, state, inputs)
        jax.debug.callback(lambda _: self.threads.append(threading.get_ident()), outputs["y"])
        return outputs, state


def test_a_step_runs_in_the_calling_thread(models, tmp_path):
    def network(arrays):  # JAX runs smaller programs in the calling thread anyway
        return {"y": arrays["x"] @ jnp.full((256, 256), 1 / 256)}

    x = np.ones((1, 256), np.float32)
    stream = Watched(jaxrnn.stream(network, {"x": jax.ShapeDtypeStruct((8, 256), np.float32)}, axes={"x": 0}))
    run = Runner(stream)
    for _ in range(3):
        np.testing.assert_allclose(run({"x": x})["y"], 1, rtol=1e-6)
    assert stream.threads == [threading.get_ident()] * 3

    # Machine code runs there too, and the state that a runner shows is on the device of the caller.
    model = jaxrnn.load(models / "dtln_1.onnx")
    jaxrnn.save_compiled(model, tmp_path / "step.jaxrnn", native=True)
    frame = draws(model.spec.inputs, 0)
    for stepper in model, jaxrnn.load_compiled(tmp_path / "step.jaxrnn", native=True):
        run = Runner(stepper)
        run(frame)
        devices = {device for array in jax.tree.leaves(run._state) for device in array.devices()}
        assert not devices & set(jax.devices())
        assert all(array.devices() == {jax.devices()[0]} for array in run.state.values())


@pytest.mark.parametrize(("name", "options"), of_tiers(NETWORKS, [NETWORKS[0], NETWORKS[-1]]))
def test_a_model_in_steps(models, name, options):
    model = jaxrnn.load(models / f"{name}.onnx", **options)
    sizes = {"input_dim_1": 576}
    run, state, step = jaxrnn.Runner(model), model.init(), jax.jit(model.step)
    kept = []
    for seed in range(4):
        frame = draws(model.spec.inputs, seed, **sizes)
        expected, state = step(model.params, state, frame)
        found = run(frame)
        kept.append((found, {key: value.copy() for key, value in found.items()}))
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert found[key].dtype == value.dtype
            assert isinstance(found[key], np.ndarray)
            np.testing.assert_allclose(found[key], value, atol=1e-5 * max(1, np.max(np.abs(value))))
    for key, value in state.items():
        np.testing.assert_allclose(run.state[key], value, atol=1e-5 * max(1, np.max(np.abs(value))))
    for found, copy in kept:  # a later step leaves what was given alone
        for key, value in copy.items():
            np.testing.assert_array_equal(found[key], value)
    run.reset()
    again = run(draws(model.spec.inputs, 0, **sizes))
    for key, value in kept[0][1].items():
        np.testing.assert_array_equal(again[key], value)


def test_a_streamed_model_to_its_end(models):
    model = jaxrnn.load(models / "filter_net.onnx")
    streamed = model.stream(pulse=3)
    recording = draws(model.inputs, 0, S=11)
    axes = {info.name: info.shape.index("S") for info in model.inputs}

    def part(begin, end):
        return {name: np.take(array, range(begin, end), axes[name]) for name, array in recording.items()}

    run, expected = Runner(streamed, model.params), model(recording)
    for _ in range(2):
        pieces = [run(part(begin, begin + 3)) for begin in (0, 3, 6)]
        pieces.append(run.flush(part(9, 11), valid=2))
        for name, axis in streamed.axes.items():
            joined = np.concatenate([piece[name] for piece in pieces], axis)
            joined = np.take(joined, range(streamed.delay[name], joined.shape[axis]), axis)
            np.testing.assert_allclose(joined, expected[name], atol=1e-5)


def test_a_caller_may_use_an_array_again():
    # The state is the input itself, which XLA could hand on without a copy.
    def last_frame(x):
        return {"y": jnp.pad(x["x"][:-1], ((1, 0), (0, 0)))}

    streamed = jaxrnn.stream(last_frame, {"x": np.zeros((5, 4096), np.float32)}, axes={"x": 0})
    memory = np.zeros(2 * 4096, np.float32)
    aligned = memory[-memory.ctypes.data % 256 // 4 :][:4096].reshape(1, 4096)
    run = Runner(streamed, None)
    for index in range(6):
        aligned[:] = index + 1
        np.testing.assert_array_equal(run({"x": aligned})["y"], np.full((1, 4096), index, np.float32))


def test_other_inputs_than_arrays_of_the_declared_type(models):
    model = jaxrnn.load(models / "dtln_1.onnx")
    frame = draws(model.spec.inputs, 0)
    expected = jaxrnn.Runner(model)(frame)["activation_2"]
    for other in (jnp.asarray(frame["input_2"]), frame["input_2"].tolist()):
        np.testing.assert_array_equal(jaxrnn.Runner(model)({"input_2": other})["activation_2"], expected)
    run = jaxrnn.Runner(model)
    for _ in range(2):  # before and after the first step
        for wrong in (
            {"input_2": frame["input_2"].astype(np.float64)},
            {"input_2": frame["input_2"][..., :5]},
            {"input": frame["input_2"]},
            {},
            {**frame, "more": frame["input_2"]},
        ):
            with pytest.raises(jaxrnn.InputError):
                run(wrong)
        run.reset()
        np.testing.assert_array_equal(run(frame)["activation_2"], expected)


def test_a_model_that_forgets_its_state_has_no_runner(models):
    with pytest.raises(jaxrnn.StateError, match="stream"):
        jaxrnn.Runner(jaxrnn.load(models / "filter_net.onnx"))
