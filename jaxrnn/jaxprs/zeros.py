"""What a result really depends on: a product with zeros is zero, whatever the other factor is."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from jaxrnn.jaxprs.equations import Environment, bind, run, shape_of, type_of, variables
from jaxrnn.jaxprs.slices import needed, read_by

_PRODUCTS = {"mul", "dot_general", "conv_general_dilated"}

#: Stands for a value that depends on the inputs.
_UNKNOWN = object()


def depends_on(closed: ClosedJaxpr) -> set[Var]:
    """The variables of a jaxpr that its results depend on, when its numbers are finite.

    Whatever is computed from constants alone is evaluated, and a product with a constant of nothing but zeros is one.
    """
    jaxpr = closed.jaxpr
    reached = {*variables(jaxpr.outvars), *read_by(needed(jaxpr.eqns, jaxpr.outvars))}
    if reached.isdisjoint(jaxpr.invars):
        return reached  # nothing to find out, and evaluating is to compile, operation by operation
    unknown: list[JaxprEqn] = []

    def apply(equation: JaxprEqn, operands: list[Any]) -> list[Any]:
        known = [value for value in operands if value is not _UNKNOWN]
        if len(known) == len(operands) and not equation.effects:
            return bind(equation, operands)
        if equation.primitive.name in _PRODUCTS and any(not np.any(value) for value in known):
            return [np.zeros(shape_of(variable), type_of(variable)) for variable in equation.outvars]
        unknown.append(equation)
        return [_UNKNOWN] * len(equation.outvars)

    environment: Environment = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    environment.update(dict.fromkeys(jaxpr.invars, _UNKNOWN))
    with jax.ensure_compile_time_eval():
        run(jaxpr.eqns, environment, apply)
    results = [v for v in jaxpr.outvars if not isinstance(v, Literal) and environment[v] is _UNKNOWN]
    return {*results, *read_by(needed(unknown, results))}
