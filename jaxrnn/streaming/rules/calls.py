"""Calls of inner functions: inlined where nothing is lost, and wrapped again where they bring rules of their own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from jaxrnn.guards import own_arithmetic
from jaxrnn.jaxprs.equations import bind, shape_of, type_of
from jaxrnn.streaming.interpreter import interpret
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.rules.templates import Template, around, arrays_of, templates_of
from jaxrnn.streaming.values import Chunk, FinalValue

#: By primitive, the parameter that holds the inner function.
INLINED = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_lin": "jaxpr",
}


def call(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """A call of an inner function, inlined."""
    return interpret(run, equation.params[INLINED[equation.primitive.name]], operands)


def custom_rule(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """A function with a derivative rule of its own.

    Where it keeps no state, the rule is traced too and goes with the function, as on the whole recording. A function
    that keeps state is rewritten, and so are its derivatives.
    """
    body = equation.params["call_jaxpr"]
    if not any(isinstance(value, Chunk) for value in operands) or any(
        isinstance(value, FinalValue) for value in operands
    ):
        return interpret(run, body, operands)
    # With one delay, what runs inside needs no buffers.
    operands = tuple(run.together(*operands))
    inputs = [Template.of(value) for value in operands]
    trial = run.child("", None)
    outputs = templates_of(
        lambda arrays: interpret(trial, body, around(inputs, arrays)),
        arrays_of(operands),
    )
    delays = {template.delay for template in (*inputs, *outputs)} - {None}
    if trial.new or len(delays) > 1 or not all(t.chunk for t in outputs):
        return interpret(run, body, operands)
    make = _with_jvp if equation.primitive.name == "custom_jvp_call" else _with_vjp
    moment = PassArguments(run)
    results = make(moment, equation, inputs, outputs)(moment.arrays, *map(jnp.asarray, arrays_of(operands)))
    return [
        run.make(result, t.chunk.axis, t.chunk.timeline, t.chunk.delay, t.chunk.reach)
        for result, t in zip(results, outputs, strict=True)
        if t.chunk is not None
    ]


def _symbolic(equation: JaxprEqn) -> tuple[Any, list[Any]]:
    """The function of an equation on whole recordings, and the shapes of its operands."""

    def function(*arrays: Any) -> list[Any]:
        return bind(equation, arrays)

    shapes = [jax.ShapeDtypeStruct(shape_of(atom), type_of(atom)) for atom in equation.invars]
    return function, shapes


class PassArguments:
    """The moment of a pass as arguments: a derivative rule is traced later, and may not close over tracers."""

    def __init__(self, run: Pass):
        self.run = run
        self.names = [name for name in ("count", "existing", "before") if isinstance(getattr(run, name), jax.Array)]
        self.arrays = [getattr(run, name) for name in self.names]

    @own_arithmetic()
    def interpret(self, arrays: Any, jaxpr: Any, templates: list[Template], operands: Any) -> list[Any]:
        """The results of a jaxpr that keeps no state, at the moment that the arrays say."""
        child = self.run.child("", None, local=True)
        for name, array in zip(self.names, arrays, strict=True):
            setattr(child, name, array)
        results = interpret(child, jaxpr, around(templates, operands))
        return [child.spread(value) if isinstance(value, Chunk) else value for value in results]


def _with_jvp(moment: PassArguments, equation: JaxprEqn, inputs: list[Template], outputs: list[Template]) -> Any:
    function, shapes = _symbolic(equation)
    moving = [index for index, shape in enumerate(shapes) if jnp.issubdtype(shape.dtype, jnp.inexact)]

    def derivative(primals: Any, tangents: Any) -> Any:
        def of_moving(*some: Any) -> Any:
            merged = list(primals)
            for index, value in zip(moving, some, strict=True):
                merged[index] = value
            return function(*merged)

        return jax.jvp(of_moving, [primals[index] for index in moving], tangents)

    traced = jax.make_jaxpr(derivative)(shapes, [shapes[index] for index in moving])
    templates = [*inputs, *(inputs[index] for index in moving)]

    @jax.custom_jvp
    def on_chunks(when: Any, *arrays: Any) -> list[Any]:
        return arrays_of(moment.interpret(when, equation.params["call_jaxpr"], inputs, arrays))

    @on_chunks.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (when, *arrays), (_, *directions) = primals, tangents
        operands = [*arrays, *(directions[index] for index in moving)]
        values = arrays_of(moment.interpret(when, traced, templates, operands))
        return values[: len(outputs)], values[len(outputs) :]

    return on_chunks


def _with_vjp(moment: PassArguments, equation: JaxprEqn, inputs: list[Template], outputs: list[Template]) -> Any:
    function, shapes = _symbolic(equation)
    forward, shown = jax.make_jaxpr(lambda *arrays: jax.vjp(function, *arrays), return_shape=True)(*shapes)
    results, back = shown
    backward = jax.make_jaxpr(lambda back, cotangents: back(cotangents))(back, results)
    count = len(outputs)
    residuals: list[Template] = []

    @jax.custom_vjp
    def on_chunks(when: Any, *arrays: Any) -> list[Any]:
        return arrays_of(moment.interpret(when, equation.params["call_jaxpr"], inputs, arrays))

    def with_residuals(when: Any, *arrays: Any) -> Any:
        values = moment.interpret(when, forward, inputs, arrays)
        residuals[:] = map(Template.of, values[count:])
        return arrays_of(values[:count]), (when, arrays_of(values[count:]))

    def pull_back(residual_arrays: Any, cotangents: Any) -> Any:
        when, arrays = residual_arrays
        values = arrays_of(moment.interpret(when, backward, [*residuals, *outputs], [*arrays, *cotangents]))
        differentiable = [jnp.issubdtype(shape.dtype, jnp.inexact) for shape in shapes]
        gradients = [value if moves else None for value, moves in zip(values, differentiable, strict=True)]
        return ([None] * len(moment.names), *gradients)

    on_chunks.defvjp(with_residuals, pull_back)
    return on_chunks


RULES: dict[str, Any] = {
    **dict.fromkeys(INLINED, call),
    "custom_jvp_call": custom_rule,
    "custom_vjp_call": custom_rule,
}
