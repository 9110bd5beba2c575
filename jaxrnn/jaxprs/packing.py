"""Parameters with the work that depends on nothing else already done, and the types that weights can be packed in."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.errors import InputError

#: The type of lower precision that weights can be packed in.
LOW_PRECISION = np.dtype(jnp.bfloat16)

#: Why a type is refused that one could think of.
_REFUSED = {
    "float16": "XLA widens it to float32 before each product on a CPU, which takes longer than float32 weights do",
    "int8": "its products are no faster than those of bfloat16, and err several times as much",
}


class Packable(Protocol):
    """What parameters can be packed for.

    Attributes:
        label: what messages call it.
        fingerprint: equal for the same program, and for no other.
    """

    label: str

    @functools.cached_property
    def fingerprint(self) -> str:
        """As above."""
        ...


@dataclasses.dataclass(frozen=True)
class Purpose:
    """What parameters were packed for; hashable, and the same whenever the same program is packed for.

    Attributes:
        program: the fingerprint of the program.
        folding: that of the work that is done; empty where there is none.
        pulse: the frames in each step of a streamed function.
        label: what messages call it.
    """

    program: str
    folding: str = ""
    pulse: int | None = None
    label: str = dataclasses.field(default="", compare=False)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Packed:
    """What `Model.pack` and `Streamed.pack` give, taken in place of the plain parameters: a pytree.

    Attributes:
        params: the plain parameters.
        folded: what a step reads of them: transposed, joined and folded arrays, in the order of its jaxpr. Empty where
            the model has no step. Weights of matrix products can be of lower precision than their parameters.
        purpose: the program that they were packed for, which alone takes them, and the step that they were folded for:
            its other functions, and steps of other sizes, work with the plain parameters.
    """

    params: Any
    folded: tuple[jax.Array, ...]
    purpose: Purpose = dataclasses.field(metadata={"static": True})


def plain(params: Any, program: Packable) -> Any:
    """The plain parameters of those packed for a program; others are handed back as they are.

    Raises:
        InputError: they were packed for another program.
    """
    if not isinstance(params, Packed):
        return params
    if params.purpose.program != program.fingerprint:
        raise InputError(
            f"the parameters were packed for {params.purpose.label}, and were given to {program.label}, which is "
            "another program: pack again, with the pack of what takes them"
        )
    return params.params


def low_precision_type(dtype: Any) -> np.dtype | None:
    """The type that weights are to be packed in; None for the parameters' own.

    Raises:
        InputError: it is another one than bfloat16, the only one that gains anything.
    """
    if dtype is None:
        return None
    name = _name_of(dtype)
    if name != LOW_PRECISION.name:
        why = f": {_REFUSED[name]}" if name in _REFUSED else ""
        raise InputError(f"weights can be packed in bfloat16, or in their own type (None), not in {name}{why}")
    return LOW_PRECISION


def _name_of(dtype: Any) -> str:
    try:
        return jnp.dtype(dtype).name
    except TypeError:
        return repr(dtype)
