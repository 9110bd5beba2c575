"""Pure functions that may be called outside of every program, where JAX compiles each loop of theirs at each call.

A loop's body is a new function in every call, so nothing that JAX compiled for the last one is found again. Compiled as
a whole, a function is found by the shapes of its arguments, under ``grad``, ``jvp`` and ``vmap`` too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from jaxrnn._jax.context import is_staged
from jaxrnn._jax.varying import alike


class compiled:  # noqa: N801 (a decorator)
    """A pure method of arrays that is compiled once for each shape, where it is no part of a program anyway.

    It belongs to its instance, as a ``functools.cached_property`` does, and keeps no other instance alive. Inside
    `jax.shard_map`, its arrays vary over the same mesh axes (see `jaxrnn._jax.varying`).

    Args:
        method: it; positional arguments are pytrees of arrays, keyword arguments are hashable and known while tracing.
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
