"""Derivatives proved: of every order and mode, of steps, scans and streams, and against PyTorch."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_models import CASES, NETS, random_inputs
from tiers import of_tiers
from verifier import (
    EQUAL,
    assert_derivative,
    assert_equal,
    assert_same,
    difference,
    dot,
    floats,
    mean_squares,
    network,
    random_like,
)

#: Silero's other file is the same network behind a branch that folds.
MODELS = tuple(name for name in CASES if name != "silero_vad_16k_op15")
#: One of each kind, in the quick tier.
QUICK = ("dtln_1", "keyword_net")
#: Larger ones, whose gradients in float64 PyTorch's stand for.
PYTORCH = tuple(name for name in NETS if name not in (*QUICK, "predictor_net"))
#: Of each kind of network one, each small enough to be compiled for several derivatives.
SMALL = ("dtln_1", "silero_vad_16k_op15", "wave_net")


@pytest.fixture(scope="module")
def load(models):
    """Loads a network in float64, or as it is."""
    return lambda name, wide=True: network(models / f"{name}.onnx", wide, **CASES[name][1])


@pytest.fixture(scope="module")
def inputs_of(models, load):
    """The inputs that PyTorch's gradients are for, or noise as loud as speech; in float32."""

    def inputs_of(name):
        if name in NETS:
            data = np.load(models / f"{name}.npz")
            return {key[3:]: data[key] for key in data if key.startswith("in/")}
        inputs = random_inputs(load(name, wide=False), CASES[name][0][0])
        return {key: value * np.float32(0.1) if value.dtype.kind == "f" else value for key, value in inputs.items()}

    return inputs_of


def loss_of(model, inputs):
    """The loss as a function of the parameters and of the float inputs."""
    return lambda point: mean_squares(model.apply(point[0], {**inputs, **point[1]}))


@pytest.fixture(scope="module")
def gradient_of(load, inputs_of):
    """For a network in float64: the point, the compiled loss with its gradient, and the gradient at the point."""

    @functools.cache
    def gradient_of(name):
        model, inputs = load(name), inputs_of(name)
        with jax.enable_x64(True):
            point, loss = (model.params, floats(inputs)), loss_of(model, inputs)
            # Differences take values, and no more gradients.
            return point, jax.jit(loss), jax.jit(jax.grad(loss))(point)

    return gradient_of


OTHERS = [name for name in MODELS if name not in PYTORCH]


@pytest.mark.parametrize("name", of_tiers(OTHERS, [], OTHERS[:1]))
def test_networks(gradient_of, name):
    """Gradients of a whole network, of parameters and inputs (its state is among them), against forward mode, which
    sees every entry, and that against differences.

    Along its own gradient and noise in equal parts for every array, arrays with gradients of one size together; along
    an entry of each array; and along noise.
    """
    (point, value, slopes), rng = gradient_of(name), np.random.default_rng(1)
    leaves, structure = jax.tree.flatten(point)
    gradients = list(map(np.asarray, jax.tree.leaves(slopes)))
    norms = [float(np.linalg.norm(gradient)) for gradient in gradients]
    entries = [np.eye(1, leaf.size, rng.integers(leaf.size)).reshape(leaf.shape) for leaf in leaves]

    def mixed(gradient, norm):
        noise = rng.normal(size=gradient.shape)
        return noise / np.linalg.norm(noise) + gradient / (norm or 1.0)

    with jax.enable_x64(True):

        def check(direction, step=1e-5):
            (central,), (doubt,) = difference(value, point, direction, step)
            assert abs(dot(slopes, direction) - central) <= doubt
            return bool(doubt <= 0.02 * abs(central))

        along = random_like(point, 1)
        pushed = jax.jit(lambda at, along: jax.jvp(value, (at,), (along,))[1])(point, along)
        sizes = [jax.tree.map(jnp.abs, tree) for tree in (slopes, along)]
        assert abs(dot(slopes, along) - pushed) <= EQUAL * dot(*sizes)
        check(along, 1e-7)  # a short step: directions through all arrays cross many kinks
        check(jax.tree.unflatten(structure, entries), 1e-7)
        sharp = []
        for group in np.array_split(np.argsort(norms), 6):
            parts = [
                mixed(gradient, norm) if index in group else 0 * gradient
                for index, (gradient, norm) in enumerate(zip(gradients, norms, strict=True))
            ]
            sharp.append(check(jax.tree.unflatten(structure, parts)))
        assert np.mean(sharp) > 0.5  # along gradients, differences mostly tell a fiftieth of them


@pytest.mark.parametrize("name", of_tiers(NETS, [], [*NETS][:1]))
def test_networks_against_pytorch(models, load, inputs_of, gradient_of, name):
    """Values and gradients of the float32 network; of the parameters, for which there are none, the float64 ones."""
    data, inputs, narrow = np.load(models / f"{name}.npz"), inputs_of(name), load(name, wide=False)
    outputs = {key[4:]: data[key] for key in data if key.startswith("out/")}
    limits = {info.name: 1e-4 if info.name == "snr" else 1e-5 for info in narrow.outputs}
    assert_same(jax.jit(narrow.apply)(narrow.params, inputs), outputs, limits)
    found = jax.jit(jax.grad(loss_of(narrow, inputs)))((narrow.params, floats(inputs, np.float32)))
    found, expected = jax.tree.map(np.float64, (found, gradient_of(name)[2]))
    whole = np.sqrt(dot(expected, expected))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.linalg.norm(one - other) <= 1e-4 * max(np.linalg.norm(other), 0.01 * whole)
    for key in (key[5:] for key in data if key.startswith("grad/")):
        for gradient in (found[1][key], expected[1][key]):
            assert np.linalg.norm(gradient - data[f"grad/{key}"]) <= 1e-4 * np.linalg.norm(data[f"grad/{key}"]), key


@pytest.mark.parametrize("name", of_tiers(SMALL, [], []))
def test_modes_and_second_order(load, inputs_of, name):
    """Forward mode is the transpose of reverse mode, and the second derivative is the same in every order of modes.

    With v the gradient g itself, H v is also the gradient of half the squared norm of g, and a difference of gradients.
    """
    model, inputs = load(name), inputs_of(name)
    with jax.enable_x64(True):
        point = (model.params, floats(inputs))
        along = random_like(point, 2)

        def outputs(at):
            return model.apply(at[0], {**inputs, **at[1]})

        @jax.jit
        def first_order(at, along):
            pushed = jax.jvp(outputs, (at,), (along,))[1]
            return pushed, jax.linearize(outputs, at)[1](along), jax.vjp(outputs, at)[1](pushed)[0]

        pushed, linear, pulled = first_order(point, along)
        assert_equal(linear, pushed)
        # <J v, J v> = <J^T J v, v>
        np.testing.assert_allclose(dot(pushed, pushed), dot(pulled, along), rtol=1e-11)
        assert_derivative(pushed, jax.jit(outputs), point, along, 1e-7)

        gradient = jax.grad(loss_of(model, inputs))
        slopes, forwards = jax.jit(lambda p: jax.jvp(gradient, (p,), (gradient(p),)))(point)
        backwards = jax.jit(jax.grad(lambda p: 0.5 * sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient(p)))))(point)
        assert_equal(forwards, backwards)
        assert_derivative(forwards, jax.jit(gradient), point, slopes, 1e-5, scale=1.0)


#: Networks that carry a state, and the sizes of a frame's open dimensions.
STEPS = {
    "dtln_1": {},
    "dtln_2": {},
    "predictor_net": {"batch": 1},
    "silero_vad_16k_op15": {"sequence": 576, "batch": 1},
}


def step_model(models, name):
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


@pytest.mark.nightly
@pytest.mark.parametrize("name", STEPS)
def test_step_and_scan(models, name):
    """Gradients through a scan are those through its steps one by one, of parameters, state and frames; packed, too."""
    model, steps = step_model(models, name), 3
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
    model, lengths = step_model(models, name), np.array([3, 1, 0])
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


@pytest.mark.nightly
@pytest.mark.parametrize("name", of_tiers(["keyword_net", "wave_net"], ("keyword_net",)))
def test_streamed_steps(models, name):
    """Gradients through two steps of a stream under way, of parameters, state and frames, against differences."""
    model = step_model(models, name)
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
