"""Derivatives by differences in float64, and how far these can be off: what gradients are held against."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from onnx import TensorProto, helper
from verifier import in_float64

import jaxrnn

#: Roundings in a value: some dozen operations one behind the other, each of sums of up to a hundred products.
ROUNDINGS = 1000


def difference(function, point, direction, step=1e-5, scale=0.0):
    """The derivative of a function along a direction as a central difference, and its doubt: two lists of arrays.

    Between the one-sided differences lies the derivative of whatever is convex or concave from one end to the other, at
    a kink in between too, so what they differ by bounds the error. Rounding adds its part, divided by the step: of the
    largest value, or of ``scale``, the size of what the values are computed from.
    """
    before, here, after = (
        [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(function(moved(point, direction, s)))]
        for s in (-step, 0.0, step)
    )
    largest = max(scale, *(float(np.abs(leaf).max(initial=0)) for leaf in here))
    noise = ROUNDINGS * np.finfo(np.float64).eps * largest / step
    central = [(b - a) / (2 * step) for a, b in zip(before, after, strict=True)]
    doubt = [np.abs(b - 2 * h + a) / step + noise for a, h, b in zip(before, here, after, strict=True)]
    return central, doubt


def assert_derivative(found, function, point, direction, step=1e-5, scale=0.0):
    """Whether a pytree holds the derivative of a function along a direction, element by element."""
    differences = difference(function, point, direction, step, scale)
    for place, (value, central, doubt) in enumerate(zip(jax.tree.leaves(found), *differences, strict=True)):
        error = np.abs(np.asarray(value) - central)
        worst = np.argmax(error - doubt) if error.size else None
        assert np.all(error <= doubt), (place, worst, *(np.ravel(x)[worst] for x in (value, central, doubt)))


def moved(point, direction, step):
    """The point, a step further along a direction; pytrees of arrays. In NumPy, which compiles nothing for a shape."""
    return jax.tree.map(lambda x, d: np.asarray(x) + step * np.asarray(d), point, direction)


def random_like(tree, seed):
    """Standard normal arrays of the shapes of a pytree."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.array(rng.normal(size=np.shape(leaf)), leaf.dtype), tree)


def dot(first, second):
    """The inner product of two pytrees of arrays."""
    return sum(np.vdot(a, b) for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))


def size_of(tree):
    """The largest absolute value in a pytree."""
    return max((float(np.max(np.abs(leaf), initial=0)) for leaf in jax.tree.leaves(tree)), default=0.0)


def all_in_float64(proto):
    """`in_float64`, also where a normalisation would compute in float32 by default."""
    wide = in_float64(proto)
    for node in wide.graph.node:
        if node.op_type in ("LayerNormalization", "GroupNormalization", "RMSNormalization"):
            kept = [attribute for attribute in node.attribute if attribute.name != "stash_type"]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute("stash_type", TensorProto.DOUBLE)])
    return wide


@functools.cache
def network(path, wide, **static):
    """A model, loaded once: in float64, or as it is."""
    proto = onnx.load(path)
    return jaxrnn.load(all_in_float64(proto) if wide else proto, static=static)


def floats(inputs, dtype=np.float64):
    """The inputs that have derivatives, in one type."""
    return {name: jnp.array(value, dtype) for name, value in inputs.items() if value.dtype.kind == "f"}


def mean_squares(outputs):
    """The sum over float outputs of mean(output ** 2)."""
    return sum(jnp.mean(y**2) for y in outputs.values() if jnp.issubdtype(y.dtype, jnp.floating))


#: The same sums in another order, in float64: some ten thousand roundings relative to the largest value.
EQUAL = 1e-11


def assert_equal(found, expected):
    """Two pytrees agree up to the order of sums, relative to the largest value of either."""
    limit = EQUAL * max(size_of(found), size_of(expected))
    assert limit > 0
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=limit)
