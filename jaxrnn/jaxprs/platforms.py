"""Choices by platform inside jaxprs, as ``lax.platform_dependent`` makes them: a ``cond`` that names platforms.

Its index, of the primitive ``platform_index``, is a number that only lowering knows. Nothing may compute it earlier:
the program would then be one for the platform of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from jax.extend.core import JaxprEqn, Literal, Var
from jax.extend.core.primitives import cond_p, copy_p, jit_p

from jaxrnn.jaxprs.equations import Atom, evaluate
from jaxrnn.varying import platform_dependent

#: For each branch its platforms; None for all others.
Platforms = tuple[tuple[str, ...] | None, ...]


def is_platform_index(equation: JaxprEqn) -> bool:
    """Whether an equation asks for the platform."""
    return equation.primitive.name == "platform_index"


def platforms_of(equation: JaxprEqn) -> Platforms | None:
    """The platforms of the branches of a choice by platform; None for all other equations."""
    return equation.params.get("branches_platforms") if equation.primitive is cond_p else None


def choose(platforms: Platforms, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """The results of the branch for the platform that a program is lowered for."""
    named = {name: branch for names, branch in zip(platforms, branches, strict=True) for name in names or ()}
    default = next((branch for names, branch in zip(platforms, branches, strict=True) if names is None), None)
    return platform_dependent(*operands, default=default, **named)


def in_plain_form(equations: Iterable[JaxprEqn]) -> tuple[list[JaxprEqn], dict[Var, Any]]:
    """Equations in which every choice by platform is replaced by what its last branch, the plain form, consists of.

    Returns:
        The equations, for reading and not for running, and the values of the constants that they bring. Variables keep
        their names; those inside of a choice have new ones.
    """
    plain: list[JaxprEqn] = []
    constants: dict[Var, Any] = {}

    def atom_of(value: Any) -> Atom:
        if isinstance(value, Var | Literal):
            return value
        variable = Var(jax.typeof(value))
        constants[variable] = value
        return variable

    def rewrite(equation: JaxprEqn, operands: list[Any]) -> list[Any]:
        if platforms_of(equation) is not None:
            return evaluate(equation.params["branches"][-1], operands[1:], rewrite)
        if equation.primitive is jit_p:
            return evaluate(equation.params["jaxpr"], operands, rewrite)
        atoms = [
            atom if isinstance(atom, Literal) else atom_of(value)
            for atom, value in zip(equation.invars, operands, strict=True)
        ]
        results = [Var(variable.aval) for variable in equation.outvars]
        plain.append(equation.replace(invars=atoms, outvars=results))
        return results

    for equation in equations:
        if platforms_of(equation) is None:
            plain.append(equation)
            continue
        results = rewrite(equation, equation.invars)
        for result, variable in zip(results, equation.outvars, strict=True):
            plain.append(equation.replace(primitive=copy_p, invars=[atom_of(result)], outvars=[variable], params={}))
    return plain, constants
