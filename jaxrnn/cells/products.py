"""Matrix products with low-precision operands that accumulate in the operands' own type."""

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
    """Trace matrix products and convolutions of float32 arrays with low-precision operands.

    Everything else stays in float32, the accumulation too (mixed precision). Parameters are not changed.

    Args:
        dtype: ``"bfloat16"`` or ``"float16"``; None for the operands' own type.

    Raises:
        InputError: it is another type.
    """
    with _chosen(compute_type(dtype)):
        yield


def product_type() -> np.dtype | None:
    """The type that `matrix_products_in` asks for."""
    return _chosen.value


@dataclass(frozen=True)
class Types:
    """The types and forms that a function is traced in.

    Attributes:
        wide: whether there are types of 64 bits.
        products: the compute dtype.
        plain: whether it is traced in plain forms.
    """

    wide: bool
    products: np.dtype | None
    plain: bool = False

    @classmethod
    def here(cls) -> Types:
        """Those here and now."""
        return cls(bool(jax.config.read("jax_enable_x64")), product_type(), is_plain())

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Trace in them."""
        with jax.enable_x64(self.wide), matrix_products_in(self.products), plain_forms(self.plain):
            yield


def product_operands(*operands: jax.Array) -> list[jax.Array]:
    """The operands of a product, cast to the type that `matrix_products_in` asks for; accumulate it in float32."""
    dtype = product_type()
    if dtype is None or any(operand.dtype != jnp.float32 for operand in operands):
        return list(operands)
    return [operand.astype(dtype) for operand in operands]


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """``a @ b``, in the type of the operands."""
    return jnp.matmul(*product_operands(a, b), preferred_element_type=a.dtype)


def product_of_rows(a: jax.Array, b: jax.Array) -> jax.Array:
    """``a @ b.T``. Its transpose reads b in memory order, which halves its time on the CPU."""
    dimensions = (((a.ndim - 1,), (1,)), ((), ()))
    left, right = product_operands(a, b)
    return lax.dot_general(left, right, dimensions, preferred_element_type=a.dtype)


#: Whether functions are traced in plain forms. Part of the key of every cache of JAX.
_plain = jax.make_user_context(False)


@contextlib.contextmanager
def plain_forms(wanted: bool = True) -> Iterator[None]:
    """Trace everything as the textbook has it, for an ONNX graph, or again in the forms that XLA is fast with."""
    with _plain(wanted):
        yield


def is_plain() -> bool:
    """Whether functions are traced in plain forms here."""
    return _plain.value


def by_platform(cpu: Callable[..., Any], plain: Callable[..., Any], *operands: Any) -> Any:
    """``cpu(*operands)`` in a program for CPUs, and ``plain(*operands)`` in one for any other platform.

    In plain forms, it is ``plain(*operands)`` everywhere. Called outside of any transformation, the platform is that of
    JAX's default device.

    Args:
        cpu: a function of arrays.
        plain: another one, which gives arrays of the same shapes and types.
        operands: pytrees of arrays.
    """
    if is_plain():
        return plain(*operands)
    return platform_dependent(*operands, cpu=cpu, default=plain)
