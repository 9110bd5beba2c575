"""Writing at indices: slices that begin anywhere, and scatters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn._files.arguments import argument
from jaxrnn.lowering.lowering import Lowering, Rule
from jaxrnn.lowering.movement import broadcast, concatenate, cut, reshape, transpose
from jaxrnn.lowering.rules.elementwise import elements
from jaxrnn.lowering.rules.indexing import (
    are_inside,
    column_of,
    gather_along,
    index_of,
    inside,
    places_of,
    stacked_columns,
)
from jaxrnn.lowering.writer import Operand, dtype_of, shape_of

#: By primitive, the operator on elements, what ``ScatterND`` calls it, and its opset.
_REDUCTIONS = {
    "scatter": (None, None, 11),
    "scatter-add": ("Add", "add", 16),
    "scatter_add": ("Add", "add", 16),
    "scatter-sub": ("Sub", "add", 16),
    "scatter_sub": ("Sub", "add", 16),
    "scatter-mul": ("Mul", "mul", 16),
    "scatter_mul": ("Mul", "mul", 16),
    "scatter-min": ("Min", "min", 18),
    "scatter_min": ("Min", "min", 18),
    "scatter-max": ("Max", "max", 18),
    "scatter_max": ("Max", "max", 18),
}


def dynamic_update_slice(
    lowering: Lowering, equation: JaxprEqn, x: Operand, update: Operand, *starts: Operand
) -> Operand:
    """``Concat`` of what is before, in place of, and after the slice; ``ScatterND`` where it begins anywhere."""
    places = [
        inside(lowering, index_of(lowering, start), np.array(size - part))
        for start, size, part in zip(starts, shape_of(x), shape_of(update), strict=True)
    ]
    return _updated(lowering, x, places, shape_of(update), lambda part: update)


def _updated(
    lowering: Lowering,
    x: Operand,
    starts: Sequence[Operand],
    sizes: Sequence[int],
    change: Callable[[Operand], Operand],
) -> Operand:
    """An array with one slice of it changed: axis by axis, known places first."""
    writer, shape = lowering.writer, shape_of(x)
    partial = [each for each in range(len(shape)) if shape[each] != sizes[each]]
    if not partial:
        return change(x)
    known = [each for each in partial if isinstance(starts[each], np.ndarray)]
    axis = (known or partial)[0]
    start = starts[axis]
    if isinstance(start, np.ndarray):
        bounds = [0, int(start), int(start) + sizes[axis], shape[axis]]
        before, part, after = (_along(lowering, x, axis, low, high) for low, high in itertools.pairwise(bounds))
        return concatenate(writer, [before, _updated(lowering, part, starts, sizes, change), after], axis)
    places = places_of(lowering, start, shape[axis] - sizes[axis], sizes[axis])
    part = _updated(lowering, gather_along(writer, x, places, axis), starts, sizes, change)
    order = [axis, *(each for each in range(len(shape)) if each != axis)]
    moved = writer.node(
        "ScatterND",
        transpose(writer, x, order),
        reshape(writer, places, (sizes[axis], 1)),
        transpose(writer, part, order),
        shape=[shape[each] for each in order],
        dtype=dtype_of(x),
    )
    return transpose(writer, moved, np.argsort(order).tolist())


def _along(lowering: Lowering, x: Operand, axis: int, low: int, high: int) -> Operand:
    starts, ends = [0] * len(shape_of(x)), list(shape_of(x))
    starts[axis], ends[axis] = low, high
    return cut(lowering.writer, x, starts, ends)


def scatter(lowering: Lowering, equation: JaxprEqn, x: Operand, indices: Operand, updates: Operand) -> Operand:
    """``ScatterND``; a single slice at a known place is changed between what is before and after it."""
    params = equation.params
    numbers = params["dimension_numbers"]
    operator, reduction, opset = _REDUCTIONS[equation.primitive.name]
    writer, rank = lowering.writer, len(shape_of(x))
    dropped = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    windows = [axis for axis in range(rank) if axis not in dropped]
    sizes = [1] * rank
    for axis, dim in zip(windows, numbers.update_window_dims, strict=True):
        sizes[axis] = shape_of(updates)[dim]
    indexed = [*numbers.scatter_dims_to_operand_dims]
    last = np.array([shape_of(x)[axis] - sizes[axis] for axis in indexed], np.int64)
    indices = index_of(lowering, indices)
    clips = params["mode"] == lax.GatherScatterMode.CLIP
    exists = None if clips else are_inside(lowering, indices, last)
    indices = inside(lowering, indices, last)
    batch = shape_of(indices)[:-1]

    if (
        isinstance(indices, np.ndarray)
        and exists is None
        and indices.size == len(indexed)
        and not numbers.operand_batching_dims
    ):
        starts = [np.array(0)] * rank
        for axis, start in zip(indexed, np.asarray(indices).reshape(-1), strict=True):
            starts[axis] = np.asarray(start)
        update = reshape(writer, updates, sizes)  # windows are in the operand's order
        return _updated(
            lowering,
            x,
            starts,
            sizes,
            lambda part: update if operator is None else elements(lowering, operator, part, update),
        )
    if reduction is not None and writer.opset < opset:
        lowering.refuse(
            f"ScatterND came with reduction={reduction!r} in opset {opset}; give {argument('opset', opset)}"
        )
    if operator == "Sub":
        updates = elements(lowering, "Neg", updates)

    # Axes that no index is for are written from their beginning, in whole or as if an index of 0 were given.
    partial = [axis for axis in windows if axis not in indexed and sizes[axis] != shape_of(x)[axis]]
    of_places = [axis for axis in windows if axis in indexed or axis in partial]
    columns = {axis: column_of(lowering, indices, place, axis, of_places, sizes) for place, axis in enumerate(indexed)}
    for axis in partial:
        spread = [1] * (len(batch) + len(of_places))
        spread[len(batch) + of_places.index(axis)] = sizes[axis]
        columns[axis] = np.arange(sizes[axis]).reshape(spread)
    for axis, dim in zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True):
        spread = [1] * (len(batch) + len(of_places))
        spread[dim] = batch[dim]
        columns[axis] = np.arange(batch[dim]).reshape(spread)
    order = sorted(columns)
    rest = [axis for axis in range(rank) if axis not in columns]
    full = (*batch, *(sizes[axis] for axis in of_places))
    places = stacked_columns(writer, [columns[axis] for axis in order], full)
    of_batch = [dim for dim in range(len(shape_of(updates))) if dim not in numbers.update_window_dims]
    of_window = [numbers.update_window_dims[windows.index(axis)] for axis in (*of_places, *rest)]
    updates = transpose(writer, updates, [*of_batch, *of_window])
    target = transpose(writer, x, [*order, *rest])
    if exists is not None:
        target, places = _with_room(lowering, target, places, exists, len(of_places))
    written = writer.node(
        "ScatterND", target, places, updates, shape=shape_of(target), dtype=dtype_of(x), reduction=reduction
    )
    inner: Operand = written
    if exists is not None:
        inner = _along(lowering, written, 0, 0, shape_of(x)[order[0]])
    return transpose(writer, inner, np.argsort([*order, *rest]).tolist())


def _with_room(
    lowering: Lowering, target: Operand, places: Operand, exists: Operand, windows: int
) -> tuple[Operand, Operand]:
    """An array with one more row, where everything is written that is to be dropped."""
    writer, shape = lowering.writer, shape_of(target)
    row = broadcast(writer, np.zeros((1,) * len(shape), dtype_of(target)), (1, *shape[1:]))
    outside = np.array([shape[0], *[0] * (shape_of(places)[-1] - 1)], np.int64)
    holds = reshape(writer, exists, (*shape_of(exists), *[1] * (windows + 1)))
    places = elements(lowering, "Where", holds, places, outside, shape=shape_of(places), dtype=np.int64)
    return concatenate(writer, [target, row], 0), places


RULES: dict[str, Rule] = {
    "dynamic_update_slice": dynamic_update_slice,
    **dict.fromkeys(_REDUCTIONS, scatter),
}
