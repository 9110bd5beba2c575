"""Calls of inner functions: inlined where nothing is lost, and wrapped again where they bring rules of their own."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from jaxrnn._jax.context import own_arithmetic
from jaxrnn.cells.products import Types
from jaxrnn.jaxprs.custom_rules import CUSTOM_RULES, with_rule
from jaxrnn.jaxprs.equations import CALLS, bind, shape_of, type_of
from jaxrnn.jaxprs.primitives import computed
from jaxrnn.streaming.access import out_shape
from jaxrnn.streaming.interpreter import interpret
from jaxrnn.streaming.memory import KeepsStateError
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.rules.templates import Template, around, arrays_of, made
from jaxrnn.streaming.values import Chunk, FinalValue

#: By primitive, the parameter that holds the inner function.
INLINED = {**CALLS, "remat2": "jaxpr", "checkpoint": "jaxpr"}


def call(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """A call of an inner function, inlined."""
    return interpret(run, equation.params[INLINED[equation.primitive.name]], operands, late=True)


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
    domain = OnePass(run, body, inputs)
    function = with_rule(equation, lambda *arrays: bind(equation, arrays), domain, inputs)
    try:
        results = function(*map(jnp.asarray, arrays_of(operands)))
    except KeepsStateError:
        return interpret(run, body, operands)
    return [made(run, kind, result) for kind, result in zip(domain.outputs, results, strict=True)]


def operator(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """An operator as one equation: of elements or rows, it is one of the frames too; else, what it computes."""
    x, *others = operands
    if isinstance(x, Chunk) and not any(isinstance(value, Chunk | FinalValue) for value in others):
        along, rank = equation.params["along"], x.array.ndim
        rows = along == "rows" and x.axis < rank - 1 and len(out_shape(equation)) == rank
        if along == "elements" or rows:
            (array,) = run.bind(equation, [x.array, *others])
            return [run.make(array, x.axis, x.timeline, x.delay, x.reach)]
    structs = [jax.ShapeDtypeStruct(shape_of(atom), type_of(atom)) for atom in equation.invars]
    return interpret(run, jax.make_jaxpr(functools.partial(computed, **equation.params))(*structs), operands)


class OnePass:
    """The `Domain` of chunks at the moment of one pass, which is what it reads besides its operands.

    Attributes:
        body: the function.
        inputs: what it takes.
        outputs: what it gives, once it was evaluated.
    """

    def __init__(self, run: Pass, body: Any, inputs: list[Template]):
        self.run, self.types = run, Types.here()
        self.body, self.inputs = body, inputs
        self.names = [name for name in ("count", "existing", "before") if isinstance(getattr(run, name), jax.Array)]
        self.arrays = [getattr(run, name) for name in self.names]
        self.outputs: list[Template] = []

    def check(self, arrays: list[Any], operands: Sequence[Any]) -> None:
        """As in `Domain`.

        Raises:
            KeepsStateError: the function keeps state.
        """
        if not self.outputs:
            values = functools.partial(self.evaluate, arrays, self.body, self.inputs)
            jax.eval_shape(lambda *operands: arrays_of(values(operands)), *operands)

    @own_arithmetic()
    def evaluate(self, arrays: list[Any], jaxpr: Any, kinds: Sequence[Template], operands: Sequence[Any]) -> list[Any]:
        """The results of the function or of its rules, which keep no state, at the moment that the arrays say.

        Raises:
            KeepsStateError: the function is none of that kind.
        """
        rule = jaxpr is not self.body
        child = self.run.child("", None, local=rule, stateless=not rule)
        for name, array in zip(self.names, arrays, strict=True):
            setattr(child, name, array)
        results = interpret(child, jaxpr, around(kinds, operands))
        delays = {template.delay for template in (*kinds, *self.kinds_of(results))} - {None}
        results = [child.spread(value) if isinstance(value, Chunk) else value for value in results]
        if not self.outputs:
            if len(delays) > 1 or not all(isinstance(value, Chunk) for value in results):
                raise KeepsStateError
            self.outputs = self.kinds_of(results)
        return results

    def arrays_of(self, values: Sequence[Any]) -> list[Any]:
        """As in `Domain`."""
        return arrays_of(values)

    def kinds_of(self, values: Sequence[Any]) -> list[Template]:
        """As in `Domain`."""
        return [Template.of(value) for value in values]


RULES: dict[str, Any] = {
    **dict.fromkeys(INLINED, call),
    **dict.fromkeys(CUSTOM_RULES, custom_rule),
    "onnx_operator": operator,
}
