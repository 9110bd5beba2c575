"""Pickles and copies of models, streams, runners, pools and compiled files: they give what the original gives."""

from __future__ import annotations

import copy
import multiprocessing
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from refusals import check_refused
from small_models import frames_of, layers_model, step_model
from tiers import of_tiers

import jaxrnn

ROUND_TRIPS = [lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy, copy.copy]


def equal(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def sums(params, x):
    """Defined by a module, as what is pickled by its name must be."""
    return {"y": jnp.cumsum(x["x"] * params["gain"], 0)}


def streamed_sums():
    example = {"x": jax.ShapeDtypeStruct((8, 4), jnp.float32)}
    params = {"gain": jnp.asarray([1.0, 2.0, 3.0, 4.0])}
    return jaxrnn.stream(sums, example, axes=0, params=params, pulse=2, constraints=["S >= 2"]), params


@pytest.mark.thorough
@pytest.mark.parametrize("again", of_tiers(ROUND_TRIPS, ROUND_TRIPS[:1]))
def test_a_model(again):
    layers = jaxrnn.load(layers_model(), limits=jaxrnn.Limits(nodes=1000))
    x = {"x": np.ones((3, 2, 3), np.float32)}
    found = again(layers)
    equal(found(x), layers(x))
    assert (found.label, found._load_options) == (layers.label, layers._load_options)
    steps, frame = step_model(), frames_of(1)["x"][0]
    found = again(steps)
    packed = steps.pack(steps.params)
    equal(found.step(packed, found.init(), {"x": frame}), steps.step(packed, steps.init(), {"x": frame}))
    fixed = jaxrnn.load(steps.proto, static={"x": frame}, state={"h": "h_next"})
    equal(again(fixed)(fixed.init()), fixed(fixed.init()))


def test_external_data_goes_along_or_is_an_error(tmp_path):
    onnx.save(layers_model(), tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    model = jaxrnn.load(tmp_path / "m.onnx")
    data, whole = pickle.dumps(model), (tmp_path / "w.bin").read_bytes()
    (tmp_path / "w.bin").write_bytes(whole[::-1])
    check_refused(jaxrnn.ModelError, "cannot be pickled, because its external data has changed", pickle.dumps, model)
    (tmp_path / "w.bin").unlink()
    check_refused(jaxrnn.ModelError, "cannot be pickled, because its external data cannot be read", pickle.dumps, model)
    equal(pickle.loads(data).params, model.params)
    assert copy.deepcopy(model) is model


@pytest.mark.thorough
@pytest.mark.parametrize("again", of_tiers(ROUND_TRIPS, ROUND_TRIPS[:1]))
def test_a_stream_of_a_function_and_of_a_model(again):
    x = {"x": frames_of(5)["x"][:, 0]}
    streamed, params = streamed_sums()
    found = again(streamed.with_pulse(3))
    assert (found.pulse, found.delay, found.state) == (3, streamed.delay, streamed.state)
    equal(found.run(params, x), streamed.with_pulse(3).run(params, x))
    assert found.pack(params).purpose == streamed.with_pulse(3).pack(params).purpose

    model = jaxrnn.load(layers_model())
    streamed = model.stream("T", 2)
    x = {"x": np.random.default_rng(0).standard_normal((5, 1, 3)).astype(np.float32)}
    equal(again(streamed).run(model.params, x), streamed.run(model.params, x))


def test_a_function_without_a_name_of_its_own_is_an_error():
    streamed = jaxrnn.stream(lambda x: jnp.cumsum(x, 0), jax.ShapeDtypeStruct((8, 4), jnp.float32), axes=0)
    for each in (streamed, streamed.with_pulse(2)):
        words = "stream of <lambda> cannot be pickled, because the function cannot"
        check_refused(jaxrnn.InputError, words, pickle.dumps, each)
        assert copy.deepcopy(each) is each


def runners():
    model = step_model()
    yield jaxrnn.Runner(model, model.pack(model.params)), [{"x": each} for each in frames_of(4)["x"]]
    streamed, params = streamed_sums()
    yield jaxrnn.Runner(streamed, params), [{"x": each} for each in frames_of(8)["x"].reshape(4, 2, 4)]
    with jax.enable_x64(True):
        example, params = {"x": jax.ShapeDtypeStruct((8, 4), jnp.float64)}, {"gain": jnp.full(4, 1 / 3)}
        wide = jaxrnn.stream(sums, example, axes=0, params=params)
        yield jaxrnn.Runner(wide, params), [{"x": each} for each in np.arange(16.0).reshape(4, 1, 4)]


@pytest.mark.parametrize("again", of_tiers(ROUND_TRIPS, ROUND_TRIPS[:1]))
@pytest.mark.parametrize("index", range(3))
def test_a_runner_goes_on_from_its_state(again, index):
    run, frames = list(runners())[index]
    run(frames[0])
    other = again(run)
    equal(other.state, run.state)
    expected = [run(frame) for frame in frames[1:]]
    equal([other(frame) for frame in frames[1:]], expected)  # neither disturbs the other
    other.reset()
    run.reset()
    equal(other(frames[0]), run(frames[0]))


@pytest.mark.parametrize("again", of_tiers(ROUND_TRIPS, ROUND_TRIPS[:1]))
def test_a_pool_goes_on_from_its_states(again):
    streamed, params = streamed_sums()
    frames = [{"x": each} for each in frames_of(8)["x"].reshape(4, 2, 4)]
    pool = jaxrnn.StreamPool(streamed, params, 3)
    gone, *names = [pool.open() for _ in range(3)]
    pool.close(gone)
    pool.push(names[0], frames[0])
    pool.run()
    pool.push(names[0], frames[1])  # waits
    other = again(pool)
    for each in (pool, other):
        each.push(names[1], frames[2])
    equal(other.run(), pool.run())
    for each in (pool, other):
        each.reset(names[0])
    equal([other.state(name) for name in names], [pool.state(name) for name in names])
    assert other.open() == pool.open() not in (gone, *names)
    equal(again(jaxrnn.StreamPool(streamed, params, 1)).run(), {})


@pytest.mark.parametrize("again", of_tiers(ROUND_TRIPS, ROUND_TRIPS[:1]))
def test_compiled_files(again, tmp_path):
    model, (streamed, params) = step_model(), streamed_sums()
    jaxrnn.save_compiled(model, tmp_path / "model")
    jaxrnn.save_compiled(streamed, tmp_path / "stream", params=params)
    steps, stream = (jaxrnn.load_compiled(tmp_path / name) for name in ("model", "stream"))
    frame = {"x": frames_of(1)["x"][0]}
    equal(again(steps).step(None, steps.init(), frame), steps.step(None, steps.init(), frame))
    pulse = {"x": frames_of(2)["x"][:, 0]}
    equal(again(stream).step(stream.params, stream.init(), pulse), stream.step(None, stream.init(), pulse))


def step_of(run, frame):
    return run(frame)


@pytest.mark.thorough
def test_another_process():
    run, frames = next(runners())
    run(frames[0])
    with multiprocessing.get_context("spawn").Pool(1) as workers:
        outputs = workers.apply(step_of, (run, frames[1]))
    # That process compiles as users do, and rounds in another order: see quick_compiling.py.
    jax.tree.map(lambda here, there: np.testing.assert_allclose(there, here, rtol=1e-6), run(frames[1]), outputs)
