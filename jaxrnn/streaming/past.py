"""Attention to the whole past, limited to a band of `past` frames.

`past` changes the function that is streamed. A pass finds the equations that write minus infinity into the scores of
later frames (`Mask`). `with_band` adds equations after each of these, which write the same value into the scores of
keys that are more than `past` frames older than their query. The attention of the resulting function is bounded, so
the function streams. `at_length` evaluates the function on a whole recording, without chunks and without state.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var
from jax.extend.core.primitives import closed_call_p

from jaxrnn.jaxprs.custom_rules import CUSTOM_RULES, OfArrays, with_rule
from jaxrnn.jaxprs.equations import INLINED, bind, evaluate, shape_of, type_of
from jaxrnn.streaming.dimensions import symbolic_axes, symbolic_sizes, value_of
from jaxrnn.streaming.values import Mask


def with_band(jaxpr: Any, masks: Sequence[Mask], past: int) -> Any:
    """Return a jaxpr in which each mask also hides keys that are more than `past` frames older than their query."""
    return _with_band(jaxpr, [(mask, mask.path) for mask in masks], past)


def _with_band(jaxpr: Any, places: Sequence[tuple[Mask, tuple[JaxprEqn, ...]]], past: int) -> Any:
    """Return a jaxpr with the band; `places` pairs each mask with the part of the path inside this jaxpr."""
    equations = []
    for equation in jaxpr.eqns:
        here = [(mask, rest[1:]) for mask, rest in places if rest[0] is equation]
        if inner := [place for place in here if place[1]]:
            equation = _with_band_inside(equation, inner, past)
        equations.append(equation)
        if mask := next((mask for mask, rest in here if not rest), None):
            (result,) = equation.outvars
            scores = Var(result.aval)
            equations[-1] = equation.replace(outvars=[scores])
            equations += _band(scores, result, mask, past, equation.source_info)
    return jaxpr.replace(eqns=equations)


def _with_band_inside(equation: JaxprEqn, places: Sequence[Any], past: int) -> JaxprEqn:
    """Return an equation that contains jaxprs, with the band in these.

    A custom derivative rule would ignore the band, so the rule is dropped, and JAX differentiates the equations.
    """

    def changed(value: Any) -> Any:
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            return tuple(map(changed, value))
        jaxpr = getattr(value, "jaxpr", value)
        if not isinstance(jaxpr, Jaxpr):
            return value
        own = [place for place in places if any(each is place[1][0] for each in jaxpr.eqns)]
        jaxpr = _with_band(jaxpr, own, past) if own else jaxpr
        return ClosedJaxpr(jaxpr, value.consts) if isinstance(value, ClosedJaxpr) else jaxpr

    if equation.primitive.name in CUSTOM_RULES:
        inner = changed(equation.params["call_jaxpr"])
        return equation.replace(primitive=closed_call_p, params={"call_jaxpr": inner})
    return equation.replace(params={key: changed(value) for key, value in equation.params.items()})


def _band(scores: Var, result: Any, mask: Mask, past: int, source: Any) -> list[JaxprEqn]:
    """Return the equations that compute `result` from `scores`."""
    shape, dtype = shape_of(scores), type_of(scores)
    axes = symbolic_axes(shape)
    sizes = [shape[axis] for axis in axes]

    def banded(array: Any) -> Any:
        query, key = (lax.broadcasted_iota(np.int32, sizes, side) for side in (1 - mask.keys, mask.keys))
        seen = lax.broadcast_in_dim(lax.ge(key + np.int32(past), query), shape, axes)
        with np.errstate(over="ignore"):
            return lax.select(seen, array, lax.full(shape, np.asarray(mask.value).astype(dtype), dtype))

    inner = jax.make_jaxpr(banded)(jax.ShapeDtypeStruct(shape, dtype)).jaxpr
    names = {inner.invars[0]: scores, inner.outvars[0]: result}
    return [
        each.replace(
            invars=[names.get(atom, atom) if isinstance(atom, Var) else atom for atom in each.invars],
            outvars=[names.get(variable, variable) for variable in each.outvars],
            source_info=source,
        )
        for each in inner.eqns
    ]


def at_length(inner: Any, arguments: Sequence[Any], length: int) -> list[Any]:
    """Evaluate a jaxpr with a symbolic length on arrays of a whole recording of this length."""
    return at_sizes(inner, arguments, functools.partial(value_of, length=length))


def at_sizes(inner: Any, arguments: Sequence[Any], size: Callable[[Any], Any]) -> list[Any]:
    """Evaluate a jaxpr with other sizes in place of symbolic sizes."""
    return evaluate(inner, arguments, functools.partial(_apply, size))


def _apply(size: Callable[[Any], Any], equation: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
    name = equation.primitive.name
    if name == "dim_as_value":
        return [np.asarray(size(equation.params["dim"]), type_of(equation.outvars[0]))]
    if name in INLINED:
        return at_sizes(equation.params[INLINED[name]], operands, size)
    if name in CUSTOM_RULES:
        as_traced = lambda *arrays: bind(equation, arrays)  # noqa: E731
        domain = OfArrays(functools.partial(at_sizes, size=size))
        return with_rule(equation, as_traced, domain, [None] * len(operands))(*operands)
    return bind(equation, operands, **{key: _sized(value, size) for key, value in equation.params.items()})


def _sized(value: Any, size: Callable[[Any], Any]) -> Any:
    """Return a parameter of an equation with other sizes."""
    if jax.export.is_symbolic_dim(value):
        return size(value)
    if isinstance(value, tuple | list):
        parts = [_sized(part, size) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, ClosedJaxpr) and any(True for _ in symbolic_sizes(value.jaxpr)):
        structs = [
            jax.ShapeDtypeStruct(_sized(each.shape, size), each.dtype, weak_type=each.weak_type)
            for each in value.in_avals
        ]
        return jax.make_jaxpr(lambda *arrays: at_sizes(value, arrays, size))(*structs)
    return value
