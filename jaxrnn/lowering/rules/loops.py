"""Loops: unrolled where that is short, else ``Scan`` and ``Loop``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.core import JaxprEqn

from jaxrnn.jaxprs.equations import shape_of as shape_of_atom
from jaxrnn.jaxprs.equations import type_of
from jaxrnn.jaxprs.slices import needed, walk
from jaxrnn.lowering.lowering import Lowering, Rule
from jaxrnn.lowering.movement import concatenate, cut, reshape
from jaxrnn.lowering.subgraphs import subgraph
from jaxrnn.lowering.writer import Operand, dtype_of, shape_of

#: As many equations are written out one after another; a loop of more becomes one node.
_UNROLLED = 240


def scan(lowering: Lowering, equation: JaxprEqn, *operands: Operand) -> list[Operand]:
    """The steps one after another where they are few, else ``Scan``."""
    params = equation.params
    consts, carries, body = params["num_consts"], params["num_carry"], params["jaxpr"]
    fixed, initial, xs = operands[:consts], list(operands[consts : consts + carries]), operands[consts + carries :]
    length = params["length"]
    size = sum(1 for _ in walk(body.jaxpr.replace(eqns=needed(body.jaxpr.eqns, body.jaxpr.outvars))))
    if length < 2 or length * size <= _UNROLLED:
        return _unrolled(lowering, equation, fixed, initial, xs)
    # What the body hands on as it got it is no carry.
    own = body.jaxpr.invars[consts : consts + carries]
    moving = [index for index in range(carries) if body.jaxpr.outvars[index] is not own[index]]
    xs = list(xs) or [np.zeros(length, bool)]  # a Scan needs something to go through
    direction = [int(params["reverse"])]

    def write(inside: Lowering, *values: Operand) -> list[Operand]:
        carry = list(initial)
        for index, value in zip(moving, values, strict=False):
            carry[index] = value
        frames = values[len(moving) :] if len(operands) > consts + carries else ()
        results = inside.evaluate(body, [*fixed, *carry, *frames])
        return [*(results[index] for index in moving), *results[carries:]]

    frames = [(shape_of(x)[1:], dtype_of(x)) for x in xs]
    kinds = [(shape_of(initial[index]), dtype_of(initial[index])) for index in moving]
    graph = subgraph(lowering, "step", [*kinds, *frames], write)
    stacked = [(shape_of_atom(each), type_of(each)) for each in equation.outvars[carries:]]
    results = lowering.writer.nodes_of(
        "Scan",
        [*(initial[index] for index in moving), *xs],
        [*kinds, *stacked],
        body=graph,
        num_scan_inputs=len(xs),
        scan_input_directions=direction * len(xs) if params["reverse"] else None,
        scan_output_directions=direction * len(stacked) if params["reverse"] and stacked else None,
    )
    final = list(initial)
    for index, value in zip(moving, results, strict=False):
        final[index] = value
    return [*final, *results[len(moving) :]]


def _unrolled(
    lowering: Lowering, equation: JaxprEqn, fixed: Sequence[Operand], carry: list[Operand], xs: Sequence[Operand]
) -> list[Operand]:
    params, writer = equation.params, lowering.writer
    collected: list[list[Any]] = []
    length, carries = params["length"], len(carry)
    for step in reversed(range(length)) if params["reverse"] else range(length):
        frames = [_frame(lowering, x, step) for x in xs]
        results = lowering.evaluate(params["jaxpr"], [*fixed, *carry, *frames])
        carry = results[:carries]
        collected.append(results[carries:])
    if params["reverse"]:
        collected.reverse()
    if not collected:
        return [*carry, *(np.zeros(shape_of_atom(each), type_of(each)) for each in equation.outvars[carries:])]
    stacked = [
        concatenate(writer, [reshape(writer, y, (1, *shape_of(y))) for y in ys], 0)
        for ys in zip(*collected, strict=True)
    ]
    return [*carry, *stacked]


def _frame(lowering: Lowering, x: Operand, step: int) -> Operand:
    shape = shape_of(x)
    frame = cut(lowering.writer, x, [step] + [0] * (len(shape) - 1), [step + 1, *shape[1:]])
    return reshape(lowering.writer, frame, shape[1:])


def repeat(lowering: Lowering, equation: JaxprEqn, *operands: Operand) -> list[Operand]:
    """``Loop``, as long as the condition holds."""
    params = equation.params
    counts = (params["cond_nconsts"], params["body_nconsts"])
    of_condition, of_body = operands[: counts[0]], operands[counts[0] : sum(counts)]
    initial = operands[sum(counts) :]

    def holds(here: Lowering, carry: Sequence[Operand]) -> Operand:
        return here.evaluate(params["cond_jaxpr"], [*of_condition, *carry])[0]

    first = holds(lowering, initial)
    if isinstance(first, np.ndarray) and not first:
        return list(initial)
    inner = params["body_jaxpr"].jaxpr
    own = inner.invars[counts[1] :]
    moving = [index for index in range(len(initial)) if inner.outvars[index] is not own[index]]

    def write(inside: Lowering, count: Operand, condition: Operand, *values: Operand) -> list[Operand]:
        carry = list(initial)
        for index, value in zip(moving, values, strict=True):
            carry[index] = value
        carry = inside.evaluate(params["body_jaxpr"], [*of_body, *carry])
        return [holds(inside, carry), *(carry[index] for index in moving)]

    kinds = [(shape_of_atom(equation.outvars[index]), type_of(equation.outvars[index])) for index in moving]
    graph = subgraph(lowering, "body", [((), np.int64), ((), np.bool_), *kinds], write)
    inputs = [None, first, *(initial[index] for index in moving)]
    results = lowering.writer.nodes_of("Loop", inputs, kinds, body=graph)
    final = list(initial)
    for index, value in zip(moving, results, strict=True):
        final[index] = value
    return final


RULES: dict[str, Rule] = {"scan": scan, "while": repeat}
