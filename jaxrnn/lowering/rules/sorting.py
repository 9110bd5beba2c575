"""Order: ``TopK``, which is stable and knows one operand."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from jaxrnn.lowering.lowering import Lowering, Rule
from jaxrnn.lowering.rules.elementwise import cast, elements
from jaxrnn.lowering.writer import Operand, dtype_of, shape_of


def _ranked(lowering: Lowering, x: Operand, count: int, axis: int, *, largest: bool) -> tuple[Operand, Operand]:
    """The first elements in order, and their indices; of equal ones the first comes first."""
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
    """Upwards by the first operand, and of equal ones by the next; NaN comes last, as infinity does.

    From the last key to the first, as each order keeps that of equal elements.
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
    """Whether a type has NaN, for which ``TopK`` has no order."""
    return dtype_of(x) != np.bool_ and bool(jnp.issubdtype(dtype_of(x), jnp.inexact))


def _with_nan_as(lowering: Lowering, x: Operand, key: Operand, number: float) -> Operand:
    """A key, with a number where an array is NaN."""
    if not _has_nan(x):
        return key
    is_nan = elements(lowering, "IsNaN", x, dtype=bool)
    return elements(lowering, "Where", is_nan, np.array(number, dtype_of(key)), key, dtype=dtype_of(key))


def _place_or_element(lowering: Lowering, x: Operand, order: Operand, axis: int) -> Operand:
    """Elements in an order; of an array that counts along the axis, that is the order itself."""
    if isinstance(x, np.ndarray) and x.dtype.kind in "iu":
        counts = np.arange(x.shape[axis], dtype=x.dtype).reshape([-1 if d == axis else 1 for d in range(x.ndim)])
        if np.array_equal(x, np.broadcast_to(counts, x.shape)):
            return cast(lowering, order, x.dtype)
    return _taken(lowering, x, order, axis)


def top_k(lowering: Lowering, equation: JaxprEqn, x: Operand) -> list[Operand]:
    """The largest elements, NaN before all others, and their indices."""
    count, axis = equation.params["k"], equation.params.get("axis", len(shape_of(x)) - 1)
    index_dtype = equation.outvars[1].aval.dtype  # pyright: ignore[reportAttributeAccessIssue]
    if not _has_nan(x):
        values, places = _ranked(lowering, x, count, axis, largest=True)
        return [values, cast(lowering, places, index_dtype)]
    _, places = _ranked(lowering, _with_nan_as(lowering, x, x, np.inf), count, axis, largest=True)
    return [_taken(lowering, x, places, axis), cast(lowering, places, index_dtype)]


RULES: dict[str, Rule] = {"sort": sort, "top_k": top_k}
