"""Functions with custom derivative rules, rewritten together with their rules.

An evaluator that runs the equations of such a function on other values (chunks of a stream, values that vary over other
mesh axes) would lose the rule. When JAX asks for the rule, the rule is therefore traced and run by the same evaluator.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from jaxrnn._jax.context import own_arithmetic
from jaxrnn._jax.varying import alike, struct_of
from jaxrnn.cells.forms import Types

#: The primitives of functions with custom rules.
CUSTOM_RULES = ("custom_jvp_call", "custom_vjp_call")


class Domain(Protocol):
    """A way to evaluate jaxprs."""

    #: other arrays that the evaluator reads. A rule is traced later than its function, and may not close over
    #: tracers.
    arrays: list[Any]
    #: the types in which rules are traced: the types of the function, also if they differ at differentiation
    types: Types

    def check(self, arrays: list[Any], operands: Sequence[Any]) -> None:
        """Raise an error if a function of these operands cannot keep its rule."""
        ...

    def evaluate(self, arrays: list[Any], jaxpr: Any, kinds: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        """Evaluate a jaxpr on the arrays of operands of these kinds."""
        ...

    def arrays_of(self, values: Sequence[Any]) -> list[Any]:
        """Return the arrays of values."""
        ...

    def kinds_of(self, values: Sequence[Any]) -> list[Any]:
        """Return the static descriptions of values, without arrays."""
        ...


class OfArrays:
    """The `Domain` of plain arrays; ``run(jaxpr, arrays)`` evaluates a jaxpr."""

    def __init__(self, run: Callable[[Any, list[Any]], list[Any]]):
        self.run, self.types = run, Types.here()
        self.arrays: list[Any] = []

    def check(self, arrays: list[Any], operands: Sequence[Any]) -> None:
        """Accept all functions, as in `Domain`."""

    def evaluate(self, arrays: list[Any], jaxpr: Any, kinds: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        """Evaluate a jaxpr, as in `Domain`."""
        return self.run(jaxpr, list(operands))

    def arrays_of(self, values: Sequence[Any]) -> list[Any]:
        """Return the values, as in `Domain`."""
        return list(values)

    def kinds_of(self, values: Sequence[Any]) -> list[Any]:
        """Return None for each value, as in `Domain`."""
        return [None] * len(values)


def with_rule(
    equation: JaxprEqn,
    as_traced: Callable[..., list[Any]],
    domain: Domain,
    inputs: Sequence[Any],
) -> Callable[..., list[Any]]:
    """Return a function of arrays that evaluates a ``custom_jvp_call`` or ``custom_vjp_call`` and keeps its rule."""
    make = _with_jvp if equation.primitive.name == "custom_jvp_call" else _with_vjp
    function = make(equation, as_traced, domain, inputs)
    return lambda *arrays: function(domain.arrays, *alike(*arrays))


def _with_jvp(equation: JaxprEqn, as_traced: Any, domain: Domain, inputs: Sequence[Any]) -> Any:
    structs = [struct_of(atom.aval) for atom in equation.invars]
    moving = [index for index, struct in enumerate(structs) if jnp.issubdtype(struct.dtype, jnp.inexact)]

    def derivative(primals: Any, tangents: Any) -> Any:
        def of_moving(*some: Any) -> Any:
            merged = list(primals)
            for index, value in zip(moving, some, strict=True):
                merged[index] = value
            return as_traced(*merged)

        return jax.jvp(of_moving, [primals[index] for index in moving], tangents)

    kinds, count = [*inputs, *(inputs[index] for index in moving)], len(equation.outvars)

    @jax.custom_jvp
    def function(own: Any, *arrays: Any) -> list[Any]:
        return domain.arrays_of(domain.evaluate(own, equation.params["call_jaxpr"], inputs, arrays))

    @function.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (own, *arrays), (_, *directions) = primals, tangents
        operands = [*arrays, *(directions[index] for index in moving)]
        with domain.types.in_force(), own_arithmetic():
            domain.check(own, arrays)
            traced = jax.make_jaxpr(derivative)(structs, [structs[index] for index in moving])
            values = domain.arrays_of(domain.evaluate(own, traced, kinds, operands))
        return values[:count], values[count:]

    return function


def _with_vjp(equation: JaxprEqn, as_traced: Any, domain: Domain, inputs: Sequence[Any]) -> Any:
    structs = [struct_of(atom.aval) for atom in equation.invars]
    count = len(equation.outvars)
    residuals: list[Any] = []

    @functools.cache
    def forward() -> tuple[Any, Any]:
        return jax.make_jaxpr(lambda *arrays: jax.vjp(as_traced, *arrays), return_shape=True)(*structs)

    @jax.custom_vjp
    def function(own: Any, *arrays: Any) -> list[Any]:
        return domain.arrays_of(domain.evaluate(own, equation.params["call_jaxpr"], inputs, arrays))

    def with_residuals(own: Any, *arrays: Any) -> Any:
        with domain.types.in_force(), own_arithmetic():
            domain.check(own, arrays)
            values = domain.evaluate(own, forward()[0], inputs, arrays)
        residuals[:] = domain.kinds_of(values)
        return domain.arrays_of(values[:count]), (own, domain.arrays_of(values[count:]))

    def pull_back(kept: Any, cotangents: Any) -> Any:
        own, arrays = kept
        kinds = [*residuals[count:], *residuals[:count]]
        with domain.types.in_force(), own_arithmetic():
            results, back = forward()[1]
            backward = jax.make_jaxpr(lambda back, cotangents: back(cotangents))(back, results)
            values = domain.arrays_of(domain.evaluate(own, backward, kinds, [*arrays, *cotangents]))
        differentiable = [jnp.issubdtype(struct.dtype, jnp.inexact) for struct in structs]
        gradients = [value if moves else None for value, moves in zip(values, differentiable, strict=True)]
        return ([None] * len(own), *gradients)

    function.defvjp(with_residuals, pull_back)
    return function
