"""The compute dtype: the allowed types, and checks of parameters under a compute dtype.

With ``dtype="bfloat16"``, or float16, operands of matrix products and convolutions are rounded to that type. Sums
accumulate in float32, and all other work stays in the file's types (mixed precision).
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

#: The possible compute dtypes.
COMPUTE_TYPES = ("bfloat16", "float16")


def compute_type(dtype: Any) -> np.dtype | None:
    """Return a compute dtype, or None for the types of the file; raise InputError for any other type."""
    if dtype is None:
        return None
    try:
        name = jnp.dtype(dtype).name
    except TypeError:
        name = dtype if isinstance(dtype, str) else repr(dtype)
    if name not in COMPUTE_TYPES:
        types = " or ".join(map(repr, COMPUTE_TYPES))
        raise InputError(f"dtype must be {types}, or None for the types of the file, not {name!r}")
    return jnp.dtype(name)


def check_params(params: Any, expected: Mapping[str, Any], dtype: np.dtype | None = None) -> None:
    """Check the names of parameters, and each parameter as in `check_param`."""
    check_names(params, expected)
    for name, array in expected.items():
        check_param(f"params[{name!r}]", params[name], array, dtype)


def check_names(params: Any, expected: Mapping[str, Any], *, some: bool = False) -> None:
    """Check the names of parameters; with ``some``, names can be missing. An InputError suggests the nearest name."""
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
    """Check the shape and dtype of a parameter, called ``where`` in messages; otherwise raise InputError.

    With a compute dtype, a parameter in this dtype is accepted in place of float32: the parameter takes half the
    memory, products use the elements without rounding, and the gradient has the same dtype. Python numbers are
    converted. ``expected`` is an array or a struct.
    """
    have, want, is_lowered = getattr(value, "dtype", None), expected.dtype, expected.dtype == np.float32
    if isinstance(value, (int, float)) and expected.shape == () and jnp.issubdtype(want, jnp.floating):
        return
    fix, types = "", [want, *([] if dtype is None or not is_lowered else [dtype])]
    if have is not None and tuple(np.shape(value)) == tuple(expected.shape):
        if have in types or _canonical(have) == _canonical(want):
            return
        if is_lowered and dtype is None and have.name in COMPUTE_TYPES:
            fix = f"; {argument('dtype', have.name)} takes parameters of that type"
        elif (have, want) == (np.float32, np.float64):
            fix = "; float64 needs jax_enable_x64: call inside 'with jax.enable_x64(True):'"
        elif isinstance(want, np.dtype):
            fix = f"; convert it with .astype({want.name!r})"
    alternative = f" or {types[1].name}" if types[1:] else ""
    raise InputError(f"{where} must be {describe(expected)}{alternative}, not {describe(value)}{fix}")


def cast_params(params: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, Any]:
    """Return checked parameters in the expected dtypes and order."""
    return {name: cast_param(params[name], array) for name, array in expected.items()}


def cast_param(value: Any, expected: Any) -> Any:
    """Return a checked parameter in the expected dtype."""
    want = _canonical(expected.dtype)
    return value if getattr(value, "dtype", None) == want else jnp.asarray(value).astype(want)


def _canonical(dtype: Any) -> Any:
    """Return the dtype to which JAX narrows a dtype here; dtypes of random keys do not change."""
    return jax.dtypes.canonicalize_dtype(dtype) if isinstance(dtype, np.dtype) else dtype
