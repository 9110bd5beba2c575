"""Cells written out in the body of a loop: recognised however they are written, equal to the loop, or left alone."""

from __future__ import annotations

import contextlib
from unittest import mock

import changed_cells
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from jax import lax
from onnx import numpy_helper
from tiers import of_tiers
from verifier import assert_close, peer_outputs
from written_out_cells import CHOICES, FEATURES, written_out

import jaxrnn
from jaxrnn._jax.context import exact_types
from jaxrnn.cells import forms
from jaxrnn.cells.forms import recomputing
from jaxrnn.jaxprs import scanning
from jaxrnn.jaxprs.equations import inner_jaxprs, walk
from jaxrnn.jaxprs.scanning import scan_cells

DOTS = {"lstm": 1, "gru before": 2, "gru after": 1, "rnn": 1}


def dots_in_loops(closed):
    """For each loop that multiplies matrices, in how many products."""
    found = []

    def visit(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name in ("scan", "while"):
                body = equation.params.get("jaxpr") or equation.params["body_jaxpr"]
                found.append(sum(each.primitive.name == "dot_general" for each in walk(body.jaxpr)))
            else:
                for inner in inner_jaxprs(equation):
                    visit(inner)

    visit(closed.jaxpr)
    return sorted(number for number in found if number)


@contextlib.contextmanager
def unrecognised():
    with mock.patch.object(scanning, "schedule_of_cells", return_value=None):
        yield


@pytest.mark.nightly
@settings(max_examples=8, deadline=None, derandomize=True, phases=(Phase.generate,))
@given(CHOICES)
def test_written_out_cells(choices):
    """Values are ONNX Runtime's and those of the loop as it stands, gradients those of that loop, and in the loops
    there is no product but a cell's own."""
    proto, inputs = written_out(choices)
    model = jaxrnn.load(proto)
    assert dots_in_loops(jax.make_jaxpr(model.apply)(model.params, inputs)) == sorted(
        DOTS[kind] for kind in choices["kinds"]
    )

    def values_and_gradients():
        def loss(params, inputs):
            outputs = model.apply(params, inputs)
            return sum(jnp.sum(jnp.sin(value)) for value in outputs.values()), outputs

        return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(model.params, inputs)

    found = values_and_gradients()
    with unrecognised():
        expected = values_and_gradients()
    # Some tens of roundings of numbers near 1, handed on over at most 5 steps.
    assert_close(found[0][1], peer_outputs(proto, inputs), 1e-5)
    assert_close(found[0][1], expected[0][1], 1e-5)
    assert_close(found[1], expected[1], 1e-4)


# -- what a cell is not, and what stands around one, as steps in JAX


def arrays(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [jnp.array(0.6 * rng.normal(size=shape)) for shape in shapes]


HIDDEN = 4
W, R, B, P = arrays((FEATURES, 4 * HIDDEN), (HIDDEN, 4 * HIDDEN), (4 * HIDDEN,), (HIDDEN, HIDDEN))


def lstm(h, c, x, *, forget=lambda gate, c: jax.nn.sigmoid(gate), output=jnp.tanh, matrix=None, shown=None):
    i, f, g, o = jnp.split(x @ W + h @ (R if matrix is None else matrix) + B, 4, -1)
    new = forget(f, c) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * output(new if shown is None else c), new


def pair(function):
    def step(carry, x):
        new = function(*carry, x)
        return new, new[0]

    return step


@jax.custom_jvp
def straight_through(x):
    """The values of relu with another derivative, as in networks of spikes."""
    return jnp.maximum(x, 0)


straight_through.defjvp(lambda primals, tangents: (straight_through(*primals), *tangents))


def simple(h, x, activation=jnp.tanh):
    return activation(x @ W[:, :4] + h @ P)


def gru(h, x, *, inner=lambda r, product: r * product, mix=lambda z, g, h: (1 - z) * g + z * h):
    """A GRU that resets the product, with other terms in the candidate or another mixture."""
    z, r = (jax.nn.sigmoid(x @ W[:, at : at + HIDDEN] + h @ R[:, at : at + HIDDEN]) for at in (0, 4))
    return mix(z, jnp.tanh(x @ W[:, 8:12] + inner(r, h @ R[:, 8:12])), h)


def lstm_of_h(h, x):
    i, f, g, o = jnp.split(x @ W + h @ R + B, 4, -1)
    new = jax.nn.sigmoid(f) * h + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(new), new


NEAR_MISSES = {
    "a gate that sees c": pair(lambda h, c, x: lstm(h, c, x, forget=lambda gate, c: jax.nn.sigmoid(gate + c))),
    "a relu gate": pair(lambda h, c, x: lstm(h, c, x, forget=lambda gate, c: jax.nn.relu(gate))),
    "a hard gate": pair(lambda h, c, x: lstm(h, c, x, forget=lambda gate, c: jnp.clip(0.2 * gate + 0.5, 0, 1))),
    "no tanh of c": pair(lambda h, c, x: lstm(h, c, x, output=lambda c: c)),
    "tanh of the old c": pair(lambda h, c, x: lstm(h, c, x, shown="old")),
    "weights of the frame": pair(lambda h, c, x: lstm(h, c, x, matrix=R * x[0, 0])),
    "weights of the carry": pair(lambda h, c, x: lstm(h, c, x, matrix=R * c[0, 0])),
    "rows that meet": pair(lambda h, c, x: lstm(h[::-1], c, x)),
    "units of another row": pair(lambda h, c, x: lstm(h.T.reshape(h.shape), c, x)),
    "a projection": pair(lambda h, c, x: (lambda y, c: (y @ P, c))(*lstm(h, c, x))),
    "another sum than one": pair(lambda h, c, x: (1.5 * jnp.tanh(h @ P) - jax.nn.sigmoid(h @ P) * h, c)),
    "part of h": pair(lambda h, c, x: (jnp.tanh(h[:, :2] @ P[:2] + x @ W[:, :4]), c)),
    "no product": pair(lambda h, c, x: (jnp.tanh(h + x @ W[:, :4]), c)),
    "an unknown one": pair(lambda h, c, x: ((lambda z: (P[0, 0] - z) * jnp.tanh(x @ W[:, :4]) + z * h)(
        jax.nn.sigmoid(h @ P)), c)),
    "relu of a negative": pair(lambda h, c, x: (simple(h, x) + jax.nn.relu(-(x @ W[:, 4:8])), c)),
    "minus a relu": pair(lambda h, c, x: (-simple(h, x, jax.nn.relu), c)),
    "one gate for both": pair(lambda h, c, x: (gru(h, x, mix=lambda z, g, h: z * (g + h)), c)),
    "a product beside the reset": pair(lambda h, c, x: (gru(h, x, inner=lambda r, y: r * y + h @ P), c)),
    "h in place of c": pair(lambda h, c, x: lstm_of_h(h, x)),
    "a negative relu": pair(lambda h, c, x: (jax.nn.relu(-0.5 * simple(h, x, lambda gate: gate)), c)),
    "relu with a derivative of its own": pair(lambda h, c, x: (simple(h, x, straight_through), c)),
    "zero times a frame": pair(lambda h, c, x: (simple(h, x) + 0 * (x @ W[:, 4:8]), c)),
    "a frame less itself": pair(lambda h, c, x: (simple(h, x) + (lambda y: y - y)(x @ W[:, 4:8]), c)),
    "an infinite scale": pair(lambda h, c, x: (jnp.tanh((x @ W[:, :4] + h @ P) * jnp.inf), c)),
}  # fmt: skip


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_are_left_alone(name):
    step = NEAR_MISSES[name]
    carry, frames = tuple(arrays((3, HIDDEN), (3, HIDDEN), seed=1)), arrays((5, 3, FEATURES), seed=2)[0]
    found, expected = (jax.make_jaxpr(lambda *given, run=run: run(step, *given)) for run in (scan_cells, lax.scan))
    assert str(found(carry, frames)) == str(expected(carry, frames))


@pytest.mark.parametrize(("seed", "count"), of_tiers([(0, 40), (1, 160)], [], [(0, 40)]))
def test_changed_cells_are_the_loop(seed, count):
    """Whatever is recognised in cells with changes at random, values and gradients are those of the loop."""
    with jax.enable_x64(True):
        draw = np.random.default_rng(seed).normal
        carry = tuple(jnp.asarray(draw(size=(changed_cells.ROWS, changed_cells.UNITS))) for _ in range(2))
        frames = jnp.asarray(draw(size=(4, *carry[0].shape)))
        recognised = 0

        def outcome(run, step):
            def loss(carry, frames):
                outputs = run(step, carry, frames)
                return sum(jnp.sum(jnp.sin(value)) for value in jax.tree.leaves(outputs)), outputs

            return jax.value_and_grad(loss, (0, 1), has_aux=True)(carry, frames)

        for terms, step in changed_cells.steps(seed, count):
            if scanning.scan_recognised(step, carry, frames) is None:
                continue
            recognised += 1
            pair = jax.jit(lambda step=step: [outcome(run, step) for run in (scan_cells, lax.scan)])()
            try:
                assert_close(*pair, 1e-9)
            except AssertionError as error:
                raise AssertionError(f"{terms}") from error
        assert recognised > count / 15


def two_carries_of_one(carry, x):
    """Keras: the output and the hidden state are carried, and a mask keeps both."""
    y, h, c = carry
    new_h, new_c = lstm(h, c, x)
    here = x[:, :1] > 0
    y = jnp.where(here, new_h, y)
    return (y, jnp.where(here, new_h, h), jnp.where(here, new_c, c)), y


def transposed(carry, x):
    """Columns are rows: h and c are [hidden, batch]."""
    h, c = carry
    i, f, g, o = jnp.split(W.T @ x.T + R.T @ h + B[:, None], 4)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), (h.T, c)


def behind_a_mean(carry, x):
    """A running mean before the cell, and one behind it; h and c in one array, with the mean's beside them."""
    packed, mean, later = carry
    mean = 0.9 * mean + 0.1 * x
    h, c = lstm(packed[:, 0], packed[:, 1], x - mean)
    later = 0.5 * later + h @ P
    return (jnp.stack([h, c], 1), mean, later), {"y": jnp.tanh(later) * h, "old": packed[:, 0]}


def coupled(carry, x):
    """The input gate is one minus the forget gate; zero-padded features, and h beside x."""
    h, c = carry
    i, _, g, o = jnp.split(jnp.concatenate([h, x], -1) @ jnp.concatenate([R, W]) + B, 4, -1)
    keep = jax.nn.sigmoid(-i)
    c = keep * c + (1 - keep) * jnp.tanh(g)
    h = jnp.tanh(c) * jax.nn.sigmoid(o)
    return (h, c), jnp.concatenate([h, keep], -1)


AROUND = {
    two_carries_of_one: ((3, HIDDEN),) * 3,
    transposed: ((HIDDEN, 3),) * 2,
    behind_a_mean: ((3, 2, HIDDEN), (3, FEATURES), (3, HIDDEN)),
    coupled: ((3, HIDDEN),) * 2,
}


@pytest.mark.parametrize("step", of_tiers(AROUND, [coupled], thorough=[]))
def test_cells_among_other_things(step, monkeypatch):
    """Values and derivatives of both modes are those of the loop; only the cell's product is in a loop. Long
    recordings run in blocks."""
    carry, frames = tuple(arrays(*AROUND[step], seed=1)), arrays((6, 3, FEATURES), seed=2)[0]

    def outcome(run):
        def loss(*given):
            outputs = run(step, *given)
            return sum(jnp.sum(jnp.sin(value)) for value in jax.tree.leaves(outputs)), outputs

        tangent = jax.jvp(lambda *given: loss(*given)[0], (carry, frames), (carry, frames))[1]
        return jax.value_and_grad(loss, (0, 1), has_aux=True)(carry, frames), tangent

    found, expected = (jax.jit(lambda run=run: outcome(run))() for run in (scan_cells, lax.scan))
    # Some tens of roundings of numbers near 1, handed on over 6 steps.
    assert_close(found, expected, 2e-5)
    closed = jax.make_jaxpr(lambda *given: scan_cells(step, *given))(carry, frames)
    assert dots_in_loops(closed) == [1]
    short = [
        jax.jit(lambda run=run: [run(step, carry, frames[:n]) for n in (0, 1)])() for run in (scan_cells, lax.scan)
    ]
    assert_close(*short, 1e-6)
    monkeypatch.setattr(forms, "BLOCK", 2 * 3 * 4 * HIDDEN * 4)  # two frames of the cell's gates
    assert_close(jax.jit(lambda: outcome(scan_cells))(), expected, 2e-5)
    odd = (jax.jit(lambda run=run: run(step, carry, frames[:5]))() for run in (scan_cells, lax.scan))
    assert_close(*odd, 1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("remat", [None, 2])
def test_streams_of_other_lengths(remat):
    """`scan` with frames that do not exist, NaN in them: each row is itself alone, and stays one fast cell."""
    lengths = np.array([0, 4, 7])
    exists = jnp.arange(7)[:, None] < lengths
    frames = arrays((7, 3, FEATURES), seed=2)[0]
    start = tuple(arrays((3, HIDDEN), (3, HIDDEN), seed=1))

    def step(params, frame, carry):
        new = lstm(*carry, frame)
        return jnp.tanh(new[0] @ P), new

    def keep(here, new, old):
        return jax.tree.map(lambda a, b: jnp.where(here[:, None], a, b), new, old)

    def run(frames):
        with recomputing(remat):
            return scanning.scan(step, (), frames, start, exists=exists, masked_update=keep)

    poisoned = jnp.where(exists[..., None], frames, jnp.nan)
    assert dots_in_loops(jax.make_jaxpr(run)(poisoned))[0] == 1
    outputs, last = jax.tree.map(np.asarray, jax.jit(run)(poisoned))
    for row, length in enumerate(lengths):
        alone = lambda array, row=row: array[row : row + 1]  # noqa: E731
        loop = jax.jit(lambda start, frames: lax.scan(lambda carry, x: step((), x, carry)[::-1], start, frames))
        end, expected = loop(jax.tree.map(alone, start), np.asarray(frames)[:length, row : row + 1])
        assert_close(jax.tree.map(alone, last), end, 1e-6)
        assert_close(outputs[:length, row : row + 1], expected, 1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["dtln_1", "dtln_2"])
def test_models_of_steps(models, name):
    """Two layers in one packed state, written out in one file and as operators in the other: two cells, the same
    values as the loop of steps."""
    model = jaxrnn.load(models / f"{name}.onnx")
    shape = next(info.shape for info in model.spec.inputs)
    frames = {model.spec.inputs[0].name: np.random.default_rng(0).uniform(0, 1, (9, *shape)).astype(np.float32)}
    state = model.init()
    assert dots_in_loops(jax.make_jaxpr(model.scan)(model.params, state, frames)) == [1, 1]
    found = model.scan(model.params, state, frames)
    with unrecognised():
        expected = model.scan(model.params, state, frames)
    assert_close(found, expected, 1e-5)


def test_a_streamed_scan():
    """A Scan over open time: streamed as a cell, exact, and its state is named after the node."""
    choices = {"kinds": ["gru after"], "products": "each", "transposed": False, "sigmoid": "operator", "seed": 3,
               "convention": "keep", "operator": "Scan", "reverse": False, "extra": False, "time": 7, "batch": 2,
               "rnn": "Tanh"}  # fmt: skip
    proto, inputs = written_out(choices)
    proto.graph.input[-1].type.tensor_type.shape.dim[0].dim_param = "S"
    del proto.graph.output[0]  # the last hidden state, which is known only at the end
    start = proto.graph.input[0]
    proto.graph.initializer.append(numpy_helper.from_array(inputs[start.name], start.name))
    del proto.graph.input[0]
    model = jaxrnn.load(proto)
    streamed = model.stream(symbol="S", pulse=2)
    xs = {"xs": inputs["xs"]}
    with exact_types():
        found = jax.jit(streamed.run)(model.params, xs)
    assert_close(found, model.apply(model.params, xs), 1e-6)
    assert [variable.name for variable in streamed.state if "cells" in str(variable.name)]
