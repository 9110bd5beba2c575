"""Equations in NumPy, and the evaluation of known results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal
from jax.extend.core.primitives import convert_element_type_p, jit_p

from jaxrnn.jaxprs.casts import converted
from jaxrnn.jaxprs.equations import bind, evaluate, needed, read_by, shape_of, type_of, variables
from jaxrnn.jaxprs.own import platforms_of
from jaxrnn.jaxprs.primitives import entry_of, on_elements


def moved_operands(equation: JaxprEqn) -> list[int] | None:
    """Return the indices of the operands that an equation moves, or None if it computes new elements."""
    moved = entry_of(equation).moved
    return None if moved is None else list(range(len(equation.invars)))[moved]


def move(equation: JaxprEqn, operands: Sequence[np.ndarray]) -> list[np.ndarray] | None:
    """Return the results of an equation that only moves elements, or None if it computes or reads out of bounds."""
    entry = entry_of(equation)
    if entry.moved is None or entry.numpy is None:
        return None
    result = entry.numpy(equation.params, *operands)
    return result if result is None or isinstance(result, list) else [result]


def computed(
    equation: JaxprEqn, operands: Sequence[np.ndarray], thin: Callable[[Any], Any] = np.asarray
) -> list[np.ndarray] | None:
    """Return the results of an equation as NumPy computes them, without a program, or None if only XLA does.

    ``thin`` returns an operand before its repetition, so that an elementwise function computes fewer elements.
    """
    if (moved := move(equation, operands)) is not None:
        return moved
    entry, result = entry_of(equation), equation.outvars[0]
    if entry.kind == "constant" and entry.numpy is not None:
        return [entry.numpy(equation.params)]
    function = on_elements(equation)
    if equation.primitive is convert_element_type_p:
        array = converted(np.asarray(thin(operands[0])), np.dtype(equation.params["new_dtype"]))
    elif function is not None and all(x.dtype.kind in "biuf" for x in operands):
        with np.errstate(all="ignore"):
            array = np.asarray(function(*map(thin, operands)), type_of(result))
    else:
        return None
    return [np.broadcast_to(array, shape_of(result))]


def split(closed: ClosedJaxpr) -> tuple[list[np.ndarray | None], ClosedJaxpr, list[bool]]:
    """Split a jaxpr into its known results and a jaxpr that computes the other results.

    Returns the value of each result, or None for a result to compute; the jaxpr for the results to compute, with the
    same inputs; and a flag for each input, which is True if finite numbers in the input affect these results. Constants
    are evaluated if a flag may depend on constants.
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
        if platforms_of(equation) is not None:  # all forms have the same results
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
    """Return the known results of an equation."""
    result = equation.outvars[0]
    if any(not isinstance(type_of(each), np.dtype) for each in (*equation.invars, *equation.outvars)):
        return None
    known = [np.asarray(value) for value in operands if not isinstance(value, Tracer)]
    if entry_of(equation).absorbs and any(not np.any(value) for value in known) and all(map(_is_finite, known)):
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
    return ClosedJaxpr(jaxpr.replace(eqns=needed(jaxpr.eqns, jaxpr.outvars)), closed.consts)


def _reached(closed: ClosedJaxpr) -> list[bool]:
    """Return for each input of a jaxpr without dead code whether results depend on the input."""
    reached = {*variables(closed.jaxpr.outvars), *read_by(closed.jaxpr.eqns)}
    return [variable in reached for variable in closed.jaxpr.invars]
