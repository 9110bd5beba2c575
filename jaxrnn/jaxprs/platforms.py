"""Choices by platform inside jaxprs, as ``lax.platform_dependent`` makes them: a ``cond`` that names platforms.

Its index, of the primitive ``platform_index``, is a number that only lowering knows. Nothing may compute it earlier:
the program would then be one for the platform of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import JaxprEqn, Literal, Var
from jax.extend.core.primitives import cond_p, jit_p

from jaxrnn._jax.varying import platform_dependent
from jaxrnn.jaxprs.equations import Atom, evaluate

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


@dataclass(frozen=True)
class Form:
    """One branch of a choice, written on the operands of the choice, with variables of its own: for reading alone.

    Attributes:
        equations: in order, calls of jitted functions inlined.
        results: what the choice gives.
        constants: the values of variables that no equation computes.
    """

    equations: list[JaxprEqn]
    results: list[Atom]
    constants: dict[Var, Any]


def forms_of(equation: JaxprEqn) -> list[Form]:
    """The branches of a choice by platform."""
    return [_form(branch, equation.invars[1:]) for branch in equation.params["branches"]]


def _form(branch: Any, operands: Sequence[Atom]) -> Form:
    form = Form([], [], {})

    def atom_of(value: Any) -> Atom:
        if isinstance(value, Var | Literal):
            return value
        variable = Var(jax.typeof(value))
        form.constants[variable] = value
        return variable

    def write(equation: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
        if equation.primitive is jit_p:
            return evaluate(equation.params["jaxpr"], operands, write)
        pairs = zip(equation.invars, operands, strict=True)
        atoms = [atom if isinstance(atom, Literal) else atom_of(value) for atom, value in pairs]
        results = [Var(variable.aval) for variable in equation.outvars]
        form.equations.append(equation.replace(invars=atoms, outvars=results))
        return results

    form.results.extend(map(atom_of, evaluate(branch, operands, write)))
    return form
