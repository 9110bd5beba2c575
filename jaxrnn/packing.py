"""Parameters with the work that depends on nothing else already done."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Packed:
    """What `Model.pack` gives, and `apply`, `step` and `scan` take in place of the plain parameters: a pytree.

    Attributes:
        params: the plain parameters, by name.
        folded: what a step reads of them: transposed, joined and folded arrays, in the order of its jaxpr. Empty where
            the model has no step.
    """

    params: Mapping[str, Any]
    folded: tuple[jax.Array, ...] = ()


def plain(params: Any) -> Any:
    """The plain parameters of packed ones; others are handed back as they are."""
    return params.params if isinstance(params, Packed) else params
