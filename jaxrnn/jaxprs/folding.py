"""A step with the work on its parameters done beforehand: its fixed part once, the remainder each time."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.extend.core import JaxprEqn, Var
from jax.extend.core.primitives import dot_general_p

from jaxrnn.errors import InputError
from jaxrnn.jaxprs.equations import Atom, bind, run, shape_of, type_of, variables
from jaxrnn.jaxprs.fingerprints import fingerprint_of_equations
from jaxrnn.jaxprs.packing import LOW_PRECISION
from jaxrnn.jaxprs.step import Step

Folded = tuple[jax.Array, ...]


def fold(step: Step, params: Any, dtype: Any = None) -> Folded:
    """What the remainder of a step reads of the parameters: transposed, joined and scaled arrays.

    Args:
        step: the step.
        params: its parameters.
        dtype: a type of lower precision for the weights in `reducible`; None leaves them as they are.

    Raises:
        InputError: there is no such weight.
    """
    reduced = reducible(step) if dtype is not None else set()
    if dtype is not None and not reduced:
        raise InputError(
            f"no weights can be {np.dtype(dtype).name}: a step has no float32 matrix that is an operand of matrix "
            "products and of nothing else (convolutions, and products in loops inside a step, keep their type)"
        )

    environment = step.constants() | dict(zip(step.params, jax.tree.leaves(params), strict=True))
    run(step.folding, environment)
    arrays = {variable: environment[variable] for variable in step.folded}
    return tuple(array.astype(dtype) if variable in reduced else array for variable, array in arrays.items())


def reducible(step: Step) -> set[Var]:
    """The folded float32 matrices that are operands of matrix products and of nothing else."""
    matrices = {variable for variable in step.folded if _is_float32(variable) and len(shape_of(variable)) > 1}
    for equation in step.remainder.equations:
        if equation.primitive is not dot_general_p or not all(map(_is_float32, equation.invars)):
            matrices.difference_update(variables(equation.invars))
    return matrices.difference(variables((*step.outputs, *step.next_carry)))


def _is_float32(atom: Atom) -> bool:
    return type_of(atom) == np.float32


def folding_of(step: Step) -> str:
    """The fingerprint of what `fold` computes: where it is the same, so are the arrays."""
    return fingerprint_of_equations(step.folding, step.params, step.constants(), step.folded)


def fits(step: Step, folded: Folded, folding: str) -> bool:
    """Whether arrays, folded as a fingerprint says, are what `fold` gives for this very step: its sizes may differ."""
    shapes = [shape_of(variable) for variable in step.folded]
    return shapes == [array.shape for array in folded] and folding == folding_of(step)


def run_folded(step: Step, folded: Folded, frame: Any, carry: Any) -> Any:
    """One step of folded parameters."""
    environment = step.constants()
    inputs = (*step.folded, *step.frame, *step.carry)
    environment.update(zip(inputs, (*folded, *jax.tree.leaves(frame), *jax.tree.leaves(carry)), strict=True))
    run(step.remainder.equations, environment, _in_low_precision)
    return step.results(environment)


def _in_low_precision(equation: JaxprEqn, operands: list[Any]) -> list[Any]:
    """A product with a weight of low precision has both operands in its type, and its sums in float32."""
    for atom, value in zip(equation.invars, operands, strict=True):
        if equation.primitive is dot_general_p and _is_float32(atom) and value.dtype == LOW_PRECISION:
            low = [operand.astype(LOW_PRECISION) for operand in operands]
            return bind(equation, low, preferred_element_type=np.dtype(np.float32), precision=None)
    return bind(equation, operands)
