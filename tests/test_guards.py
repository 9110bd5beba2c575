"""Every function under a configuration that refuses implicit promotions of rank and implicit transfers."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from small_models import draws
from tiers import of_tiers

import jaxrnn


@contextlib.contextmanager
def strict():
    with jax.numpy_rank_promotion("raise"), jax.transfer_guard("disallow"):
        yield


STEPS = [("dtln_1", {}, {}), ("silero_vad_16k_op15", {"static": {"sr": 16000}}, {"sequence": 576})]


@pytest.mark.parametrize(("name", "options", "sizes"), of_tiers(STEPS, [], STEPS[:1]))
def test_a_model_in_steps(models, tmp_path, name, options, sizes):
    plain = jaxrnn.load(models / f"{name}.onnx", **options)
    frame = draws(plain.spec.inputs, **sizes)
    expected, _ = plain.step(plain.params, plain.init(), frame)
    with strict():
        model = jaxrnn.load(models / f"{name}.onnx", **options)
        params, state, here = model.params, model.init(), jax.device_put(frame)
        packed = model.pack(params, dims=sizes)
        frames = jax.device_put({key: np.stack([value] * 2) for key, value in frame.items()})
        runner, pool = jaxrnn.Runner(model, packed), jaxrnn.StreamPool(model, packed, 2)
        stream = pool.open()
        pool.push(stream, frame)
        jaxrnn.save_compiled(model, tmp_path / "model.jaxrnn", dims=sizes)
        compiled = jaxrnn.load_compiled(tmp_path / "model.jaxrnn")
        found = [
            model.step(params, state, here)[0],
            jax.jit(model.step)(packed, state, here)[0],
            model({**frame, **{v.input: state[v.name] for v in model.state}}),
            runner(frame),
            pool.run()[stream],
            compiled.step(None, compiled.init(), here)[0],
            compiled.step(compiled.params, compiled.init(), here)[0],
        ]
        scanned, _ = jax.jit(model.scan)(params, state, frames)
        loss = lambda p: sum(jnp.sum(x**2) for x in model.scan(p, state, frames)[0].values())  # noqa: E731
        gradients = jax.jit(jax.grad(loss))(params)
        jax.jit(jax.grad(jax.jit(loss)))(params)  # derivative rules run when all of the function has been traced
        states = runner.state, pool.state(stream)
        runner.flush(), pool.flush(stream), pool.close(stream)
    assert all(np.isfinite(g).all() for g in gradients.values())
    for outputs in (*found, jax.tree.map(lambda x: x[0], scanned)):
        for key, value in expected.items():
            np.testing.assert_allclose(outputs[key], value, rtol=1e-4, atol=1e-5)
    for key, value in states[0].items():
        np.testing.assert_allclose(value, states[1][key], rtol=1e-4, atol=1e-5)


def mean_of_tanh(params, x):
    """A recurrence from a constant input, a look-ahead, a normalisation, and what is known at the end."""

    def body(carry, frame):
        carry = jnp.tanh(carry * params["w"] + frame)
        return carry, carry

    _, y = lax.scan(body, x["h"], jnp.pad(x["x"], ((1, 2), (0, 0)))[3:])
    count = jnp.arange(1, y.shape[0] + 1, dtype=jnp.float32)
    return {"y": jnp.cumsum(y, 0) / count[:, None], "last": jnp.mean(x["x"], 0)}


def function_of_arrays():
    example = {"x": jax.ShapeDtypeStruct((8, 3), np.float32), "h": jax.ShapeDtypeStruct((3,), np.float32)}
    params = {"w": jax.device_put(np.float32([0.3, 0.2, -0.5]))}
    return jaxrnn.stream(mean_of_tanh, example, axes={"x": 0, "h": None}, params=params, pulse=2), params


def model_over_time(models, name):
    model = jaxrnn.load(models / f"{name}.onnx")
    return model.stream(pulse=None), model.params


@pytest.mark.parametrize("name", of_tiers([None, "keyword_net"], (), ()))
def test_a_stream(models, tmp_path, name):
    def make():
        return function_of_arrays() if name is None else model_over_time(models, name)

    plain, params = make()
    rng = np.random.default_rng(1)
    pulse = {key: rng.standard_normal(spec.shape).astype(spec.dtype) for key, spec in plain.inputs.items()}
    constants = {key: pulse[key] for key, spec in plain.inputs.items() if spec.time_axis is None} or None
    after_one, _ = plain.step(params, plain.init(params=params, constants=constants), pulse)
    expected = {key: value for key, value in after_one.items() if value is not None}
    with strict():
        streamed, params = make()
        here, packed = jax.device_put(pulse), streamed.pack(params)
        state = streamed.init(2, params=params, constants=constants)
        state = streamed.init(params=params, constants=constants)
        runner, pool = jaxrnn.Runner(streamed, params, constants), jaxrnn.StreamPool(streamed, packed, 2)
        stream = pool.open(constants)
        pool.push(stream, pulse)
        jaxrnn.save_compiled(streamed, tmp_path / "stream.jaxrnn", params=params)
        compiled = jaxrnn.load_compiled(tmp_path / "stream.jaxrnn")
        found = [
            streamed.step(params, state, here)[0],
            jax.jit(streamed.step)(packed, state, here)[0],
            runner(pulse),
            pool.run()[stream],
            compiled.step(None, compiled.init(constants=constants), here)[0],
        ]
        whole = streamed.run(params, here), jax.jit(streamed.run)(params, here)
        tail = {key: pulse[key] for key in constants} if constants else None
        rests = [
            streamed.flush(params, state, tail).outputs,
            runner.flush(tail),
            pool.flush(stream, tail),
            compiled.flush(None, compiled.init(constants=constants), tail).outputs,
        ]
        entries = streamed.entries(state)
        loss = jax.jit(jax.grad(lambda p: sum(jnp.sum(v**2) for v in jax.tree.leaves(streamed.run(p, here)))))
        gradients = loss(params)
    assert all(rest.keys() == rests[0].keys() for rest in rests)
    assert entries
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *whole)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradients))
    for outputs in found:
        for key, value in expected.items():
            np.testing.assert_allclose(outputs[key], value, rtol=1e-4, atol=1e-5)


def test_the_callers_own_functions_are_held_to_the_callers_rules():
    def promotes(x):
        return x * jnp.ones(3)

    with strict(), pytest.raises(ValueError, match="rank_promotion"):
        jaxrnn.stream(promotes, jax.ShapeDtypeStruct((4, 3), np.float32), axes=0)
    before = dict(jax.config.values)
    with strict():
        function_of_arrays()
    assert dict(jax.config.values) == before
