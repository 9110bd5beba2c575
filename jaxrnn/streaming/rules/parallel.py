"""Parallel forms of recurrences: sums over all earlier frames whose terms factor into a query part and a key part.

Linear attention, retention, mLSTM and state space duality are written with one element for each pair of frames. A
causal mask leaves the keys j <= i + edge, and the element is

    exp(a_i + b_j) * sum_r Q_ir K_jr,

so a sum over keys is a recurrence: h_i = h_(i-1) + exp(b_i) K_i v_i, and the result is exp(a_i) Q_i h_i. `separate`
finds the factors of a `Pairs` from the operations that made the value. A step computes the pairs of frames inside the
pulse as the function does, and reads all older keys from the state h.

A decay between two frames never becomes a difference of two running sums, which loses a decay of 0 and the digits
before a strong decay. The pulse is divided at the state: one sum runs from the state to the query, and the other sum
runs backwards from the end of the pulse to the key.

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

from jaxrnn.jaxprs.casts import kept_by
from jaxrnn.jaxprs.equations import free_axes, type_of
from jaxrnn.jaxprs.primitives import Rules
from jaxrnn.streaming.diagnostics import describe_equation
from jaxrnn.streaming.dimensions import in_shape, is_symbolic, out_shape, symbolic_axes
from jaxrnn.streaming.integers import FARTHEST, Index
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.totals import Total, carried_as, identity_of
from jaxrnn.streaming.values import Chunk, Pairs, along, is_length


def _described(equation: JaxprEqn) -> str:
    return describe_equation((equation,))


class InseparableError(Exception):
    """Raised if the element for a pair of frames does not factor, with the reason and possibly a remedy."""

    def __init__(self, reason: str, remedy: str = ""):
        super().__init__(reason)
        self.remedy = remedy


#: The remedy for a power that is refused only because the base may be 0 or negative.
_WITH_LOGARITHM = "write exp(exponent * log(base)) if the base is positive"


@dataclass(frozen=True)
class ScoreTerm:
    """The sum ``query_i + key_j + growth``, for keys before the pulse.

    The growth from a key to a query of a later pulse is the sum of three parts: ``until_j`` from the key to the end of
    its pulse, the growth of all pulses in between, and ``since_i`` from there to the query. The growth of a whole pulse
    is `since` of the last query. Both parts are None, or neither. All arrays have the rank of the pairs, and size 1
    along the axis of the other side.

    `fixed` is True for a query part that is the same for all frames, and `counted` for a growth that counts frames.
    """

    query: Any = None
    key: Any = None
    since: Any = None
    until: Any = None
    fixed: bool = False
    counted: bool = False

    @property
    def arrays(self) -> tuple[Any, Any, Any, Any]:
        """The four arrays."""
        return self.query, self.key, self.since, self.until

    def map(self, function: Callable[[Any], Any]) -> ScoreTerm:
        """Apply a linear function to each array."""
        arrays = (None if x is None else function(x) for x in self.arrays)
        return ScoreTerm(*arrays, fixed=self.fixed, counted=self.counted)

    def plus(self, other: ScoreTerm) -> ScoreTerm:
        """Add two terms."""
        first, second = self.map(_wide), other.map(_wide)
        pairs = zip(first.arrays, second.arrays, strict=True)
        arrays = (y if x is None else x if y is None else x + y for x, y in pairs)
        counted = all(term.counted or term.since is None for term in (self, other))
        return ScoreTerm(*arrays, fixed=self.fixed and other.fixed, counted=counted)

    @property
    def one_sided(self) -> bool:
        """True for a function of only the query or only the key."""
        return self.since is None and (self.query is None or self.key is None)

    @property
    def is_number(self) -> bool:
        """True for a value that is the same for all pairs."""
        return self.fixed and self.key is None and self.since is None


@dataclass(frozen=True)
class ScoreProduct:
    """The sum over r of ``exp(exponent_r) * query_ir * key_jr * whole_r ** n``; r is the last axis of all arrays.

    n is the number of pulses between the pulse of the key and the pulse of the query. `whole` is the decay in a pulse
    where a logarithm does not exist, because the decay may be 0 or negative; None means 1.
    """

    exponent: ScoreTerm
    query: Any
    key: Any
    whole: Any = None

    def map(self, function: Callable[[Any], Any]) -> ScoreProduct:
        """Apply a function to each array, for each r."""
        function = jax.vmap(function, -1, -1)
        whole = None if self.whole is None else function(self.whole)
        return ScoreProduct(self.exponent.map(function), function(self.query), function(self.key), whole)

    def times(self, other: ScoreProduct) -> ScoreProduct:
        """Multiply two sums: r becomes all pairs of both r."""

        def crossed(x: Any, y: Any) -> Any:
            both = x[..., :, None] * y[..., None, :]
            return both.reshape(*both.shape[:-2], -1)

        sizes = self.query.shape[-1], other.query.shape[-1]
        first = self.exponent.map(lambda x: jnp.repeat(x, sizes[1], -1) if x.shape[-1] > 1 else x)
        second = other.exponent.map(lambda x: jnp.tile(x, sizes[0]) if x.shape[-1] > 1 else x)
        whole = None
        if self.whole is not None or other.whole is not None:
            whole = crossed(
                *(
                    x.whole if x.whole is not None else jnp.ones([1] * (x.query.ndim - 1) + [size], x.query.dtype)
                    for x, size in zip((self, other), sizes, strict=True)
                )
            )
        return ScoreProduct(first.plus(second), crossed(self.query, other.query), crossed(self.key, other.key), whole)

    def plus(self, other: ScoreProduct) -> ScoreProduct:
        """Add two sums: r counts the terms of both."""
        sizes = self.query.shape[-1], other.query.shape[-1]

        def joined(x: Any, y: Any, missing: float) -> Any:
            if x is None and y is None:
                return None
            blank = jnp.full([1] * self.query.ndim, missing, self.query.dtype)
            x, y = (blank if each is None else each.astype(blank.dtype) for each in (x, y))
            shape = np.broadcast_shapes(x.shape[:-1], y.shape[:-1])
            return jnp.concatenate(
                [jnp.broadcast_to(each, (*shape, size)) for each, size in zip((x, y), sizes, strict=True)], -1
            )

        exponents = zip(self.exponent.arrays, other.exponent.arrays, strict=True)
        return ScoreProduct(
            ScoreTerm(*(joined(x, y, 0) for x, y in exponents)),
            joined(self.query, other.query, 1),
            joined(self.key, other.key, 1),
            joined(self.whole, other.whole, 1),
        )


def _wide(array: Any) -> Any:
    """Cast to the dtype of the state. Sums and products of parts of an element would round in narrower types."""
    array = jnp.asarray(array)
    return array.astype(carried_as("sum", array.dtype))


def _as_product(x: ScoreTerm | ScoreProduct) -> ScoreProduct:
    if isinstance(x, ScoreProduct):
        return x
    if x.since is not None:
        raise InseparableError("the distance of two frames is a factor, outside of an exponential")
    x = x.map(_wide)
    like = x.key if x.query is None else x.query
    ones = jnp.ones([1] * (like.ndim + 1), like.dtype)
    query, key = (part if part is None else jnp.expand_dims(part, -1) for part in (x.query, x.key))
    if query is None or key is None:
        return ScoreProduct(ScoreTerm(), ones if query is None else query, ones if key is None else key)
    return ScoreProduct(ScoreTerm(), query, ones).plus(ScoreProduct(ScoreTerm(), ones, key))


Score = ScoreTerm | ScoreProduct
#: Rules ``(x, equation, operands, grid) -> factors`` of the values that equations compute.
_RULES = Rules()
#: Rules ``(equation, axis of the queries, *factors) -> factors`` of arithmetic; None if the result has no factors.
_ARITHMETIC = Rules()


def separate(x: Pairs, grid: Any) -> Score:
    """Return the factors of an expression for the pairs of a pulse, or raise `InseparableError`."""
    if x.index.at is not None:
        return _of_index(x, x.index, grid)
    equation, operands = x.origin
    if equation is None:
        return _broadcast(x, grid)
    rule = _RULES.of(equation)
    if rule is None:
        raise _inseparable(equation)
    return rule(x, equation, operands, grid)


def _inseparable(equation: JaxprEqn) -> InseparableError:
    is_part = equation.primitive.name in ("imag", "real")
    remedy = "take the real part of the sum over the keys, and not of each weight" if is_part else ""
    return InseparableError(f"{_described(equation)} does not split into a query part and a key part", remedy)


def _of_index(x: Pairs, index: Index, grid: Any) -> ScoreTerm:
    """Return a value of frame numbers that is linear in the distance wherever the mask is open."""
    rank = len(x.shape)
    index = index.swapped if grid.query else index
    if index.drift or index.period != 1:
        raise InseparableError("a mask or bias depends on more than the distance of two frames")
    values = index.rows(-(index.far + 2), grid.last)[0].astype(np.float64)
    slope = values[1] - values[0]
    if np.any(np.diff(values) != slope):
        raise InseparableError("a bias is not linear in the distance of two frames")
    nearest = np.full([1] * rank, values[-1], x.dtype)  # the value at the edge of the mask
    if not slope:
        return ScoreTerm(nearest, fixed=True)
    local, dtype = np.arange(1, grid.count + 1), carried_as("sum", x.dtype)
    since = along(np.asarray(-slope * local, dtype), x.axes[grid.query], rank)
    until = along(np.asarray(-slope * (grid.count - local), dtype), x.axes[1 - grid.query], rank)
    return ScoreTerm(nearest, None, since, until, fixed=True, counted=True)


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


@_RULES.add("broadcast_in_dim")
def _broadcast_in_dim(x: Pairs, equation: JaxprEqn, operands: Sequence[Any], grid: Any) -> Score:
    dimensions = equation.params["broadcast_dimensions"]
    return separate(operands[0], grid).map(lambda array: _spread(array, x.shape, dimensions))


@_RULES.add("transpose")
def _transpose(x: Pairs, equation: JaxprEqn, operands: Sequence[Any], grid: Any) -> Score:
    (inner,), order = operands, equation.params["permutation"]
    first, second = (order.index(axis) for axis in inner.axes)
    grid = grid if first < second else grid.mirrored
    return separate(inner, grid).map(lambda array: jnp.transpose(array, order))


@_RULES.add("reshape")
def _reshape(x: Pairs, equation: JaxprEqn, operands: Sequence[Any], grid: Any) -> Score:
    (inner, *_), shape = operands, out_shape(equation)

    def moved(array: Any) -> Any:
        old, sizes = in_shape(equation), list(shape)
        for before, after in zip(inner.axes, symbolic_axes(shape), strict=True):
            sizes[after] = array.shape[before]
        full = [array.shape[axis] if is_symbolic(size) else size for axis, size in enumerate(old)]
        return jnp.reshape(jnp.broadcast_to(array, full), sizes)

    return separate(inner, grid).map(moved)


def _operand(value: Any, equation: JaxprEqn, grid: Any) -> Score:
    if isinstance(value, Pairs):
        return separate(value, grid)
    if isinstance(value, Chunk) or is_length(value):
        raise InseparableError(f"{_described(equation)} reads the length of the stream")
    return ScoreTerm(np.reshape(value, [1] * len(out_shape(equation))), fixed=True)


@_RULES.add(kind="elementwise")
def _elementwise(x: Pairs, equation: JaxprEqn, operands: Sequence[Any], grid: Any) -> Score:
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
    rule = _ARITHMETIC.of(equation)
    if rule is _cast:
        _check_cast(equation, operands[0], *values)
    result = None if rule is None else rule(equation, x.axes[grid.query], *values)
    if result is None:
        raise _inseparable(equation)
    return result


_ARITHMETIC.add("neg")(lambda equation, queries, x: _scaled(x, -1))
_ARITHMETIC.add("sub")(lambda equation, queries, x, y: _add(equation, queries, x, _scaled(y, -1)))
_ARITHMETIC.add("mul")(lambda equation, queries, x, y: _times(x, y))
_ARITHMETIC.add("square")(lambda equation, queries, x: _times(x, x))


@_ARITHMETIC.add("add")
def _add(equation: JaxprEqn, queries: int, x: Score, y: Score) -> Score:
    if isinstance(x, ScoreTerm) and isinstance(y, ScoreTerm):
        return x.plus(y)
    return _as_product(x).plus(_as_product(y))


@_ARITHMETIC.add("div")
def _divide(equation: JaxprEqn, queries: int, x: Score, y: Score) -> Score | None:
    divides = isinstance(y, ScoreTerm) and y.one_sided and _is_float(type_of(equation.outvars[0]))
    return _times(x, y.map(lambda array: 1 / _wide(array))) if divides else None


@_ARITHMETIC.add("exp", "exp2")
def _exponentiate(equation: JaxprEqn, queries: int, x: Score) -> Score | None:
    base = {"exp": 1, "exp2": math.log(2)}[equation.primitive.name]
    return _exponential(x, base) if isinstance(x, ScoreTerm) else None


def _is_float(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.inexact)


@_ARITHMETIC.add("stop_gradient")
def _stop_gradient(equation: JaxprEqn, queries: int, x: Score) -> Score:
    return x.map(lax.stop_gradient)


@_ARITHMETIC.add("convert_element_type", "reduce_precision")
def _cast(equation: JaxprEqn, queries: int, x: Score) -> Score:
    """Cast a sum or product. The parts are not rounded: the error of each part would be as large as of the sum."""
    return x.map(lambda array: jnp.asarray(array, carried_as("sum", type_of(equation.outvars[0]))))


def _check_cast(equation: JaxprEqn, value: Any, x: Score) -> None:
    """Refuse a cast that may overflow, or that rounds to integers. JAX sums float16 in float32 and casts the sum."""
    after, keeps = type_of(equation.outvars[0]), kept_by(equation)
    in_range = _is_float(after) and (_comes_from(value, after) or _farthest(x) < jnp.finfo(after).max)
    if not (keeps.range or in_range) or not (keeps.digits or _is_float(after)):
        loss = "rounds, wraps or overflows the sum of a query part and a key part"
        raise InseparableError(f"{_described(equation)} {loss}")


def _comes_from(value: Any, dtype: Any) -> bool:
    """Return True for pairs that were computed from pairs of this type."""
    inner = [each for each in value.origin[1] if isinstance(each, Pairs)]
    return value.dtype == dtype or (bool(inner) and all(_comes_from(each, dtype) for each in inner))


def _farthest(x: Score) -> float:
    """Return the largest number that follows from the distance of two frames; infinity for other numbers."""
    if not isinstance(x, ScoreTerm) or not x.counted or not isinstance(x.since, np.ndarray):
        return math.inf
    return abs(float(x.query.flat[0])) + abs(float(x.since.flat[0])) * FARTHEST


def _exponential(x: ScoreTerm, factor: Any) -> ScoreProduct:
    exponent = x.map(lambda array: jnp.expand_dims(_wide(array) * factor, -1))
    like = next(array for array in exponent.arrays if array is not None)
    ones = jnp.ones([1] * like.ndim, like.dtype)
    return ScoreProduct(exponent, ones, ones)


@_ARITHMETIC.add("pow")
def _power(equation: JaxprEqn, queries: int, base: Any, x: Score) -> ScoreProduct | None:
    """Return a power as an exponential, or as a product of powers if the base may be 0 or negative."""
    if not isinstance(base, ScoreTerm) or not base.is_number or not isinstance(x, ScoreTerm):
        return None
    base = base.query
    x = x.map(lambda array: jnp.asarray(array, carried_as("sum", type_of(equation.outvars[0]))))
    is_positive = not isinstance(base, Tracer) and np.isrealobj(base) and np.all(np.asarray(base) > 0)
    base = _wide(base)  # an operation on a known number may return a tracer
    if is_positive:
        return _exponential(x, jnp.log(base))
    if x.key is not None or not (x.fixed and x.counted):
        raise InseparableError(
            f"the base of {_described(equation)} may be 0 or negative, and the exponent is not the distance of frames",
            _WITH_LOGARITHM,
        )
    # The logarithm of 0, times the distance 0, would be NaN.
    numbers = x.query + x.since, x.until, _last(x.since, queries)
    return ScoreProduct(ScoreTerm(), *(jnp.expand_dims(base**number, -1) for number in numbers))


def _last(array: Any, axis: int) -> Any:
    return lax.slice_in_dim(array, array.shape[axis] - 1, None, axis=axis)


def _times(x: Score, y: Score) -> Score:
    for one, other in ((x, y), (y, x)):
        if isinstance(one, ScoreTerm) and one.is_number:
            return _scaled(other, one.query)
    return _as_product(x).times(_as_product(y))


def _scaled(x: Score, factor: Any) -> Score:
    """Multiply by a number, or by an array that is the same for all frames."""
    factor = factor if isinstance(factor, int) else _wide(factor)
    if isinstance(x, ScoreProduct):
        return dataclasses.replace(x, query=x.query * (factor if np.ndim(factor) == 0 else jnp.expand_dims(factor, -1)))
    return x.map(lambda array: _wide(array) * factor)


@_RULES.add("select_n")
def _select(x: Pairs, equation: JaxprEqn, operands: Sequence[Any], grid: Any) -> Score:
    """Return the case that the mask selects in all pairs that are visible."""
    which = _operand(operands[0], equation, grid)
    known = isinstance(which, ScoreTerm) and which.fixed and isinstance(which.query, np.ndarray)
    if not known or which.query.size > 1:
        raise InseparableError("a condition depends on more than the distance of the frames")
    return _operand(operands[1 + int(which.query.reshape(()))], equation, grid)


@_RULES.add("dot_general")
def _dot_general(x: Pairs, equation: JaxprEqn, operands: Sequence[Any], grid: Any) -> ScoreProduct:
    if any(isinstance(value, Pairs) for value in operands):
        raise InseparableError("a product mixes several rows of pairs")
    summed, batch = equation.params["dimension_numbers"]
    free, factors, dtype = free_axes(equation), [], carried_as("sum", type_of(equation.outvars[0]))
    for side, (leaf, _) in enumerate(x.leaves):
        array = jnp.transpose(grid.frames(leaf, side).astype(dtype), (*batch[side], *free[side], *summed[side]))
        array = array.reshape(*array.shape[: array.ndim - len(summed[side])], -1)
        first = len(batch[0]) + (0 if side else len(free[0]))
        factors.append(jnp.expand_dims(array, range(first, first + len(free[1 - side]))))
    return ScoreProduct(ScoreTerm(), factors[grid.query], factors[1 - grid.query])


@_RULES.add("reduce_sum")
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

    whole = None if product.whole is None else merged(product.whole)
    return ScoreProduct(product.exponent.map(merged), merged(product.query), merged(product.key), whole)


@_RULES.add("cumsum")
def _cumsum(x: Pairs, equation: JaxprEqn, operands: Sequence[Any], grid: Any) -> ScoreTerm:
    """Return the sums of a query part over the queries after each key."""
    (inner,) = operands
    term = separate(inner, dataclasses.replace(grid, first=-1, last=-1))
    axis = x.axes[grid.query]
    high = inner.high if grid.query == 0 else -inner.low
    if (high, inner.above if grid.query == 0 else inner.below) != (-1, 0) or equation.params["axis"] != axis:
        raise InseparableError("a running sum over pairs of frames does not begin after the key")
    if grid.last or not isinstance(term, ScoreTerm) or term.key is not None or term.since is not None:
        raise InseparableError("a running sum over pairs of frames adds more than a query part")
    run, timeline = grid.run, inner.timeline
    array = _wide(term.query)
    array = jnp.broadcast_to(array, [grid.count if n == axis else size for n, size in enumerate(array.shape)])
    array = where_keys_exist(array, axis, run.exists(timeline, grid.delay), 0)
    after = lax.slice_in_dim(array, 1, None, axis=axis)
    after = jnp.concatenate([after, jnp.zeros_like(_last(array, axis))], axis)
    return ScoreTerm(since=lax.cumsum(array, axis), until=jnp.swapaxes(lax.cumsum(after, axis, reverse=True), *x.axes))


# -- reductions over all earlier keys


def running_extreme(run: Pass, kind: str, x: Pairs, grid: Any, exist: Any) -> Any:
    """Return the maximum or minimum over all earlier keys, without the axis of the keys."""
    term = separate(x, grid)
    if not isinstance(term, ScoreTerm) or term.since is not None or term.key is None:
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
    if exponent.one_sided:
        query, key = (
            array if part is None else array * jnp.exp(part)
            for array, part in ((product.query, exponent.query), (product.key, exponent.key))
        )
        product, exponent = dataclasses.replace(product, query=query, key=key), ScoreTerm()
    if product.whole is not None and exponent.key is not None:
        raise InseparableError(
            "an exponential of both frames is multiplied by a power whose base may be 0 or negative", _WITH_LOGARITHM
        )
    dtype = product.key.dtype
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

    query, key, change = product.query, product.key, None
    if not exponent.one_sided:
        # The state contains the sum times exp(-level). The level is the largest exponent, so that no exponential
        # overflows, rounded up to a whole number, so that differences of levels are exact.
        before = level = zero = jnp.zeros([1] * key.ndim, dtype)
        growth = zero if exponent.since is None else _last(exponent.since, queries)
        weights = zero if exponent.until is None else exponent.until
        if exponent.key is not None:
            weights = where_keys_exist(weights + exponent.key, keys, exist, -jnp.inf)
            largest, lowest = jnp.max(weights, keys, keepdims=True), float(jnp.finfo(dtype).min) / 4
            shape = jnp.broadcast_shapes(largest.shape, growth.shape)
            name, before = run.carry("level", lambda: jnp.full(shape, lowest, dtype))
            level = jnp.ceil(jnp.maximum(before + growth, largest))
            level = lax.stop_gradient(jnp.maximum(level, lowest))  # after a decay of 0, no exponent may be left
            run.store(name, level, x.timeline, grid.delay)
        change = (before - level) + growth
        key = key * jnp.exp(weights - level)
        exponents = [part for part in (exponent.query, exponent.since) if part is not None]
        query = query * jnp.exp(sum(exponents, start=before))
    new = of_keys(key)
    total = Total(run, "sum", new.shape, new.dtype, x.timeline, grid.delay)
    older = total.before
    if change is not None:
        change = jnp.squeeze(per_query(change), place)
        total.scale(jnp.exp(change), jnp.expm1(change))
    if product.whole is not None:
        whole = jnp.squeeze(per_query(product.whole), place)
        total.scale(whole, whole - 1)
    total.after(new)
    return _combined(per_query(query), older, place)


def _combined(query: Any, memory: Any, place: int) -> Any:
    """Return the sum over r of both arrays. `memory` has no axis of queries."""
    terms = max(query.shape[-1], memory.shape[-1])
    query, memory = (jnp.broadcast_to(array, (*array.shape[:-1], terms)) for array in (query, memory))
    result = string.ascii_lowercase[: query.ndim - 1]
    gone = [axis for axis in range(len(result)) if axis != place and query.shape[axis] == 1]
    kept = "".join(letter for axis, letter in enumerate(result) if axis not in gone)
    spec = f"{kept}z,{result[:place]}{result[place + 1 :]}z->{result}"
    return jnp.einsum(spec, jnp.squeeze(query, gone).astype(memory.dtype), memory)
