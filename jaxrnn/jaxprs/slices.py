"""What depends on what in a list of equations: forward and backward slices, and the jaxprs inside an equation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from jax.extend.core import JaxprEqn, Var, jaxprs_in_params

from jaxrnn.jaxprs.equations import Atom, variables


def dependents(equations: Iterable[JaxprEqn], sources: Iterable[Var], known: Collection[Var] = ()) -> set[Var]:
    """The forward slice: the sources and every variable that is computed from one, but those that are known."""
    slice_ = set(sources).difference(known)
    for equation in equations:
        if not slice_.isdisjoint(variables(equation.invars)):
            slice_.update(variable for variable in equation.outvars if variable not in known)
    return slice_


def needed(
    equations: Sequence[JaxprEqn], targets: Iterable[Atom], known: Collection[Var] = (), *, effects: bool = False
) -> list[JaxprEqn]:
    """The backward slice: the equations that compute the targets from known variables, in order.

    Args:
        equations: where to look.
        targets: what is to be computed.
        known: variables that need not be computed.
        effects: equations with side effects are targets too.
    """
    open_ = set(variables(targets)).difference(known)
    slice_ = []
    for equation in reversed(equations):
        if not open_.isdisjoint(equation.outvars) or (effects and equation.effects):
            slice_.append(equation)
            open_.update(variable for variable in variables(equation.invars) if variable not in known)
    return slice_[::-1]


def read_by(equations: Iterable[JaxprEqn]) -> set[Var]:
    """The variables that equations read."""
    return {variable for equation in equations for variable in variables(equation.invars)}


def made_by(equations: Iterable[JaxprEqn]) -> set[Var]:
    """The variables that equations compute."""
    return {variable for equation in equations for variable in equation.outvars}


def inner_jaxprs(equation: JaxprEqn) -> Iterator[Any]:
    """The jaxprs inside an equation, the bodies of its calls, loops and branches, without their constants."""
    return jaxprs_in_params(equation.params)


def walk(jaxpr: Any) -> Iterator[JaxprEqn]:
    """Every equation of a jaxpr, at any depth."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in inner_jaxprs(equation):
            yield from walk(inner)
