"""Parameters with the work that depends on nothing else already done, and the types that weights can be packed in."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.errors import InputError

#: Why a type is refused that one could think of.
_REFUSED = {
    "float16": "XLA widens it to float32 before each product on a CPU, which takes longer than float32 weights do",
    "int8": "its products are no faster than those of bfloat16, and err several times as much",
}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Packed:
    """What `Model.pack` and `Streamed.pack` give, taken in place of the plain parameters: a pytree.

    Attributes:
        params: the plain parameters.
        folded: what a step reads of them: transposed, joined and folded arrays, in the order of its jaxpr. Empty where
            the model has no step. Weights of matrix products can be narrower than their parameters.
        purpose: which step they were folded for; others work with the plain parameters.
    """

    params: Any
    folded: tuple[jax.Array, ...] = ()
    purpose: str = dataclasses.field(default="", metadata={"static": True})


def plain(params: Any) -> Any:
    """The plain parameters of packed ones; others are handed back as they are."""
    return params.params if isinstance(params, Packed) else params


def narrow_type(dtype: Any) -> np.dtype | None:
    """The type that weights are to be packed in; None for the parameters' own.

    Raises:
        InputError: it is another one than bfloat16, the only one that gains anything.
    """
    if dtype is None:
        return None
    name = _name_of(dtype)
    if name != "bfloat16":
        why = f": {_REFUSED[name]}" if name in _REFUSED else ""
        raise InputError(f"weights can be packed in bfloat16, or in their own type (None), not in {name}{why}")
    return np.dtype(jnp.bfloat16)


def _name_of(dtype: Any) -> str:
    try:
        return jnp.dtype(dtype).name
    except TypeError:
        return repr(dtype)
