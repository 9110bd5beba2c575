"""Starting a stream: how often the function is walked, what is compiled, and that its first state is exact."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilations import compilations
from jax import lax
from stream_functions import CASES
from tiers import of_tiers

import jaxrnn
from benchmarks import built
from jaxrnn.streaming import plan


@pytest.fixture
def walks(monkeypatch):
    """A list with one entry for each walk through a traced function."""
    counted: list[int] = []

    def interpret(run, closed, arguments):
        counted.append(run.now.units)
        return original(run, closed, arguments)

    original = plan.interpret
    monkeypatch.setattr(plan, "interpret", interpret)
    return counted


@pytest.mark.parametrize("network", of_tiers(["convolutional_recurrent", "dual_path"], ["convolutional_recurrent"], []))
def test_a_network_is_walked_once_for_its_facts_and_once_for_a_step(network, walks):
    """The first walk finds the facts and the state before the first frame, and nothing is compiled for it."""
    model = jaxrnn.load(built.NETWORKS[network]())
    with compilations() as counted:
        streamed = model.stream()
        state, batch = streamed.init(), streamed.init(3)
    assert (len(walks), len(counted)) == (1, 0)
    assert {name: (3, *each.shape) for name, each in state.items()} == {name: x.shape for name, x in batch.items()}
    jax.eval_shape(streamed.step, model.params, state, {name: each.struct() for name, each in streamed.inputs.items()})
    assert len(walks) == 2


@pytest.mark.parametrize("part", of_tiers(range(4), [], [0]))
def test_all_states_before_the_first_frame_are_one_small_program_at_most(part):
    for name in [*CASES][part::4]:
        case = CASES[name]
        options = {key: case.options[key] for key in ("multiple", "constraints") if key in case.options}
        example = jax.ShapeDtypeStruct((20, 3), case.options.get("dtype", np.float32))
        streamed = jaxrnn.stream(case.function, example, axes=case.options.get("axis", 0), pulse=None, **options)
        with compilations() as counted:
            streamed.init()
        assert len(counted) <= 1, name


@pytest.mark.parametrize("name", ["running mean", "known at the end", "transposed by 2", "bits of all frames"])
def test_entries_that_collect_frames_begin_as_constants(name):
    """No frame exists before the first, so that totals and partial sums need no program to begin with."""
    example = jax.ShapeDtypeStruct((20, 3), CASES[name].options.get("dtype", np.float32))
    streamed = jaxrnn.stream(CASES[name].function, example, axes=0)
    with compilations() as counted:
        streamed.init()
    assert not counted


@pytest.mark.thorough
def test_parameters_are_packed_with_one_walk(walks):
    streamed = jaxrnn.stream(lambda w, x: jnp.tanh(x @ (w + w.T)), jnp.zeros((9, 3)), axes=0, params=jnp.eye(3))
    x = np.ones((1, 3), np.float32)
    walks.clear()
    packed = streamed.pack(jnp.eye(3))
    single, _ = streamed.step(packed, streamed.init(), x)
    batch, _ = streamed.step(packed, streamed.init(2), np.stack([x, x]))
    assert len(walks) == 1
    np.testing.assert_array_equal(batch, np.stack([single, single]))


def recurrence(weight, x):
    def step(h, frame):
        h = jnp.tanh(h * weight + frame)
        return h, h

    return lax.scan(step, jnp.ones(x.shape[1:]), x)[1]


def layers(weight, x):
    return lax.scan(lambda h, each: (recurrence(each, h), None), x, jnp.stack([weight, 2 * weight]))[0]


def chosen(weight, x):
    """Branches that keep state, one inside the other, over frames that come before the first."""
    x = jnp.pad(x, ((3, 0), (0, 0)), constant_values=1)

    def inner(x):
        return lax.cond(weight[1] > 0, lambda x: layers(weight, x), lambda x: recurrence(weight, x), x)

    return lax.cond(weight[0] > 0, inner, lambda x: jnp.cumsum(weight * x, 0), x)


@pytest.mark.thorough
def test_branches_begin_before_the_first_frame():
    x = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    weights = jnp.array([(1.0, 1, 1), (1, -1, 1), (-1, 1, 1)]) * jnp.array([0.9, 0.5, 0.3])
    streamed = jaxrnn.stream(chosen, x, axes=0, params=weights[0], pulse=2)

    def value_and_gradient(function):
        """Compiled once for all branches: a batch of conditions would compute each branch."""

        def loss(weight):
            y = function(weight, x)
            return (y**2).sum(), y

        compiled = jax.jit(jax.grad(loss, has_aux=True))
        return [compiled(weight) for weight in weights]

    for found, expected in zip(*map(value_and_gradient, (streamed.run, chosen)), strict=True):
        np.testing.assert_allclose(found[1], expected[1], atol=1e-6)
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)


@jax.custom_jvp
def ramp(x):
    return jnp.maximum(x, 0)


@ramp.defjvp
def _(primals, tangents):
    (x,), (dx,) = primals, tangents
    return ramp(x), jnp.where(x > 0, dx, jnp.array(1 / 3)) * (1 + jnp.array(2.0**-40))


@pytest.mark.thorough
def test_a_derivative_rule_is_traced_in_the_types_of_the_function():
    """JAX asks for the rule where it differentiates, which may be anywhere."""

    def function(weight, x):
        return jnp.cumsum(ramp(weight * x), 0)

    with jax.enable_x64(True):
        weight, x = jnp.array([1.0, -2.0]), jnp.ones((1, 2))
        streamed = jaxrnn.stream(function, x, axes=0, params=weight)
        _, expected = jax.jvp(lambda w: function(w, x), (weight,), (weight,))
    state = streamed.init()
    step = jax.jit(lambda w: streamed.step(w, state, x)[0])
    _, found = jax.jvp(step, (weight,), (weight,))
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, expected)
