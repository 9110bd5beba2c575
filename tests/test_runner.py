"""One live stream: as steps one by one, whatever it is given; and errors that change nothing."""

from __future__ import annotations

import copy
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from onnx import helper
from small_models import draws, graph_of, make_model
from tiers import of_tiers

import jaxrnn
from jaxrnn import Runner
from jaxrnn.steps import ArraySpec, OutputSpec, StateSpec, StepSpec, in_batch, nothing_left

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


@pytest.mark.thorough
def test_a_step_runs_in_the_calling_thread(models, tmp_path):
    def network(arrays):  # JAX runs smaller programs in the calling thread anyway
        return {"y": arrays["x"] @ jnp.full((256, 256), 1 / 256)}

    x = np.ones((1, 256), np.float32)
    stream = Watched(jaxrnn.stream(network, {"x": jax.ShapeDtypeStruct((8, 256), np.float32)}, axes={"x": 0}))
    run = Runner(stream)
    for _ in range(3):
        np.testing.assert_allclose(run({"x": x})["y"], 1, rtol=1e-6)
    assert stream.threads == [threading.get_ident()] * 3

    # Machine code runs there too, and the state that a runner shows is on the host.
    model = jaxrnn.load(models / "dtln_1.onnx")
    jaxrnn.save_compiled(model, tmp_path / "step.jaxrnn", native=True)
    frame = draws(model.spec.inputs, 0)
    for stepper in model, jaxrnn.load_compiled(tmp_path / "step.jaxrnn", native=True):
        run = Runner(stepper)
        run(frame)
        devices = {device for array in jax.tree.leaves(run._live.value[1]) for device in array.devices()}
        assert not devices & set(jax.devices())
        assert all(type(array) is np.ndarray for array in run.state.values())


@pytest.mark.parametrize(("name", "options"), of_tiers(NETWORKS, [NETWORKS[0]], [NETWORKS[-1]]))
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
    for found, before in kept:  # a later step leaves what was given alone
        jax.tree.map(np.testing.assert_array_equal, found, before)
    run.reset()
    again = run(draws(model.spec.inputs, 0, **sizes))
    jax.tree.map(np.testing.assert_array_equal, again, kept[0][1])


@pytest.mark.thorough
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


class Caches:
    """A step with a large cache, and entries whose names are those of the runner's vectors."""

    spec = StepSpec(
        "caches",
        inputs=(ArraySpec("x", np.dtype("float32"), (3,)),),
        outputs=tuple(OutputSpec(name, np.dtype("float32"), (40, 300)) for name in ("y", "y!")),
        state=(
            StateSpec("float32", np.dtype("float32"), (40, 300)),
            StateSpec("float32!", np.dtype("float32"), (3,)),
            StateSpec("n", np.dtype("int32"), ()),
        ),
    )

    def init(self, batch=None, *, params=None, constants=None):
        zeros = {each.name: jnp.zeros(each.shape, each.dtype) for each in self.spec.state}
        return in_batch(self.spec, zeros, batch)

    def step(self, params, state, inputs):
        cache = jnp.concatenate([state["float32"][:, 3:], jnp.broadcast_to(inputs["x"], (40, 3))], 1)
        after = {"float32": cache, "float32!": state["float32!"] + inputs["x"], "n": state["n"] + 1}
        return {"y": cache, "y!": cache * 2}, after

    def flush(self, params, state, tail=None, valid=None):
        return nothing_left(self.spec, tail, valid)


def test_large_arrays():
    """They are not joined with others; names do not collide."""
    run, x = Runner(Caches()), np.arange(6, dtype=np.float32).reshape(2, 3)
    for frame in x:
        outputs = run({"x": frame})
    cache = np.zeros((40, 300), np.float32)
    cache[:, -6:] = x.reshape(-1)
    np.testing.assert_array_equal(outputs["y"], cache)
    np.testing.assert_array_equal(outputs["y!"], cache * 2)
    np.testing.assert_array_equal(run.state["float32"], cache)
    np.testing.assert_array_equal(run.state["float32!"], x.sum(0))
    assert run.state["n"] == 2


def test_open_dimensions_change_from_step_to_step():
    """Two outputs of one dtype share a vector, in which the size of the first sets the place of the second."""
    nodes = [
        helper.make_node("Add", ["x", "h"], ["y"]),
        helper.make_node("Mul", ["y", "y"], ["z"]),
        helper.make_node("Mul", ["h", "h"], ["h_out"]),
    ]
    graph = graph_of(nodes, {"x": ["T", 2], "h": [1, 2]}, {"y": ["T", 2], "z": ["T", 2], "h_out": [1, 2]})
    run = Runner(jaxrnn.load(make_model(graph), state={"h": "h_out"}))
    for each in (run, copy.copy(run)):
        for size in (1, 4, 1, 3, 4, 0, 1):  # a size comes again after another
            x = np.arange(2 * size, dtype=np.float32).reshape(size, 2)
            found = each({"x": x})
            np.testing.assert_array_equal(found["y"], x)
            np.testing.assert_array_equal(found["z"], x * x)


@pytest.mark.parametrize("late", [0, 1])
def test_a_caller_may_use_an_array_again(late):
    """An output or the state is the input itself, which XLA could hand on without a copy."""

    def frames(x):
        return {"y": jnp.pad(x["x"][: -late or None], ((late, 0), (0, 0)))}

    streamed = jaxrnn.stream(frames, {"x": np.zeros((5, 4096), np.float32)}, axes={"x": 0})
    memory = np.zeros(2 * 4096, np.float32)
    aligned = memory[-memory.ctypes.data % 256 // 4 :][:4096].reshape(1, 4096)
    run, found = Runner(streamed, None), []
    for index in range(6):
        aligned[:] = index + 1
        found.append(run({"x": aligned})["y"])
    aligned[:] = 0
    np.testing.assert_array_equal(found, np.broadcast_to(np.arange(1, 7)[:, None, None] - late, (6, 1, 4096)))


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
            [frame["input_2"]],
            None,
        ):
            with pytest.raises(jaxrnn.InputError):
                run(wrong)
        run.reset()
        np.testing.assert_array_equal(run(frame)["activation_2"], expected)


def test_a_runner_is_not_transformed(models):
    run = jaxrnn.Runner(jaxrnn.load(models / "dtln_1.onnx"))
    (frame,) = draws(run._inputs, 0).values()
    for transform, x in ((jax.jit, frame), (jax.vmap, frame[None]), (jax.grad, frame)):
        with pytest.raises(jaxrnn.InputError, match=r"stepper\.step\(params, state, inputs\)"):
            transform(lambda x: run({"input_2": x})["activation_2"].sum())(x)


@pytest.mark.thorough
def test_a_model_that_forgets_its_state_has_no_runner(models):
    with pytest.raises(jaxrnn.StateError, match="stream"):
        jaxrnn.Runner(jaxrnn.load(models / "filter_net.onnx"))
