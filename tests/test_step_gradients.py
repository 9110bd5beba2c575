"""Derivatives of steps, scans and streams with respect to parameters, state and frames."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_models import CASES
from tiers import of_tiers
from verifier import assert_equal, difference, dot, floats, mean_squares, network, random_like

#: Networks that carry a state, and the sizes of a frame's open dimensions.
STEPS = {
    "dtln_1": {},
    "dtln_2": {},
    "predictor_net": {"batch": 1},
    "silero_vad_16k_op15": {"sequence": 576, "batch": 1},
}


def load(models, name):
    return network(models / f"{name}.onnx", True, **CASES[name][1])


def recording(model, name, steps, batch=None):
    """Frames stacked in front, in float64; a batch that the file fixed is a leading axis of every frame."""
    rng, lead = np.random.default_rng(3), () if batch is None or model.spec.batch_symbol is not None else (batch,)
    sizes = {**STEPS[name], model.spec.batch_symbol: batch or 1}
    frames = {}
    for info in model.spec.inputs:
        shape = (steps, *lead, *(size if isinstance(size, int) else sizes[size] for size in info.shape))
        frames[info.name] = 0.1 * rng.normal(size=shape) if info.dtype.kind == "f" else rng.integers(0, 60, shape)
    return frames


def check_directions(function, point, slopes):
    """The gradient of a compiled scalar function against differences, along one direction for each argument."""
    for place in range(len(point)):
        along = [
            random_like(part, 4) if i == place else jax.tree.map(jnp.zeros_like, part) for i, part in enumerate(point)
        ]
        (central,), (doubt,) = difference(lambda at: function(*at), point, tuple(along), 1e-7)
        assert abs(dot(slopes, along) - central) <= doubt
        assert doubt <= 0.05 * abs(central)


@pytest.mark.parametrize("name", of_tiers(STEPS, ("dtln_1",)))
def test_step_and_scan(models, name):
    """Gradients through a scan are those through its steps one by one, of parameters, state and frames; packed, too."""
    model, steps = load(models, name), 3
    frames = recording(model, name, steps)
    with jax.enable_x64(True):
        packed = model.pack(model.params, dims=STEPS[name])
        assert packed.folded
        point = (model.params, jax.tree.map(lambda x: x + 0.1, model.init()), floats(frames))

        def scanned(params, state, varied):
            outputs, last = model.scan(params, state, {**frames, **varied})
            return mean_squares(outputs) + mean_squares(last)

        def stepped(params, state, varied):
            total = 0.0
            for index in range(steps):
                inputs = {key: array[index] for key, array in {**frames, **varied}.items()}
                outputs, state = model.step(params, state, inputs)
                total += mean_squares(outputs) / steps
            return total + mean_squares(state)

        both = jax.jit(jax.value_and_grad(scanned, (0, 1, 2)))
        slopes = both(*point)[1]
        assert_equal(jax.jit(jax.grad(stepped, (0, 1, 2)))(*point), slopes)
        twice = jax.jit(jax.grad(lambda *at: scanned(packed, *at) + stepped(packed, *at), (0, 1)))(*point[1:])
        assert_equal(twice, jax.tree.map(lambda slope: 2.0 * slope, slopes[1:]))
        check_directions(lambda *at: both(*at)[0], point, slopes)


@pytest.mark.parametrize("name", of_tiers(["dtln_1", "predictor_net"], ("predictor_net",)))
def test_rows_that_have_ended(models, name):
    """Behind its length a row of a batch has no gradient; a row of no frames hands on that of its state."""
    model, lengths = load(models, name), np.array([3, 1, 0])
    frames = recording(model, name, 3, batch=3)
    with jax.enable_x64(True):
        state = jax.tree.map(lambda x: x + 0.1, model.init(3))
        axes = {
            variable.name: 0 if model.spec.batch_symbol is None else variable.shape.index(model.spec.batch_symbol)
            for variable in model.state
        }

        def loss(params, state, varied):
            outputs, last = model.scan(params, state, {**frames, **varied}, lengths=lengths)
            return mean_squares(outputs) + sum(jnp.sum(value) for value in last.values())

        slopes = jax.jit(jax.grad(loss, (0, 1, 2)))(model.params, state, floats(frames))
        slopes = jax.tree.map(np.asarray, slopes)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))
    for key, axis in axes.items():
        np.testing.assert_array_equal(np.take(slopes[1][key], 2, axis), 1)
        assert not np.any(np.take(slopes[1][key], 0, axis) == 1)
    for frame in slopes[2].values():  # only the network whose batch is lifted has frames of floats
        for row, length in enumerate(lengths):
            assert not np.any(frame[length:, row])
            assert np.any(frame[:length, row]) == (length > 0)


@pytest.mark.parametrize("name", of_tiers(["keyword_net", "wave_net"], ("keyword_net",)))
def test_streamed_steps(models, name):
    """Gradients through two steps of a stream under way, of parameters, state and frames, against differences."""
    model = load(models, name)
    with jax.enable_x64(True):
        streamed = model.stream(pulse=None)
        shape = [2 * streamed.pulse if size == "S" else size for size in model.inputs[0].shape]
        axis, key = model.inputs[0].shape.index("S"), model.inputs[0].name
        chunks = {key: 0.1 * random_like(jax.ShapeDtypeStruct(shape, jnp.float64), 5)}

        def run(params, state, chunks):
            total = 0.0
            for chunk in jnp.split(chunks[key], 2, axis):
                outputs, state = streamed.step(params, state, {key: chunk})
                total += mean_squares(outputs)
            return total, state

        state = streamed.init()
        for _ in range(3):
            _, state = jax.jit(run)(model.params, state, chunks)
        moving = {kind: value for kind, value in state.items() if value.dtype == np.float64}
        both = jax.jit(
            jax.value_and_grad(lambda params, part, chunks: run(params, {**state, **part}, chunks)[0], (0, 1, 2))
        )
        point = (model.params, moving, chunks)
        check_directions(lambda *at: both(*at)[0], point, both(*point)[1])
