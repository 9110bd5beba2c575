"""The schedule of a step, and the scan built on it: equal to lax.scan, with less in the loop."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.test_util import check_grads
from tiers import of_tiers

from jaxrnn.jaxprs.scanning import scan
from jaxrnn.jaxprs.schedule import BatchedEquations, Loop, Step, one_loop


def arrays(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [jnp.array(rng.normal(size=shape)) for shape in shapes]


def lstm_between_layers(params, frame, carry):
    """A dense layer, an LSTM whose state is one array, a dense layer, and an output that needs no state."""
    w_in, w, r, w_out = params
    x = jax.nn.relu(frame["x"] @ w_in.T)
    h, c = carry[0], carry[1]
    i, f, g, o = jnp.split(x @ w + h @ r, 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return {"y": jnp.tanh(h @ w_out) * frame["gain"], "x": x, "one": jnp.ones(3), "h": h}, jnp.stack([h, c])


def buffer_and_mean(params, frame, carry):
    """A convolution over the last frames and a running mean: caches, no recurrent layer; int64 counts the frames."""
    (kernel,) = params
    buffer, mean, count = carry
    window = jnp.concatenate([buffer, frame["x"][None]])
    y = jnp.einsum("tbf,tfg->bg", window, kernel)
    count = count + 1
    mean = mean + (frame["x"] - mean) / count.astype(mean.dtype)
    return {"y": y - mean @ kernel[0], "n": count, "unused": buffer}, (window[1:], mean, count)


def passes_through(params, frame, carry):
    """No parameter, an output that is the carry, a carry that is the frame."""
    return {"before": carry, "now": frame["x"]}, frame["x"]


def with_inner_loop(params, frame, carry):
    """A loop inside every frame, before the carry and behind it."""
    (w,) = params
    h0 = jnp.zeros_like(frame["x"])
    _, inner = lax.scan(lambda h, _: (jnp.tanh(h @ w + frame["x"]),) * 2, h0, None, length=3)
    new = jnp.tanh(carry @ w + inner.sum(0))
    _, behind = lax.scan(lambda h, x: (jnp.tanh(h @ w + x),) * 2, new, inner)
    return {"y": behind}, new


def repeats_values(params, frame, carry):
    """Outputs that only repeat what the frame, the carry, the next carry or a parameter holds, and constants."""
    (w,) = params
    new = jnp.tanh(carry + frame["x"])
    repeated = [jnp.broadcast_to(value, (2, *value.shape)) for value in (jnp.sin(frame["x"]), carry, new, w)]
    return {**dict(zip("abcd", repeated, strict=True)), "e": jnp.arange(3)}, new


def without_carry(params, frame, carry):
    """Nothing goes from frame to frame."""
    return {"y": frame["x"] @ params[0], "w": params[0]}, carry


def ignores_the_frame(params, frame, carry):
    """A count of frames, and a parameter's share of it."""
    return {"n": carry, "y": carry[0] * params[0]}, carry + 1


def case(name, time, batch=2):
    frames = dict(zip(("x", "gain"), arrays((time, batch, 3), (time, batch, 3), seed=1), strict=True))
    if name == "lstm":
        return lstm_between_layers, arrays((5, 3), (5, 16), (4, 16), (4, 3)), frames, arrays((2, batch, 4))[0]
    if name == "buffer":
        carry = (*arrays((2, batch, 3), (batch, 3), seed=2), jnp.zeros((), jnp.int64))
        return buffer_and_mean, arrays((3, 3, 3)), {"x": frames["x"]}, carry
    if name == "through":
        return passes_through, [], {"x": frames["x"]}, arrays((batch, 3))[0]
    if name == "repeats":
        return repeats_values, arrays((3, 3)), {"x": frames["x"]}, arrays((batch, 3))[0]
    if name == "ignores":
        return ignores_the_frame, arrays((3, 3)), {"x": frames["x"]}, jnp.zeros(batch)
    if name == "no carry":
        return without_carry, arrays((3, 3)), {"x": frames["x"]}, ()
    return with_inner_loop, arrays((3, 3)), {"x": frames["x"]}, arrays((batch, 3))[0]


NAMES = ("lstm", "buffer", "through", "repeats", "ignores", "no carry", "inner")


@pytest.fixture(autouse=True)
def in_float64():
    with jax.enable_x64(True), jax.numpy_rank_promotion("raise"):
        yield


def by_loop(step, params, frames, carry):
    last, outputs = lax.scan(lambda state, frame: step(params, frame, state)[::-1], carry, frames)
    return outputs, last


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("time", of_tiers([0, 1, 7], (0, 7)))
def test_equals_the_loop(name, time):
    step, params, frames, carry = case(name, time)
    found, expected = (jax.jit(run, static_argnums=0)(step, params, frames, carry) for run in (scan, by_loop))
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        # Some tens of roundings of numbers near 1, handed on over 7 steps.
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_recordings_of_any_length(name):
    """The length may be symbolic: it is then that of arrays alone."""
    step, params, frames, carry = case(name, 5)
    (time,) = jax.export.symbolic_shape("time")
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct((time, *x.shape[1:]), x.dtype), frames)
    exported = jax.export.export(jax.jit(lambda frames: scan(step, params, frames, carry)))(shapes)
    found, expected = exported.call(frames), by_loop(step, params, frames, carry)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", of_tiers(NAMES, ["through"], ["lstm", "no carry"]))
def test_gradients_equal_those_of_the_loop(name):
    step, params, frames, carry = case(name, 5)
    inexact = lambda tree: [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]  # noqa: E731

    def loss(run, params, frames, floats):
        leaves, structure = jax.tree.flatten(carry)
        floats = iter(floats)
        given = [next(floats) if jnp.issubdtype(x.dtype, jnp.floating) else x for x in leaves]
        return sum(jnp.sum(jnp.sin(x)) for x in inexact(run(step, params, frames, structure.unflatten(given))))

    arguments = (params, frames, inexact(carry))
    found, expected = (jax.jit(jax.grad(loss, (1, 2, 3)), static_argnums=0)(run, *arguments) for run in (scan, by_loop))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)
    check_grads(
        jax.jit(lambda *given: loss(scan, *given)), arguments, order=1, modes=("fwd", "rev"), atol=1e-6, rtol=1e-6
    )


def test_only_what_the_carry_needs_stays_in_the_loop():
    step, params, frames, carry = case("lstm", 7)
    one = jax.tree.map(lambda x: x[0], frames)
    schedule = one_loop(Step.trace(step, params, one, carry))
    assert [type(part) for part in schedule.parts] == [BatchedEquations, Loop, BatchedEquations]
    names = [[e.primitive.name for e in group] for group in (schedule.fixed, *(p.equations for p in schedule.parts))]
    fixed, before, loop, after = names
    assert fixed.count("transpose") == 1
    assert before.count("dot_general") == 2  # both products of the frame
    assert loop.count("dot_general") == 1  # only the recurrent one
    assert after.count("dot_general") == 1  # the output layer
    jaxpr = jax.make_jaxpr(lambda *given: scan(step, *given))(params, frames, carry)
    (loop,) = (equation for equation in jaxpr.eqns if "scan[" in str(equation))
    assert str(loop).count("dot_general") == 1


def test_no_loop_without_a_carry():
    step, params, frames, carry = case("no carry", 7)
    assert "scan[" not in str(jax.make_jaxpr(lambda *given: scan(step, *given))(params, frames, carry))


@pytest.mark.parametrize("carried", [True, False])
def test_side_effects_stay_in_order(carried):
    """Those that need no carry, those that no carry needs, and those of parameters: all of them, in every frame."""
    seen = []

    def tell(what, value):
        jax.debug.callback(lambda value: seen.append((what, float(value))), value, ordered=True)

    def step(params, frame, carry):
        tell("frame", frame)
        new = carry + frame if carried else carry
        tell("sum", new if carried else 2 * frame)
        tell("parameter", params)
        return frame * params, new

    start = jnp.zeros(()) if carried else ()
    run = jax.jit(lambda *given: scan(step, *given))
    jax.block_until_ready(run(jnp.asarray(3.0), jnp.arange(1.0, 4), start))
    jax.effects_barrier()
    sums = (1.0, 3.0, 6.0) if carried else (2.0, 4.0, 6.0)
    expected = [(("frame", x), ("sum", y), ("parameter", 3.0)) for x, y in zip((1.0, 2.0, 3.0), sums, strict=True)]
    assert seen == [each for frame in expected for each in frame]


def test_what_is_fixed_is_folded():
    step, params, frames, carry = case("lstm", 7)
    one = jax.tree.map(lambda x: x[0], frames)
    traced = Step.trace(step, params, one, carry)
    assert [variable.aval.shape for variable in traced.folded].count((3, 5)) == 1  # w_in, transposed
    assert all(variable is not traced.params[0] for variable in traced.folded)


@pytest.mark.thorough
def test_frames_that_do_not_exist_leave_the_carry_alone():
    step, params, frames, carry = case("lstm", 7)
    lengths = jnp.array([3, 7])
    exists = jnp.arange(7)[:, None] < lengths[None]

    def keep(here, new, old):
        return jnp.where(here[None, :, None], new, old)

    poisoned = jax.tree.map(lambda x: jnp.where(exists[..., None], x, jnp.nan), frames)
    outputs, last = scan(step, params, poisoned, carry, exists=exists, masked_update=keep)
    for row, length in enumerate(np.asarray(lengths)):
        alone = jax.tree.map(lambda x, row=row, length=length: x[:length, row : row + 1], frames)
        expected, end = by_loop(step, params, alone, carry[:, row : row + 1])
        np.testing.assert_allclose(last[:, row], end[:, 0], atol=1e-13)
        np.testing.assert_allclose(outputs["y"][:length, row], expected["y"][:, 0], atol=1e-13)
