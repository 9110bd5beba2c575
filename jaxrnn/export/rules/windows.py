"""Rules for reductions over windows: ``MaxPool``, ``AveragePool``, or a reduction of slices."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn._jax.context import highest, lowest
from jaxrnn.cells.convolution import Windows, windows_of
from jaxrnn.export.lowering import RULES, Lowering
from jaxrnn.export.reshaping import reshape, transpose
from jaxrnn.export.rules.elementwise import elements
from jaxrnn.export.writer import Operand, dtype_of, shape_of
from jaxrnn.jaxprs.equations import evaluate
from jaxrnn.jaxprs.equations import shape_of as shape_of_atom

_MAX_POOL = tuple(map(np.dtype, (np.float16, np.float32, np.float64, np.int8, np.uint8)))
_AVERAGE_POOL = tuple(map(np.dtype, (np.float16, np.float32)))
#: Engines pool over at most this many axes.
_AXES = 3


@RULES.add("reduce_window_max")
def maximum(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write ``MaxPool``, or the maximum of slices."""
    windows = _windows(equation)
    if dtype_of(x) in _MAX_POOL and _is_pooled(windows):
        return _pooled(lowering, "MaxPool", x, windows, dilations=[each.dilation for each in windows.values()])
    return _slices(lowering, equation, x, lax.max, lowest(dtype_of(x)))


@RULES.add("reduce_window_min")
def minimum(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write ``MaxPool`` of the negated operand, or the minimum of slices."""
    windows = _windows(equation)
    if dtype_of(x) in _MAX_POOL and dtype_of(x).kind == "f" and _is_pooled(windows):
        dilations = [each.dilation for each in windows.values()]
        return elements(
            lowering, "Neg", _pooled(lowering, "MaxPool", elements(lowering, "Neg", x), windows, dilations=dilations)
        )
    return _slices(lowering, equation, x, lax.min, highest(dtype_of(x)))


@RULES.add("reduce_window_sum")
def total(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write ``AveragePool`` times the window size, or the sum of slices."""
    windows = _windows(equation)
    if dtype_of(x) in _AVERAGE_POOL and _is_pooled(windows) and all(each.dilation == 1 for each in windows.values()):
        mean = _pooled(lowering, "AveragePool", x, windows, count_include_pad=1)
        size = math.prod(each.taps for each in windows.values())
        return elements(lowering, "Mul", mean, np.array(size, dtype_of(x)))
    return _slices(lowering, equation, x, lax.add, 0)


@RULES.add("reduce_window")
def any_reduction(lowering: Lowering, equation: JaxprEqn, *operands: Operand) -> list[Operand]:
    """Reduce by any function."""
    params, half = equation.params, len(operands) // 2

    def function(*arrays: Any) -> list[Any]:
        starts = arrays[half:]
        first = [lax.broadcast(start, shape_of_atom(equation.outvars[0])) for start in starts]
        parts = _under_taps(equation, arrays[:half], starts)
        return functools.reduce(functools.partial(_combined, params["jaxpr"], params["consts"]), parts, first)

    return lowering.trace(function, *operands)


def _under_taps(equation: JaxprEqn, xs: Sequence[Any], absent: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield the elements under each place in a window in turn, slices of all operands padded with absent elements."""
    params, shape = equation.params, shape_of_atom(equation.outvars[0])
    config = [
        (low, high, spacing - 1)
        for (low, high), spacing in zip(params["padding"], params["base_dilation"], strict=True)
    ]
    xs = [lax.pad(x, each, config) for x, each in zip(xs, absent, strict=True)]
    for taps in itertools.product(*map(range, params["window_dimensions"])):
        begins = [tap * far for tap, far in zip(taps, params["window_dilation"], strict=True)]
        ends = [
            begin + (count - 1) * stride + 1
            for begin, count, stride in zip(begins, shape, params["window_strides"], strict=True)
        ]
        yield [lax.slice(x, begins, ends, params["window_strides"]) for x in xs]


def _slices(lowering: Lowering, equation: JaxprEqn, x: Operand, combine: Callable[..., Any], absent: Any) -> Operand:
    """Combine slices, in types and windows over which engines do not pool."""

    def function(x: Any) -> Any:
        return functools.reduce(
            combine, (part for (part,) in _under_taps(equation, [x], [np.asarray(absent, x.dtype)]))
        )

    return lowering.trace(function, x)[0]


def _combined(jaxpr: Any, consts: Any, results: list[Any], parts: list[Any]) -> list[Any]:
    """Apply a function of scalars to all elements of arrays."""
    function: Any = lambda *scalars: evaluate(jaxpr, scalars)  # noqa: E731
    assert not consts
    flat = [each.reshape(-1) for each in (*results, *parts)]
    return [each.reshape(results[0].shape) for each in jax.vmap(function)(*flat)]


def _windows(equation: JaxprEqn) -> dict[int, Windows]:
    """Return windows by axis, except windows of single elements."""
    params, shape = equation.params, shape_of_atom(equation.invars[0])
    windows = windows_of(
        shape,
        params["window_dimensions"],
        params["window_strides"],
        params["padding"],
        params["base_dilation"],
        params["window_dilation"],
    )
    return {
        axis: each
        for axis, each in enumerate(windows)
        if (each.taps, each.stride, each.low, each.high, each.spacing) != (1, 1, 0, 0, 1)
    }


def _is_pooled(windows: Mapping[int, Windows]) -> bool:
    """Return True if engines can pool over these windows: few axes, an element in each window."""
    return 0 < len(windows) <= _AXES and all(
        each.spacing == 1 and each.size and each.count and min(each.low, each.high) >= 0 < each.taps
        and max(each.low, each.high) < each.taps
        for each in windows.values()
    )  # fmt: skip


def _pooled(
    lowering: Lowering, operator: str, x: Operand, windows: Mapping[int, Windows], **attributes: Any
) -> Operand:
    """Write a pooling operator over the axes with windows, with the other axes as batch and channels."""
    shape, writer = shape_of(x), lowering.writer
    others = [axis for axis in range(len(shape)) if axis not in windows]
    order = [*others, *windows]
    leading = [shape[axis] for axis in others]
    kept = leading if len(leading) == 2 else [1, math.prod(leading)]
    counts = [each.count for each in windows.values()]
    x = reshape(writer, transpose(writer, x, order), (*kept, *(each.size for each in windows.values())))
    y = writer.node(
        operator,
        x,
        shape=(*kept, *counts),
        dtype=dtype_of(x),
        kernel_shape=[each.taps for each in windows.values()],
        strides=[each.stride for each in windows.values()],
        pads=[*(each.low for each in windows.values()), *(each.high for each in windows.values())],
        **attributes,
    )
    y = reshape(writer, y, (*leading, *counts))
    return transpose(writer, y, [order.index(axis) for axis in range(len(order))])
