"""The compute dtype: which types it can be, and which parameters are taken with it.

With ``dtype="bfloat16"``, or float16, operands of matrix products and convolutions are rounded to that type. Sums
accumulate in float32, and everything else stays in the file's types (mixed precision).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.errors import InputError
from jaxrnn.messages import describe, near_or_all

#: The types that products can be computed in.
COMPUTE_TYPES = ("bfloat16", "float16")


def compute_type(dtype: Any) -> np.dtype | None:
    """The type that an argument ``dtype`` asks for; None for the file's own types.

    Raises:
        InputError: products cannot be computed in it.
    """
    if dtype is None:
        return None
    try:
        name = jnp.dtype(dtype).name
    except TypeError:
        name = dtype if isinstance(dtype, str) else repr(dtype)
    if name not in COMPUTE_TYPES:
        types = " or ".join(map(repr, COMPUTE_TYPES))
        raise InputError(f"dtype must be {types}, or None for the file's own types, not {name!r}")
    return jnp.dtype(name)


def bind_params(params: Any, expected: Mapping[str, Any], dtype: np.dtype | None = None) -> dict[str, Any]:
    """Parameters by name as arrays of the expected types, in the expected order; as `bind_param`.

    Raises:
        InputError: a name is missing or unknown, or an array does not fit.
    """
    check_names(params, expected)
    return {name: bind_param(f"params[{name!r}]", params[name], array, dtype) for name, array in expected.items()}


def check_names(params: Any, expected: Mapping[str, Any], *, some: bool = False) -> None:
    """Refuse parameters that have other names than those expected; with ``some``, a few of them will do.

    Raises:
        InputError: names one that is missing, or what is nearest to an unknown one.
    """
    if not isinstance(params, Mapping):
        raise InputError(f"params must be a dict of arrays by name, like model.params, not {type(params).__name__}")
    for name in params:
        if name not in expected:
            raise InputError(f"params: there is no parameter {name!r}{near_or_all(name, expected)}")
    missing = [] if some else [name for name in expected if name not in params]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise InputError(f"params: {missing[0]!r} is missing{more}")


def bind_param(where: str, value: Any, expected: Any, dtype: np.dtype | None = None) -> Any:
    """One parameter as an array of the expected type.

    It must have that type. With a compute dtype, a float32 parameter may come in it: that is half the memory, the
    products see its very elements, and its gradient comes in the same type. Python's numbers take on the type.

    Args:
        where: what messages call it.
        value: the parameter.
        expected: an array or a shape, with the element type.
        dtype: the compute dtype.

    Raises:
        InputError: it has another shape or type; says what is expected, and the mend.
    """
    if isinstance(value, (int, float)) and expected.shape == () and jnp.issubdtype(expected.dtype, jnp.floating):
        return jnp.asarray(value, expected.dtype)
    have, want = getattr(value, "dtype", None), expected.dtype
    if have is not None and tuple(np.shape(value)) == tuple(expected.shape):
        if have == want:
            return value
        if dtype is not None and have == dtype and want == np.float32:
            return jnp.asarray(value).astype(want)
        if _canonical(have) == _canonical(want):
            return jnp.asarray(value)  # 64 bits where JAX has no such types
    alternative = "" if dtype is None or want != np.float32 else f" or {dtype.name}"
    mend = _mend(value, expected, dtype)
    raise InputError(f"{where} must be {describe(expected)}{alternative}, not {describe(value)}{mend}")


def _canonical(dtype: Any) -> Any:
    """What JAX makes of an element type here and now; keys of random numbers have types of their own."""
    return jax.dtypes.canonicalize_dtype(dtype) if isinstance(dtype, np.dtype) else dtype


def _mend(value: Any, expected: Any, dtype: np.dtype | None) -> str:
    """What to do about a parameter of the right shape and another type."""
    have, want = getattr(value, "dtype", None), expected.dtype
    if have is None or tuple(np.shape(value)) != tuple(expected.shape):
        return ""
    if have.name in COMPUTE_TYPES and want == np.float32 and dtype is None:
        return f"; dtype={have.name!r} takes parameters of that type"
    if want == np.float64 and have == np.float32:
        return "; JAX makes float32 of float64 unless jax_enable_x64 is on: call inside 'with jax.enable_x64(True):'"
    return f"; convert it with .astype({want.name!r})"
