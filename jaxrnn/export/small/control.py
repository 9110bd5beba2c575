"""Calls, choices and loops: the program that an equation contains, for each engine."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn

from jaxrnn._jax.versions import Scan
from jaxrnn.cells.recurrence import written_out
from jaxrnn.export.translator import SMALL, Translator
from jaxrnn.jaxprs.equations import called, shape_of, trace, type_of
from jaxrnn.jaxprs.own import platforms_of


@SMALL.add(kind="call")
@SMALL.add(kind="checkpoint")
@SMALL.add(kind="custom rule")
def call(translator: Translator, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """Evaluate the equations of the function."""
    return translator.evaluate(called(equation), operands)


@SMALL.add("custom_linear_solve")
def linear_solve(translator: Translator, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """Evaluate the equations that solve; the other equations are for derivatives."""
    lengths = equation.params["const_lengths"]
    start = lengths.matvec + lengths.vecmat
    right = operands[start + lengths.solve + lengths.transpose_solve :]
    return translator.evaluate(equation.params["jaxprs"].solve, [*operands[start : start + lengths.solve], *right])


@SMALL.add("platform_index")
def platform(translator: Translator, equation: JaxprEqn) -> Any:
    """Choose the default, because engines are not JAX platforms."""
    return np.array(len(equation.params["platforms"]) - 1, np.int32)


def chosen_branch(equation: JaxprEqn, which: Any) -> ClosedJaxpr | None:
    """Return the branch of a choice by platform or by a known index, or None if data choose."""
    branches, platforms = equation.params["branches"], platforms_of(equation)
    if platforms is not None:
        return branches[platforms.index(None)]
    return branches[int(np.clip(which, 0, len(branches) - 1))] if isinstance(which, np.ndarray) else None


def unrolled(translator: Translator, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """Evaluate the body of a scan for each frame."""
    params = equation.params
    fixed, carry, xs = Scan.of(equation).split(operands)
    carries, trips = len(carry), range(params["length"])
    frames = [translator.trace(lambda x: [lax.index_in_dim(x, trip, keepdims=False) for trip in trips], x) for x in xs]
    collected: list[list[Any]] = [[] for _ in trips]
    for trip in reversed(trips) if params["reverse"] else trips:
        results = translator.evaluate(params["jaxpr"], [*fixed, *carry, *(each[trip] for each in frames)])
        carry, collected[trip] = results[:carries], results[carries:]
    if not collected:
        return [*carry, *(np.zeros(shape_of(each), type_of(each)) for each in equation.outvars[carries:])]
    return [*carry, *(translator.trace(_stacked, *ys)[0] for ys in zip(*collected, strict=True))]


def _stacked(*frames: Any) -> Any:
    return jnp.stack(frames)


@SMALL.add("recurrent_layer")
def layer_in_steps(translator: Translator, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """Evaluate the steps of a recurrent layer."""
    params = equation.params

    def steps(*arrays: Any) -> list[Any]:
        x, initial, weights, exists = jax.tree.unflatten(params["structure"], arrays)
        y, final = written_out(params["cells"], weights, x, initial, direction=params["direction"], exists=exists)
        return [y, *final]

    structs = [jax.ShapeDtypeStruct(shape_of(each), type_of(each)) for each in equation.invars]
    with params["types"].in_force():
        closed, _ = trace(steps, *structs)
    return translator.evaluate(closed, operands)
