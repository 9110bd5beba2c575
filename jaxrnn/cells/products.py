"""Matrix products in low precision, and the forms of a program: by platform, and plain forms for ONNX."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn._jax.precision import compute_type
from jaxrnn._jax.varying import platform_dependent

#: The operand type of products. Part of the key of every cache of JAX: what was traced for one type serves no other.
_chosen = jax.make_user_context(None)


@contextlib.contextmanager
def matrix_products_in(dtype: Any) -> Iterator[None]:
    """Trace matrix products and convolutions of float32 arrays with operands of ``"bfloat16"`` or ``"float16"``.

    All other work, including accumulation, stays in float32 (mixed precision). Parameters are not changed. None keeps
    the operands' type.
    """
    with _chosen(compute_type(dtype)):
        yield


def product_type() -> np.dtype | None:
    """Return the type that `matrix_products_in` sets."""
    return _chosen.value


@dataclass(frozen=True)
class Types:
    """The types and forms that a function is traced in."""

    wide: bool  # whether there are types of 64 bits
    products: np.dtype | None
    plain: bool = False  # whether it is traced in plain forms

    @classmethod
    def here(cls) -> Types:
        """Return the current types."""
        return cls(bool(jax.config.read("jax_enable_x64")), product_type(), is_plain())

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Trace in these types."""
        with jax.enable_x64(self.wide), matrix_products_in(self.products), plain_forms(self.plain):
            yield


def product_operands(*operands: jax.Array) -> list[jax.Array]:
    """Cast the operands of a product to the type that `matrix_products_in` sets; accumulate in float32."""
    dtype = product_type()
    if dtype is None or any(operand.dtype != jnp.float32 for operand in operands):
        return list(operands)
    return [operand.astype(dtype) for operand in operands]


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return ``a @ b`` in the type of the operands."""
    return jnp.matmul(*product_operands(a, b), preferred_element_type=a.dtype)


def product_of_rows(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return ``a @ b.T``. The transpose reads b in memory order, which halves the time on a CPU."""
    dimensions = (((a.ndim - 1,), (1,)), ((), ()))
    left, right = product_operands(a, b)
    return lax.dot_general(left, right, dimensions, preferred_element_type=a.dtype)


#: Whether functions are traced in plain forms. Part of the key of every cache of JAX.
_plain = jax.make_user_context(False)


@contextlib.contextmanager
def plain_forms(wanted: bool = True) -> Iterator[None]:
    """Trace textbook forms, for an ONNX graph, or again the forms that are fast in XLA."""
    with _plain(wanted):
        yield


def is_plain() -> bool:
    """Return True if functions are traced in plain forms."""
    return _plain.value


def by_platform(cpu: Callable[..., Any], plain: Callable[..., Any], *operands: Any) -> Any:
    """Evaluate ``cpu(*operands)`` in programs for CPUs, and ``plain(*operands)`` on other platforms.

    Plain forms always use ``plain``. Outside of transformations, the platform is JAX's default device. Operands are
    pytrees, and both functions return equal shapes and types.
    """
    if is_plain():
        return plain(*operands)
    return platform_dependent(*operands, cpu=cpu, default=plain)
