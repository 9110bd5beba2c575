"""Holding what a node is about to compute against the limits, before any of it is allocated.

While tracing nothing is allocated, so that the results themselves can be held against the limits. Outside of a
transformation, where all inputs are known while tracing, and while the state is looked for, that is too late: there the
operator is traced for its shapes first. That costs time, so it is done only where an operator may give more than its
inputs could make of each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxrnn._jax.context import exact_types
from jaxrnn.errors import LimitError
from jaxrnn.jaxprs.slices import walk
from jaxrnn.onnx.limits import Budget
from jaxrnn.onnx.registry import Operator
from jaxrnn.onnx.values import Value, is_static, is_symbolic, is_text, settle

#: Bytes of a number of the widest type.
_WIDEST = 16
#: No size of a network's axis is larger.
_LARGE = 2**24


def check_ahead(operator: Operator, inputs: Sequence[Value], attributes: Mapping[str, Any], budget: Budget) -> None:
    """Refuse a node whose results would be too large, where that must be known before they are computed.

    Raises:
        LimitError: they would be.
    """
    leaves = [leaf for leaf in jax.tree.leaves(list(inputs)) if hasattr(leaf, "shape")]
    if not budget.computing and any(isinstance(leaf, Tracer) for leaf in leaves):
        return
    if any(map(is_text, leaves)):
        return  # JAX traces no strings; what makes more of them looks ahead itself (`text.moves_text`)
    folded = is_static(*leaves)
    bound = math.prod(max(leaf.size, 1) for leaf in leaves) * _WIDEST
    allowed = budget.limits.constant_bytes if folded else budget.limits.value_bytes
    if bound <= allowed and not _may_expand(operator):
        return
    fixed = [_is_fixed(operator, index, value) for index, value in enumerate(inputs)]
    # Made from nothing but numbers, such as a shape, a value is an array of JAX unless it is small.
    constant = folded and not all(fixed)
    for shape, dtype in _results(operator, inputs, fixed, attributes):
        budget.check(shape, dtype, constant=constant)


def _may_expand(operator: Operator) -> bool:
    """Whether values of inputs or attributes could make a result larger than the inputs could make of each other."""
    if operator.traits.is_bounded:
        return False
    return bool(operator.attributes) or any(slot.static for slot in operator.slots)


def _is_fixed(operator: Operator, index: int, value: Value) -> bool:
    """Whether an input keeps its value while the operator is traced: it is needed by value, or JAX cannot trace it."""
    slot = operator.slot(index)
    if value is None or (slot is not None and slot.static):
        return True
    return any(map(is_symbolic, jax.tree.leaves(value)))


def _results(
    operator: Operator, inputs: Sequence[Value], fixed: Sequence[bool], attributes: Mapping[str, Any]
) -> list[tuple[tuple[Any, ...], np.dtype]]:
    """Shapes and dtypes of all that an operator computes on its way, without computing it; none where they are unknown.

    What JAX raises while it traces has many types, and some operators need values. The operator itself will say what is
    wrong, unless a number is so large that the attempt could cost the process.
    """
    pairs = list(zip(inputs, fixed, strict=True))
    free = [value for value, is_fixed in pairs if not is_fixed]

    def run(*arrays: Value) -> Any:
        remaining = iter(arrays)
        arguments = [value if is_fixed else next(remaining) for value, is_fixed in pairs]
        result = operator.function(*arguments, **attributes)
        outputs = [settle(value) for value in (result if isinstance(result, list) else [result])]
        return [leaf for leaf in jax.tree.leaves(outputs) if isinstance(leaf, jax.Array)]

    structs = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), free)

    def trace() -> Any:
        with exact_types():
            return jax.make_jaxpr(run)(*structs).jaxpr

    try:
        # JAX may be computing what is known while it traces. That is a setting of the thread: another one has it off.
        with ThreadPoolExecutor(1) as pool:
            jaxpr = pool.submit(copy_context().run, trace).result()
    except LimitError:
        raise
    except Exception:
        if _has_large_number([*attributes.values(), *(value for value, is_fixed in pairs if is_fixed)]):
            raise  # it may be what comes after an array that is too large
        return []
    avals: list[Any] = [variable.aval for equation in walk(jaxpr) for variable in equation.outvars]
    return [(aval.shape, aval.dtype) for aval in avals if hasattr(aval, "shape") and not _is_key(aval.dtype)]


def _has_large_number(values: Sequence[Any]) -> bool:
    numbers = [np.asarray(value) for value in values if isinstance(value, (int, float, tuple, list, np.ndarray))]
    return any(
        array.dtype.kind in "iuf" and bool((np.abs(array.astype(np.float64)) > _LARGE).any()) for array in numbers
    )


def _is_key(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jax.dtypes.extended)
