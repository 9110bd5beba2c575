"""Every transformation of JAX on every function: exact, or refused with a reason.

`TRANSFORMATIONS` by `FUNCTIONS` is the table; `REFUSED` names the cells that do not run, and why. Each cell is a check
of one pure function of parameters and an array.
"""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from refusals import check_refused
from small_models import WIDTH, layers_model, step_model
from tiers import of_tiers
from verifier import assert_close

import jaxrnn
import jaxrnn.nnx

RNG = np.random.default_rng(0)


def array(*shape):
    return jnp.asarray(RNG.standard_normal(shape), jnp.float32)


# -- functions


@functools.cache
def layers():
    model = jaxrnn.load(layers_model())
    return model, model.stream(symbol="T", pulse=2)


@functools.cache
def recurrent():
    return step_model()


def apply():
    model, _ = layers()
    return lambda params, x: model.apply(params, {"x": x}), model.params, array(4, 1, 3)


def step():
    model = recurrent()
    return lambda params, x: model.step(params, model.init(), {"x": x}), model.params, array(1, WIDTH)


def scan():
    model = recurrent()
    return lambda params, x: model.scan(params, model.init(), {"x": x}), model.params, array(3, 1, WIDTH)


def stream_step():
    model, streamed = layers()
    return lambda params, x: streamed.step(params, streamed.init(), {"x": x}), model.params, array(2, 1, 3)


def stream_flush():
    model, streamed = layers()

    def flush(params, x):
        _, state = streamed.step(params, streamed.init(), {"x": x})
        return streamed.flush(params, state, {"x": x}, 1).outputs

    return flush, model.params, array(2, 1, 3)


def module():
    """Three steps of a module that holds the state."""
    graph, params, rest = nnx.split(jaxrnn.nnx.Module(recurrent()), nnx.Param, ...)

    def call(params, x):
        merged = nnx.merge(graph, params, rest, copy=True)
        outputs = [merged.step(x=frame) for frame in x]
        return outputs, merged.state

    return call, params, array(3, 1, WIDTH)


class Case:
    """A function with its arguments, and what it gives."""

    def __init__(self, function, params, x):
        self.function, self.arguments = function, (params, x)
        self.params, self.x = params, x

    @functools.cached_property
    def values(self):
        """Those of the function."""
        return self.function(*self.arguments)

    @functools.cached_property
    def gradients(self):
        """Those of the loss, by both arguments."""
        return jax.jit(jax.grad(loss_of(self.function), (0, 1)))(*self.arguments)

    @functools.cached_property
    def several(self):
        """Three inputs, and the values for each."""
        inputs = np.stack([np.multiply(self.x, by) for by in (1, 2, -1)])
        function = jax.jit(self.function)
        each = [function(self.params, one) for one in inputs]
        return jnp.asarray(inputs), jax.tree.map(lambda *leaves: np.stack(leaves), *each)


@functools.cache
def case_of(name):
    return Case(*FUNCTIONS[name]())


FUNCTIONS = {
    "apply": apply,
    "step": step,
    "scan": scan,
    "stream.step": stream_step,
    "stream.flush": stream_flush,
    "nnx.Module": module,
}

# -- transformations: each holds a transformed function against the function itself


def loss_of(function):
    return lambda *arguments: sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(function(*arguments)))


def direction(tree):
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape), leaf.dtype), tree)


def along(trees, by, far):
    return jax.tree.map(lambda leaf, way: jnp.asarray(np.asarray(leaf) + np.float32(far) * np.asarray(way)), trees, by)


def dot(one, other):
    return sum(jax.tree.leaves(jax.tree.map(np.vdot, one, other)))


def jit(case):
    assert_close(jax.jit(case.function)(*case.arguments), case.values)


def jvp(case):
    by = direction(case.arguments)
    _, found = jax.jvp(loss_of(case.function), case.arguments, by)
    loss = jax.jit(loss_of(case.function))
    ends = [loss(*along(case.arguments, by, far)) for far in (-1e-2, 1e-2)]
    np.testing.assert_allclose(found, (ends[1] - ends[0]) / 2e-2, rtol=2e-2, atol=2e-3)


def grad(case):
    by = direction(case.arguments)
    _, expected = jax.jit(functools.partial(jax.jvp, loss_of(case.function)))(case.arguments, by)
    np.testing.assert_allclose(dot(case.gradients, by), expected, rtol=1e-4, atol=1e-5)


def hessian(case):
    loss = functools.partial(loss_of(case.function), case.params)
    by = direction(case.x)
    found = np.tensordot(jax.jit(jax.hessian(loss))(case.x), by, case.x.ndim)
    gradient = jax.jit(jax.grad(loss))
    ends = [gradient(along(case.x, by, far)) for far in (-1e-2, 1e-2)]
    np.testing.assert_allclose(found, (ends[1] - ends[0]) / 2e-2, rtol=2e-2, atol=5e-3)


def vmap(case):
    inputs, expected = case.several
    assert_close(jax.jit(jax.vmap(case.function, (None, 0)))(case.params, inputs), expected)


def pmap(case):
    parallel = jax.pmap(case.function, in_axes=(None, 0), devices=jax.devices()[:1])
    assert_close(first_of(parallel(case.params, case.x[None])), case.values)


def first_of(tree):
    return jax.tree.map(lambda leaf: np.asarray(leaf)[0], tree)


def one_device():
    return jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])


def shard_map(case):
    """Values, and gradients in it."""

    def part(params, x):
        values, gradients = case.function(params, x[0]), jax.grad(loss_of(case.function))(params, x[0])
        return jax.tree.map(lambda leaf: leaf[None], values), gradients

    parallel = jax.shard_map(part, mesh=one_device(), in_specs=(P(), P("data")), out_specs=(P("data"), P()))
    values, gradients = jax.jit(parallel)(case.params, case.x[None])
    assert_close(first_of(values), case.values)
    assert_close(gradients, case.gradients[0], 1e-5)


def named_sharding(case):
    """Compiled and not."""
    placed = jax.device_put(case.arguments, NamedSharding(one_device(), P()))
    assert_close(jax.jit(case.function)(*placed), case.values)
    assert_close(case.function(*placed), case.values)


def checkpoint(case):
    assert_close(jax.grad(loss_of(jax.checkpoint(case.function)), (0, 1))(*case.arguments), case.gradients, 1e-5)


def scan_over(case):
    inputs, expected = case.several
    assert_close(lax.scan(lambda carry, one: (carry, case.function(case.params, one)), None, inputs)[1], expected)


def export(case):
    """Written, read, and differentiated."""
    leaves, structure = jax.tree.flatten(case.params)

    def flat(leaves, x):
        return jax.tree.leaves(case.function(jax.tree.unflatten(structure, leaves), x))

    written = jax.export.export(jax.jit(flat))(leaves, case.x).serialize(vjp_order=1)
    call = jax.export.deserialize(written).call
    assert_close(call(leaves, case.x), jax.tree.leaves(case.values))
    found = jax.grad(loss_of(call), (0, 1))(leaves, case.x)
    assert_close(jax.tree.leaves(found), jax.tree.leaves(case.gradients), 1e-5)


def custom_jvp(case):
    wrapped = jax.custom_jvp(case.function)
    wrapped.defjvp(functools.partial(jax.jvp, case.function))
    assert_close(jax.grad(loss_of(wrapped), (0, 1))(*case.arguments), case.gradients, 1e-5)


def custom_vjp(case):
    wrapped = jax.custom_vjp(case.function)
    wrapped.defvjp(functools.partial(jax.vjp, case.function), lambda back, cotangents: back(cotangents))
    assert_close(jax.grad(loss_of(wrapped), (0, 1))(*case.arguments), case.gradients, 1e-5)


def under(setting):
    """The function and its gradient where JAX is set in another way."""

    def check(case):
        expected = case.values, case.gradients
        with setting():
            found = case.function(*case.arguments), jax.grad(loss_of(case.function), (0, 1))(*case.arguments)
        assert_close(found, expected, 1e-5)

    return check


TRANSFORMATIONS = {
    "jit": jit,
    "grad": grad,
    "jvp": jvp,
    "hessian": hessian,
    "vmap": vmap,
    "pmap": pmap,
    "shard_map": shard_map,
    "NamedSharding": named_sharding,
    "checkpoint": checkpoint,
    "scan over it": scan_over,
    "export": export,
    "custom_jvp": custom_jvp,
    "custom_vjp": custom_vjp,
    "debug_nans": under(lambda: jax.debug_nans(True)),
    "disable_jit": under(jax.disable_jit),
    "numpy_rank_promotion=raise": under(lambda: jax.numpy_rank_promotion("raise")),
    "numpy_dtype_promotion=strict": under(lambda: jax.numpy_dtype_promotion("strict")),
    "x64": under(lambda: jax.enable_x64(True)),
}

#: What does not run: the error, and what it says.
REFUSED: dict[tuple[str, str], tuple[type[Exception], str]] = {}

#: One cell of each row.
DIAGONAL = set(zip(TRANSFORMATIONS, [*FUNCTIONS] * 3, strict=False))
#: Rows of which a second cell is enough: other tests do it to all of these functions, or it is a setting.
SHORT = {"jit", "grad", "jvp", "vmap", "pmap", "scan over it", "custom_jvp", "custom_vjp", "debug_nans"}
SHORT |= {"numpy_rank_promotion=raise", "numpy_dtype_promotion=strict"}
SECOND = set(zip(TRANSFORMATIONS, [*FUNCTIONS][2:] + [*FUNCTIONS] * 3, strict=False))

#: Cells of transformations that other quick tests do not apply.
QUICK = [cell for cell in DIAGONAL if cell[0] in ("NamedSharding", "shard_map")]
CELLS = [
    cell for cell in itertools.product(TRANSFORMATIONS, FUNCTIONS) if cell[0] not in SHORT or cell in DIAGONAL | SECOND
]


@pytest.mark.parametrize(("transformation", "function"), of_tiers(CELLS, QUICK, DIAGONAL))
def test_transformation(transformation, function):
    check, case = TRANSFORMATIONS[transformation], case_of(function)
    if (transformation, function) in REFUSED:
        error, reason = REFUSED[transformation, function]
        check_refused(error, reason, check, case)
    else:
        check(case)
