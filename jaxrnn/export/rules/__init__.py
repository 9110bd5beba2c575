"""The rules by primitive, and refusals of primitives without a counterpart in ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from jax.extend.core import JaxprEqn

from jaxrnn.export.lowering import Lowering, Rule
from jaxrnn.export.rules import (
    arithmetic,
    control,
    elementwise,
    layers,
    movement,
    products,
    random,
    reduction,
    windows,
)
from jaxrnn.export.rules.complexes import with_complex

#: Primitives that cannot be written, by the reason and the fix.
_REASONS: Mapping[str, str] = {
    "ONNX engines cannot draw the same random numbers; draw the numbers outside, and pass them as an input": """
        random_gamma rng_bit_generator rng_uniform
    """,
    "it calls Python, which a file cannot contain; move the call out of the exported function": """
        debug_callback debug_print io_callback pure_callback
    """,
    "it needs several devices, and a file runs on one; export the function outside of shard_map": """
        all_gather all_to_all axis_index pmax pmin ppermute psum psum_invariant reduce_scatter shard_map
    """,
    "ONNX has no matrix decompositions; compute it outside, and pass it as an input": """
        cholesky eig eigh householder_product lu qr schur svd triangular_solve tridiagonal tridiagonal_solve
    """,
    "ONNX has no such function; compute it outside, or write it with other functions": """
        bessel_i0e bessel_i1e digamma igamma igammac lgamma nextafter polygamma regularized_incomplete_beta zeta
    """,
}


def _refusal(reason: str) -> Rule:
    def refuse(lowering: Lowering, equation: JaxprEqn, *operands: Any) -> NoReturn:
        lowering.refuse(reason)

    return refuse


RULES: dict[str, Rule] = with_complex(
    {
        **arithmetic.RULES,
        **control.RULES,
        **elementwise.RULES,
        **layers.RULES,
        **movement.RULES,
        **products.RULES,
        **random.RULES,
        **reduction.RULES,
        **windows.RULES,
        **{name: _refusal(reason) for reason, names in _REASONS.items() for name in names.split()},
    }
)
