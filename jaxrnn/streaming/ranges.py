"""Lengths at which a narrow type does not hold the numbers of frames: int8 wraps around at 128, bfloat16 rounds 257.

A function that casts a position or a length to such a type does something else in longer recordings. So `stream` also
compares lengths just past the range.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn, Literal

from jaxrnn.errors import StreamError
from jaxrnn.jaxprs.canonical import canonical
from jaxrnn.jaxprs.equations import dependents, inner_jaxprs, shape_of, type_of, walk
from jaxrnn.jaxprs.primitives import entry_of
from jaxrnn.streaming.dimensions import is_symbolic, symbolic_axes, value_of
from jaxrnn.streaming.lengths import Lengths

#: Ranges from this number on hold the numbers of frames in recordings that anyone compares.
_WIDE = 1 << 20
#: The largest number of elements of an array in a trace that is compared. The memory of the elements is never read.
_LARGEST = 1 << 30


def lengths_past_ranges(closed: Any, lengths: Lengths) -> list[int]:
    """Return the shortest allowed lengths at which positions or lengths exceed the types to which a trace casts them.

    Lengths with more pairs of frames than memory holds are left out: nobody runs the function on such a recording.

    Raises:
        StreamError: an array of the trace is too large for a comparison at such a length.
    """
    casts = {type_of(each.outvars[0]) for each in walk(closed.jaxpr) if _narrows(each)}
    if not casts:
        return []
    jaxpr = canonical(closed).jaxpr
    sizes, made = [], []
    for equation in jaxpr.eqns:
        size = _counted(equation)
        if size is not None:
            sizes.append(size)
            made += equation.outvars
    counting = dependents(jaxpr.eqns, made)
    narrow = {
        type_of(each.outvars[0])
        for equation in jaxpr.eqns
        if _counted(equation) is not None or any(not isinstance(x, Literal) and x in counting for x in equation.invars)
        for each in (equation, *(inner for part in inner_jaxprs(equation) for inner in walk(part)))
        if _narrows(each)
    }
    found: dict[int, Any] = {}
    for dtype in narrow:
        for last in _lasts(dtype):
            for size in {str(each): each for each in sizes}.values():
                length = _length_past(size, last, lengths)
                if length is not None:
                    found[length] = dtype
    for length, dtype in list(found.items()):
        largest, has_pairs = max(_elements(closed.jaxpr, length))
        if largest > _LARGEST and has_pairs:
            del found[length]
        elif largest > _LARGEST:
            raise StreamError(
                f"it casts positions in time or a length to {np.dtype(dtype).name}, which does not hold the numbers of "
                f"{length} frames, and an array of {largest} elements is too large to compare the function at this "
                f"length: cast to int32, or give `constraints=['S <= {length - 1}']` if recordings are shorter"
            )
    return sorted(found)


def _narrows(equation: JaxprEqn) -> bool:
    """Return True if an equation makes numbers of a narrow type from integers, or counts in a narrow type."""
    name = equation.primitive.name
    if name == "convert_element_type" and not jnp.issubdtype(type_of(equation.invars[0]), jnp.integer):
        return False
    return name in ("convert_element_type", "iota") and bool(_lasts(type_of(equation.outvars[0])))


def _lasts(dtype: Any) -> list[int]:
    """Return the numbers after which a narrow type wraps around, rounds or overflows."""
    if dtype == np.bool_:
        return []
    if jnp.issubdtype(dtype, jnp.integer):
        lasts = [int(jnp.iinfo(dtype).max)]
    else:
        info = jnp.finfo(dtype)
        lasts = [2 ** (info.nmant + 1), 2 ** int(info.maxexp)]
    return [each for each in lasts if each < _WIDE]


def _counted(equation: JaxprEqn) -> Any:
    """Return the symbolic size that an equation counts, or None."""
    params = equation.params
    size = params["dim"] if entry_of(equation).kind == "size" else None
    if equation.primitive.name == "iota":
        size = params["shape"][params["dimension"]]
    return size if size is not None and is_symbolic(size) else None


def _length_past(size: Any, last: int, lengths: Lengths) -> int | None:
    """Return the shortest allowed length at which the last of `size` frames has a number above `last`, or None."""
    places = np.arange(1, 4 * (last + 2))
    longer = np.broadcast_to(value_of(size, places) > last + 1, places.shape)
    fitting = places[longer & lengths.allow(places)]
    return int(fitting[0]) if len(fitting) else None


def _elements(jaxpr: Any, length: int) -> Iterator[tuple[int, bool]]:
    """Yield the number of elements of each array in a trace, at a length, and whether there is one for each pair."""
    for shape in (shape_of(each) for equation in walk(jaxpr) for each in equation.outvars):
        yield math.prod(int(value_of(size, length)) for size in shape), len(symbolic_axes(shape)) > 1
