"""Compilation of eager calls of pure functions.

Outside of a program, JAX compiles every loop at each call, because the loop's body is a new function in each call. A
function that is compiled as a whole is cached by the shapes of its arguments, also under ``grad``, ``jvp`` and
``vmap``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from jaxrnn._jax.context import is_staged
from jaxrnn._jax.varying import alike


class compiled:  # noqa: N801 (a decorator)
    """A decorator for pure methods that compiles eager calls once for each shape.

    The compiled function belongs to its instance, as a ``functools.cached_property`` does, and keeps no other instance
    alive. Inside `jax.shard_map`, arrays vary over the same mesh axes (see `jaxrnn._jax.varying`). Positional arguments
    are pytrees of arrays, and keyword arguments are hashable.
    """

    def __init__(self, method: Callable[..., Any]):
        self.method = method
        self.__doc__ = method.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        function = instance.__dict__[self.name] = _compiled_eagerly(self.method.__get__(instance))
        return function


def _compiled_eagerly(function: Callable[..., Any]) -> Callable[..., Any]:
    # What contexts of the library ask for is read while tracing, and tells programs apart.
    @functools.partial(jax.jit, static_argnums=0)
    def jitted(known: tuple[tuple[str, Any], ...], *arrays: Any) -> Any:
        return function(*arrays, **dict(known))

    @functools.wraps(function)
    def call(*arrays: Any, **known: Any) -> Any:
        if is_staged():
            return function(*alike(*arrays), **known)
        return jitted(tuple(known.items()), *arrays)

    return call
