"""Computations over a whole recording that are recognised, and replaced by equations that stream.

`with_numbers` replaces row and column numbers. tf2onnx writes ``tf.linalg.band_part``, and so Keras' causal mask, as a
running count of S * S ones that becomes a matrix ``n``. Then ``n // S`` is the row, and ``n % S`` is the column. A row
of S * S elements has no time axis. So both results are replaced by equations that count along an axis.

`resized` replaces `jax.image.resize` along time by whole factors. JAX computes the indices or the weights from the
length in floats. A call that traces to the same equations is replaced by repeated frames, every k-th frame, or sums of
neighbours.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn, Literal, Var

from jaxrnn.jaxprs.equations import Atom, shape_of, type_of
from jaxrnn.streaming.dimensions import in_shape, is_symbolic, out_shape, symbolic_axes
from jaxrnn.streaming.places import operation_of

#: Forms of values: a number in all elements; 0, and then ones; the number of each element of a row, or of a matrix.
_NUMBER, _STARTED, _COUNTED, _MATRIX = "number", "started", "counted", "matrix"
Form = tuple[str, Any]
_SAME = ("convert_element_type", "copy", "squeeze", "stack", "broadcast_in_dim")


def with_numbers(jaxpr: Any) -> Any:
    """Return the jaxpr with rows and columns that are counted directly."""
    if not any("^" in str(size) for equation in jaxpr.eqns if equation.outvars for size in out_shape(equation)):
        return jaxpr
    forms: dict[Var, Form] = {}
    equations = []
    for equation in jaxpr.eqns:
        operands = [_form_of(atom, forms) for atom in equation.invars]
        axis = _counted_axis(equation, operands)
        equations += [equation] if axis is None else _count(equation, axis)
        if (form := _form(equation, operands)) is not None:
            forms[equation.outvars[0]] = form
    return jaxpr.replace(eqns=equations)


def _form_of(atom: Atom, forms: dict[Var, Form]) -> Form | None:
    if isinstance(atom, Literal):
        return (_NUMBER, atom.val) if shape_of(atom) == () else None
    return forms.get(atom)


def _form(equation: JaxprEqn, operands: list[Form | None]) -> Form | None:
    """Return the form of the result of an equation, or None."""
    name, params = equation.primitive.name, equation.params
    if name == "dim_as_value":
        return _NUMBER, params["dim"]
    if len(equation.outvars) != 1 or not operands or operands[0] is None:
        return None
    (kind, value), shape = operands[0], out_shape(equation)
    if type_of(equation.outvars[0]).kind not in "iu":
        return None
    if kind == _NUMBER and len(operands) == 1 and (name in _SAME or name == "reshape"):
        return operands[0]
    if kind == _NUMBER and name == "pad" and params["padding_config"] == ((1, -1, 0),) and str(value) == "1":
        started = operands[1] is not None and operands[1][0] == _NUMBER and str(operands[1][1]) == "0"
        return (_STARTED, None) if started else None
    if kind == _STARTED and name == "cumsum" and not params["reverse"]:
        return _COUNTED, None
    if kind in (_COUNTED, _MATRIX) and name in ("convert_element_type", "copy"):
        return operands[0]
    if kind == _COUNTED and name == "reshape" and len(shape) == 2:
        return _MATRIX, shape[1]
    return None


def _counted_axis(equation: JaxprEqn, operands: list[Form | None]) -> int | None:
    """Return the axis along which the result counts, or None."""
    (kind, width), (divisor, number) = (each or ("", None) for each in [*operands, None, None][:2])
    if kind != _MATRIX or divisor != _NUMBER or not is_symbolic(width) or str(number) != str(width):
        return None
    return {"div": 0, "floor_divide": 0, "rem": 1, "remainder": 1}.get(operation_of(equation))


def _count(equation: JaxprEqn, axis: int) -> list[JaxprEqn]:
    (result,) = equation.outvars
    count = lambda: lax.broadcasted_iota(type_of(result), shape_of(result), axis)  # noqa: E731
    (counted,) = jax.make_jaxpr(count)().eqns
    return [counted.replace(outvars=[result], source_info=equation.source_info)]


#: Factors must be smaller than this number.
LARGEST = 1024


def resized(equation: JaxprEqn) -> Any:
    """Return the jaxpr that replaces a call of `jax.image.resize` along time, or None."""
    if equation.params.get("name") != "_resize" or len(equation.invars) != 1:
        return None
    old, new = in_shape(equation), out_shape(equation)
    axes = [axis for axis in range(len(old)) if str(old[axis]) != str(new[axis])]
    if axes != symbolic_axes(old) or axes != symbolic_axes(new) or len(axes) != 1:
        return None
    (axis,) = axes
    up, down = (
        next((k for k in range(2, LARGEST) if str(k * a[axis]) == str(b[axis])), 0) for a, b in ((old, new), (new, old))
    )
    # The old length may be a multiple of the new length for some lengths only: S and floordiv(S, 2).
    x = jax.ShapeDtypeStruct(old, type_of(equation.invars[0]))
    found = str(equation.params["jaxpr"].jaxpr)
    forms: dict[str, Callable[[Any], Any]] = {}
    if up:
        forms["nearest"] = functools.partial(jnp.repeat, repeats=up, axis=axis)
        forms["linear"] = functools.partial(_linear, factor=up, axis=axis)
    elif down:
        forms["nearest"] = lambda x: x[(slice(None),) * axis + (slice(down // 2, None, down),)]
    for method, form in forms.items():
        traced = jax.make_jaxpr(lambda x, method=method: jax.image.resize(x, new, method))(x)
        if str(traced.jaxpr.eqns[0].params["jaxpr"].jaxpr) == found:
            return jax.make_jaxpr(form)(x)
    return None


def _linear(x: Any, factor: int, axis: int) -> Any:
    """Enlarge time by linear interpolation between neighbours, with repeated first and last frames."""
    cut = functools.partial(lax.slice_in_dim, x, axis=axis)
    before = jnp.concatenate([cut(0, 1), cut(0, x.shape[axis] - 1)], axis)
    after = jnp.concatenate([cut(1, x.shape[axis]), cut(x.shape[axis] - 1, x.shape[axis])], axis)
    parts = []
    for phase in range(factor):
        place = (phase + 0.5) / factor - 0.5
        parts.append((1 - abs(place)) * x + abs(place) * (before if place < 0 else after))
    shape = [factor * size if each == axis else size for each, size in enumerate(x.shape)]
    return jnp.stack(parts, axis + 1).reshape(shape)
