"""Rules for reductions over axes, running sums and extremes, and sorting."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.export.lowering import Lowering, Rule
from jaxrnn.export.movement import concatenate, cut_along, reduction, reshape
from jaxrnn.export.rules.elementwise import cast, elements
from jaxrnn.export.writer import Operand, Writer, dtype_of, shape_of
from jaxrnn.jaxprs.equations import shape_of as shape_of_atom
from jaxrnn.jaxprs.equations import type_of

_OPERATORS = {
    "reduce_sum": "ReduceSum",
    "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin",
    "reduce_prod": "ReduceProd",
}


def reduce(operator: str, lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write a reduction."""
    return reduced(lowering.writer, operator, x, equation.params["axes"])


def reduced(writer: Writer, operator: str, x: Operand, axes: Sequence[int]) -> Operand:
    """Write a reduction that removes the axes."""
    axes = sorted(int(axis) for axis in axes)
    shape = [size for axis, size in enumerate(shape_of(x)) if axis not in axes]
    if not axes or all(shape_of(x)[axis] == 1 for axis in axes):
        return reshape(writer, x, shape)
    return reduction(writer, operator, x, axes, shape)


def parity(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Reduce booleans by exclusive or."""
    if dtype_of(x) != np.bool_:
        return folded("BitwiseXor", lowering, equation, x)
    total = reduced(lowering.writer, "ReduceSum", cast(lowering, x, np.int32), equation.params["axes"])
    return cast(lowering, elements(lowering, "Mod", total, np.array(2, np.int32)), bool)


def folded(operator: str, lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Reduce by a bitwise operator, halves with halves."""
    writer = lowering.writer
    for axis in sorted(equation.params["axes"], reverse=True):
        while (size := shape_of(x)[axis]) > 1:
            halves = [cut_along(writer, x, axis, *ends) for ends in ((0, size // 2), (size // 2, size // 2 * 2))]
            rest = cut_along(writer, x, axis, size // 2 * 2, size)
            x = concatenate(writer, [elements(lowering, operator, *halves), rest], axis)
    return reshape(lowering.writer, x, shape_of_atom(equation.outvars[0]))


def reduce_logical(operator: str, lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Reduce booleans as extremes of 0 and 1, and integers bit by bit."""
    if dtype_of(x) != np.bool_:
        return folded("BitwiseAnd" if operator == "ReduceMin" else "BitwiseOr", lowering, equation, x)
    return cast(lowering, reduce(operator, lowering, equation, cast(lowering, x, np.int32)), bool)


def place_of_extreme(operator: str, lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write the index of the first extreme."""
    (axis,) = equation.params["axes"]
    shape = shape_of_atom(equation.outvars[0])
    place = lowering.writer.node(operator, x, shape=shape, dtype=np.int64, axis=axis, keepdims=0)
    if _has_nan(x):  # NaN is the extreme in JAX, and engines may skip it
        is_nan = cast(lowering, elements(lowering, "IsNaN", x, dtype=bool), np.int32)
        first = lowering.writer.node("ArgMax", is_nan, shape=shape, dtype=np.int64, axis=axis, keepdims=0)
        some = cast(lowering, reduced(lowering.writer, "ReduceMax", is_nan, [axis]), bool)
        place = elements(lowering, "Where", some, first, place, shape=shape, dtype=np.int64)
    return cast(lowering, place, type_of(equation.outvars[0]))


def running_sum(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write ``CumSum``."""
    axis = np.array(equation.params["axis"], np.int64)
    if shape_of(x)[axis] <= 1:
        return x
    reverse = 1 if equation.params["reverse"] else None
    return lowering.writer.node("CumSum", x, axis, shape=shape_of(x), dtype=dtype_of(x), reverse=reverse)


def running(combine: Callable[[Any, Any], Any], lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Combine each element with the element 1 place before, then 2, 4 and so on."""
    axis, reverse, length = equation.params["axis"], equation.params["reverse"], shape_of(x)[equation.params["axis"]]

    def function(x: jax.Array) -> jax.Array:
        shift = 1
        while shift < length:
            part = functools.partial(lax.slice_in_dim, axis=axis)
            changed = combine(part(x, 0, length - shift), part(x, shift, length))
            parts = [changed, part(x, length - shift, length)] if reverse else [part(x, 0, shift), changed]
            x = jnp.concatenate(parts, axis)
            shift *= 2
        return x

    return lowering.trace(function, x)[0]


def _ranked(lowering: Lowering, x: Operand, count: int, axis: int, *, largest: bool) -> tuple[Operand, Operand]:
    """Return the first elements in a stable order, and their indices."""
    shape = list(shape_of(x))
    shape[axis] = count
    values, places = lowering.writer.nodes_of(
        "TopK",
        [x, np.array([count], np.int64)],
        [(shape, dtype_of(x)), (shape, np.int64)],
        axis=axis,
        largest=int(largest),
    )
    return values, places


def _taken(lowering: Lowering, x: Operand, places: Operand, axis: int) -> Operand:
    return lowering.writer.node("GatherElements", x, places, shape=shape_of(places), dtype=dtype_of(x), axis=axis)


def sort(lowering: Lowering, equation: JaxprEqn, *operands: Operand) -> list[Operand]:
    """Sort by the first operand, then by the next; NaN is last, together with infinity.

    Keys are sorted from the last to the first, because each sort is stable.
    """
    axis, keys = equation.params["dimension"], equation.params["num_keys"]
    size = shape_of(operands[0])[axis]
    if size < 2:
        return list(operands)
    order: Operand | None = None
    for key in reversed(operands[:keys]):
        key = _with_nan_as(lowering, key, key, np.inf)
        key = key if order is None else _taken(lowering, key, order, axis)
        values, places = _ranked(lowering, key, size, axis, largest=False)
        order = places if order is None else _taken(lowering, order, places, axis)
        if keys == 1 and not _has_nan(operands[0]):
            return [values, *(_place_or_element(lowering, x, order, axis) for x in operands[1:])]
    assert order is not None
    return [_place_or_element(lowering, x, order, axis) for x in operands]


def _has_nan(x: Operand) -> bool:
    """Return True for types with NaN, which ``TopK`` does not order."""
    return dtype_of(x) != np.bool_ and bool(jnp.issubdtype(dtype_of(x), jnp.inexact))


def _with_nan_as(lowering: Lowering, x: Operand, key: Operand, number: float) -> Operand:
    """Return a key with ``number`` for NaN."""
    if not _has_nan(x):
        return key
    is_nan = elements(lowering, "IsNaN", x, dtype=bool)
    return elements(lowering, "Where", is_nan, np.array(number, dtype_of(key)), key, dtype=dtype_of(key))


def _place_or_element(lowering: Lowering, x: Operand, order: Operand, axis: int) -> Operand:
    """Take elements in an order. For an array that counts along the axis, return the order itself."""
    if isinstance(x, np.ndarray) and x.dtype.kind in "iu":
        counts = np.arange(x.shape[axis], dtype=x.dtype).reshape([-1 if d == axis else 1 for d in range(x.ndim)])
        if np.array_equal(x, np.broadcast_to(counts, x.shape)):
            return cast(lowering, order, x.dtype)
    return _taken(lowering, x, order, axis)


def top_k(lowering: Lowering, equation: JaxprEqn, x: Operand) -> list[Operand]:
    """Return the largest elements, NaN first, and their indices."""
    count, axis = equation.params["k"], equation.params.get("axis", len(shape_of(x)) - 1)
    index_dtype = equation.outvars[1].aval.dtype  # pyright: ignore[reportAttributeAccessIssue]
    if not _has_nan(x):
        values, places = _ranked(lowering, x, count, axis, largest=True)
        return [values, cast(lowering, places, index_dtype)]
    _, places = _ranked(lowering, _with_nan_as(lowering, x, x, np.inf), count, axis, largest=True)
    return [_taken(lowering, x, places, axis), cast(lowering, places, index_dtype)]


RULES: dict[str, Rule] = {
    **{primitive: functools.partial(reduce, operator) for primitive, operator in _OPERATORS.items()},
    "argmax": functools.partial(place_of_extreme, "ArgMax"),
    "argmin": functools.partial(place_of_extreme, "ArgMin"),
    "reduce_xor": parity,
    "reduce_and": functools.partial(reduce_logical, "ReduceMin"),
    "reduce_or": functools.partial(reduce_logical, "ReduceMax"),
    "cumlogsumexp": functools.partial(running, jnp.logaddexp),
    "cummax": functools.partial(running, lax.max),
    "cummin": functools.partial(running, lax.min),
    "cumprod": functools.partial(running, lax.mul),
    "cumsum": running_sum,
    "sort": sort,
    "top_k": top_k,
}
