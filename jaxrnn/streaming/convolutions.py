"""`convolve` and `correlate`: JAX's functions, extended to symbolic lengths, so that `stream` can trace them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxrnn.errors import InputError
from jaxrnn.streaming.dimensions import is_symbolic


def convolve(a: Any, v: Any, mode: str = "full", *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """Convolve a vector with a kernel, like ``jax.numpy.convolve``, also for a symbolic size of the vector.

    For n elements of `a` and k elements of `v`, the result has ``n + k - 1`` elements in mode "full", n in mode "same",
    and ``max(n - k + 1, 0)`` in mode "valid". JAX's function differs if ``n < k``: it exchanges the vector and the
    kernel.

    Args:
        a: the vector, such as samples over time.
        v: the kernel, of a fixed size of at least 1.
        mode: "full", "same" or "valid".
        precision: as in JAX.
        preferred_element_type: as in JAX.

    Raises:
        InputError: an operand is not a vector, the size of `v` is symbolic or 0, or the mode is unknown.
    """
    return _correlated("convolve", a, jnp.flip(v), mode, precision, preferred_element_type)


def correlate(a: Any, v: Any, mode: str = "valid", *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """Correlate a vector with a kernel, like ``jax.numpy.correlate``, also for a symbolic size of the vector.

    Sizes, arguments and errors are as in `convolve`.
    """
    return _correlated("correlate", a, jnp.conj(v), mode, precision, preferred_element_type)


def _correlated(name: str, a: Any, v: Any, mode: str, precision: Any, preferred_element_type: Any) -> Any:
    a, v = jnp.asarray(a), jnp.asarray(v)
    if a.ndim != 1 or v.ndim != 1:
        raise InputError(f"{name} takes vectors, not arrays of shapes {a.shape} and {v.shape}; use jax.vmap")
    if is_symbolic(v.shape[0]) or not v.shape[0]:
        raise InputError(f"the kernel of {name} must have a fixed size of at least 1, not {v.shape[0]}")
    if mode not in ("full", "same", "valid"):
        raise InputError(f"the mode of {name} must be 'full', 'same' or 'valid', not {mode!r}")
    dtype = jnp.promote_types(a.dtype, v.dtype)
    if preferred_element_type is None and not jnp.issubdtype(dtype, jnp.inexact):
        dtype = jnp.result_type(float)
    size = v.shape[0]
    pads = {"full": (size - 1, size - 1), "same": (size // 2, size - size // 2 - 1), "valid": (0, 0)}[mode]
    return lax.conv_general_dilated(
        a.astype(dtype)[None, None],
        v.astype(dtype)[None, None],
        (1,),
        [pads],
        precision=precision,
        preferred_element_type=preferred_element_type,
    )[0, 0]
