"""Parameters with the work that depends on nothing else already done."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Packed:
    """What `Model.pack` and `Streamed.pack` give, taken in place of the plain parameters: a pytree.

    Attributes:
        params: the plain parameters.
        folded: what a step reads of them: transposed, joined and folded arrays, in the order of its jaxpr. Empty where
            the model has no step.
        purpose: which step they were folded for; others work with the plain parameters.
    """

    params: Any
    folded: tuple[jax.Array, ...] = ()
    purpose: str = dataclasses.field(default="", metadata={"static": True})


def plain(params: Any) -> Any:
    """The plain parameters of packed ones; others are handed back as they are."""
    return params.params if isinstance(params, Packed) else params
