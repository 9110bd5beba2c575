"""A step with the work on its parameters done beforehand: the pack stage once, the other stages each time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.extend.core import JaxprEqn, Literal, Var
from jax.extend.core.primitives import dot_general_p

from jaxrnn.errors import InputError
from jaxrnn.jaxprs.equations import Environment, in_scope, read, run, variables
from jaxrnn.jaxprs.fingerprints import fingerprint_of_equations
from jaxrnn.jaxprs.stages import AFTER, BEFORE, CORE, PACK, Stages, needed_by, run_stage

Folded = tuple[jax.Array, ...]

_LATER = (BEFORE, CORE, AFTER)


def fold(stages: Stages, params: Any, dtype: Any = None) -> Folded:
    """What the later stages read of the parameters: transposed, joined and scaled arrays.

    Args:
        stages: the step.
        params: its parameters.
        dtype: a narrower type for the weights in `narrowable`; None leaves them as they are.

    Raises:
        InputError: there is no such weight.
    """
    narrow = narrowable(stages) if dtype is not None else set()
    if dtype is not None and not narrow:
        raise InputError(
            f"no weights can be {np.dtype(dtype).name}: a step has no float32 matrix that is an operand of matrix "
            "products and of nothing else (convolutions, and products in loops inside a step, keep their type)"
        )

    def pack(leaves: list[Any]) -> Folded:
        results = run_stage(stages, PACK, dict(zip(stages.params, leaves, strict=True)))
        return tuple(
            results[variable].astype(dtype) if variable in narrow else results[variable] for variable in stages.folded
        )

    return jax.jit(pack)(jax.tree.leaves(params))


def narrowable(stages: Stages) -> set[Var]:
    """The folded float32 matrices that are operands of matrix products and of nothing else."""
    wanted = {variable for variable in stages.folded if _is_wide(variable) and len(_type_of(variable).shape) > 1}
    for stage in _LATER:
        for equation in (*stages.repeated[stage], *stages.equations[stage]):
            if not _is_product(equation):
                wanted.difference_update(variables(equation.invars))
    return wanted.difference((*variables(stages.outputs), *variables(stages.next_carry)))


def _is_product(equation: JaxprEqn) -> bool:
    return equation.primitive is dot_general_p and all(map(_is_wide, equation.invars))


def _is_wide(atom: Var | Literal) -> bool:
    return _type_of(atom).dtype == np.float32


def _type_of(atom: Var | Literal) -> Any:
    """Element type and shape."""
    return atom.aval


def folding_of(stages: Stages) -> str:
    """The fingerprint of what `fold` computes: where it is the same, so are the arrays."""
    needed = needed_by(stages.equations[PACK], stages.folded)
    work = [each for each in stages.equations[PACK] if not needed.isdisjoint(each.outvars)]
    return fingerprint_of_equations(work, stages.params, stages.constants(), stages.folded)


def fits(stages: Stages, folded: Folded, folding: str) -> bool:
    """Whether arrays, folded as a fingerprint says, are what `fold` gives for this very step: its sizes may differ."""
    shapes = [_type_of(variable).shape for variable in stages.folded]
    return shapes == [array.shape for array in folded] and folding == folding_of(stages)


def run_folded(stages: Stages, folded: Folded, frame: Any, carry: Any) -> Any:
    """One step of folded parameters."""
    environment: Environment = dict(zip(stages.folded, folded, strict=True))
    narrow = {variable for variable, array in environment.items() if array.dtype != _type_of(variable).dtype}
    environment |= dict(zip(stages.frame, jax.tree.leaves(frame), strict=True))
    environment |= dict(zip(stages.carry, jax.tree.leaves(carry), strict=True))
    for stage in _LATER:
        if narrow:
            environment |= stages.constants()
            _run_narrow((*stages.repeated[stage], *stages.equations[stage]), environment, narrow)
        else:
            environment |= run_stage(stages, stage, environment)
    return stages.results(environment)


def _run_narrow(equations: Iterable[JaxprEqn], environment: Environment, narrow: set[Var]) -> None:
    """Evaluate equations; a product with a narrow operand has both of them narrow, and its sums in float32."""
    for equation in equations:
        found = [environment[variable] for variable in variables(equation.invars) if variable in narrow]
        if not found:
            run((equation,), environment)
            continue
        operands = [read(atom, environment).astype(found[0].dtype) for atom in equation.invars]
        wide = {"preferred_element_type": np.dtype(np.float32), "precision": None}
        parameters = equation.primitive.get_bind_params({**equation.params, **wide})
        with in_scope(equation), equation.ctx.manager:
            environment[equation.outvars[0]] = equation.primitive.bind(*operands, **parameters)
