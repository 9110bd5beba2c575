"""Parameters with the work that depends on nothing else already done."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Protocol

import jax
import numpy as np

from jaxrnn._files.messages import brief
from jaxrnn._jax.precision import compute_type
from jaxrnn.errors import InputError


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
        dtype: the compute dtype; None for the file's own types.
        label: what messages call it.
    """

    program: str
    folding: str = ""
    pulse: int | None = None
    dtype: str | None = None
    label: str = dataclasses.field(default="", compare=False)


@brief
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Packed:
    """What `Model.pack` and `Streamed.pack` give, taken in place of the plain parameters: a pytree.

    Attributes:
        params: the plain parameters.
        folded: what a step reads of them: transposed, joined and folded arrays, in the order of its jaxpr. Empty where
            the model has no step. With a compute dtype, the weights of products have that type.
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


def computing_type(params: Any, dtype: Any) -> np.dtype | None:
    """The compute dtype of a call: the one that it asks for, else the one that its parameters were packed for.

    Raises:
        InputError: products cannot be computed in it.
    """
    return compute_type(params.purpose.dtype if dtype is None and isinstance(params, Packed) else dtype)
