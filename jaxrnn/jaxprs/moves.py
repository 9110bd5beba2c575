"""The table of primitives that move or compute elements in NumPy, and evaluation of known results.

XLA would compile a program for each of these primitives. Moved elements may be values, positions, or codes for the
origin of an element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal
from jax.extend.core.primitives import jit_p
from jax.lax import GatherScatterMode

from jaxrnn.jaxprs.equations import bind, evaluate, needed, read_by, shape_of, type_of, variables
from jaxrnn.jaxprs.primitives import platforms_of


def _broadcast(params: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    shape = np.ones(len(params["shape"]), int)
    shape[list(params["broadcast_dimensions"])] = x.shape
    return np.broadcast_to(x.reshape(shape), params["shape"])


def _pad(params: Mapping[str, Any], x: np.ndarray, value: np.ndarray) -> np.ndarray:
    places, kept = [], []
    for size, (low, high, interior) in zip(x.shape, params["padding_config"], strict=True):
        end = max(low, 0) + max(size + (size - 1) * interior, 0)
        places.append(slice(max(low, 0), end, interior + 1))
        kept.append(slice(max(-low, 0), end + high))
    padded = np.full([max(0, place.stop, keep.stop) for place, keep in zip(places, kept, strict=True)], value, x.dtype)
    padded[tuple(places)] = x
    return padded[tuple(kept)]


def _reshape(params: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    order = params.get("dimensions")
    return (x if order is None else np.transpose(x, order)).reshape(params["new_sizes"])


def _select(params: Mapping[str, Any], which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    result = cases[0]
    for place, case in enumerate(cases[1:], 1):
        result = np.where(which == place, case, result)
    return result


def _slice(params: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    ends = zip(params["start_indices"], params["limit_indices"], params["strides"] or [1] * x.ndim, strict=True)
    return x[tuple(slice(*each) for each in ends)]


def _window(shape: Sequence[int], starts: Sequence[np.ndarray], sizes: Sequence[int]) -> tuple[slice, ...]:
    rows = zip(shape, starts, sizes, strict=True)
    begins = [int(np.clip(start, 0, whole - size)) for whole, start, size in rows]
    return tuple(slice(begin, begin + size) for begin, size in zip(begins, sizes, strict=True))


def _dynamic_update(params: Mapping[str, Any], x: np.ndarray, new: np.ndarray, *starts: np.ndarray) -> np.ndarray:
    result = np.array(x)
    result[_window(x.shape, starts, new.shape)] = new
    return result


def _windows(
    params: Mapping[str, Any],
    shape: Sequence[int],
    indices: np.ndarray,
    sizes: Sequence[int],
    axes: Sequence[int],
    batching: Sequence[int],
    index_batching: Sequence[int],
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the places of the windows of a gather or scatter in an array, and which windows are inside of the array.

    The places are the indices along each axis of the array, in the shape of the indices and the window.
    """
    rank, batch = len(shape), indices.shape[:-1]
    starts = [np.zeros(batch, np.int64) for _ in shape]
    for column, axis in enumerate(axes):
        starts[axis] = indices[..., column].astype(np.int64)
    for axis, place in zip(batching, index_batching, strict=True):
        starts[axis] = np.broadcast_to(_along(place, len(batch), np.arange(batch[place])), batch)
    places, inside = [], np.ones(batch, bool)
    for axis, (whole, size, start) in enumerate(zip(shape, sizes, starts, strict=True)):
        if GatherScatterMode.from_any(params["mode"]) == GatherScatterMode.FILL_OR_DROP:
            inside &= (start >= 0) & (start <= whole - size)
        start = np.clip(start, 0, whole - size).reshape(*batch, *[1] * rank)
        places.append(start + _along(axis, rank, np.arange(size)))
    return places, inside


def _along(axis: int, rank: int, numbers: np.ndarray) -> np.ndarray:
    """Return numbers along an axis of an array of this rank."""
    return numbers.reshape([-1 if each == axis else 1 for each in range(rank)])


def _gather(params: Mapping[str, Any], x: np.ndarray, indices: np.ndarray) -> np.ndarray | None:
    numbers, batching = params["dimension_numbers"], params["dimension_numbers"].operand_batching_dims
    index_batching = numbers.start_indices_batching_dims
    places, inside = _windows(
        params, x.shape, indices, params["slice_sizes"], numbers.start_index_map, batching, index_batching
    )
    if not inside.all():
        return None
    batch = indices.ndim - 1
    result = x[tuple(places)] if x.ndim else np.broadcast_to(x, indices.shape[:-1])
    result = np.squeeze(result, tuple(batch + axis for axis in (*numbers.collapsed_slice_dims, *batching)))
    return np.moveaxis(result, range(batch, result.ndim), numbers.offset_dims)


def _scatter(params: Mapping[str, Any], x: np.ndarray, indices: np.ndarray, new: np.ndarray) -> np.ndarray:
    numbers, batch = params["dimension_numbers"], indices.ndim - 1
    axes, batching = numbers.scatter_dims_to_operand_dims, numbers.operand_batching_dims
    window = [new.shape[axis] for axis in numbers.update_window_dims]
    new = np.moveaxis(new, numbers.update_window_dims, range(batch, new.ndim))
    inserted = (*numbers.inserted_window_dims, *batching)
    sizes = [1 if axis in inserted else window.pop(0) for axis in range(x.ndim)]
    places, inside = _windows(params, x.shape, indices, sizes, axes, batching, numbers.scatter_indices_batching_dims)
    shape = (*indices.shape[:-1], *sizes)
    result = np.array(x)
    inside = np.broadcast_to(inside.reshape(*inside.shape, *[1] * x.ndim), shape)
    result[tuple(np.broadcast_to(place, shape)[inside] for place in places)] = new.reshape(shape)[inside]
    return result


#: Primitives that move elements, as functions of the parameters and the operands.
_MOVES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("copy", "copy_p", "stop_gradient"), lambda params, x: x),
    **dict.fromkeys(("optimization_barrier", "pvary"), lambda params, *parts: list(parts)),
    "broadcast_in_dim": lambda params, x, *_: _broadcast(params, x),
    "concatenate": lambda params, *parts: np.concatenate(parts, params["dimension"]),
    "dynamic_slice": lambda params, x, *starts: x[_window(x.shape, starts, params["slice_sizes"])],
    "dynamic_update_slice": _dynamic_update,
    "expand_dims": lambda params, x: np.expand_dims(x, tuple(params["dimensions"])),
    "gather": _gather,
    "pad": _pad,
    "reshape": lambda params, x, *_: _reshape(params, x),
    "rev": lambda params, x: np.flip(x, tuple(params["dimensions"])),
    "scatter": _scatter,
    "select_n": _select,
    "slice": lambda params, x: _slice(params, x),
    "split": lambda params, x: np.split(x, np.cumsum(params["sizes"])[:-1], params["axis"]),
    "squeeze": lambda params, x: np.squeeze(x, tuple(params["dimensions"])),
    "stack": lambda params, *parts: np.stack(parts, params["axis"]),
    "tile": lambda params, x: np.tile(x, params["reps"]),
    "transpose": lambda params, x: np.transpose(x, params["permutation"]),
}
#: The operands that move, by primitive; by default, only the first. The other operands are positions.
_MOVED = {
    **dict.fromkeys(("concatenate", "stack", "optimization_barrier", "pvary"), slice(None)),
    **dict.fromkeys(("dynamic_update_slice", "pad"), slice(2)),
    "scatter": slice(0, None, 2),
    "select_n": slice(1, None),
}


def moved_operands(equation: JaxprEqn) -> list[int] | None:
    """Return the indices of the operands that an equation moves, or None if it computes new elements."""
    name = equation.primitive.name
    if name not in _MOVES:
        return None
    return list(range(len(equation.invars)))[_MOVED.get(name, slice(1))]


def move(equation: JaxprEqn, operands: Sequence[np.ndarray]) -> list[np.ndarray] | None:
    """Return the results of an equation that only moves elements, or None if it computes or reads out of bounds."""
    name = equation.primitive.name
    if name not in _MOVES:
        return None
    result = _MOVES[name](equation.params, *operands)
    return result if result is None or isinstance(result, list) else [result]


#: Primitives that compute each element of the result from the same element of the operands.
# fmt: off
ELEMENTWISE = (
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh", "bessel_i0e",
    "bessel_i1e", "cbrt", "ceil", "clamp", "clz", "complex", "conj", "convert_element_type", "copy", "copy_p",
    "cos", "cosh", "digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt",
    "igamma", "igammac", "imag", "integer_pow", "is_finite", "le", "le_to", "lgamma", "log", "log1p", "logistic",
    "lt", "lt_to", "max", "min", "mul", "mulhi", "ne", "neg", "nextafter", "not", "optimization_barrier", "or",
    "polygamma", "population_count", "pow", "real", "reduce_precision", "regularized_incomplete_beta", "rem",
    "round", "rsqrt", "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin",
    "sinh", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor", "zeta",
)
# fmt: on

#: Elementwise primitives that NumPy computes like XLA, up to rounding.
ON_ELEMENTS: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "add": np.add,
    "add_any": np.add,
    "and": np.bitwise_and,
    "ceil": np.ceil,
    "cos": np.cos,
    "eq": np.equal,
    "exp": np.exp,
    "floor": np.floor,
    "ge": np.greater_equal,
    "gt": np.greater,
    "is_finite": np.isfinite,
    "le": np.less_equal,
    "log": np.log,
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "not": np.invert,
    "or": np.bitwise_or,
    "sign": np.sign,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "square": np.square,
    "sub": np.subtract,
    "tanh": np.tanh,
    "xor": np.bitwise_xor,
}


def counted(params: Mapping[str, Any]) -> np.ndarray:
    """Return the numbers of an ``iota``."""
    shape, axis = params["shape"], params["dimension"]
    return np.broadcast_to(_along(axis, len(shape), np.arange(shape[axis]).astype(params["dtype"])), shape)


_PRODUCTS = {"mul", "dot_general", "conv_general_dilated"}


def split(closed: ClosedJaxpr) -> tuple[list[np.ndarray | None], ClosedJaxpr, list[bool]]:
    """Split a jaxpr into its known results and a jaxpr that computes the other results.

    Returns the value of each result, or None for a result to compute; the jaxpr for the results to compute, with the
    same inputs; and a flag for each input, which is True if finite numbers in the input affect these results. Constants
    are evaluated if a flag may depend on constants.
    """
    values, rest = _split(closed, computing=False)
    if any(depends := _reached(rest)):
        values, rest = _split(closed, computing=True)
        depends = _reached(rest)
    return values, rest, depends


def _split(closed: ClosedJaxpr, *, computing: bool) -> tuple[list[np.ndarray | None], ClosedJaxpr]:
    values: list[Any] = []

    def apply(equation: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
        if equation.primitive is jit_p:
            return evaluate(equation.params["jaxpr"], operands, apply)
        pairs = zip(equation.invars, operands, strict=True)
        operands = [np.asarray(x, type_of(atom)) if isinstance(atom, Literal) else x for atom, x in pairs]
        if platforms_of(equation) is not None:  # all forms have the same results
            for form in equation.params["branches"]:
                results = evaluate(form, operands[1:], apply)
                if not any(isinstance(result, Tracer) for result in results):
                    return results
        return _known(equation, operands, computing) or bind(equation, operands)

    def unknown(*arguments: Any) -> list[Any]:
        values[:] = evaluate(live, arguments, apply)
        return [value for value in values if isinstance(value, Tracer)]

    live = _without_dead_code(closed)
    rest = _without_dead_code(jax.make_jaxpr(unknown)(*closed.in_avals))
    return [None if isinstance(value, Tracer) else np.asarray(value) for value in values], rest


def _known(equation: JaxprEqn, operands: list[Any], computing: bool) -> list[Any] | None:
    """Return the known results of an equation."""
    name, result = equation.primitive.name, equation.outvars[0]
    if any(not isinstance(type_of(each), np.dtype) for each in (*equation.invars, *equation.outvars)):
        return None
    known = [np.asarray(value) for value in operands if not isinstance(value, Tracer)]
    if name in _PRODUCTS and any(not np.any(value) for value in known) and all(map(_is_finite, known)):
        return [np.zeros(shape_of(result), type_of(result))]
    if len(known) < len(operands) or equation.effects:
        return None
    if moved := move(equation, known):
        return moved
    if not computing:
        return None
    with jax.ensure_compile_time_eval():
        return list(map(np.asarray, bind(equation, list(map(jnp.asarray, known)))))


def _is_finite(value: np.ndarray) -> bool:
    """Return True if these elements times zero are zero. Unknown elements are assumed to be finite."""
    return not jnp.issubdtype(value.dtype, jnp.inexact) or bool(np.isfinite(value).all())


def _without_dead_code(closed: ClosedJaxpr) -> ClosedJaxpr:
    jaxpr = closed.jaxpr
    return closed.replace(jaxpr=jaxpr.replace(eqns=needed(jaxpr.eqns, jaxpr.outvars)))


def _reached(closed: ClosedJaxpr) -> list[bool]:
    """Return for each input of a jaxpr without dead code whether results depend on the input."""
    reached = {*variables(closed.jaxpr.outvars), *read_by(closed.jaxpr.eqns)}
    return [variable in reached for variable in closed.jaxpr.invars]
