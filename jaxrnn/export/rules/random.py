"""Rules for random numbers from threefry keys: integer arithmetic, so each engine draws the same bits.

In the graph, an array of keys is a pair of integers, as a complex array is a pair of real numbers (`Complex`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn
from jax.extend.random import threefry_prng_impl as implementation

from jaxrnn.export.lowering import Complex, Lowering, Rule
from jaxrnn.export.writer import Operand
from jaxrnn.jaxprs.equations import is_key, type_of

#: The bits by which four rounds rotate, for even and odd groups of rounds.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry(lowering: Lowering, equation: JaxprEqn, *operands: Operand) -> list[Operand]:
    """Write Threefry-2x32 with 20 rounds (Salmon and others, "Parallel Random Numbers: As Easy as 1, 2, 3", 2011)."""

    def encrypted(first: Any, second: Any, x: Any, y: Any) -> Any:
        keys = first, second, first ^ second ^ np.uint32(0x1BD11BDA)
        x, y = x + first, y + second
        for group in range(5):
            for bits in _ROTATIONS[group % 2]:
                x = x + y
                # Both parts of a rotation have no bit in common, so addition joins the parts.
                y = x ^ ((y << np.uint32(bits)) + (y >> np.uint32(32 - bits)))
            x, y = x + keys[(group + 1) % 3], y + (keys[(group + 2) % 3] + np.uint32(group + 1))
        return x, y

    return lowering.trace(encrypted, *operands)


def _of_each_key(function: Callable[..., Any], keys: Any, *others: Any) -> Any:
    """Apply a function of a single key to an array of keys, and to other arrays that broadcast with the keys."""
    shape = np.broadcast_shapes(keys.shape[:-1], *map(np.shape, others))
    flat = [jnp.broadcast_to(each, shape).reshape(-1) for each in others]
    result = jax.vmap(function)(jnp.broadcast_to(keys, (*shape, 2)).reshape(-1, 2), *flat)
    return result.reshape(*shape, *result.shape[1:])


def _bits(params: Any, keys: Any) -> Any:
    return _of_each_key(lambda key: implementation.random_bits(key, params["bit_width"], tuple(params["shape"])), keys)


#: Functions of the parameters of an equation, the integers of keys, ``uint32[..., 2]``, and other operands.
_ON_INTEGERS: dict[str, Callable[..., Any]] = {
    "random_bits": _bits,
    "random_fold_in": lambda params, keys, data: _of_each_key(implementation.fold_in, keys, data),
    "random_seed": lambda params, seeds: jnp.vectorize(implementation.seed, signature="()->(n)")(seeds),
    "random_split": lambda params, keys: _of_each_key(lambda key: implementation.split(key, params["shape"]), keys),
    **dict.fromkeys(("random_clone", "random_unwrap", "random_wrap"), lambda params, keys: keys),
}


def on_keys(lowering: Lowering, equation: JaxprEqn, *operands: Any) -> Any:
    """Write an equation that creates or reads keys."""
    (result,) = equation.outvars
    kinds = {str(type_of(atom)) for atom in (*equation.invars, result) if is_key(type_of(atom))}
    if kinds != {"key<fry>"}:
        lowering.refuse(
            f"ONNX engines cannot draw the numbers of {' and '.join(sorted(kinds))}; use a key of the implementation "
            '"threefry2x32", or draw the numbers outside, and pass them as an input'
        )

    def function(*parts: Any) -> list[Any]:
        rest = iter(parts)
        values = [
            jnp.stack([next(rest), next(rest)], -1) if is_key(type_of(atom)) else next(rest) for atom in equation.invars
        ]
        found = _ON_INTEGERS[equation.primitive.name](equation.params, *values)
        return [found[..., 0], found[..., 1]] if is_key(type_of(result)) else [found]

    parts = [part for each in operands for part in ([each.real, each.imag] if isinstance(each, Complex) else [each])]
    found = lowering.trace(function, *parts)
    return Complex(*found) if is_key(type_of(result)) else found[0]


RULES: dict[str, Rule] = {**dict.fromkeys(_ON_INTEGERS, on_keys), "threefry2x32": threefry}
