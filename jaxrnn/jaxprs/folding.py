"""A step with the work on its parameters done beforehand: its fixed part once, the remainder each time."""

from __future__ import annotations

from typing import Any

import jax

from jaxrnn.jaxprs.equations import run, shape_of, type_of
from jaxrnn.jaxprs.fingerprints import fingerprint_of_equations
from jaxrnn.jaxprs.step import Step

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
