"""Calls, choices and loops: the program that an equation contains, for each engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn

from jaxrnn._jax.varying import while_loop
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
    if not trips:
        return [*carry, *(np.zeros(shape_of(each), type_of(each)) for each in equation.outvars[carries:])]
    frames = [translator.trace(_frames, x) for x in xs]
    collected: list[list[Any]] = [[] for _ in trips]
    for trip in reversed(trips) if params["reverse"] else trips:
        results = translator.evaluate(params["jaxpr"], [*fixed, *carry, *(each[trip] for each in frames)])
        carry, collected[trip] = results[:carries], results[carries:]
    return [*carry, *(translator.trace(_stacked, *ys)[0] for ys in zip(*collected, strict=True))]


def _rows(x: Any) -> Any:
    """Join time and the next axis: a slice of rows is a frame, without a reshape of each frame."""
    return x.reshape(-1, *x.shape[2:]) if x.ndim > 1 else x


def _frames(x: Any) -> list[Any]:
    return [each.reshape(x.shape[1:]) for each in jnp.split(_rows(x), x.shape[0])]


def _stacked(*frames: Any) -> Any:
    return jnp.concatenate(list(map(jnp.atleast_1d, frames))).reshape(len(frames), *frames[0].shape)


def outlined(translator: Translator, equation: JaxprEqn, operands: Sequence[Any], label: str, scope: str) -> list[Any]:
    """Evaluate a scan as a ``while`` whose condition and body are functions with this label in their names.

    The functions read no arrays of their caller, so the carry has all computed operands. Equations of the body have a
    scope, because the scope of the caller does not extend to a function.
    """
    params, length = equation.params, equation.params["length"]
    fixed, initial, xs = Scan.of(equation).split(operands)
    given, count = [*fixed, *map(_rows, xs)], len(initial)
    computed = {place: each for place, each in enumerate(given) if not isinstance(each, np.ndarray)}
    stacked = [jax.ShapeDtypeStruct(shape_of(each), type_of(each)) for each in equation.outvars[count:]]

    def body(trip: Any, computed: Any, carry: Any, ys: Any) -> Any:
        at = length - 1 - trip if params["reverse"] else trip
        now = [jnp.asarray(computed.get(place, each)) for place, each in enumerate(given)][len(fixed) :]
        frames = [
            lax.dynamic_slice_in_dim(x, at * (len(x) // length), len(x) // length, allow_negative_indices=False)
            for x in now
        ]
        frames = [each.reshape(shape_of(x)[1:]) for each, x in zip(frames, xs, strict=True)]
        with jax.named_scope(scope):
            known = [computed.get(place, each) for place, each in enumerate(fixed)]
            results = translator.evaluate(params["jaxpr"], [*known, *carry, *frames])
        results = list(map(jnp.asarray, results))
        new = [jnp.atleast_1d(each) for each in results[count:]]
        ys = [
            lax.dynamic_update_slice_in_dim(y, each, at * each.shape[0], 0, allow_negative_indices=False)
            for y, each in zip(ys, new, strict=True)
        ]
        return trip + 1, computed, results[:count], ys

    def condition(trip: Any, *_: Any) -> Any:
        return trip < length

    def function_of(function: Any) -> Any:
        function.__name__ = f"{label}_{function.__name__}"
        jitted = jax.jit(function)
        return lambda carry: jitted(*carry)

    ys = [_rows(jnp.zeros(each.shape, each.dtype)) for each in stacked]
    start = np.int32(0), computed, list(map(jnp.asarray, initial)), ys
    _, _, carry, ys = while_loop(function_of(condition), function_of(body), start)
    return [*carry, *(y.reshape(each.shape) for y, each in zip(ys, stacked, strict=True))]


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
