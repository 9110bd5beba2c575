"""The loop over a sequence: its derivative rule beside JAX's own, what it keeps in memory, and narrow products."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tiers import of_tiers

import jaxrnn
from jaxrnn.cells.cell import GRU, LSTM, RNN, Weights, parse_activations
from jaxrnn.cells.forms import in_chunks, recomputing
from jaxrnn.cells.recurrence import run_direction, run_layer
from jaxrnn.jaxprs.equations import walk

TIME, BATCH, FEATURES, HIDDEN = 7, 3, 4, 5


def plain_loop(cell, weights, x, initial, reverse, exists):
    """The same sequence, its derivative left to JAX."""
    for_input, recurrent = cell.prepare(weights, x.dtype)
    exists = jnp.ones((TIME, BATCH, 1), bool) if exists is None else exists

    def step(carry, frame):
        gates, here = frame
        new = cell.step(recurrent, carry, cell.split_gates(gates))
        kept = tuple(jnp.where(here, after, before) for after, before in zip(new, carry, strict=True))
        return kept, jnp.where(here, new[0], 0.0)

    final, y = lax.scan(step, initial, (cell.project(for_input, x), exists), reverse=reverse)
    return y, final


def drawn(cell, *, bias=True, peephole=False):
    rng = np.random.default_rng(0)
    rows = cell.gates * HIDDEN
    weights = Weights(
        rng.normal(size=(rows, FEATURES)),
        0.5 * rng.normal(size=(rows, HIDDEN)),
        rng.normal(size=2 * rows) if bias else None,
        rng.normal(size=3 * HIDDEN) if peephole else None,
    )
    x = rng.normal(size=(TIME, BATCH, FEATURES))
    initial = tuple(rng.normal(size=(BATCH, HIDDEN)) for _ in range(cell.carries))
    return jax.tree.map(jnp.array, (weights, x, initial))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("cell", "parts", "reverse", "lengths", "remat"),
    [
        pytest.param(LSTM(), {}, False, None, None, marks=pytest.mark.nightly),
        (LSTM(clip=0.8), {"peephole": True}, True, [7, 0, 3], 3),
        pytest.param(
            LSTM(parse_activations(["HardSigmoid", "Elu", "Softsign"]), input_forget=True),
            {"peephole": True, "bias": False},
            False,
            [2, 7, 0],
            None,
            marks=pytest.mark.nightly,
        ),
        (GRU(linear_before_reset=True), {}, True, None, "sqrt"),
        pytest.param(
            GRU(parse_activations(["Softplus", "ScaledTanh"]), clip=0.7),
            {},
            False,
            [7, 0, 3],
            2,
            marks=pytest.mark.nightly,
        ),
        pytest.param(RNN(parse_activations(["Relu"])), {"bias": False}, True, None, 7, marks=pytest.mark.nightly),
    ],
)
def test_the_rule_gives_what_jax_derives(cell, parts, reverse, lengths, remat):
    with jax.enable_x64(True):
        arguments = drawn(cell, **parts)
        rng = np.random.default_rng(1)
        exists = None if lengths is None else (jnp.arange(TIME)[:, None] < jnp.array(lengths))[..., None]
        seen = jnp.array(rng.normal(size=(TIME, BATCH, HIDDEN)))
        direction = jax.tree.map(lambda leaf: jnp.array(rng.normal(size=leaf.shape)), arguments)

        def loss(run, *arguments):
            y, final = run(*arguments)
            return jnp.sum(seen * jnp.sin(y)) + sum(jnp.sum(jnp.cos(carry)) for carry in final)

        def with_rule(*arguments):
            with recomputing(remat):
                return run_direction(cell, *arguments, reverse=reverse, exists=exists)

        def without(*arguments):
            return plain_loop(cell, *arguments, reverse, exists)

        def facts(run, arguments, direction):
            one = functools.partial(loss, run)
            gradient = jax.grad(one, (0, 1, 2))
            # Values and derivatives, and behind them a product with the matrix of second derivatives.
            return jax.jvp(one, arguments, direction), jax.jvp(gradient, arguments, direction)

        found = jax.jit(functools.partial(facts, with_rule))(arguments, direction)
        expected = jax.jit(functools.partial(facts, without))(arguments, direction)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("cells", "rows", "lengths", "loops"),
    [
        ((LSTM(), LSTM()), 1, None, 1),
        ((GRU(), GRU()), 1, [3], 1),
        ((GRU(linear_before_reset=True), GRU()), 1, None, 2),
        ((RNN(), RNN()), BATCH, [7, 0, 3], 2),
    ],
)
def test_two_directions_of_one_row_are_one_loop(cells, rows, lengths, loops):
    """It gives what each direction gives alone, and so do its derivatives."""
    with jax.enable_x64(True):
        (one, x, start), (other, _, start_2) = (drawn(cell, peephole=isinstance(cell, LSTM)) for cell in cells)
        weights = one, jax.tree.map(lambda leaf: leaf[::-1], other)
        x, starts = x[:, :rows], jax.tree.map(lambda leaf: leaf[:rows], (start, start_2))
        exists = None if lengths is None else jnp.arange(TIME)[:, None] < jnp.array(lengths)
        mask = None if exists is None else exists[..., None]

        def layer(weights, x, starts):
            weights, starts = (jax.tree.map(lambda *pair: jnp.stack(pair), *each) for each in (weights, starts))
            return run_layer(cells, weights, x, starts, direction="bidirectional", exists=exists)

        def each_alone(weights, x, starts):
            pairs = zip(cells, weights, starts, (False, True), strict=True)
            results = [run_direction(c, w, x, s, reverse=reverse, exists=mask) for c, w, s, reverse in pairs]
            y, final = jax.tree.map(lambda *pair: jnp.stack(pair), *results)
            return jnp.swapaxes(y, 0, 1), final

        def facts(function, *arguments):
            def loss(*arguments):
                y, final = function(*arguments)
                seen = jnp.arange(y.size, dtype=y.dtype).reshape(y.shape)
                return jnp.sum(seen * jnp.sin(y)) + sum(map(jnp.sum, final))

            return jax.value_and_grad(loss, (0, 1, 2))(*arguments)

        arguments = weights, x, starts
        assert str(jax.make_jaxpr(layer)(*arguments)).count("scan[") == loops
        if loops == 2:
            return
        found, expected = (jax.jit(functools.partial(facts, each))(*arguments) for each in (layer, each_alone))
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


def products_in_loops(jaxpr, inside=False):
    """Shapes of the matrix products that a loop of a jaxpr makes in every step."""
    for equation in jaxpr.eqns:
        if inside and equation.primitive.name == "dot_general":
            yield equation.outvars[0].aval.shape
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from products_in_loops(inner, inside or equation.primitive.name in ("scan", "while"))


@pytest.mark.parametrize("cell", [LSTM(), GRU(), GRU(linear_before_reset=True), RNN()])
def test_the_gradient_of_the_weights_is_one_product_behind_the_loop(cell):
    weights, x, initial = drawn(cell)

    def loss(weights):
        return jnp.sum(run_direction(cell, weights, x, initial)[0] ** 2)

    shapes = list(products_in_loops(jax.make_jaxpr(jax.grad(loss))(weights).jaxpr))
    assert shapes
    assert all(shape[0] == BATCH for shape in shapes), shapes


@pytest.mark.thorough
@pytest.mark.parametrize("remat", ["sqrt", 32])
def test_recomputing_bounds_the_memory_of_a_backward_pass(remat):
    cell, batch, hidden = LSTM(), 4, 64
    rows = 4 * hidden
    weights = Weights(jnp.zeros((rows, 1)), jnp.zeros((rows, hidden)), jnp.zeros(2 * rows))
    initial = (jnp.zeros((batch, hidden)),) * 2

    def bytes_for(frames, remat):
        def loss(weights, x):
            with recomputing(remat):
                return jnp.sum(run_direction(cell, weights, x, initial)[1][0])

        lowered = jax.jit(jax.grad(loss)).lower(weights, jnp.zeros((frames, batch, 1)))
        return lowered.compile().memory_analysis().temp_size_in_bytes

    frame = batch * hidden * 4
    everything, less = bytes_for(4096, None), bytes_for(4096, remat)
    chunks = 64 if remat == "sqrt" else 4096 // remat
    inside = 4096 // chunks
    assert everything > 6 * 4096 * frame  # at the least, six coefficients of every unit and frame
    assert less < (4 * chunks + 30 * inside) * frame + everything // 5


@pytest.mark.parametrize(("remat", "chunk"), [("sqrt", 5), (7, 7), (np.int64(7), 7), (None, None)])
def test_chunks_of_the_given_size(remat, chunk):
    def run(carry, frames):
        return jax.lax.scan(lambda carry, frame: (carry + frame, carry), carry, frames)

    with recomputing(remat):
        jaxpr = jax.make_jaxpr(lambda frames: in_chunks(run, 0.0, frames))(jnp.ones(28)).jaxpr
    lengths = {equation.params["length"] for equation in walk(jaxpr) if equation.primitive.name == "scan"}
    assert lengths == ({28} if chunk is None else {28 // chunk, chunk} | {28 % chunk} - {0})


@pytest.mark.parametrize("wrong", [0, -1, "log", 2.5, True])
def test_remat_is_frames_or_sqrt(models, wrong):
    model = jaxrnn.load(models / "dtln_1.onnx")
    with pytest.raises(jaxrnn.InputError, match="remat"):
        model.scan(model.params, model.init(), {"input_2": np.zeros((4, 1, 1, 257), np.float32)}, remat=wrong)


@pytest.mark.nightly
def test_remat_of_a_recording_changes_no_gradient(models):
    model = jaxrnn.load(models / "dtln_1.onnx")
    x = np.random.default_rng(0).uniform(0, 1, (50, 1, 1, 257)).astype(np.float32)

    @functools.partial(jax.jit, static_argnums=1)
    def gradient(params, remat):
        def loss(params):
            outputs, state = model.scan(params, model.init(), {"input_2": x}, remat=remat)
            return jnp.mean(outputs["activation_2"] ** 2) + jnp.sum(state["input_3"] ** 2)

        return jax.grad(loss)(params)

    whole = gradient(model.params, None)
    for remat in ("sqrt", 8, 100):
        for name, found in gradient(model.params, remat).items():
            np.testing.assert_allclose(found, whole[name], atol=1e-5 * max(1e-6, np.max(np.abs(whole[name]))))


@pytest.mark.nightly
@pytest.mark.parametrize("name", of_tiers(["filter_net", "ocr_net"], ("ocr_net",)))
def test_narrow_products_are_narrow_and_all_else_is_wide(models, name):
    model = jaxrnn.load(models / f"{name}.onnx")
    file = np.load(models / f"{name}.npz")
    inputs = {key[3:]: file[key] for key in file.files if key.startswith("in/")}

    def loss(params, dtype):
        outputs = model.apply(params, inputs, dtype=dtype)
        assert all(value.dtype == jnp.float32 for value in outputs.values())
        return sum(jnp.mean(value**2) for value in outputs.values())

    gradient = jax.jit(jax.grad(loss), static_argnums=1)
    wide, narrow = gradient(model.params, None), gradient(model.params, "bfloat16")
    assert all(value.dtype == jnp.float32 for value in narrow.values())
    flat = [jnp.concatenate([jnp.ravel(value) for value in jax.tree.leaves(each)]) for each in (wide, narrow)]
    apart = float(jnp.linalg.norm(flat[0] - flat[1]) / jnp.linalg.norm(flat[0]))
    # The unit roundoff of bfloat16 is 2**-9; rounding errors of many products largely cancel.
    assert 2**-14 < apart < 2**-5
    text = str(jax.make_jaxpr(lambda params: loss(params, "bfloat16"))(model.params))
    assert "bf16" in text
