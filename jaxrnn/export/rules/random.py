"""Rules for random numbers from threefry keys: integer arithmetic, so each engine draws the same bits.

In the graph, an array of keys is a pair of integers, as a complex array is a pair of real numbers (`Complex`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn
from jax.extend.random import threefry_prng_impl as implementation

from jaxrnn.export.lowering import COMPLEX, RULES, Lowering
from jaxrnn.export.small.complexes import joined, split
from jaxrnn.export.translator import Complex, check_key
from jaxrnn.export.writer import Operand
from jaxrnn.jaxprs.equations import is_key, type_of

#: The bits by which four rounds rotate, for even and odd groups of rounds.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


@RULES.add("threefry2x32")
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


def on_keys(integers: Callable[..., Any], lowering: Lowering, equation: JaxprEqn, *operands: Any) -> Any:
    """Write an equation that creates or reads keys, as a function of their integers."""
    for atom in (*equation.invars, *equation.outvars):
        if is_key(type_of(atom)):
            check_key(type_of(atom))

    def function(*parts: Any) -> list[Any]:
        values = joined(equation.invars, parts, lambda atom, *pair: jnp.stack(pair, -1))
        found = integers(equation.params, *values)
        return [found[..., 0], found[..., 1]] if is_key(type_of(equation.outvars[0])) else [found]

    found = lowering.trace(function, *split(equation.invars, operands))
    return joined(equation.outvars, found, lambda atom, *pair: Complex(*pair))[0]


def _on_integers(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a rule of equations that create or read keys.

    The rule is a function of the parameters, the integers of keys, ``uint32[..., 2]``, and other operands.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        COMPLEX.add(*names)(functools.partial(on_keys, function))
        return function

    return decorate


@_on_integers("random_bits")
def _bits(params: Any, keys: Any) -> Any:
    return _of_each_key(lambda key: implementation.random_bits(key, params["bit_width"], tuple(params["shape"])), keys)


@_on_integers("random_fold_in")
def _fold_in(params: Any, keys: Any, data: Any) -> Any:
    return _of_each_key(implementation.fold_in, keys, data)


@_on_integers("random_seed")
def _seed(params: Any, seeds: Any) -> Any:
    return jnp.vectorize(implementation.seed, signature="()->(n)")(seeds)


@_on_integers("random_split")
def _split(params: Any, keys: Any) -> Any:
    return _of_each_key(lambda key: implementation.split(key, params["shape"]), keys)


@_on_integers("random_clone", "random_unwrap", "random_wrap")
def _same(params: Any, keys: Any) -> Any:
    return keys
