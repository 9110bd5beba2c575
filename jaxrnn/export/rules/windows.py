"""Rules for reductions over windows: ``MaxPool``, ``AveragePool``, or a reduction of gathered windows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
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
    """Write ``MaxPool``, or ``ReduceMax``."""
    windows = _windows(equation)
    if dtype_of(x) in _MAX_POOL and _is_pooled(windows):
        return _pooled(lowering, "MaxPool", x, windows, dilations=[each.dilation for each in windows.values()])
    return _gathered(lowering, x, windows, lax.reduce_max, lowest(dtype_of(x)))


@RULES.add("reduce_window_min")
def minimum(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write ``MaxPool`` of the negated operand, or ``ReduceMin``."""
    windows = _windows(equation)
    if dtype_of(x) in _MAX_POOL and dtype_of(x).kind == "f" and _is_pooled(windows):
        dilations = [each.dilation for each in windows.values()]
        return elements(
            lowering, "Neg", _pooled(lowering, "MaxPool", elements(lowering, "Neg", x), windows, dilations=dilations)
        )
    return _gathered(lowering, x, windows, lax.reduce_min, highest(dtype_of(x)))


@RULES.add("reduce_window_sum")
def total(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write ``AveragePool`` times the window size, or ``ReduceSum``."""
    windows = _windows(equation)
    if dtype_of(x) in _AVERAGE_POOL and _is_pooled(windows) and all(each.dilation == 1 for each in windows.values()):
        mean = _pooled(lowering, "AveragePool", x, windows, count_include_pad=1)
        size = math.prod(each.taps for each in windows.values())
        return elements(lowering, "Mul", mean, np.array(size, dtype_of(x)))
    return _gathered(lowering, x, windows, lax.reduce_sum, 0)


@RULES.add("reduce_window")
def any_reduction(lowering: Lowering, equation: JaxprEqn, *operands: Operand) -> list[Operand]:
    """Reduce by any function: combine a slice for each place in a window, in order."""
    params, half, shape = equation.params, len(operands) // 2, shape_of_atom(equation.outvars[0])

    def function(*arrays: Any) -> list[Any]:
        xs, starts = arrays[:half], arrays[half:]
        config = [
            (low, high, spacing - 1)
            for (low, high), spacing in zip(params["padding"], params["base_dilation"], strict=True)
        ]
        xs = [lax.pad(x, start, config) for x, start in zip(xs, starts, strict=True)]
        results = [lax.broadcast(start, shape) for start in starts]
        for taps in itertools.product(*map(range, params["window_dimensions"])):
            begins = [tap * far for tap, far in zip(taps, params["window_dilation"], strict=True)]
            ends = [
                begin + (count - 1) * stride + 1
                for begin, count, stride in zip(begins, shape, params["window_strides"], strict=True)
            ]
            parts = [lax.slice(x, begins, ends, params["window_strides"]) for x in xs]
            results = _combined(params["jaxpr"], params["consts"], results, parts)
        return results

    return lowering.trace(function, *operands)


def _gathered(
    lowering: Lowering, x: Operand, windows: Mapping[int, Windows], reduce: Callable[..., Any], absent: Any
) -> Operand:
    taps = tuple(axis + 1 + number for number, axis in enumerate(sorted(windows)))
    return lowering.trace(lambda x: reduce(gathered(x, windows, absent), taps), x)[0]


def gathered(x: Any, windows: Mapping[int, Windows], absent: Any) -> Any:
    """Gather windows: each of these axes becomes two axes, ``[windows, taps]``, with ``absent`` outside of x."""
    config = [
        (windows[axis].low, windows[axis].high, windows[axis].spacing - 1) if axis in windows else (0, 0, 0)
        for axis in range(x.ndim)
    ]
    x = lax.pad(x, np.asarray(absent, x.dtype), config)
    for axis, each in sorted(windows.items(), reverse=True):
        places = np.arange(each.count)[:, None] * each.stride + np.arange(each.taps) * each.dilation
        x = jnp.take(x, places, axis, mode="clip")
    return x


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
