"""Casts: the elements that a cast computes, and the values of a type that a cast keeps.

A rule that passes a cast through, as if the cast changed nothing, asks `kept` or `kept_by` first. The number of bits
does not decide: float16 and bfloat16 have equally many, and each has values that the other lacks.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from jaxrnn.jaxprs.equations import type_of


class Kept(NamedTuple):
    """Properties of a cast between two types.

    Attributes:
        range: True if no value overflows, changes its sign, or loses an infinity, NaN or an imaginary part.
        digits: True if no value is rounded, also to 0.
    """

    range: bool
    digits: bool

    @property
    def all(self) -> bool:
        """True if the cast keeps every value."""
        return self.range and self.digits


class _Numbers(NamedTuple):
    """The numbers of a type: integers of some bits, or floats with so many digits."""

    top: int  # the largest power of two
    digits: int  # binary digits
    smallest: float  # the smallest positive number
    special: frozenset[str]


#: Numbers that some types lack.
_SPECIAL = {"zero": 0.0, "negative": -1.0, "negative zero": -0.0, "infinity": np.inf, "NaN": np.nan}


@functools.cache
def _numbers_of(dtype: np.dtype) -> _Numbers:
    if dtype == np.bool_:
        return _Numbers(1, 1, 1.0, frozenset({"zero"}))
    if jnp.issubdtype(dtype, jnp.integer):
        info = jnp.iinfo(dtype)
        bits = int(info.max).bit_length()
        return _Numbers(1 << max(bits - 1, 0), bits, 1.0, frozenset({"zero", "negative"} if info.min < 0 else {"zero"}))
    info, part = jnp.finfo(dtype), np.dtype(jnp.finfo(dtype).dtype)
    with np.errstate(all="ignore"):
        casts = {name: np.float64(np.asarray(number).astype(part)) for name, number in _SPECIAL.items()}
    special = {name for name, number in _SPECIAL.items() if str(casts[name]) == str(np.float64(number))}
    special |= {"imaginary"} if jnp.issubdtype(dtype, jnp.complexfloating) else set()
    return _Numbers(1 << (int(info.maxexp) - 1), info.nmant + 1, float(info.smallest_subnormal), frozenset(special))


@functools.cache
def kept(before: Any, after: Any) -> Kept:
    """Return the parts that a cast between two types keeps: the range of integers; exponent and mantissa of floats."""
    if before == after:
        return Kept(True, True)
    if any(jnp.issubdtype(each, jax.dtypes.extended) for each in (before, after)):
        return Kept(False, False)
    old, new = _numbers_of(np.dtype(before)), _numbers_of(np.dtype(after))
    rounded_up = old.smallest == 1 and old.digits > new.digits  # 65,535 becomes 65,536, which float16 lacks
    return Kept(
        old.top << rounded_up <= new.top and old.special <= new.special,
        old.digits <= new.digits and new.smallest <= old.smallest,
    )


def kept_by(equation: JaxprEqn) -> Kept:
    """Return the parts of the operand that a ``convert_element_type`` or a ``reduce_precision`` keeps."""
    before, after, params = type_of(equation.invars[0]), type_of(equation.outvars[0]), equation.params
    if "mantissa_bits" not in params:
        return kept(before, after)
    own = jnp.finfo(before)
    return Kept(params["exponent_bits"] >= own.nexp, params["mantissa_bits"] >= own.nmant)


def converted(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Cast elements as XLA does: floats become the nearest integer towards 0 in range, and NaN becomes 0."""
    with np.errstate(all="ignore"):
        if not (jnp.issubdtype(x.dtype, jnp.floating) and jnp.issubdtype(dtype, jnp.integer)):
            x = np.real(x) if dtype.kind != "c" else x
            if not np.can_cast(x.dtype, dtype, "unsafe"):  # between integers of 4 bits, or floats of 8 bits
                x = x.astype(np.int64 if jnp.issubdtype(x.dtype, jnp.integer) else np.float64)
            return x.astype(dtype)
        wide, low, high = np.nan_to_num(x.astype(np.float64), nan=0), jnp.iinfo(dtype).min, jnp.iinfo(dtype).max
        inside = (wide > low) & (wide < high + 1)  # the float next to int64's largest number is larger
        result = np.where(inside, wide, 0).astype(dtype)
        return np.where(inside, result, np.where(wide > 0, np.asarray(high, dtype), np.asarray(low, dtype)))
