"""What of a jaxpr is known before it runs: elements that are only moved, in NumPy, and products with zeros."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal
from jax.extend.core.primitives import jit_p

from jaxrnn.jaxprs.equations import bind, evaluate, shape_of, type_of, variables
from jaxrnn.jaxprs.moves import move
from jaxrnn.jaxprs.platforms import platforms_of
from jaxrnn.jaxprs.slices import needed, read_by

_PRODUCTS = {"mul", "dot_general", "conv_general_dilated"}


def split(closed: ClosedJaxpr) -> tuple[list[np.ndarray | None], ClosedJaxpr, list[bool]]:
    """A jaxpr in what is known of its results, and what computes the others.

    Returns:
        For each result, its value, or None where it is to be computed; the jaxpr of the latter, of the same inputs; for
        each input, whether that depends on it when its numbers are finite. What is computed from constants alone is
        evaluated where it may decide that.
    """
    values, rest = _split(closed, computing=False)
    if any(depends := _reached(rest)):
        values, rest = _split(closed, computing=True)
        depends = _reached(rest)
    return values, rest, depends


def _split(closed: ClosedJaxpr, *, computing: bool) -> tuple[list[np.ndarray | None], ClosedJaxpr]:
    values: list[Any] = []

    def apply(equation: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
        if equation.primitive is jit_p:
            return evaluate(equation.params["jaxpr"], operands, apply)
        pairs = zip(equation.invars, operands, strict=True)
        operands = [np.asarray(x, type_of(atom)) if isinstance(atom, Literal) else x for atom, x in pairs]
        if platforms_of(equation) is not None:  # forms agree: what is known of one is known of all
            for form in equation.params["branches"]:
                results = evaluate(form, operands[1:], apply)
                if not any(isinstance(result, Tracer) for result in results):
                    return results
        return _known(equation, operands, computing) or bind(equation, operands)

    def unknown(*arguments: Any) -> list[Any]:
        values[:] = evaluate(live, arguments, apply)
        return [value for value in values if isinstance(value, Tracer)]

    live = _without_dead_code(closed)
    rest = _without_dead_code(jax.make_jaxpr(unknown)(*closed.in_avals))
    return [None if isinstance(value, Tracer) else np.asarray(value) for value in values], rest


def _known(equation: JaxprEqn, operands: list[Any], computing: bool) -> list[Any] | None:
    """The results of an equation as far as they are known."""
    name, result = equation.primitive.name, equation.outvars[0]
    if any(not isinstance(type_of(each), np.dtype) for each in (*equation.invars, *equation.outvars)):
        return None
    known = [np.asarray(value) for value in operands if not isinstance(value, Tracer)]
    if name in _PRODUCTS and any(not np.any(value) for value in known) and all(map(_is_finite, known)):
        return [np.zeros(shape_of(result), type_of(result))]
    if len(known) < len(operands) or equation.effects:
        return None
    if moved := move(equation, known):
        return moved
    if not computing:
        return None
    with jax.ensure_compile_time_eval():
        return list(map(np.asarray, bind(equation, list(map(jnp.asarray, known)))))


def _is_finite(value: np.ndarray) -> bool:
    """Return True if these elements times zero are zero. Unknown elements are assumed to be finite."""
    return not jnp.issubdtype(value.dtype, jnp.inexact) or bool(np.isfinite(value).all())


def _without_dead_code(closed: ClosedJaxpr) -> ClosedJaxpr:
    jaxpr = closed.jaxpr
    return closed.replace(jaxpr=jaxpr.replace(eqns=needed(jaxpr.eqns, jaxpr.outvars)))


def _reached(closed: ClosedJaxpr) -> list[bool]:
    """For each input of a jaxpr without dead code, whether its results are computed from it."""
    reached = {*variables(closed.jaxpr.outvars), *read_by(closed.jaxpr.eqns)}
    return [variable in reached for variable in closed.jaxpr.invars]
