"""Sums over time of frames that read values known only at the end, such as a variance or a softmax-weighted mean.

The frame ``x[t] - mean(x)`` is known only when the stream has ended, so it cannot leave a step. An `Awaiting` describes
such frames as a product of a final value, a stream, ``exp(a[t] + f)`` and powers of ``x[t] + g``, with streams a and x
and final values f and g. The sum of such a product over time does not need past frames: the state contains sums that
do not depend on f and g, for the largest a and the mean of x so far, and the end brings in f and g::

    sum(exp(a + f)) = exp(level + f) * sum(exp(a - level))
    sum((x + g)**2) = sum((x - mean)**2) + 2*d*sum(x - mean) + count*d**2,    d = mean + g

A new level or mean moves the sums exactly, in the same way. The level only rises and the mean stays among the frames,
so sums neither overflow nor cancel, whatever values f and g take on the way to the end.

A value that is added and subtracted again cancels: ``log(cumsum(exp(a - max))) + max`` is ``cumlogsumexp(a)``.

With f = -max(a), this is the online softmax. With g = -mean(x), this is the update of Chan, Golub and LeVeque
("Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979), which is as accurate as two passes.
The mean has the absolute weights of the sum, because such a mean is the centre with the smallest sum of squares.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.jaxprs.casts import kept_by
from jaxrnn.jaxprs.equations import free_axes, trace, type_of
from jaxrnn.jaxprs.primitives import Rules
from jaxrnn.streaming.dimensions import Timeline, constant_value, in_shape, out_shape, symbolic_axes
from jaxrnn.streaming.interpreter import AWAITING_RULES, interpret
from jaxrnn.streaming.interpreter import RULES as FRAMES
from jaxrnn.streaming.passes import Pass, listed
from jaxrnn.streaming.reach import union
from jaxrnn.streaming.rules.elementwise import align
from jaxrnn.streaming.totals import Total, carried_as
from jaxrnn.streaming.values import Awaiting, Chunk, Deferred, FinalValue, Shifted, is_fixed, is_length

#: The largest number of sums that the state carries for a sum of products.
MOST = 16
#: The level of exponents rises only if the largest exponent is farther above than this.
SLACK = 4.0


def _one_frame(run: Pass, value: Any, axis: int, rank: int, timeline: Timeline, dtype: Any) -> Chunk:
    array = jnp.asarray(run.unstreamed(value), dtype)
    array = array.reshape((1,) * rank) if array.ndim < rank else array
    return _final(array, axis, timeline, value)


def _final(array: Any, axis: int, timeline: Timeline, value: Any, lineage: object = None) -> Chunk:
    """Return a value as a chunk with one frame."""
    if not isinstance(value, FinalValue):
        return Chunk(array, axis, timeline, None, None)
    return Chunk(array, axis, timeline, None, value.reach, lineage=lineage or value.lineage)


def _operand(run: Pass, equation: JaxprEqn, value: Any) -> Awaiting | None:
    """Return an operand of an elementwise operation as a product, or None."""
    shape, dtype = out_shape(equation), type_of(equation.outvars[0])
    if isinstance(value, Awaiting):
        return value
    if isinstance(value, Deferred):
        return None
    (axis,) = symbolic_axes(shape)
    timeline = run.clock.timeline(shape[axis])
    if isinstance(value, Chunk):
        fits = value.outer == 1 and value.array.ndim == len(shape) and value.array.dtype == dtype
        return Awaiting(run.unknown_yet(), axis=axis, timeline=timeline, stream=value) if fits else None
    if np.ndim(getattr(value, "array", value)) not in (0, len(shape)):
        return None
    final = _one_frame(run, value, axis, len(shape), timeline, dtype)
    return Awaiting(run.unknown_yet(), axis=axis, timeline=timeline, final=final)


def _combined(run: Pass, operation: Callable[..., Any], *chunks: Chunk | None) -> Chunk | None:
    """Combine chunks with the same time axis; leave out missing chunks."""
    present = [chunk for chunk in chunks if chunk is not None]
    if len(present) < 2:
        return present[0] if present else None
    arrays, like = align(run, present)
    return run.same(like, operation(*arrays))


def _sum(run: Pass, a: Shifted, b: Shifted) -> Shifted:
    factors = {key: a.factors.get(key, 0) + b.factors.get(key, 0) for key in {**a.factors, **b.factors}}
    factors = {key: factor for key, factor in factors.items() if factor}
    final = _combined(run, jnp.add, a.final, b.final) if factors else None  # a value minus itself is 0
    return Shifted(_combined(run, jnp.add, a.stream, b.stream), final, factors)


def _times(run: Pass, x: Shifted, factor: Any) -> Shifted:
    """Multiply a sum by a constant."""
    dtype = next(each.array.dtype for each in (x.stream, x.final) if each is not None)
    array = np.asarray(factor, dtype)
    stream, final = (each and run.same(each, each.array * array) for each in (x.stream, x.final))
    if np.size(factor) > 1:
        return dataclasses.replace(Shifted.by(final), stream=stream)
    return Shifted(stream, final, {key: each * float(np.reshape(factor, ())) for key, each in x.factors.items()})


def _product(run: Pass, a: Awaiting, b: Awaiting) -> Awaiting:
    final, stream = (_combined(run, jnp.multiply, *pair) for pair in ((a.final, b.final), (a.stream, b.stream)))
    exponents = [each for each in (a.exponent, b.exponent) if each is not None]
    exponent = _sum(run, *exponents) if len(exponents) == 2 else exponents[0] if exponents else None
    return dataclasses.replace(a, final=final, stream=stream, exponent=exponent, shifted=(*a.shifted, *b.shifted))


def _scaled(run: Pass, x: Awaiting, factor: Any) -> Awaiting:
    """Multiply by a constant: a sum remains a sum."""
    constant = dataclasses.replace(x, final=None, stream=None, exponent=None, shifted=())
    if x.sum is not None and not x.is_final:
        return dataclasses.replace(constant, shifted=(_times(run, x.sum, factor),))
    rank = max(each.array.ndim for each in _chunks(x))
    chunk = _one_frame(run, factor, x.axis, rank, x.timeline, _chunks(x)[0].array.dtype)
    return _product(run, x, dataclasses.replace(constant, final=chunk))


def _chunks(x: Awaiting) -> list[Chunk]:
    sums = [part for each in (x.exponent, *x.shifted) if each is not None for part in (each.stream, each.final)]
    return [chunk for chunk in (x.stream, x.final, *sums) if chunk is not None]


@AWAITING_RULES.add(kind="elementwise")
def elementwise(run: Pass, equation: JaxprEqn, *operands: Any) -> Deferred | Chunk | None:
    """Apply an operation to each element, or return None if the result is not a product."""
    x = _elementwise(run, equation, operands)
    if not isinstance(x, Awaiting):
        return x
    if x.final is not None or any(each and each.final for each in (x.exponent, *x.shifted)):
        return x
    # All final values have cancelled.
    weight = x.exponent and x.exponent.stream and run.same(x.exponent.stream, jnp.exp(x.exponent.stream.array))
    shape = [1 if axis == x.axis else size for axis, size in enumerate(out_shape(equation))]
    factors = [Chunk(jnp.ones(shape, type_of(equation.outvars[0])), x.axis, x.timeline, None, None)]
    factors += [each for each in (x.stream, weight, *(each.stream for each in x.shifted)) if each is not None]
    return functools.reduce(functools.partial(_combined, run, jnp.multiply), factors)


#: Rules ``(run, equation, constants, *operands) -> product``; None if the result is not a product. `constants` contains
#: the fixed value of each operand, or None.
_PRODUCTS = Rules()


def _elementwise(run: Pass, equation: JaxprEqn, operands: Sequence[Any]) -> Deferred | None:
    dtype = type_of(equation.outvars[0])
    if not jnp.issubdtype(dtype, jnp.floating) or not all(
        jnp.issubdtype(type_of(atom), jnp.floating) for atom in equation.invars
    ):
        return None
    sizes = [out_shape(equation)[axis] for axis in symbolic_axes(out_shape(equation))]
    if len(sizes) != 1:
        return None
    (size,) = sizes
    if any(is_length(value) and constant_value(value.reshape(-1)[0], size) is not None for value in operands):
        return None
    values = [_operand(run, equation, value) for value in operands]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    if all(value.is_final for value in known):
        arrays = [value.final.array for value in known if value.final is not None]
        arrays = jnp.broadcast_arrays(*arrays)
        reach = union(value.final.reach for value in known if value.final is not None)
        made = Chunk(run.bind(equation, arrays)[0], known[0].axis, known[0].timeline, None, reach)
        return dataclasses.replace(known[0], final=made)
    rule = _PRODUCTS.of(equation)
    constants = [value if is_fixed(value) else None for value in operands]
    return None if rule is None else rule(run, equation, constants, *known)


_PRODUCTS.add("neg")(lambda run, equation, constants, x: _scaled(run, x, -1))


@_PRODUCTS.add("convert_element_type", "stop_gradient")
def _cast(run: Pass, equation: JaxprEqn, constants: Sequence[Any], x: Awaiting) -> Deferred:
    if not kept_by(equation).all:  # a factor may overflow, or lose digits, where the product does not
        before, after = (type_of(atom).name for atom in (equation.invars[0], equation.outvars[0]))
        return Deferred(
            run.refusal(
                f"it rounds frames to {after}, which lacks values of {before}, and a value that is known only when the "
                "stream has ended is a part of each frame",
                f"cast the frames to {after} before, or sum in {before} and cast the sum",
            )
        )
    return x.each(lambda chunk: run.same(chunk, run.bind(equation, [chunk.array])[0]))


@_PRODUCTS.add("integer_pow", "pow", "square")
def _power(run: Pass, equation: JaxprEqn, constants: Sequence[Any], x: Awaiting, *_: Awaiting) -> Awaiting | None:
    power = constants[1] if len(constants) == 2 else equation.params.get("y", 2)
    if power is None or np.ndim(power) or not 1 <= power <= MOST or int(power) != power:
        return None
    return functools.reduce(functools.partial(_product, run), [x] * int(power))


@_PRODUCTS.add("exp")
def _exponentiate(run: Pass, equation: JaxprEqn, constants: Sequence[Any], x: Awaiting) -> Awaiting | None:
    return None if x.sum is None else dataclasses.replace(x, stream=None, shifted=(), exponent=x.sum)


@_PRODUCTS.add("log")
def _take_logarithm(run: Pass, equation: JaxprEqn, constants: Sequence[Any], x: Awaiting) -> Awaiting | None:
    alone = x.exponent is not None and x.final is x.stream is None and not x.shifted
    return dataclasses.replace(x, exponent=None, shifted=(x.exponent,)) if alone else None


@_PRODUCTS.add("add")
def _add(run: Pass, equation: JaxprEqn, constants: Sequence[Any], x: Awaiting, y: Awaiting) -> Awaiting | None:
    return None if x.sum is None or y.sum is None else _summed(run, x, y.sum)


@_PRODUCTS.add("sub")
def _subtract(run: Pass, equation: JaxprEqn, constants: Sequence[Any], x: Awaiting, y: Awaiting) -> Awaiting | None:
    return None if x.sum is None or y.sum is None else _summed(run, x, _times(run, y.sum, -1))


def _summed(run: Pass, x: Awaiting, y: Shifted) -> Awaiting | None:
    assert x.sum is not None
    both = _sum(run, x.sum, y)
    empty = both.stream is both.final is None
    return None if empty else dataclasses.replace(x, final=None, stream=None, shifted=(both,))


@_PRODUCTS.add("mul")
def _multiply(run: Pass, equation: JaxprEqn, constants: Sequence[Any], x: Awaiting, y: Awaiting) -> Awaiting:
    for constant, other in zip(constants, (y, x), strict=True):
        if constant is not None:
            return _scaled(run, other, constant)
    return _product(run, x, y)


@_PRODUCTS.add("div")
def _divide(run: Pass, equation: JaxprEqn, constants: Sequence[Any], x: Awaiting, y: Awaiting) -> Awaiting | None:
    if y.shifted:
        return None
    if constants[1] is not None:
        return _scaled(run, x, 1 / np.asarray(constants[1], np.float64))
    final, stream = (each and run.same(each, 1 / run.harmless(each).array) for each in (y.final, y.stream))
    exponent = y.exponent and _times(run, y.exponent, -1)
    return _product(run, x, dataclasses.replace(y, final=final, stream=stream, exponent=exponent))


def placed(run: Pass, x: Awaiting, rank: int, dimensions: Sequence[int]) -> Awaiting:
    """Move axes to other places; `dimensions` are the new places of the axes."""
    order = sorted(range(len(dimensions)), key=lambda axis: dimensions[axis])
    new = [axis for axis in range(rank) if axis not in dimensions]

    def move(chunk: Chunk) -> Chunk:
        array = jnp.expand_dims(jnp.transpose(chunk.array, order), new)
        return run.same(chunk, array, dimensions[chunk.axis])

    return x.each(move, axis=dimensions[x.axis])


@AWAITING_RULES.add("broadcast_in_dim")
def broadcast_in_dim(run: Pass, equation: JaxprEqn, x: Any, *_: Any) -> Awaiting | None:
    """Repeat a final value or a length along time, or frames along other axes."""
    shape, dimensions = out_shape(equation), equation.params["broadcast_dimensions"]
    axes = symbolic_axes(shape)
    if len(axes) != 1 or not jnp.issubdtype(type_of(equation.outvars[0]), jnp.floating):
        return None
    if isinstance(x, Awaiting):
        return placed(run, x, len(shape), dimensions)
    wide = [1 if axis == axes[0] else size for axis, size in enumerate(shape)]
    array = lax.broadcast_in_dim(jnp.asarray(run.unstreamed(x), type_of(equation.outvars[0])), wide, dimensions)
    timeline = run.clock.timeline(shape[axes[0]])
    lineage = run.lineage(equation, x)
    final = _final(array, axes[0], timeline, x, lineage)
    return Awaiting(run.unknown_yet(), axis=axes[0], timeline=timeline, final=final)


@AWAITING_RULES.add("dynamic_slice", "gather", "reshape", "rev", "slice", "split", "transpose")
def selected(run: Pass, equation: JaxprEqn, x: Any, *others: Any) -> list[Awaiting] | None:
    """Select or reorder elements: the same elements of each factor."""
    if not isinstance(x, Awaiting) or any(isinstance(value, Chunk | FinalValue | Deferred) for value in others):
        return None
    rule, shape = FRAMES.of(equation), in_shape(equation)

    def of(chunk: Chunk) -> list[Any]:
        frames = chunk.array.shape[x.axis]
        full = jnp.broadcast_to(chunk.array, [frames if axis == x.axis else size for axis, size in enumerate(shape)])
        made = list(map(run.on_time, listed(rule(run, equation, run.same(chunk, full), *others))))
        # The equal frames of a final value must remain equal.
        kept = all(isinstance(each, Chunk) and (each.delay is None) == (chunk.delay is None) for each in made)
        return made if kept else []

    parts = {id(chunk): of(chunk) for chunk in _chunks(x)}
    if not all(parts.values()):
        return None
    firsts = next(iter(parts.values()))
    return [
        x.each(lambda chunk, place=place: parts[id(chunk)][place], axis=first.axis, timeline=first.timeline)
        for place, first in enumerate(firsts)
    ]


@AWAITING_RULES.add("cumsum")
def cumsum(run: Pass, equation: JaxprEqn, x: Any) -> Awaiting | None:
    """Sum exponentials up to each frame: ``cumsum(exp(a + f))`` is ``exp(cumlogsumexp(a) + f)``."""
    axis, exponent = equation.params["axis"], x.exponent if isinstance(x, Awaiting) else None
    if exponent is None or exponent.stream is None or equation.params["reverse"]:
        return None
    if x.stream is not None or x.shifted or x.axis != axis:
        return None
    stream = exponent.stream
    shape = [x.timeline.size if d == axis else size for d, size in enumerate(stream.array.shape)]
    struct = jax.ShapeDtypeStruct(shape, stream.array.dtype)
    running, _ = trace(functools.partial(lax.cumlogsumexp, axis=axis), struct)
    (stream,) = interpret(run, running, [stream])
    return dataclasses.replace(x, exponent=dataclasses.replace(exponent, stream=stream))


@AWAITING_RULES.add("dot_general")
def dot_general(run: Pass, equation: JaxprEqn, left: Any, right: Any) -> FinalValue | None:
    """Sum the products of two operands over time."""
    (summed, batch) = equation.params["dimension_numbers"]
    shapes = [in_shape(equation, place) for place in (0, 1)]
    free = free_axes(equation)
    counts = [len(batch[0]), len(free[0]), len(free[1]), len(summed[0])]
    ends = list(itertools.accumulate(counts, initial=0))
    products = []
    for place, value in enumerate((left, right)):
        order = [*batch[place], *free[place], *summed[place]]
        places = [*range(ends[1]), *range(ends[1 + place], ends[2 + place]), *range(ends[3], ends[4])]
        if isinstance(value, Chunk) and value.outer == 1:
            value = Awaiting(run.unknown_yet(), axis=value.axis, timeline=value.timeline, stream=value)
        if not isinstance(value, Awaiting) or value.axis not in summed[place]:
            return None
        products.append(placed(run, value, ends[4], [places[order.index(axis)] for axis in range(len(order))]))
    if products[0].axis != products[1].axis:
        return None
    kept = [shapes[0][axis] for axis in (*batch[0], *free[0])] + [shapes[1][axis] for axis in free[1]]
    shape = [*kept, *(shapes[0][axis] for axis in summed[0])]
    return _total(run, equation, _product(run, *products), shape, range(ends[3], ends[4]))


@AWAITING_RULES.add("reduce_sum")
def reduction(run: Pass, equation: JaxprEqn, x: Any) -> FinalValue | None:
    """Sum over time."""
    axes = equation.params["axes"]
    if not isinstance(x, Awaiting) or x.axis not in axes:
        return None
    return _total(run, equation, x, in_shape(equation), axes)


def _total(run: Pass, equation: JaxprEqn, x: Awaiting, shape: Sequence[Any], axes: Sequence[int]) -> FinalValue | None:
    """Return the sum of a product over time and over other axes; None if the sum needs more than `MOST` terms."""
    factors = list({id(each): each for each in x.shifted}.values())
    powers = [x.shifted.count(each) for each in factors]
    if math.prod(power + 1 for power in powers) > MOST:
        return None
    dtype = type_of(equation.outvars[0])
    wide = carried_as("sum", dtype)
    sums = [*factors, *([] if x.exponent is None else [x.exponent])]
    ones = Chunk(jnp.ones((1,) * len(shape), wide), x.axis, x.timeline, None, None)
    streams = [ones if each is None else each for each in (x.stream, *(each.stream for each in sums))]
    # Frames that do not exist must not bring NaN into derivatives.
    streams = [run.harmless(each) for each in run.together(*map(run.spread, streams))]
    like = streams[0]
    assert like.delay is not None
    arrays = [each.array.astype(wide) for each in streams]

    summed = lambda array, axes: jnp.sum(array, tuple(axes), keepdims=True)  # noqa: E731

    def over_time(array: Any) -> Any:
        return summed(run.fill(like.holding(array), 0).array, (x.axis,))

    def final_of(each: Shifted) -> Any:
        return jnp.zeros((1,) * len(shape), wide) if each.final is None else each.final.array.astype(wide)

    def carried(start: Any, like_this: Any, update: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Return a state entry before and after this pass."""
        name, old = run.carry("base", lambda: jnp.full(like_this.shape, start, wide))
        new = lax.stop_gradient(update(old))
        run.store(name, new, like.timeline, like.delay)
        return old, new

    weights, scale = arrays[0], None
    last: Any = 1
    if x.exponent is not None:
        info = jnp.finfo(wide)
        exponents = run.fill(like.holding(arrays[-1]), -np.inf).array
        top = jnp.clip(jnp.max(exponents, x.axis, keepdims=True), info.min, info.max)
        old, level = carried(info.min, top, lambda old: jnp.where(top > old + SLACK, top, old))
        weights = weights * jnp.exp(exponents - level)
        scale, last = jnp.exp(old - level), jnp.exp(level + final_of(x.exponent))

    share = jnp.abs(weights)
    part = over_time(share)
    centred, moved_by, beyond_by = [], [], []
    light: Any = 0
    heavy: Any = 0
    if factors:  # the sum of the weights before and after this pass
        light, heavy = carried(0, part, lambda old: part + (old if scale is None else old * scale))
    for array, each in zip(arrays[1:], factors, strict=False):

        def mean(old: Any, array: Any = array) -> Any:
            """Return the weighted mean of the frames so far."""
            new = old + over_time(share / jnp.where(heavy > 0, heavy, 1) * (array - old))
            return jnp.where(jnp.isfinite(new), new, old)

        old, centre = carried(0, over_time(share * array), mean)
        centred.append(array - centre)
        # Sums without weight do not move, even if the square of the distance overflows.
        moved_by.append(jnp.where(light > 0, old - centre, 0))
        beyond_by.append(centre + final_of(each))
    indices = list(itertools.product(*(range(power + 1) for power in powers)))
    terms: dict[Any, Any] = {
        index: math.prod((c**k for c, k in zip(centred, index, strict=True)), start=weights) for index in indices
    }
    totals = {
        index: Total(run, "sum", [1 if d == x.axis else size for d, size in enumerate(term.shape)], wide,
                     like.timeline, like.delay)
        for index, term in terms.items()
    }  # fmt: skip
    before = {index: total.before for index, total in totals.items()}
    after = {}
    for index, term in terms.items():
        total = totals[index]
        total.move(_expanded(index, moved_by, before), scale)
        frames = run.fill(like.holding(term), 0).array
        after[index] = total.after_all(frames, (x.axis,), x.axis, summed)
    result = after[indices[-1]] + _expanded(indices[-1], beyond_by, after)
    result = result * last
    if x.final is not None:
        result = result * x.final.array.astype(wide)
    result = jnp.broadcast_to(result, [1 if d == x.axis else size for d, size in enumerate(shape)])
    reach = union([*(each.reach for each in streams), *(each.reach for each in _chunks(x))])
    return FinalValue(jnp.sum(result, tuple(axes)).astype(dtype), reach=reach and reach.of_all)


def _expanded(index: Sequence[int], moved: Sequence[Any], sums: dict[Any, Any]) -> Any:
    """Return the change of ``sum(weights * x**k * y**l)`` if x and y move by these distances."""

    def change(of: Callable[[int], bool]) -> Any:
        total: Any = 0
        for lower in itertools.product(*(range(power + 1) for power in index)):
            if lower != tuple(index) and all(map(of, lower)):
                factors = (math.comb(k, j) * d ** (k - j) for k, j, d in zip(index, lower, moved, strict=True) if k > j)
                total = total + math.prod(factors) * sums[lower]
        return total

    whole = change(lambda power: True)
    if not any(index) or any(power % 2 for power in index):
        return whole
    # If squares overflow, terms may be infinities of both signs. Terms of odd powers are smaller than their neighbours
    # of even powers, so the even powers decide, unless an infinite distance meets an infinite frame.
    linear = [each for lower, each in sums.items() if sum(lower) == 1]
    distant, endless = (functools.reduce(operator.or_, (~jnp.isfinite(x) for x in each)) for each in (moved, linear))
    return jnp.where(
        jnp.isnan(sums[tuple(index)] + whole) & ~(distant & endless), change(lambda power: power % 2 == 0), whole
    )
