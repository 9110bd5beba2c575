"""Packed weights in bfloat16: off by what the type's rounding gives and no more, smaller, and refused where useless."""

from __future__ import annotations

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import soundfile
from click.testing import CliRunner
from small_models import operator_replaced
from tiers import of_tiers

from jaxrnn import Runner, load
from jaxrnn.cli import main

FRAMES = 50
#: Rounding the other operand errs about as much as rounding the weights, and sums of such errors vary.
LOUDER = 3.0


def of_dtln(samples):
    windows = np.stack([samples[128 * index :][:512] for index in range(FRAMES)])
    return {"input_2": np.abs(np.fft.rfft(windows)).astype(np.float32)[:, None, None]}


def of_silero(samples):
    return {"input": np.stack([samples[512 * index :][:576] for index in range(FRAMES)])[:, None]}


CASES = {
    "dtln_1": (of_dtln, {}, {}),
    "silero_vad_16k_op15": (of_silero, {"sequence": 576}, {"sr": 16000}),
}


@pytest.fixture(scope="module")
def recording(audio):
    """Speech in noise, from where both are."""
    samples, _ = soundfile.read(audio / "noisy_16k.wav", dtype="float32")
    return samples[16_000:]


@pytest.fixture(scope="module", params=of_tiers(CASES, ("dtln_1",)))
def case(request, models, recording):
    """A model, the same with rounded results of convolutions, 50 frames, and the sizes of open dimensions."""
    frames_of, dims, static = CASES[request.param]
    path = models / f"{request.param}.onnx"
    with operator_replaced("Conv", rounding_results):
        narrow = load(path, static=static)
    return load(path, static=static), narrow, frames_of(recording), dims


def rounding_results(convolve):
    """A convolution whose result is rounded, as that of low-precision operands is."""

    @functools.wraps(convolve)
    def rounding(*operands, **attributes):
        return rounded(convolve(*operands, **attributes))

    return rounding


def rounded(array):
    """Every element as the nearest bfloat16."""
    return jnp.asarray(array).astype(jnp.bfloat16).astype(jnp.float32)


def rms(tree) -> float:
    """The root of the mean square of all elements."""
    leaves = [np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)]
    return float(np.sqrt(np.mean(np.square(np.concatenate(leaves)))))


def differ(a, b) -> float:
    return rms(jax.tree.map(lambda x, y: np.asarray(x, np.float64) - np.asarray(y, np.float64), a, b))


def products(function, *arguments):
    """The types of operands and results of the matrix products with two-dimensional operands."""
    equations = jax.make_jaxpr(function)(*arguments).jaxpr.eqns
    found = [equation for equation in equations if equation.primitive.name == "dot_general"]
    return {tuple(atom.aval.dtype.name for atom in (*each.invars, *each.outvars)) for each in found}


@pytest.mark.nightly
def test_outputs_are_off_by_what_rounding_gives(case):
    model, rounding, frames, dims = case
    narrow = model.pack(model.params, dims=dims, dtype="bfloat16")
    scan = jax.jit(model.scan)
    exact, _ = scan(model.params, model.init(), frames)
    found, state = scan(narrow, model.init(), frames)
    with_rounded_weights, _ = rounding.scan(jax.tree.map(rounded, model.params), model.init(), frames)
    limit = LOUDER * differ(with_rounded_weights, exact)
    assert 0 < differ(found, exact) < limit
    assert {array.dtype for array in jax.tree.leaves((found, state))} == {np.dtype(np.float32)}

    # Steps, one by one and in a runner, and streams in a batch, err as the scan does.
    step, run, now = jax.jit(model.step), Runner(model, narrow), model.init()
    stepped, ran = [], []
    for index in range(FRAMES):
        inputs = {name: array[index] for name, array in frames.items()}
        outputs, now = step(narrow, now, inputs)
        stepped.append(outputs)
        ran.append(run(inputs))
    stacked = [{name: np.stack([each[name] for each in made]) for name in exact} for made in (stepped, ran)]
    assert differ(stacked[0], exact) < limit
    assert differ(stacked[1], exact) < limit
    lifted = model.spec.batch_symbol is None
    many = {
        name: np.stack([array, 0 * array, array], 1) if lifted else np.concatenate([array, 0 * array, array], 1)
        for name, array in frames.items()
    }
    batched, _ = scan(narrow, model.init(3), many)
    last = {name: np.asarray(value)[:, 2 if lifted else slice(2, 3)] for name, value in batched.items()}
    assert differ(last, exact) < limit


def test_weights_shrink_and_sums_are_wide(case):
    model, _, frames, dims = case
    wide, narrow = (model.pack(model.params, dims=dims, dtype=dtype) for dtype in (None, jnp.bfloat16))
    pairs = list(zip(narrow.folded, wide.folded, strict=True))
    halved = [a for a, b in pairs if a.dtype != b.dtype]
    assert {a.dtype.name for a in halved} == {"bfloat16"}
    assert all(a.shape == b.shape for a, b in pairs)
    saved = sum(array.nbytes for array in wide.folded) - sum(array.nbytes for array in narrow.folded)
    assert saved == sum(array.nbytes for array in halved) > 0
    frame = {name: array[0] for name, array in frames.items()}
    types = products(model.step, narrow, model.init(), frame)
    assert ("bfloat16", "bfloat16", "float32") in types
    assert types <= {("bfloat16", "bfloat16", "float32"), ("float32", "float32", "float32")}
    assert products(model.step, wide, model.init(), frame) == {("float32", "float32", "float32")}


@pytest.mark.nightly
def test_streams_take_narrow_weights(models):
    model = load(models / "keyword_net.onnx")
    streamed, low = (model.stream("S", None, dtype=dtype) for dtype in (None, "bfloat16"))
    narrow, wide = low.pack(model.params), streamed.pack(model.params)
    assert sum(a.nbytes for a in narrow.folded) < sum(a.nbytes for a in wide.folded)
    x = np.random.default_rng(3).standard_normal((1, 40, FRAMES * streamed.pulse)).astype(np.float32)

    def outputs(streamed, params):
        step, state, made = jax.jit(streamed.step), streamed.init(), []
        for pulse in np.split(x, FRAMES, 2):
            results, state = step(params, state, {"feats": pulse})
            made.append(results["logits"])
        return np.stack(made)

    exact, found = outputs(streamed, wide), outputs(low, narrow)
    assert 0 < differ(found, exact) < LOUDER * differ(outputs(streamed, jax.tree.map(rounded, model.params)), exact)
    assert found.dtype == np.float32
    # Pulses of another size were not packed for: they take the plain parameters.
    other = low.with_pulse(2 * low.pulse)
    pulse = {"feats": x[:, :, : other.pulse]}
    same = [jax.jit(other.step)(params, other.init(), pulse)[0] for params in (narrow, model.params)]
    assert differ(*same) == 0


@pytest.mark.nightly
def test_gradients_of_state_inputs_and_narrow_weights(models, recording):
    model = load(models / "dtln_1.onnx")
    frames = {name: array[:8] for name, array in of_dtln(recording).items()}
    narrow, wide = (model.pack(model.params, dtype=dtype) for dtype in ("bfloat16", None))

    def loss(folded, packed, state, frames):
        outputs, _ = model.scan(type(packed)(packed.params, folded, packed.purpose), state, frames)
        return jnp.sum(outputs["activation_2"] ** 2)

    gradient = jax.jit(jax.grad(loss, argnums=(0, 2, 3)))
    found, exact = (gradient(packed.folded, packed, model.init(), frames) for packed in (narrow, wide))
    assert [g.dtype for g in found[0]] == [weights.dtype for weights in narrow.folded]
    # One part in 512 for each operand of a chain of a few products, forward and backward.
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True):
        assert differ(a, b) < 0.05 * rms(b)


@pytest.mark.nightly
def test_profile_shows_the_error(models):
    arguments = ["profile", str(models / "dtln_1.onnx"), "--dtype", "bfloat16", "--batch", "2"]
    result = CliRunner().invoke(main, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    low = json.loads(result.stdout, parse_constant=pytest.fail)["low_precision"]
    assert low["dtype"] == "bfloat16"
    assert low["nbytes"] < 0.6 * low["full_nbytes"]
    (difference,) = low["differences"]
    assert difference["name"] == "activation_2"
    assert 0 < difference["largest"] < 0.5 * difference["scale"]
    assert difference["decibels"] > 20
    shown = CliRunner().invoke(main, arguments)
    assert "weights in bfloat16: 727 kB instead of 1.45 MB" in shown.output
    assert "step (batch 2, products in bfloat16)" in shown.output
    assert "signal-to-error" in shown.output
    refused = CliRunner().invoke(main, [*arguments, "--what", "apply"])
    assert refused.exit_code == 2
