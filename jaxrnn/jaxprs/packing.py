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
from jaxrnn.jaxprs.equations import run, shape_of, type_of
from jaxrnn.jaxprs.fingerprints import fingerprint_of_equations
from jaxrnn.jaxprs.schedule import Step


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


Folded = tuple[jax.Array, ...]


def fold(step: Step, params: Any) -> Folded:
    """What the remainder of a step reads of the parameters: transposed, joined, scaled and rounded arrays."""
    environment = step.constants() | dict(zip(step.params, jax.tree.leaves(params), strict=True))
    run(step.folding, environment)
    return tuple(environment[variable] for variable in step.folded)


def folding_of(step: Step) -> str:
    """The fingerprint of what `fold` computes: where it is the same, so are the arrays."""
    return fingerprint_of_equations(step.folding, step.params, step.constants(), step.folded)


def fits(step: Step, folded: Folded, folding: str) -> bool:
    """Whether arrays, folded as a fingerprint says, are what `fold` gives for this very step: its sizes may differ."""
    expected = [(shape_of(variable), type_of(variable)) for variable in step.folded]
    return expected == [(array.shape, array.dtype) for array in folded] and folding == folding_of(step)


def run_folded(step: Step, folded: Folded, frame: Any, carry: Any) -> Any:
    """One step of folded parameters."""
    environment = step.constants()
    inputs = (*step.folded, *step.frame, *step.carry)
    environment.update(zip(inputs, (*folded, *jax.tree.leaves(frame), *jax.tree.leaves(carry)), strict=True))
    run(step.remainder.equations, environment)
    return step.results(environment)
