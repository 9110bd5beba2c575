"""What a result really depends on: a product with zeros is zero, whatever the other factor is."""

from __future__ import annotations

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, Var

from jaxrnn.jaxprs.equations import Environment, run, variables
from jaxrnn.jaxprs.stages import needed_by

_PRODUCTS = {"mul", "dot_general", "conv_general_dilated"}


def depends_on(closed: ClosedJaxpr) -> set[Var]:
    """The variables of a jaxpr that its results depend on, when its numbers are finite.

    Whatever is computed from constants alone is evaluated, and a product with a constant of nothing but zeros is one.
    """
    jaxpr = closed.jaxpr
    depended_on = needed_by(jaxpr.eqns, variables(jaxpr.outvars))
    if depended_on.isdisjoint(jaxpr.invars):
        return depended_on  # nothing to be found out, and evaluating is to compile, operation by operation
    known: Environment = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    open_equations = []
    with jax.ensure_compile_time_eval():
        for equation in jaxpr.eqns:
            operands = [v.val if isinstance(v, Literal) else known.get(v) for v in equation.invars]
            if all(value is not None for value in operands) and not equation.effects:
                run([equation], known)
            elif equation.primitive.name in _PRODUCTS and any(v is not None and not np.any(v) for v in operands):
                known.update((v, np.zeros(v.aval.shape, v.aval.dtype)) for v in equation.outvars)
            else:
                open_equations.append(equation)
    return needed_by(open_equations, [atom for atom in variables(jaxpr.outvars) if atom not in known])
