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

from jaxrnn._files.arguments import argument
from jaxrnn._files.messages import describe, near_or_all
from jaxrnn.errors import InputError

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


def check_params(params: Any, expected: Mapping[str, Any], dtype: np.dtype | None = None) -> None:
    """Hold parameters by name against those expected, as `check_param`.

    Raises:
        InputError: a name is missing or unknown, or an array does not fit.
    """
    check_names(params, expected)
    for name, array in expected.items():
        check_param(f"params[{name!r}]", params[name], array, dtype)


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


def check_param(where: str, value: Any, expected: Any, dtype: np.dtype | None = None) -> None:
    """Hold one parameter against an array or a shape.

    It must have the same type. With a compute dtype, a float32 parameter may come in that: it takes half the memory,
    products see its very elements, and its gradient has its type. Python's numbers take on the type.

    Args:
        where: what messages call it.
        value: the parameter.
        expected: an array or a shape, with the element type.
        dtype: the compute dtype.

    Raises:
        InputError: it has another shape or type; says what is expected, and the mend.
    """
    have, want, is_lowered = getattr(value, "dtype", None), expected.dtype, expected.dtype == np.float32
    if isinstance(value, (int, float)) and expected.shape == () and jnp.issubdtype(want, jnp.floating):
        return
    mend, types = "", [want, *([] if dtype is None or not is_lowered else [dtype])]
    if have is not None and tuple(np.shape(value)) == tuple(expected.shape):
        if have in types or _canonical(have) == _canonical(want):
            return
        if is_lowered and dtype is None and have.name in COMPUTE_TYPES:
            mend = f"; {argument('dtype', have.name)} takes parameters of that type"
        elif (have, want) == (np.float32, np.float64):
            mend = "; JAX makes it of float64 unless jax_enable_x64 is on: call inside 'with jax.enable_x64(True):'"
        elif isinstance(want, np.dtype):
            mend = f"; convert it with .astype({want.name!r})"
    alternative = f" or {types[1].name}" if types[1:] else ""
    raise InputError(f"{where} must be {describe(expected)}{alternative}, not {describe(value)}{mend}")


def cast_params(params: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters that were checked, in the expected types and order."""
    return {name: cast_param(params[name], array) for name, array in expected.items()}


def cast_param(value: Any, expected: Any) -> Any:
    """One that was checked, in the expected type."""
    want = _canonical(expected.dtype)
    return value if getattr(value, "dtype", None) == want else jnp.asarray(value).astype(want)


def _canonical(dtype: Any) -> Any:
    """What JAX makes of an element type here and now; keys of random numbers have types of their own."""
    return jax.dtypes.canonicalize_dtype(dtype) if isinstance(dtype, np.dtype) else dtype
