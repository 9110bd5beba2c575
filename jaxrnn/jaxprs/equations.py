"""Jaxprs as lists of equations: tracing a function into one, and the one evaluator of them.

What an equation does to its operands is a function: `bind` applies its primitive, and every other domain (chunks of a
stream, values of which only some are known) has one of its own. The evaluator reads the
operands, enters the scope of the equation, and writes the results.

Everything here goes through ``jax.extend.core`` and `jax.make_jaxpr`; nothing private is used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import JaxprEqn, Literal, Var
from jax.extend.core.primitives import jit_p

Atom = Var | Literal
Environment = dict[Var, Any]
#: The results of an equation on its operands, in some domain.
Apply = Callable[[JaxprEqn, list[Any]], Sequence[Any]]


def trace(function: Callable[..., Any], *examples: Any) -> tuple[Any, Any]:
    """The jaxpr of a function of pytrees, with calls of jitted functions inlined, and the tree of its outputs.

    Args:
        function: a pure function.
        examples: arrays or ``jax.ShapeDtypeStruct``, one pytree for each argument.
    """
    nested, out_structure = trace_nested(function, *examples)
    leaves = jax.tree.leaves(examples)
    return jax.make_jaxpr(lambda *arguments: evaluate(nested, arguments, inlined))(*leaves), out_structure


def trace_nested(function: Callable[..., Any], *examples: Any) -> tuple[Any, Any]:
    """The jaxpr of a function of pytrees as JAX traces it, calls and the scopes they come from kept, as `trace`."""
    leaves, structure = jax.tree.flatten(examples)
    out_structure: Any = None

    def flat(*arguments: Any) -> list[Any]:
        nonlocal out_structure
        results, out_structure = jax.tree.flatten(function(*jax.tree.unflatten(structure, arguments)))
        return results

    return jax.make_jaxpr(flat)(*leaves), out_structure


def bind(equation: JaxprEqn, operands: Sequence[Any], **changed: Any) -> list[Any]:
    """The results of an equation's primitive on operands, with some of its parameters changed."""
    parameters = equation.primitive.get_bind_params({**equation.params, **changed})
    with equation.ctx.manager:
        results = equation.primitive.bind(*operands, **parameters)
    return list(results) if equation.primitive.multiple_results else [results]


def inlined(equation: JaxprEqn, operands: list[Any]) -> list[Any]:
    """As `bind`; calls of jitted functions become their equations."""
    if equation.primitive is jit_p:
        return evaluate(equation.params["jaxpr"], operands, inlined)
    return bind(equation, operands)


def evaluate(inner: Any, arguments: Sequence[Any], apply: Apply = bind) -> list[Any]:
    """The outputs of a jaxpr, closed or without constants."""
    jaxpr, consts = getattr(inner, "jaxpr", inner), getattr(inner, "consts", ())
    environment: Environment = dict(zip(jaxpr.constvars, consts, strict=True))
    environment.update(zip(jaxpr.invars, arguments, strict=True))
    run(jaxpr.eqns, environment, apply)
    return [read(atom, environment) for atom in jaxpr.outvars]


def run(equations: Iterable[JaxprEqn], environment: Environment, apply: Apply = bind) -> None:
    """Evaluate equations in order, reading from the environment and writing to it.

    The scope of an equation, which is its ONNX node's name, goes on into what is traced inside.
    """
    for equation in equations:
        operands = [read(atom, environment) for atom in equation.invars]
        scope = str(equation.source_info.name_stack)
        with jax.named_scope(scope) if scope else contextlib.nullcontext():
            results = apply(equation, operands)
        environment.update(zip(equation.outvars, results, strict=True))


def read(atom: Atom, environment: Mapping[Var, Any]) -> Any:
    """The value of an operand."""
    return atom.val if isinstance(atom, Literal) else environment[atom]


def shape_of(atom: Atom) -> tuple[Any, ...]:
    """The shape of a variable or literal."""
    return tuple(getattr(atom.aval, "shape", ()))


def type_of(atom: Atom) -> Any:
    """Its element type, None for what is no array."""
    return getattr(atom.aval, "dtype", None)


def variables(atoms: Iterable[Atom]) -> list[Var]:
    """The operands that are variables."""
    return [atom for atom in atoms if not isinstance(atom, Literal)]
