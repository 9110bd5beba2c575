"""Jaxprs as lists of equations: tracing a function into one, and evaluating any part of it.

Everything here goes through ``jax.extend.core`` and `jax.make_jaxpr`; nothing private is used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var
from jax.extend.core.primitives import jit_p

Environment = dict[Var, Any]


def trace(function: Callable[..., Any], *examples: Any) -> tuple[ClosedJaxpr, Any]:
    """The jaxpr of a function of pytrees, with calls of jitted functions inlined, and the tree of its outputs.

    Args:
        function: a pure function.
        examples: arrays or ``jax.ShapeDtypeStruct``, one pytree for each argument.
    """
    nested, out_structure = trace_nested(function, *examples)
    leaves = jax.tree.leaves(examples)
    inlined = jax.make_jaxpr(lambda *arguments: evaluate(nested, arguments, inline=True))(*leaves)
    return inlined, out_structure


def trace_nested(function: Callable[..., Any], *examples: Any) -> tuple[ClosedJaxpr, Any]:
    """The jaxpr of a function of pytrees as JAX traces it, calls and the scopes they come from kept, as `trace`."""
    leaves, structure = jax.tree.flatten(examples)
    out_structure: Any = None

    def flat(*arguments: Any) -> list[Any]:
        nonlocal out_structure
        results, out_structure = jax.tree.flatten(function(*jax.tree.unflatten(structure, arguments)))
        return results

    return jax.make_jaxpr(flat)(*leaves), out_structure


def evaluate(closed: ClosedJaxpr, arguments: Sequence[Any], *, inline: bool = False) -> list[Any]:
    """The outputs of a jaxpr; with ``inline``, calls of jitted functions become their equations."""
    environment: Environment = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    environment.update(zip(closed.jaxpr.invars, arguments, strict=True))
    run(closed.jaxpr.eqns, environment, inline=inline)
    return [read(atom, environment) for atom in closed.jaxpr.outvars]


def in_scope(equation: JaxprEqn) -> contextlib.AbstractContextManager[Any]:
    """The scope of an equation, which is its ONNX node's name: it goes on into what is traced inside."""
    scope = str(equation.source_info.name_stack)
    return jax.named_scope(scope) if scope else contextlib.nullcontext()


def run(equations: Iterable[JaxprEqn], environment: Environment, *, inline: bool = False) -> None:
    """Evaluate equations in order, reading from the environment and writing to it."""
    for equation in equations:
        operands = [read(atom, environment) for atom in equation.invars]
        with in_scope(equation):
            if inline and equation.primitive is jit_p:
                results = evaluate(equation.params["jaxpr"], operands, inline=True)
            else:
                parameters = equation.primitive.get_bind_params(equation.params)
                with equation.ctx.manager:
                    results = equation.primitive.bind(*operands, **parameters)
                if not equation.primitive.multiple_results:
                    results = [results]
        environment.update(zip(equation.outvars, results, strict=True))


def read(atom: Var | Literal, environment: Mapping[Var, Any]) -> Any:
    """The value of an operand."""
    return atom.val if isinstance(atom, Literal) else environment[atom]


def variables(atoms: Iterable[Var | Literal]) -> list[Var]:
    """The operands that are variables."""
    return [atom for atom in atoms if not isinstance(atom, Literal)]
