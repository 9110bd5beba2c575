"""Lengths at which a narrow type does not hold the numbers of frames: int8 wraps around at 128, bfloat16 rounds 257.

A function that casts a position or a length to such a type does something else in longer recordings. So `stream` also
compares lengths just past the range.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn
from jax.extend.core.primitives import convert_element_type_p

from jaxrnn.errors import StreamError
from jaxrnn.jaxprs.equations import dependents, inner_jaxprs, shape_of, type_of, variables, walk
from jaxrnn.jaxprs.primitives import entry_of
from jaxrnn.streaming.dimensions import is_symbolic, symbolic_axes, value_of
from jaxrnn.streaming.lengths import Lengths

#: Ranges from this number on hold the numbers of frames in recordings that anyone compares.
_WIDE = 1 << 20
#: The largest number of elements of an array in a trace that is compared. The memory of the elements is never read.
_LARGEST = 1 << 30


def lengths_past_ranges(jaxpr: Any, lengths: Lengths) -> list[int]:
    """Return allowed lengths at which all positions and lengths exceed the types to which a canonical jaxpr casts them.

    Lengths with more pairs of frames than memory holds are left out: nobody runs the function on such a recording.

    Raises:
        StreamError: an array is too large for a comparison at such a length.
    """
    if not any(map(_lasts, walk(jaxpr))):
        return []
    counted = {equation: size for equation in jaxpr.eqns if is_symbolic(size := _counted(equation))}
    counting = dependents(jaxpr.eqns, [each for equation in counted for each in equation.outvars])
    lasts = {
        last: type_of(each.outvars[0]).name
        for equation in jaxpr.eqns
        if equation in counted or not counting.isdisjoint(variables(equation.invars))
        for each in (equation, *(inner for part in inner_jaxprs(equation) for inner in walk(part)))
        for last in _lasts(each)
    }
    places, found = np.arange(1, _WIDE), []
    places = places[lengths.allow(places)]
    shapes = [shape_of(each) for equation in walk(jaxpr) for each in equation.outvars]
    for last, name in lasts.items():
        longer = [places[np.broadcast_to(value_of(size, places) > last + 1, places.shape)] for size in counted.values()]
        if (length := max((int(each[0]) for each in longer if len(each)), default=0)) == 0:
            continue
        largest, pairs = max(
            (math.prod(value_of(n, length) for n in shape), symbolic_axes(shape)[1:]) for shape in shapes
        )
        if largest <= _LARGEST:
            found.append(length)
        elif not pairs:
            raise StreamError(
                f"it casts positions in time or a length to {name}, which does not hold the numbers of {length} "
                f"frames, and an array of {largest} elements is too large to compare the function at this length: cast "
                f"to int32, or give `constraints=['S <= {length - 1}']` if recordings are shorter"
            )
    return found


def _counted(equation: JaxprEqn) -> Any:
    """Return the size that an equation counts, or 0."""
    params = equation.params
    if equation.primitive.name == "iota":
        return params["shape"][params["dimension"]]
    return params["dim"] if entry_of(equation).kind == "size" else 0


def _lasts(equation: JaxprEqn) -> list[int]:
    """Return the numbers after which an equation that casts integers, or counts, wraps around, rounds or overflows."""
    casts = equation.primitive is convert_element_type_p and jnp.issubdtype(type_of(equation.invars[0]), jnp.integer)
    if not (casts or equation.primitive.name == "iota"):
        return []
    if (dtype := type_of(equation.outvars[0])) == np.bool_:
        return []
    if jnp.issubdtype(dtype, jnp.integer):
        lasts = [int(jnp.iinfo(dtype).max)]
    else:
        lasts = [2 ** (jnp.finfo(dtype).nmant + 1), 2 ** int(jnp.finfo(dtype).maxexp)]
    return [each for each in lasts if each < _WIDE]
