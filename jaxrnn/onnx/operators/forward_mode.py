"""Values with a forward-mode derivative only, and an error in the file's own terms for reverse mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxrnn.errors import NodeError


def forward_mode_only(value: jax.Array, reason: str) -> jax.Array:
    """The value itself, with its forward-mode derivative; reverse mode raises a `NodeError`.

    JAX cannot transpose the derivative of a ``lax.while_loop``, and its own error does not name the node.
    """
    if not jnp.issubdtype(value.dtype, jnp.inexact):
        return value
    return _identity(reason)(value)


def _identity(reason: str) -> Callable[[jax.Array], jax.Array]:
    @jax.custom_jvp
    def same(value: jax.Array) -> jax.Array:
        return value

    @same.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return primals[0], _not_transposed.bind(tangents[0], reason=reason)

    return same


def _refuse(cotangent: Any, tangent: Any, *, reason: str) -> Any:
    del cotangent, tangent
    error = NodeError(reason)
    error.located = True
    raise error


#: The identity on a tangent, which refuses to be transposed.
_not_transposed = Primitive("forward_mode_only")
_not_transposed.def_impl(lambda tangent, **_: tangent)
_not_transposed.def_abstract_eval(lambda tangent, **_: tangent)
ad.deflinear2(_not_transposed, _refuse)
batching.defvectorized(_not_transposed)
mlir.register_lowering(_not_transposed, lambda context, tangent, **_: [tangent])
