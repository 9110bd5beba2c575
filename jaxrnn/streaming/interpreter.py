"""The interpreter of `stream`: evaluates a jaxpr traced over all of time on the chunks of one step.

Time is the one symbolic dimension of the jaxpr. Every pass, the warm-up before the first step, a step, and the flush,
goes through the same rules, one for each primitive (`jaxrnn.streaming.registry`), so they cannot drift apart.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jax.extend.core import JaxprEqn, Literal

from jaxrnn.jaxprs import equations
from jaxrnn.jaxprs.equations import Atom, shape_of, type_of
from jaxrnn.streaming.access import has_symbols, own_sizes
from jaxrnn.streaming.dimensions import symbolic_axes
from jaxrnn.streaming.known import fold
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.registry import ALWAYS, RULES
from jaxrnn.streaming.values import Chunk, Deferred, FinalValue, is_known, is_length, settled_since
from jaxrnn.streaming.watching import tell

#: What looks at a value that cannot be streamed: it may choose another, or say better what is wrong.
LOOKING = ("select_n", "gather", "jit", "pjit", "closed_call", "core_call", "remat2", "checkpoint", "custom_lin")


def interpret(run: Pass, inner: Any, arguments: Sequence[Any]) -> list[Any]:
    """The outputs of a jaxpr, closed or without constants, on chunks, values known at the end, and arrays."""
    results = equations.evaluate(inner, arguments, functools.partial(apply, run))
    return _typed(getattr(inner, "jaxpr", inner).outvars, results)


def apply(run: Pass, equation: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    """The results of one equation."""
    with run.at(equation):
        results = _apply(run, equation, _typed(equation.invars, operands))
        tell(run.path, equation, results)
        return results


def _typed(atoms: Iterable[Atom], values: Iterable[Any]) -> list[Any]:
    """Values, of which literals are known arrays of their type."""
    pairs = zip(atoms, values, strict=True)
    return [np.asarray(value, type_of(atom)) if isinstance(atom, Literal) else value for atom, value in pairs]


def _apply(run: Pass, equation: JaxprEqn, operands: list[Any]) -> list[Any]:
    name = equation.primitive.name
    unusable = next((value for value in operands if isinstance(value, Deferred)), None)
    if unusable is not None and name not in LOOKING:
        return [unusable] * len(equation.outvars)
    shapes = [shape_of(variable) for variable in equation.outvars]
    crowded = next((shape for shape in shapes if len(symbolic_axes(shape)) > 1), None)
    if crowded is not None:
        run.refuse(
            f"its result has time on two axes, {list(crowded)}: every frame depends on all frames, also on later ones",
            "let each frame depend on a fixed number of past frames, or move this part out of the function",
        )
    streamed = any(isinstance(value, Chunk) for value in operands) or any(map(symbolic_axes, shapes))
    streamed = streamed or any(True for _ in own_sizes(equation))
    inside = not streamed and has_symbols(equation)
    if not streamed and not inside and all(map(is_known, operands)):
        folded = fold(equation, operands)
        if folded is not None:
            return folded
    if name in RULES and (streamed or inside or name in ALWAYS):
        results = RULES[name](run, equation, *operands)
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        if len(results) != len(equation.outvars):
            run.refuse(
                f"its rule returns {len(results)} results, and the primitive has {len(equation.outvars)}",
                "return one chunk or array for each result, in order",
            )
        return results
    if streamed:
        run.refuse(
            "jaxrnn has no streaming rule for it",
            "use other operations, move this part out of the function that is streamed, or add a rule with "
            "jaxrnn.streaming.register",
        )
    final = any(isinstance(value, FinalValue) or is_length(value) for value in operands)
    results = run.bind(equation, [run.plain(value) for value in operands])
    return [FinalValue(result, settled_since(operands)) for result in results] if final else results
