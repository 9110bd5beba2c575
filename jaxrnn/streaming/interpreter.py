"""The interpreter of `stream`: evaluates a jaxpr traced over all of time on the chunks of one step.

Time is the one symbolic dimension of the jaxpr. Every pass, the one that creates the state, a step, the warm-up before
the first step, and the flush, goes through the same rules, one for each primitive
(`jaxrnn.streaming.rules`), so they cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.core import JaxprEqn, Literal, Var

from jaxrnn.streaming.access import avals, has_symbols, own_sizes
from jaxrnn.streaming.dimensions import symbolic_axes
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.values import Chunk, Deferred, Ended, is_known, is_length, settled_since

#: What looks at a value that cannot be streamed: it may choose another, or say better what is wrong.
LOOKING = ("select_n", "gather", "jit", "pjit", "closed_call", "core_call", "remat2", "checkpoint", "custom_lin")


def interpret(run: Pass, inner: Any, arguments: Sequence[Any]) -> list[Any]:
    """The outputs of a jaxpr, closed or without constants, on chunks, values known at the end, and arrays."""
    jaxpr, consts = getattr(inner, "jaxpr", inner), getattr(inner, "consts", ())
    environment: dict[Var, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    environment.update(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: Any) -> Any:
        return np.asarray(atom.val, avals([atom])[0].dtype) if isinstance(atom, Literal) else environment[atom]

    for equation in jaxpr.eqns:
        with run.at(equation):
            results = evaluate(run, equation, [read(atom) for atom in equation.invars])
        environment.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def evaluate(run: Pass, equation: JaxprEqn, operands: list[Any]) -> list[Any]:
    """The results of one equation."""
    unusable = next((value for value in operands if isinstance(value, Deferred)), None)
    if unusable is not None and equation.primitive.name not in LOOKING:
        return [unusable] * len(equation.outvars)
    from jaxrnn.streaming.rules import find_rule, fold

    shapes = [getattr(variable.aval, "shape", ()) for variable in equation.outvars]
    crowded = next((shape for shape in shapes if len(symbolic_axes(shape)) > 1), None)
    if crowded is not None:
        run.refuse(
            f"its result has time on two axes, {list(crowded)}: every frame meets all others, future ones too",
            "let each frame see a bounded number of past frames, or keep this part out of the function",
        )
    streamed = any(isinstance(value, Chunk) for value in operands) or any(map(symbolic_axes, shapes))
    streamed = streamed or any(True for _ in own_sizes(equation))
    if not streamed and all(map(is_known, operands)) and not has_symbols(equation):
        folded = fold(equation, operands)
        if folded is not None:
            return folded
    rule = find_rule(equation, operands, streamed)
    if rule is not None:
        results = rule(run, equation, *operands)
        return list(results) if isinstance(results, (list, tuple)) else [results]
    if streamed:
        run.refuse(
            "there is no rule that runs it on a stream, frame by frame",
            "write this part with other operations, or keep it out of the function that is streamed",
        )
    ended = any(isinstance(value, Ended) or is_length(value) for value in operands)
    results = run.bind(equation, [run.plain(value) for value in operands])
    return [Ended(result, settled_since(operands)) for result in results] if ended else results
