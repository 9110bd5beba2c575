"""Calls outside of ``jit``: the second one with the same shapes compiles nothing, and values are looked at."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilations import compilations
from onnx import TensorProto, helper
from plain_graphs import node
from small_models import FEATURES, WIDTH, graph_of, layers_model, make_model, step_model
from test_time_loops import loop_model
from tiers import of_tiers

import jaxrnn

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def smooth(params, x):
    """A user's function with a loop of its own."""

    def step(carry, frame):
        carry = jnp.tanh(carry @ params + frame)
        return carry, carry

    return jax.lax.scan(step, jnp.zeros(3), x)[1]


def of_model():
    """Functions of parameters and inputs, with arguments: the whole graph, and its stream."""
    model = jaxrnn.load(layers_model())
    streamed = model.stream("T", pulse=2)
    state, batch = streamed.init(), streamed.init(3)
    yield "apply", model.apply, model.params, {"x": normal(5, 1, FEATURES)}
    yield "apply, rematerialized", lambda p, x: model.apply(p, x, remat=2), model.params, {"x": normal(5, 1, FEATURES)}
    yield "call", lambda _, x: model(x), None, {"x": normal(5, 1, FEATURES)}
    yield "pack", lambda p, _: streamed.pack(p).folded, model.params, None
    yield "stream's init", lambda p, _: streamed.init(4, params=p), model.params, None
    yield "stream's step", lambda p, x: streamed.step(p, state, x)[0], model.params, {"x": normal(2, 1, FEATURES)}
    yield "stream's batch", lambda p, x: streamed.step(p, batch, x)[0], model.params, {"x": normal(3, 2, 1, FEATURES)}
    yield "stream's scan", lambda p, x: streamed.scan(p, state, x), model.params, {"x": normal(6, 1, FEATURES)}
    yield (
        "stream's flush",
        lambda p, x: streamed.flush(p, state, x, 1).outputs,
        model.params,
        {"x": normal(1, 1, FEATURES)},
    )
    yield "stream's run", streamed.run, model.params, {"x": normal(7, 1, FEATURES)}


def of_others():
    """The same of steps, of loops that the file wrote, of a user's function, and of a Flax module."""
    steps = step_model()
    state, packed = steps.init(), steps.pack(steps.params)
    yield "step", lambda p, x: steps.step(p, state, x)[0], steps.params, {"x": normal(1, WIDTH)}
    yield "packed step", lambda _, x: steps.step(packed, state, x)[0], None, {"x": normal(1, WIDTH)}
    yield "scan", lambda p, x: steps.scan(p, state, x), steps.params, {"x": normal(6, 1, WIDTH)}
    yield "scan of lengths", lambda p, x: steps.scan(p, state, x, lengths=[4]), steps.params, {"x": normal(6, 1, WIDTH)}
    yield "run", steps.run, steps.params, {"x": normal(6, 1, WIDTH)}
    yield "pack of a step", lambda p, _: steps.pack(p).folded, steps.params, None
    loop = jaxrnn.load(loop_model())
    shape = [2 if isinstance(size, str) else size for size in loop.inputs[0].shape]
    yield "loop", loop.apply, loop.params, {loop.inputs[0].name: normal(shape[0], 6, *shape[2:])}
    streamed = jaxrnn.stream(smooth, jnp.zeros((8, 3)), axes=0, params=normal(3, 3), pulse=2)
    yield "a function's stream", streamed.run, jnp.eye(3), normal(7, 3)
    module = jaxrnn.nnx.Module(jaxrnn.load(layers_model()))
    yield "module", lambda _, x: module(x), None, {"x": normal(5, 1, FEATURES)}


@pytest.fixture(scope="module")
def cases():
    return {name: case for name, *case in (*of_model(), *of_others())}


def total(tree):
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating))


def plainly(function, params, x):
    return function(params, x)


def in_reverse(function, params, x):
    return jax.grad(lambda p: total(function(p, x)))(params)


def forward(function, params, x):
    return jax.jvp(lambda p: function(p, x), (params,), (params,))


def mapped(function, params, x):
    return jax.vmap(function, in_axes=(None, 0))(params, jax.tree.map(lambda leaf: np.stack([leaf, 2 * leaf]), x))


@pytest.mark.parametrize("transformed", of_tiers([plainly, in_reverse, forward, mapped], (), (plainly,)))
def test_the_second_call_compiles_nothing(cases, transformed):
    compiled = {}
    for name, (function, params, x) in cases.items():
        if (params is None and transformed in (in_reverse, forward)) or (x is None and transformed is mapped):
            continue  # the function has no such argument
        transformed(function, params, x)
        again = jax.tree.map(lambda leaf: leaf + 1, x)
        with compilations() as counted:
            jax.block_until_ready(transformed(function, params, again))
        compiled[name] = len(counted)
    assert compiled
    assert not any(compiled.values()), compiled


def test_steps_of_a_stream_compile_once_for_every_state(cases):
    """The state of a step is an argument like others."""
    function, params, x = cases["a function's stream"]
    streamed = jaxrnn.stream(smooth, jnp.zeros((8, 3)), axes=0, params=params, pulse=1)
    _, state = streamed.step(params, streamed.init(), x[:1])
    with compilations() as counted:
        outputs = []
        for frame in x[1:]:
            output, state = streamed.step(params, state, frame[None])
            outputs.append(output)
    assert not counted
    np.testing.assert_allclose(np.concatenate(outputs), np.asarray(function(params, x))[1:], atol=1e-6)


def gather():
    inputs = {"x": [2, 3], "index": (TensorProto.INT64, ["n"])}
    graph = graph_of([node("Gather", ["x", "index"], axis=0)], inputs, {"y": ["n", 3]})
    return jaxrnn.load(make_model(graph))


def test_values_are_looked_at():
    """Outside of ``jit`` a wrong index is an error; inside it reads NaN, and the compiled call knows."""
    model, x = gather(), np.ones((2, 3), np.float32)
    assert model.apply(model.params, {"x": x, "index": np.array([0, -2])})["y"].shape == (2, 3)
    wrong = np.array([1, 2])
    for apply in (model.apply, jax.grad(lambda p, x: model.apply(p, x)["y"].sum())):
        with pytest.raises(jaxrnn.NodeError, match=r"'n' \(Gather-13\).*index 2 is out of range for an axis of size 2"):
            apply(model.params, {"x": x, "index": wrong})
    assert np.isnan(jax.jit(model.apply)({}, {"x": x, "index": wrong})["y"][1]).all()


def test_a_branch_that_is_not_taken_need_not_fit():
    """A condition that is known in the call chooses the branch; compiled, both would have to run."""

    def branch(name, operator, *inputs):
        return graph_of([helper.make_node(operator, inputs, ["out"], name=name)], {}, {"out": None}, name=name)

    inputs = {"first": (TensorProto.BOOL, []), "x": ["n", "m"]}
    branches = {"then_branch": branch("square", "MatMul", "x", "x"), "else_branch": branch("same", "Identity", "x")}
    model = jaxrnn.load(make_model(graph_of([node("If", ["first"], **branches)], inputs, {"y": None})))
    x = np.ones((2, 3), np.float32)  # no square
    for _ in range(2):
        assert model.apply(model.params, {"first": np.array(False), "x": x})["y"].shape == (2, 3)
    with pytest.raises(jaxrnn.NodeError, match="'square'"):
        model.apply(model.params, {"first": np.array(True), "x": x})
