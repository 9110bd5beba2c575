"""Rules for reductions over axes, running sums and extremes, and sorting."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.export.lowering import RULES, Lowering
from jaxrnn.export.reshaping import concatenate, cut_along, reduction, reshape, transpose
from jaxrnn.export.rules.elementwise import cast, elements, range_of
from jaxrnn.export.writer import Operand, Writer, dtype_of, shape_of
from jaxrnn.jaxprs.equations import shape_of as shape_of_atom
from jaxrnn.jaxprs.equations import type_of
from jaxrnn.jaxprs.primitives import entry_of


@RULES.add("reduce_max", "reduce_min", "reduce_prod", "reduce_sum")
def reduce(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write a reduction."""
    return reduced(lowering, f"Reduce{entry_of(equation).monoid.capitalize()}", x, equation.params["axes"])


#: Reductions of integers by halves: engines limit products instead of wrapping around, and lack extremes of uint64.
_BY_HALVES = {"ReduceMax": "Max", "ReduceMin": "Min", "ReduceProd": "Mul"}


def reduced(lowering: Lowering, operator: str, x: Operand, axes: Sequence[int]) -> Operand:
    """Write a reduction that removes the axes."""
    writer, dtype, axes = lowering.writer, dtype_of(x), sorted(int(axis) for axis in axes)
    shape = [size for axis, size in enumerate(shape_of(x)) if axis not in axes]
    if not axes or all(shape_of(x)[axis] == 1 for axis in axes):
        return reshape(writer, x, shape)
    if dtype.kind in "iu" and (operator == "ReduceProd" or (dtype == np.uint64 and operator in _BY_HALVES)):
        return folded(_BY_HALVES[operator], lowering, x, axes)
    if dtype.kind in "iu" and operator == "ReduceSum" and not _is_small(x, axes):
        return _wrapping_sum(writer, x, axes, shape)
    return reduction(writer, operator, x, axes, shape)


def _is_small(x: Operand, axes: Sequence[int]) -> bool:
    """Return True if ``ReduceSum`` of integers is exact: engines compute the sum in float64, and limit it."""
    bits = 53 if dtype_of(x).name in ("int64", "uint32", "uint64") else 31
    return max(map(abs, range_of(x))) * math.prod(shape_of(x)[axis] for axis in axes) < 1 << bits


def _wrapping_sum(writer: Writer, x: Operand, axes: Sequence[int], shape: Sequence[int]) -> Operand:
    """Write the sum of integers as a product with ones, which wraps around."""
    rank, dtype, kept = len(shape_of(x)), dtype_of(x), [axis for axis in range(len(shape_of(x))) if axis not in axes]
    ones = np.ones(math.prod(shape_of(x)[axis] for axis in axes), dtype)
    if [*axes] == [rank - 2]:
        return writer.node("MatMul", ones, x, shape=shape, dtype=dtype)
    rows = reshape(writer, transpose(writer, x, [*kept, *axes]), (*shape, ones.size))
    return writer.node("MatMul", rows, ones, shape=shape, dtype=dtype)


@RULES.add("reduce_xor")
def parity(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Reduce booleans by exclusive or."""
    if dtype_of(x) != np.bool_:
        return folded("BitwiseXor", lowering, x, equation.params["axes"])
    total = reduced(lowering, "ReduceSum", cast(lowering, x, np.int32), equation.params["axes"])
    return cast(lowering, elements(lowering, "Mod", total, np.array(2, np.int32)), bool)


def folded(operator: str, lowering: Lowering, x: Operand, axes: Sequence[int]) -> Operand:
    """Reduce by an operator on elements, halves with halves."""
    writer, shape = lowering.writer, [size for axis, size in enumerate(shape_of(x)) if axis not in axes]
    for axis in sorted(axes, reverse=True):
        while (size := shape_of(x)[axis]) > 1:
            halves = [cut_along(writer, x, axis, *ends) for ends in ((0, size // 2), (size // 2, size // 2 * 2))]
            rest = cut_along(writer, x, axis, size // 2 * 2, size)
            x = concatenate(writer, [elements(lowering, operator, *halves), rest], axis)
    return reshape(writer, x, shape)


@RULES.add("reduce_and", "reduce_or")
def reduce_logical(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Reduce booleans as extremes of 0 and 1, and integers bit by bit."""
    monoid, axes = entry_of(equation).monoid, equation.params["axes"]
    if dtype_of(x) != np.bool_:
        return folded(f"Bitwise{monoid.capitalize()}", lowering, x, axes)
    operator = "ReduceMin" if monoid == "and" else "ReduceMax"
    return cast(lowering, reduced(lowering, operator, cast(lowering, x, np.int32), axes), bool)


@RULES.add("argmax", "argmin")
def place_of_extreme(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write the index of the first extreme."""
    (axis,), operator = equation.params["axes"], entry_of(equation).operator
    shape = shape_of_atom(equation.outvars[0])
    place = lowering.writer.node(operator, _as_signed(lowering, x), shape=shape, dtype=np.int64, axis=axis, keepdims=0)
    if _has_nan(x):  # NaN is the extreme in JAX, and engines may skip it
        is_nan = cast(lowering, elements(lowering, "IsNaN", x, dtype=bool), np.int32)
        first = lowering.writer.node("ArgMax", is_nan, shape=shape, dtype=np.int64, axis=axis, keepdims=0)
        some = cast(lowering, reduced(lowering, "ReduceMax", is_nan, [axis]), bool)
        place = elements(lowering, "Where", some, first, place, shape=shape, dtype=np.int64)
    return cast(lowering, place, type_of(equation.outvars[0]))


@RULES.add("cumsum")
def running_sum(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write ``CumSum``."""
    axis = np.array(equation.params["axis"], np.int64)
    if shape_of(x)[axis] <= 1:
        return x
    reverse = 1 if equation.params["reverse"] else None
    return lowering.writer.node("CumSum", x, axis, shape=shape_of(x), dtype=dtype_of(x), reverse=reverse)


_COMBINATIONS = {"logsumexp": jnp.logaddexp, "max": lax.max, "min": lax.min, "prod": lax.mul}


@RULES.add(kind="cumulative")
def running(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Combine each element with the element 1 place before, then 2, 4 and so on."""
    combine = _COMBINATIONS[entry_of(equation).monoid]
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


def _ordered(
    lowering: Lowering, keys: Sequence[Operand], count: int, axis: int, *, largest: bool
) -> tuple[Operand, Operand]:
    """Return the first elements of the first key in the order of all keys, and the indices.

    Keys are sorted from the last to the first, because each sort is stable.
    """
    *others, last = reversed(keys)
    order: Operand | None = None
    for key in others:
        key = key if order is None else _taken(lowering, key, order, axis)
        _, places = _ranked(lowering, key, shape_of(key)[axis], axis, largest=largest)
        order = places if order is None else _taken(lowering, order, places, axis)
    last = last if order is None else _taken(lowering, last, order, axis)
    values, places = _ranked(lowering, last, count, axis, largest=largest)
    return values, places if order is None else _taken(lowering, order, places, axis)


@RULES.add("sort")
def sort(lowering: Lowering, equation: JaxprEqn, *operands: Operand) -> list[Operand]:
    """Sort by the first operand, then by the next; NaN is last."""
    axis, size = equation.params["dimension"], shape_of(operands[0])[equation.params["dimension"]]
    if size < 2:
        return list(operands)
    keys = [key for x in operands[: equation.params["num_keys"]] for key in _keys(lowering, x)]
    values, order = _ordered(lowering, keys, size, axis, largest=False)
    return [values if x is keys[0] else _place_or_element(lowering, x, order, axis) for x in operands]


def _has_nan(x: Operand) -> bool:
    """Return True for types with NaN, which ``TopK`` does not order."""
    return dtype_of(x) != np.bool_ and bool(jnp.issubdtype(dtype_of(x), jnp.inexact))


def _as_signed(lowering: Lowering, x: Operand) -> Operand:
    """Flip the top bit of uint64, which engines do not order. The order of the int64 numbers is the same."""
    if dtype_of(x) != np.uint64:
        return x
    return elements(lowering, "Add", cast(lowering, x, np.int64), np.array(np.iinfo(np.int64).min))


def _keys(lowering: Lowering, x: Operand, *, signed: bool = False) -> list[Operand]:
    """Return keys that engines order, the first key first: NaN is above infinity, and -0 below 0 if ``signed``."""
    if not _has_nan(x):
        return [_as_signed(lowering, x)]
    is_nan, endless = elements(lowering, "IsNaN", x, dtype=bool), np.array(np.inf)
    if dtype_of(x) == np.float64:
        numbers = elements(lowering, "Where", is_nan, endless, x, dtype=np.float64)
        positive = elements(lowering, "Less", np.array(0.0), elements(lowering, "Reciprocal", x), dtype=bool)
        signs = [cast(lowering, positive, np.int32)] if signed else []
        return [cast(lowering, is_nan, np.int32), numbers, *signs]
    key = cast(lowering, x, np.float64)  # which has room beside 0 and below infinity
    if signed:
        shift = elements(lowering, "Clip", elements(lowering, "Reciprocal", key), np.array(-1e-300), np.array(1e-300))
        key = elements(lowering, "Add", key, shift)
    key = elements(lowering, "Min", key, np.array(1e300))
    return [elements(lowering, "Where", is_nan, endless, key, dtype=np.float64)]


def _place_or_element(lowering: Lowering, x: Operand, order: Operand, axis: int) -> Operand:
    """Take elements in an order. For an array that counts along the axis, return the order itself."""
    if isinstance(x, np.ndarray) and x.dtype.kind in "iu":
        counts = np.arange(x.shape[axis], dtype=x.dtype).reshape([-1 if d == axis else 1 for d in range(x.ndim)])
        if np.array_equal(x, np.broadcast_to(counts, x.shape)):
            return cast(lowering, order, x.dtype)
    return _taken(lowering, x, order, axis)


@RULES.add("top_k")
def top_k(lowering: Lowering, equation: JaxprEqn, x: Operand) -> list[Operand]:
    """Return the largest elements, NaN first, and their indices."""
    count, axis = equation.params["k"], equation.params.get("axis", len(shape_of(x)) - 1)
    keys = _keys(lowering, x, signed=True)
    values, places = _ordered(lowering, keys, count, axis, largest=True)
    values = values if x is keys[0] else _taken(lowering, x, places, axis)
    return [values, cast(lowering, places, type_of(equation.outvars[1]))]
