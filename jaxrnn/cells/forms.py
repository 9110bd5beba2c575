"""The form of a traced program: operand types of products, forms by platform, plain forms, and sequences in parts."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn._jax import varying
from jaxrnn._jax.context import compute_type
from jaxrnn._jax.varying import platform_dependent
from jaxrnn.errors import InputError, is_count

#: The operand type of products. Part of the keys of all caches of JAX, because traces depend on this type.
_operand_type = jax.make_user_context(None)


@contextlib.contextmanager
def matrix_products_in(dtype: Any) -> Iterator[None]:
    """Trace matrix products and convolutions of float32 arrays with operands of ``"bfloat16"`` or ``"float16"``.

    All other work, including accumulation, stays in float32 (mixed precision). Parameters are not changed. None keeps
    the operands' type.
    """
    with _operand_type(compute_type(dtype)):
        yield


def product_type() -> np.dtype | None:
    """Return the type that `matrix_products_in` sets."""
    return _operand_type.value


@dataclass(frozen=True)
class Types:
    """The types and forms that a function is traced in."""

    wide: bool  # whether 64-bit types are enabled
    products: np.dtype | None
    plain: bool = False  # whether the function is traced in plain forms

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
    """Cast the float32 operands of a product to the type that `matrix_products_in` sets."""
    dtype = product_type()
    if dtype is None or any(operand.dtype != jnp.float32 for operand in operands):
        return list(operands)
    return [operand.astype(dtype) for operand in operands]


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return ``a @ b`` in the type of the operands."""
    left, right = product_operands(a, b)
    if left.ndim and right.ndim in (1, 2):  # as `jnp.matmul`, which is traced again for each shape
        return lax.dot_general(left, right, (((a.ndim - 1,), (0,)), ((), ())), preferred_element_type=a.dtype)
    return jnp.matmul(left, right, preferred_element_type=a.dtype)


def product_of_rows(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return ``a @ b.T``. The transpose reads b in memory order, which halves the time on a CPU."""
    dimensions = (((a.ndim - 1,), (1,)), ((), ()))
    left, right = product_operands(a, b)
    return lax.dot_general(left, right, dimensions, preferred_element_type=a.dtype)


#: Whether functions are traced in plain forms. Part of the keys of all caches of JAX.
_plain = jax.make_user_context(False)


@contextlib.contextmanager
def plain_forms(wanted: bool = True) -> Iterator[None]:
    """Trace textbook forms, for an ONNX graph; if not ``wanted``, trace the forms that are fast in XLA."""
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


#: Frames in a chunk, or ``"sqrt"``; None to recompute nothing.
Remat = Literal["sqrt"] | int | None
Run = Callable[[Any, Any], tuple[Any, Any]]

#: Bytes of projected frames to compute before the loop that reads them. They are then still in the cache: on the CPU, a
#: loop over tens of megabytes takes twice as long.
BLOCK = 1 << 21

#: The ``remat`` of `recomputing`. Part of the keys of all caches of JAX.
_remat = jax.make_user_context(None)


@contextlib.contextmanager
def recomputing(remat: Remat) -> Iterator[None]:
    """Rematerialize the sequences traced inside: keep only the carries between chunks for the backward pass.

    Values do not change. The memory of the backward pass grows with the number of chunks plus the length of a chunk.
    ``remat`` is the number of frames in a chunk, ``"sqrt"`` for the square root of the number of frames, or None
    without chunks.
    """
    if remat is not None and remat != "sqrt" and not is_count(remat, 1):
        raise InputError(f"remat must be None, 'sqrt' or a number of frames from 1 up, not {remat!r}")
    with _remat(remat):
        yield


def in_chunks(run: Run, carry: Any, frames: Any, *, reverse: bool = False) -> tuple[Any, Any]:
    """Run ``(carry, frames) -> (carry, outputs)`` over frames, in chunks if `recomputing` asks for chunks."""
    length = jax.tree.leaves(frames)[0].shape[0]
    size = _chunk_of(length)
    if size is None:
        return run(carry, frames)

    @jax.checkpoint
    def run_chunk(carry: Any, part: Any) -> tuple[Any, Any]:
        with recomputing(None):  # sequences inside a step are not recomputed a second time
            return run(carry, part)

    return in_parts(run_chunk, carry, frames, length, size, reverse)


def in_blocks(run: Run, carry: Any, frames: Any, bytes_a_frame: int, *, reverse: bool = False) -> tuple[Any, Any]:
    """Run ``(carry, frames) -> (carry, outputs)`` over frames; long recurrences run in blocks on CPUs.

    ``bytes_a_frame`` is the number of bytes that ``run`` computes for each frame before its loop.
    """
    length = jax.tree.leaves(frames)[0].shape[0]
    size = _block_of(length, bytes_a_frame)
    if size is None:
        return run(carry, frames)
    # A nearby size that divides the length leaves no remainder to slice off and concatenate.
    size = next((divisor for divisor in range(size, size // 2, -1) if length % divisor == 0), size)

    def blocks(carry: Any, frames: Any) -> tuple[Any, Any]:
        return in_parts(run, carry, frames, length, size, reverse)

    return by_platform(blocks, run, carry, frames)


def in_parts(run: Run, carry: Any, frames: Any, length: int, size: int, reverse: bool = False) -> tuple[Any, Any]:
    """Run ``(carry, frames) -> (carry, outputs)`` in a loop over parts of equal size, then for the remainder."""
    covered = length // size * size
    # A reversed sequence begins at its end, so its remainder lies at the front.
    first = length - covered if reverse else 0
    body = jax.tree.map(lambda x: x[first : first + covered].reshape(-1, size, *x.shape[1:]), frames)
    carry, outputs = varying.scan(run, carry, body, reverse=reverse)
    outputs = jax.tree.map(lambda y: y.reshape(covered, *y.shape[2:]), outputs)
    if covered == length:
        return carry, outputs
    remainder = jax.tree.map(lambda x: x[:first] if reverse else x[covered:], frames)
    carry, last = run(carry, remainder)
    parts = (last, outputs) if reverse else (outputs, last)
    return carry, jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *parts)


def is_in_parts(length: Any, bytes_a_frame: Any) -> bool:
    """Return True if `in_chunks` or `in_blocks` cuts a sequence."""
    return _chunk_of(length) is not None or _block_of(length, bytes_a_frame) is not None


def _block_of(length: Any, bytes_a_frame: Any) -> int | None:
    """Return the frames in a block, or None if the sequence is not cut, as with a symbolic length or batch."""
    if is_plain() or not isinstance(length, int) or not isinstance(bytes_a_frame, int):
        return None
    size = max(1, BLOCK // max(bytes_a_frame, 1))
    return size if length > 2 * size else None


def _chunk_of(length: Any) -> int | None:
    """Return the frames in a chunk, or None if the sequence is not cut, as with a symbolic length."""
    remat = _remat.value
    if remat is None or is_plain() or not isinstance(length, int):
        return None
    size = math.isqrt(length) if remat == "sqrt" else int(remat)
    return size if 0 < size < length else None
