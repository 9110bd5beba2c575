"""Functions of JAX and NumPy that need a length as a number, replaced while a function is traced.

Packages call `jax.lax.associative_scan`, as `jax.lax.associative_scan`, `lax.associative_scan` or a name that they have
imported. A substitute takes the place of the function in all loaded modules. The substitute calls ours for a symbolic
size and in the thread that asked, and the function itself otherwise. So other threads and fixed sizes see no
difference. Functions of NumPy that make an array of a length get those of `jax.numpy`; floats that count, which NumPy
would compute in 64 bits, stay refused.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.signal
import numpy as np
from jax import lax

from jaxrnn.signal import associative_scan, convolve, correlate
from jaxrnn.streaming.dimensions import symbolic_axes

#: True in a thread that traces with substitutes.
_asked: ContextVar[bool] = ContextVar("asked", default=False)
_lock = threading.Lock()
#: The number of contexts in all threads.
_open = 0


def _substitute(original: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def chosen(*arguments: Any, **options: Any) -> Any:
        leaves = jax.tree.leaves((arguments, options)) if _asked.get() else ()
        return (ours if any(map(_has_length, leaves)) else original)(*arguments, **options)

    return chosen


def _has_length(leaf: Any) -> bool:
    """Return True for a symbolic size, and for an array with one."""
    shape = getattr(leaf, "shape", ())  # of a type, this is a property
    return jax.export.is_symbolic_dim(leaf) or (isinstance(shape, tuple) and bool(symbolic_axes(shape)))


def _of_vectors(ours: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of `jax.scipy.signal` in terms of ours; `method` selects an algorithm, and not the result."""

    @functools.wraps(ours)
    def function(in1: Any, in2: Any, mode: str = "full", method: str = "auto", precision: Any = None) -> Any:
        return ours(in1, in2, mode, precision=precision)

    return function


def _counted(*limits: Any, dtype: Any = None) -> Any:
    """Count as `jax.numpy.arange` does, if the numbers are integers."""
    if not np.issubdtype(dtype or np.int64, np.integer) or any(isinstance(each, float) for each in limits):
        raise TypeError(
            "np.arange of floats up to a length would be computed in 64 bits: count integers, or call jnp.arange"
        )
    return jnp.arange(*limits, dtype=dtype)


#: The functions of JAX and NumPy, and their substitutes.
_PAIRS = [
    (original, _substitute(original, ours))
    for original, ours in (
        (lax.associative_scan, associative_scan),
        (jnp.convolve, convolve),
        (jnp.correlate, correlate),
        (jax.scipy.signal.convolve, _of_vectors(convolve)),
        (jax.scipy.signal.correlate, _of_vectors(correlate)),
        (np.arange, _counted),
        *((getattr(np, name), getattr(jnp, name)) for name in ("eye", "full", "ones", "tri", "tril", "triu", "zeros")),
    )
]


@contextlib.contextmanager
def substituted() -> Iterator[None]:
    """Replace JAX's functions in this thread."""
    global _open
    with _lock:
        if not _open:
            _replace({id(original): ours for original, ours in _PAIRS})
        _open += 1
    token = _asked.set(True)
    try:
        yield
    finally:
        _asked.reset(token)
        with _lock:
            _open -= 1
            if not _open:  # also in modules that were loaded in between
                _replace({id(ours): original for original, ours in _PAIRS})


def _replace(functions: dict[int, Callable[..., Any]]) -> None:
    """Replace functions, by their identity, in all loaded modules but this."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict) and module is not sys.modules[__name__]:
            for name, value in list(names.items()):
                if id(value) in functions:
                    names[name] = functions[id(value)]
