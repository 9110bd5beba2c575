"""Parallel forms of recurrences: sums over all earlier frames whose terms factor into a query part and a key part.

Linear attention, retention, mLSTM and state space duality are written with one element for each pair of frames. A
causal mask leaves the keys j <= i + edge, and the element is

    exp(a_i + b_j) * sum_r Q_ir K_jr,

so a sum over keys is a recurrence: h_i = h_(i-1) + exp(b_i) K_i v_i, and the result is exp(a_i) Q_i h_i. `separate`
finds the factors of a `Pairs` from the operations that made the value. A step computes the pairs of frames inside the
pulse as the function does, and reads all older keys from the state h.

Example: in ``where(i >= j, 0.9 ** (i - j), 0) * (q @ k.T) @ v``, r counts features, and h is a matrix that shrinks by
0.9 in each frame.

Sources: Katharopoulos et al., "Transformers are RNNs", 2020; Dao and Gu, "Transformers are SSMs", 2024.
"""

from __future__ import annotations

import dataclasses
import math
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.extend.core import JaxprEqn

from jaxrnn.jaxprs.equations import free_axes, type_of
from jaxrnn.jaxprs.moves import ELEMENTWISE
from jaxrnn.streaming.diagnostics import describe_equation
from jaxrnn.streaming.dimensions import in_shape, is_symbolic, out_shape, symbolic_axes
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.places import UNCHANGED, Places
from jaxrnn.streaming.totals import Total, carried_as, identity_of
from jaxrnn.streaming.values import Chunk, Pairs, along, is_length


def _described(equation: JaxprEqn) -> str:
    return describe_equation((equation,))


class InseparableError(Exception):
    """Raised if the element for a pair of frames does not factor; the argument is the reason."""


@dataclass(frozen=True)
class ScoreTerm:
    """The sum ``query_i + key_j + growth_i - past_j``.

    All arrays have the rank of the pairs, and size 1 along the axis of the other side. `growth` and `past` count from
    the frame before the pulse, so they stay small in long streams; both are None, or neither. `fixed` is True for a
    query part that is the same for all frames.
    """

    query: Any = None
    key: Any = None
    growth: Any = None
    past: Any = None
    fixed: bool = False

    @property
    def arrays(self) -> tuple[Any, Any, Any, Any]:
        """The four arrays."""
        return self.query, self.key, self.growth, self.past

    def map(self, function: Callable[[Any], Any]) -> ScoreTerm:
        """Apply a linear function to each array."""
        return ScoreTerm(*(None if x is None else function(x) for x in self.arrays), fixed=self.fixed)

    def plus(self, other: ScoreTerm) -> ScoreTerm:
        """Add two terms."""
        pairs = zip(self.arrays, other.arrays, strict=True)
        return ScoreTerm(*(y if x is None else x if y is None else x + y for x, y in pairs))

    @property
    def one_sided(self) -> bool:
        """True for a function of only the query or only the key."""
        return self.growth is None and (self.query is None or self.key is None)


@dataclass(frozen=True)
class ScoreProduct:
    """The sum over r of ``exp(exponent_r) * query_ir * key_jr``; r is the last axis of all arrays."""

    exponent: ScoreTerm
    query: Any
    key: Any

    def map(self, function: Callable[[Any], Any]) -> ScoreProduct:
        """Apply a function to each array, for each r."""
        function = jax.vmap(function, -1, -1)
        return ScoreProduct(self.exponent.map(function), function(self.query), function(self.key))

    def times(self, other: ScoreProduct) -> ScoreProduct:
        """Multiply two sums: r becomes all pairs of both r."""

        def crossed(combine: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
            both = combine(x[..., :, None], y[..., None, :])
            return both.reshape(*both.shape[:-2], -1)

        sizes = self.query.shape[-1], other.query.shape[-1]
        first = self.exponent.map(lambda x: jnp.repeat(x, sizes[1], -1) if x.shape[-1] > 1 else x)
        second = other.exponent.map(lambda x: jnp.tile(x, sizes[0]) if x.shape[-1] > 1 else x)
        factors = (crossed(jnp.multiply, x, y) for x, y in ((self.query, other.query), (self.key, other.key)))
        return ScoreProduct(first.plus(second), *factors)

    def plus(self, other: ScoreProduct) -> ScoreProduct:
        """Add two sums: r counts the terms of both."""
        sizes = self.query.shape[-1], other.query.shape[-1]

        def joined(x: Any, y: Any, missing: float) -> Any:
            if x is None and y is None:
                return None
            blank = jnp.full([1] * self.query.ndim, missing, self.query.dtype)
            x, y = (blank if each is None else each for each in (x, y))
            shape = np.broadcast_shapes(x.shape[:-1], y.shape[:-1])
            return jnp.concatenate(
                [jnp.broadcast_to(each, (*shape, size)) for each, size in zip((x, y), sizes, strict=True)], -1
            )

        exponents = zip(self.exponent.arrays, other.exponent.arrays, strict=True)
        return ScoreProduct(
            ScoreTerm(*(joined(x, y, 0) for x, y in exponents)),
            joined(self.query, other.query, 1),
            joined(self.key, other.key, 1),
        )


def _as_product(x: ScoreTerm | ScoreProduct) -> ScoreProduct:
    if isinstance(x, ScoreProduct):
        return x
    if x.growth is not None:
        raise InseparableError("the distance of two frames is a factor, outside of an exponential")
    like = x.key if x.query is None else x.query
    ones = jnp.ones([1] * (like.ndim + 1), like.dtype)
    query, key = (part if part is None else jnp.expand_dims(part, -1) for part in (x.query, x.key))
    if query is None or key is None:
        return ScoreProduct(ScoreTerm(), ones if query is None else query, ones if key is None else key)
    return ScoreProduct(ScoreTerm(), query, ones).plus(ScoreProduct(ScoreTerm(), ones, key))


def separate(x: Pairs, grid: Any) -> ScoreTerm | ScoreProduct:
    """Return the factors of an expression for the pairs of a pulse, or raise `InseparableError`."""
    if x.places is not None:
        return _of_places(x, x.places, grid)
    equation, operands = x.origin
    if equation is None:
        return _broadcast(x, grid)
    name = equation.primitive.name
    if name in _RULES:
        return _RULES[name](x, equation, operands, grid)
    raise InseparableError(f"{_described(equation)} does not split into a query part and a key part")


def _of_places(x: Pairs, places: Places, grid: Any) -> ScoreTerm:
    """Return a formula of frame numbers that is linear in the distance wherever the mask is open."""
    rank = len(x.shape)
    places = places.swapped if grid.query else places
    if places.drift or places.period != 1:
        raise InseparableError("a mask or bias depends on more than the distance of two frames")
    distances = np.arange(-(places.far + 2), grid.last + 1)
    values = np.broadcast_to(places.formula(0, distances), distances.shape).astype(np.float64)
    slope = values[1] - values[0]
    if len(distances) > 1 and np.any(np.diff(values) != slope):
        raise InseparableError("a bias is not linear in the distance of two frames")
    start = np.full([1] * rank, values[-1] - slope * grid.last, x.dtype)
    if not slope:
        return ScoreTerm(start, fixed=True)
    # The distance j - i, counted from the frame before the pulse.
    local = np.arange(1, grid.count + 1)
    growth = along(np.asarray(-slope * local, x.dtype), x.axes[grid.query], rank)
    past = along(np.asarray(-slope * (local + grid.last), x.dtype), x.axes[1 - grid.query], rank)
    return ScoreTerm(start, None, growth, past)


def _broadcast(x: Pairs, grid: Any) -> ScoreTerm:
    value, side, dimensions = x.origin[1]
    array = value if side is None else grid.frames(value, side)
    array = _spread(array, x.shape, dimensions)
    return ScoreTerm(array, fixed=side is None) if side in (None, grid.query) else ScoreTerm(None, array)


def _spread(array: Any, shape: Sequence[Any], dimensions: Sequence[int]) -> Any:
    """Broadcast an array to a shape, with size 1 along axes of time that the array does not have."""
    sizes = [1 if is_symbolic(size) else size for size in shape]
    for place, dimension in enumerate(dimensions):
        sizes[dimension] = array.shape[place] if is_symbolic(shape[dimension]) else sizes[dimension]
    return lax.broadcast_in_dim(array, sizes, dimensions)


def _broadcast_in_dim(x: Pairs, equation: JaxprEqn, operands: Sequence[Any], grid: Any) -> ScoreTerm | ScoreProduct:
    dimensions = equation.params["broadcast_dimensions"]
    return separate(operands[0], grid).map(lambda array: _spread(array, x.shape, dimensions))


def _move(x: Pairs, equation: JaxprEqn, operands: Sequence[Any], grid: Any) -> ScoreTerm | ScoreProduct:
    """Apply a transpose, squeeze or reshape to the arrays."""
    (inner, *_), shape = operands, out_shape(equation)
    name = equation.primitive.name
    if name == "transpose":
        order = equation.params["permutation"]
        first, second = (order.index(axis) for axis in inner.axes)
        grid = grid if first < second else grid.mirrored
        return separate(inner, grid).map(lambda array: jnp.transpose(array, order))

    def moved(array: Any) -> Any:
        old, sizes = in_shape(equation), list(shape)
        for before, after in zip(inner.axes, symbolic_axes(shape), strict=True):
            sizes[after] = array.shape[before]
        full = [array.shape[axis] if is_symbolic(size) else size for axis, size in enumerate(old)]
        return jnp.reshape(jnp.broadcast_to(array, full), sizes)

    return separate(inner, grid).map(moved)


def _operand(value: Any, equation: JaxprEqn, grid: Any) -> ScoreTerm | ScoreProduct:
    if isinstance(value, Pairs):
        return separate(value, grid)
    if isinstance(value, Chunk) or is_length(value):
        raise InseparableError(f"{_described(equation)} reads the length of the stream")
    return ScoreTerm(np.reshape(value, [1] * len(out_shape(equation))), fixed=True)


def _elementwise(x: Pairs, equation: JaxprEqn, operands: Sequence[Any], grid: Any) -> ScoreTerm | ScoreProduct:
    name = equation.primitive.name
    if name == "select_n":
        return _select(equation, operands, grid)
    values = [_operand(value, equation, grid) for value in operands]
    terms = [value for value in values if isinstance(value, ScoreTerm)]
    if len(terms) == len(values) and all(term.one_sided for term in terms):
        sides = {"query" if term.key is None else "key" for term in terms if not term.fixed} or {"query"}
        if len(sides) == 1:
            (side,) = sides
            arrays = [term.key if term.query is None else term.query for term in terms]
            types = zip(jnp.broadcast_arrays(*arrays), map(type_of, equation.invars), strict=True)
            (array,) = grid.run.bind(equation, [array.astype(dtype) for array, dtype in types])
            fixed = all(term.fixed for term in terms)
            return ScoreTerm(array, fixed=fixed) if side == "query" else ScoreTerm(None, array)
    if name in UNCHANGED:
        return values[0].map(lambda array: grid.run.bind(equation, [array])[0])
    if name == "neg":
        return _scaled(values[0], -1)
    if name in ("exp", "exp2") and terms:
        return _exponential(terms[0], math.log(2) if name == "exp2" else 1)
    if name == "pow" and len(terms) == 2 and terms[0].fixed:
        if not isinstance(terms[0].query, Tracer) and not np.all(np.asarray(terms[0].query) > 0):
            raise InseparableError(f"the base of {_described(equation)} is not positive")
        return _exponential(terms[1].map(lambda array: array.astype(x.dtype)), jnp.log(terms[0].query))
    if name in ("add", "sub"):
        first, second = values[0], values[1] if name == "add" else _scaled(values[1], -1)
        if isinstance(first, ScoreTerm) and isinstance(second, ScoreTerm):
            return first.plus(second)
        return _as_product(first).plus(_as_product(second))
    if name == "mul":
        return _times(values[0], values[1])
    if name == "div" and isinstance(values[1], ScoreTerm) and values[1].one_sided:
        return _times(values[0], values[1].map(lambda array: 1 / array))
    if name == "square" or (name == "integer_pow" and equation.params["y"] == 2):
        return _times(values[0], values[0])
    raise InseparableError(f"{_described(equation)} does not split into a query part and a key part")


def _exponential(x: ScoreTerm, factor: Any) -> ScoreProduct:
    exponent = x.map(lambda array: jnp.expand_dims(array * factor, -1))
    like = next(array for array in exponent.arrays if array is not None)
    ones = jnp.ones([1] * like.ndim, like.dtype)
    return ScoreProduct(exponent, ones, ones)


def _times(x: ScoreTerm | ScoreProduct, y: ScoreTerm | ScoreProduct) -> ScoreTerm | ScoreProduct:
    for one, other in ((x, y), (y, x)):
        if isinstance(one, ScoreTerm) and one.fixed:
            return _scaled(other, one.query)
    return _as_product(x).times(_as_product(y))


def _scaled(x: ScoreTerm | ScoreProduct, factor: Any) -> ScoreTerm | ScoreProduct:
    """Multiply by a number, or by an array that is the same for all frames."""
    if isinstance(x, ScoreProduct):
        return dataclasses.replace(x, query=x.query * (factor if np.ndim(factor) == 0 else jnp.expand_dims(factor, -1)))
    return x.map(lambda array: array * factor)


def _select(equation: JaxprEqn, operands: Sequence[Any], grid: Any) -> ScoreTerm | ScoreProduct:
    """Return the case that the mask selects in all pairs that are visible."""
    which = _operand(operands[0], equation, grid)
    known = isinstance(which, ScoreTerm) and which.fixed and isinstance(which.query, np.ndarray)
    if not known or which.query.size > 1:
        raise InseparableError("a condition depends on more than the distance of the frames")
    return _operand(operands[1 + int(which.query.reshape(()))], equation, grid)


def _dot_general(x: Pairs, equation: JaxprEqn, operands: Sequence[Any], grid: Any) -> ScoreProduct:
    if any(isinstance(value, Pairs) for value in operands):
        raise InseparableError("a product mixes several rows of pairs")
    summed, batch = equation.params["dimension_numbers"]
    free, factors = free_axes(equation), []
    for side, (leaf, _) in enumerate(x.leaves):
        array = jnp.transpose(grid.frames(leaf, side), (*batch[side], *free[side], *summed[side]))
        array = array.reshape(*array.shape[: array.ndim - len(summed[side])], -1)
        first = len(batch[0]) + (0 if side else len(free[0]))
        factors.append(jnp.expand_dims(array, range(first, first + len(free[1 - side]))))
    return ScoreProduct(ScoreTerm(), factors[grid.query], factors[1 - grid.query])


def _reduce_sum(x: Pairs, equation: JaxprEqn, operands: Sequence[Any], grid: Any) -> ScoreProduct:
    """Sum over axes that are not time: r also counts the elements of these axes."""
    (inner,), axes = operands, equation.params["axes"]
    product, shape = _as_product(separate(inner, grid)), in_shape(equation)

    def merged(array: Any) -> Any:
        full = [shape[axis] if axis in axes else array.shape[axis] for axis in range(len(shape))]
        array = jnp.broadcast_to(array, (*full, product.query.shape[-1]))
        kept = [axis for axis in range(len(shape)) if axis not in axes]
        array = jnp.transpose(array, (*kept, *axes, len(shape)))
        return array.reshape(*array.shape[: len(kept)], -1)

    return ScoreProduct(product.exponent.map(merged), merged(product.query), merged(product.key))


def _cumsum(x: Pairs, equation: JaxprEqn, operands: Sequence[Any], grid: Any) -> ScoreTerm:
    """Return the sums of a query part over the queries after each key: a difference of two running sums."""
    (inner,) = operands
    term = separate(inner, dataclasses.replace(grid, first=-1, last=-1))
    axis = x.axes[grid.query]
    high = inner.high if grid.query == 0 else -inner.low
    if (high, inner.above if grid.query == 0 else inner.below) != (-1, 0) or equation.params["axis"] != axis:
        raise InseparableError("a running sum over pairs of frames does not begin after the key")
    if grid.last or not isinstance(term, ScoreTerm) or term.key is not None or term.growth is not None:
        raise InseparableError("a running sum over pairs of frames is not a difference of two running sums")
    run, timeline = grid.run, inner.timeline
    array = jnp.broadcast_to(term.query, [grid.count if n == axis else size for n, size in enumerate(term.query.shape)])
    array = where_keys_exist(array, axis, run.exists(timeline, grid.delay), 0)
    growth = lax.cumsum(array, axis)
    return ScoreTerm(None, None, growth, jnp.swapaxes(growth, *x.axes))


_RULES: dict[str, Any] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    "broadcast_in_dim": _broadcast_in_dim,
    "transpose": _move,
    "squeeze": _move,
    "reshape": _move,
    "dot_general": _dot_general,
    "reduce_sum": _reduce_sum,
    "cumsum": _cumsum,
}


# -- reductions over all earlier keys


def running_extreme(run: Pass, kind: str, x: Pairs, grid: Any, exist: Any) -> Any:
    """Return the maximum or minimum over all earlier keys, without the axis of the keys."""
    term = separate(x, grid)
    if not isinstance(term, ScoreTerm) or term.growth is not None or term.key is None:
        raise InseparableError("the largest score is not the score of the largest key part")
    queries, keys = x.axes[grid.query], x.axes[1 - grid.query]
    key = where_keys_exist(term.key, keys, exist, identity_of(kind, term.key.dtype))
    shape = [1 if axis == keys else size for axis, size in enumerate(key.shape)]
    total = Total(run, kind, shape, key.dtype, x.timeline, grid.delay)
    cumulate = lax.cummax if kind == "max" else lax.cummin
    running = jnp.swapaxes(total.after_each(key, keys, lambda array: cumulate(array, keys)), queries, keys)
    return jnp.squeeze(running if term.query is None else term.query + running, keys)


def where_keys_exist(array: Any, axis: int, exist: Any, value: Any) -> Any:
    """Replace keys that do not exist. An array of size 1 along the axis is repeated."""
    if exist is True:
        return array
    mask = along(jnp.asarray(exist), axis, array.ndim)
    return jnp.where(mask, array, jnp.asarray(value, array.dtype))


def recurrent_sum(
    run: Pass, x: Pairs, grid: Any, exist: Any, summed: Callable[[Any], Any], layout: Sequence[int]
) -> Any:
    """Return the part of a sum over keys that belongs to keys before the pulse.

    `exist` is a mask of the keys that exist, or True. `summed` sums elements over the keys, such as the product with
    the values of an attention. `layout` has the axis of the elements for each axis of the result, or -1.
    """
    queries, keys = x.axes[grid.query], x.axes[1 - grid.query]
    product, place = _as_product(separate(x, grid)), layout.index(queries)
    exponent = product.exponent
    if (exponent.query is None or exponent.key is None) and exponent.growth is None:
        # An exponential that depends on a single side is a factor of this side.
        query, key = (
            array if part is None else array * jnp.exp(part)
            for array, part in ((product.query, exponent.query), (product.key, exponent.key))
        )
        product, exponent = ScoreProduct(ScoreTerm(), query, key), ScoreTerm()
    dtype = carried_as("sum", product.key.dtype)
    full = [1 if axis in x.axes else size for axis, size in enumerate(x.shape)]

    def per_query(array: Any) -> Any:
        """Arrange axes as in the result; r is the last axis."""
        gone = [axis for axis in range(len(full)) if axis not in layout]
        if any(array.shape[axis] != 1 for axis in gone):
            raise InseparableError("its weights vary along an axis that is summed beside the keys")
        kept = jnp.squeeze(array, gone)
        order = [sum(each not in gone for each in range(axis)) for axis in layout if axis >= 0]
        kept = jnp.transpose(kept, (*order, len(order)))
        return jnp.expand_dims(kept, [axis for axis, source in enumerate(layout) if source < 0])

    def of_keys(weights: Any) -> Any:
        """Sum over keys with r in place of the queries; r is then the last axis."""
        weights = where_keys_exist(weights, keys, exist, 0)
        sizes = list(full)
        sizes[keys] = grid.count
        weights = jnp.broadcast_to(weights, (*sizes, weights.shape[-1]))
        return jnp.moveaxis(summed(jnp.moveaxis(jnp.squeeze(weights, queries), -1, queries)), place, -1)

    if all(part is None for part in exponent.arrays):
        shape = jax.eval_shape(of_keys, product.key).shape
        total = Total(run, "sum", shape, product.key.dtype, x.timeline, grid.delay)
        before = total.before
        total.after(of_keys(product.key))
        return _combined(per_query(product.query), before, place)

    # The state contains the sum times exp(-level). The level is the largest exponent, so that no exponential overflows.
    query, key, growth, past = exponent.map(lambda array: array.astype(dtype)).arrays
    before = level = zero = jnp.zeros([1] * product.key.ndim, dtype)
    final = zero if growth is None else lax.slice_in_dim(growth, grid.count - 1, None, axis=queries)
    weights = final - (zero if past is None else past)
    if key is not None:
        weights = where_keys_exist(weights + key, keys, exist, -jnp.inf)
        largest = jnp.max(weights, keys, keepdims=True)
        shape = jnp.broadcast_shapes(largest.shape, final.shape)
        name, before = run.carry("level", lambda: jnp.full(shape, float(jnp.finfo(dtype).min) / 4, dtype))
        level = lax.stop_gradient(jnp.maximum(before + final, largest))
        run.store(name, level, x.timeline, grid.delay)
    new = of_keys(product.key.astype(dtype) * jnp.exp(weights - level))
    name, older = run.carry("sum", lambda: jnp.zeros(new.shape, dtype))
    run.store(
        name, older * jnp.squeeze(per_query(jnp.exp(before + final - level)), place) + new, x.timeline, grid.delay
    )
    exponents = sum([part for part in (query, growth) if part is not None], start=before)
    return _combined(per_query(product.query.astype(dtype) * jnp.exp(exponents)), older, place)


def _combined(query: Any, memory: Any, place: int) -> Any:
    """Return the sum over r of both arrays. `memory` has no axis of queries."""
    terms = max(query.shape[-1], memory.shape[-1])
    query, memory = (jnp.broadcast_to(array, (*array.shape[:-1], terms)) for array in (query, memory))
    result = string.ascii_lowercase[: query.ndim - 1]
    gone = [axis for axis in range(len(result)) if axis != place and query.shape[axis] == 1]
    kept = "".join(letter for axis, letter in enumerate(result) if axis not in gone)
    spec = f"{kept}z,{result[:place]}{result[place + 1 :]}z->{result}"
    return jnp.einsum(spec, jnp.squeeze(query, gone).astype(memory.dtype), memory)
