"""Packed parameters: the work of a step that depends only on parameters is done once."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Protocol

import jax
import numpy as np

from jaxrnn._files.messages import short_repr
from jaxrnn._jax.precision import compute_type
from jaxrnn.errors import InputError
from jaxrnn.jaxprs.equations import fingerprint_of_equations, run, shape_of, type_of
from jaxrnn.jaxprs.schedule import Function, Step


class Packable(Protocol):
    """A program for which parameters can be packed; ``label`` is its name in messages."""

    label: str

    @functools.cached_property
    def fingerprint(self) -> str:
        """Return the fingerprint of the program."""
        ...


@dataclasses.dataclass(frozen=True)
class Purpose:
    """The purpose of packed parameters; hashable and equal for equal programs."""

    program: str
    folding: str = ""  # the fingerprint of the folded work; empty without folded work
    pulse: int | None = None  # the frames in each step of a streamed function
    dtype: str | None = None  # the compute dtype; None for the file's own types
    label: str = dataclasses.field(default="", compare=False)  # the name in messages


@short_repr
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Packed:
    """The result of `Model.pack` and `Streamed.pack`, accepted in place of plain parameters; a pytree.

    Attributes:
        params: the plain parameters.
        folded: the transposed, joined and folded arrays that a step reads, in the order of its jaxpr. Empty for models
            without steps. With a compute dtype, the weights of products have that type.
        purpose: the program that accepts the parameters, and the step that reads the folded arrays. Other functions,
            and steps of other sizes, use the plain parameters.
    """

    params: Any
    folded: tuple[jax.Array, ...]
    purpose: Purpose = dataclasses.field(metadata={"static": True})


def unpack(params: Any, program: Packable) -> Any:
    """Return the plain parameters of parameters packed for a program; other parameters are returned unchanged."""
    if not isinstance(params, Packed):
        return params
    if params.purpose.program != program.fingerprint:
        raise InputError(
            f"the parameters were packed for {params.purpose.label}, and {program.label} is a different program: pack "
            "the parameters with its pack method"
        )
    return params.params


def computing_type(params: Any, dtype: Any) -> np.dtype | None:
    """Return the compute dtype of a call: the argument, or else the dtype of the packed parameters."""
    return compute_type(params.purpose.dtype if dtype is None and isinstance(params, Packed) else dtype)


Folded = tuple[jax.Array, ...]


def folded_for(function: Function, params: Any, frame: Any, carry: Any) -> tuple[Folded, str]:
    """Return the folded arrays of a step for arrays of these shapes, and their fingerprint."""
    step = _traced(function, params, frame, carry)
    return fold(step, params), folding_of(step)


def run_packed(function: Function, params: Packed, frame: Any, carry: Any) -> Any:
    """Run a step with packed parameters; with the plain parameters if they were packed for a different step."""
    step = _traced(function, params.params, frame, carry)
    if not fits(step, params.folded, params.purpose.folding):
        return function(params.params, frame, carry)
    return run_folded(step, params.folded, frame, carry)


def _traced(function: Function, *arguments: Any) -> Step:
    return Step.trace(function, *jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments))


def fold(step: Step, params: Any) -> Folded:
    """Compute the arrays that the remainder of a step reads from parameters: transposed, joined, scaled, rounded."""
    environment = step.constants() | dict(zip(step.params, jax.tree.leaves(params), strict=True))
    run(step.folding, environment)
    return tuple(environment[variable] for variable in step.folded)


def folding_of(step: Step) -> str:
    """Return the fingerprint of the result of `fold`."""
    return fingerprint_of_equations(step.folding, step.params, step.constants(), step.folded)


def fits(step: Step, folded: Folded, folding: str) -> bool:
    """Return True if folded arrays with this fingerprint fit this step; sizes may differ."""
    expected = [(shape_of(variable), type_of(variable)) for variable in step.folded]
    return expected == [(array.shape, array.dtype) for array in folded] and folding == folding_of(step)


def run_folded(step: Step, folded: Folded, frame: Any, carry: Any) -> Any:
    """Run a step with folded parameters."""
    environment = step.constants()
    inputs = (*step.folded, *step.frame, *step.carry)
    environment.update(zip(inputs, (*folded, *jax.tree.leaves(frame), *jax.tree.leaves(carry)), strict=True))
    run(step.remainder.equations, environment)
    return step.results(environment)
