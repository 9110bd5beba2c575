"""Calls, branches and loops."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.extend.core import JaxprEqn

from jaxrnn.jaxprs.equations import CALLS
from jaxrnn.jaxprs.platforms import platforms_of
from jaxrnn.lowering.lowering import Lowering, Rule
from jaxrnn.lowering.movement import concatenate, cut, reshape
from jaxrnn.lowering.writer import Operand, shape_of

#: By primitive that calls a function and does no more, the parameter that holds it.
_CALLS = {
    **CALLS,
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat2": "jaxpr",
}


def call(lowering: Lowering, equation: JaxprEqn, *operands: Operand) -> list[Operand]:
    """The equations of the function."""
    return lowering.evaluate(equation.params[_CALLS[equation.primitive.name]], operands)


def platform(lowering: Lowering, equation: JaxprEqn) -> Operand:
    """An engine of ONNX is none of JAX's platforms."""
    return np.array(len(equation.params["platforms"]) - 1, np.int32)


def branch(lowering: Lowering, equation: JaxprEqn, which: Operand, *operands: Operand) -> list[Operand]:
    """The branch that is known to be taken."""
    branches = equation.params["branches"]
    platforms = platforms_of(equation)
    if platforms is not None:
        return lowering.evaluate(branches[platforms.index(None)], operands)
    if not isinstance(which, np.ndarray):
        lowering.refuse("branches that depend on data are not written yet")
    return lowering.evaluate(branches[int(np.clip(which, 0, len(branches) - 1))], operands)


def loop(lowering: Lowering, equation: JaxprEqn, *operands: Operand) -> list[Operand]:
    """A scan, unrolled."""
    params = equation.params
    consts, carries, body = params["num_consts"], params["num_carry"], params["jaxpr"]
    fixed, carry, xs = operands[:consts], list(operands[consts : consts + carries]), operands[consts + carries :]
    collected: list[list[Any]] = []
    length = params["length"]
    for step in reversed(range(length)) if params["reverse"] else range(length):
        frames = [_frame(lowering, x, step) for x in xs]
        results = lowering.evaluate(body, [*fixed, *carry, *frames])
        carry = results[:carries]
        collected.append(results[carries:])
    if params["reverse"]:
        collected.reverse()
    stacked = [
        concatenate(lowering.writer, [reshape(lowering.writer, y, (1, *shape_of(y))) for y in ys], 0)
        for ys in zip(*collected, strict=True)
    ]
    return [*carry, *stacked]


def _frame(lowering: Lowering, x: Operand, step: int) -> Operand:
    shape = shape_of(x)
    frame = cut(lowering.writer, x, [step] + [0] * (len(shape) - 1), [step + 1, *shape[1:]])
    return reshape(lowering.writer, frame, shape[1:])


RULES: dict[str, Rule] = {
    **dict.fromkeys(_CALLS, call),
    "cond": branch,
    "platform_index": platform,
    "scan": loop,
}
