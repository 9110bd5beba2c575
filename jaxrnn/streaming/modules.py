"""Modules where `stream` takes functions: of Flax NNX and Equinox as they are, of linen by ``apply``.

Flax and Equinox are looked up among the modules that are loaded: no object is of a package that is not.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from jaxrnn.errors import StreamError

#: How a function takes the parameters of an NNX module apart from the rest of it, which it works on a copy of.
_MERGED = (
    "graph, params, rest = nnx.split(module, nnx.Param, ...) and "
    "jaxrnn.stream(lambda params, x: nnx.merge(graph, params, rest, copy=True)(x), ..., params=params)"
)


def as_function(function: Any) -> Callable[..., Any]:
    """What is traced of what a caller gives.

    The variables of an NNX module belong to the trace that they were made in, and a call may change them: counters of
    random numbers, running statistics. So a copy of it is called, one for each trace, and its changes are dropped.

    Raises:
        StreamError: it is a linen module, which has no parameters of its own.
    """
    if isinstance(function, functools.partial):
        return functools.partial(as_function(function.func), *function.args, **function.keywords)
    nnx, linen = sys.modules.get("flax.nnx"), sys.modules.get("flax.linen")
    if linen is not None and isinstance(function, linen.Module) and function.scope is None:
        raise StreamError(
            f"a linen module such as {type(function).__name__} has no parameters of its own: write "
            "jaxrnn.stream(module.apply, ..., params=variables), with variables = module.init(key, x)"
        )
    module = getattr(function, "__self__", function)
    if nnx is None or not isinstance(module, nnx.Module):
        return function
    method = getattr(function, "__func__", type(module).__call__)

    @functools.wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        return method(nnx.clone(module), *arguments, **named)

    return call


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Inside, an NNX module that a function closes over and changes is an error that says what to write instead."""
    try:
        yield
    except Exception as error:
        flax = sys.modules.get("flax.errors")
        if flax is None or not isinstance(error, flax.TraceContextError):
            raise
        reason = str(error).partition(" (https://")[0]
        raise StreamError(
            f"the function changes an NNX module that was made outside of it ({reason}). Pass the module itself, "
            f"jaxrnn.stream(module, ...), or its parameters, too: {_MERGED}"
        ) from error


def check_params(params: Any) -> None:
    """See that all parameters are arrays.

    Raises:
        StreamError: a leaf is none; names it, and how to take a module of Equinox apart.
    """
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        if not hasattr(leaf, "dtype") and not isinstance(leaf, (bool, int, float, complex, np.generic)):
            raise StreamError(
                f"params must be a pytree of arrays, but params{jax.tree_util.keystr(path)} is a "
                f"{type(leaf).__name__}. Pass only the arrays of an Equinox module: arrays, static = "
                "eqx.partition(module, eqx.is_array) and jaxrnn.stream(lambda arrays, x: eqx.combine(arrays, "
                "static)(x), ..., params=arrays)"
            )
