"""Rules for primitives that move or select elements."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.export.lowering import RULES, Lowering
from jaxrnn.export.reshaping import broadcast, concatenate, cut, cut_along, flip, pad, reshape, transpose
from jaxrnn.export.rules.elementwise import cast, elements, range_of
from jaxrnn.export.writer import Operand, Writer, dtype_of, shape_of
from jaxrnn.jaxprs.equations import shape_of as shape_of_atom
from jaxrnn.jaxprs.primitives import entry_of


@RULES.add("reshape")
def reshaped(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write ``Reshape``."""
    return reshape(lowering.writer, x, shape_of_atom(equation.outvars[0]))


@RULES.add("split")
def split(lowering: Lowering, equation: JaxprEqn, x: Operand) -> list[Operand]:
    """Write ``Split``."""
    axis, sizes = equation.params["axis"], [int(size) for size in equation.params["sizes"]]
    if len(sizes) == 1:
        return [x]
    results = [(shape_of_atom(each), dtype_of(x)) for each in equation.outvars]
    return [*lowering.writer.nodes_of("Split", [x, np.array(sizes, np.int64)], results, axis=axis)]


@RULES.add("broadcast_in_dim")
def repeated(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write ``Expand``."""
    return broadcast(lowering.writer, x, shape_of_atom(equation.outvars[0]), equation.params["broadcast_dimensions"])


@RULES.add("concatenate")
def concatenated(lowering: Lowering, equation: JaxprEqn, *parts: Operand) -> Operand:
    """Write ``Concat``."""
    return concatenate(lowering.writer, parts, equation.params["dimension"])


@RULES.add("rev")
def reversed_(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write ``Slice`` from the end."""
    return flip(lowering.writer, x, equation.params["dimensions"])


@RULES.add("slice")
def sliced(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write ``Slice``."""
    params = equation.params
    return cut(lowering.writer, x, params["start_indices"], params["limit_indices"], params["strides"])


@RULES.add("transpose")
def transposed(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write ``Transpose``."""
    return transpose(lowering.writer, x, equation.params["permutation"])


@RULES.add("tile")
def tiled(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write ``Tile``, or ``Expand`` for axes of size 1."""
    counts, shape = equation.params["reps"], shape_of_atom(equation.outvars[0])
    if all(count == 1 for count in counts):
        return reshape(lowering.writer, x, shape)
    if len(counts) == len(shape_of(x)) and all(
        1 in (size, count) for size, count in zip(shape_of(x), counts, strict=True)
    ):
        return broadcast(lowering.writer, x, shape)
    return lowering.writer.node("Tile", x, np.array(counts, np.int64), shape=shape, dtype=dtype_of(x))


@RULES.add("pad")
def padded(lowering: Lowering, equation: JaxprEqn, x: Operand, value: Operand) -> Operand:
    """Write ``Pad``, and ``Slice`` for negative widths."""
    config, writer = equation.params["padding_config"], lowering.writer
    x = _spread(writer, x, [gap for _, _, gap in config], value)
    shape = shape_of(x)
    starts = [max(-low, 0) for low, _, _ in config]
    ends = [size - max(-high, 0) for size, (_, high, _) in zip(shape, config, strict=True)]
    if any(start >= end for start, end in zip(starts, ends, strict=True)):
        return broadcast(writer, value, shape_of_atom(equation.outvars[0]))
    x = cut(writer, x, starts, ends)
    return pad(writer, x, [(max(low, 0), max(high, 0)) for low, high, _ in config], value)


def _spread(writer: Writer, x: Operand, gaps: Sequence[int], value: Operand) -> Operand:
    """Insert a value ``gaps[axis]`` times between neighbours along each axis."""
    for axis, gap in enumerate(gaps):
        before, size, after = shape_of(x)[:axis], shape_of(x)[axis], shape_of(x)[axis + 1 :]
        if gap and size > 1:
            x = reshape(writer, x, (*before, size, 1, *after))
            x = pad(writer, x, [(0, gap if place == axis + 1 else 0) for place in range(len(gaps) + 1)], value)
            x = reshape(writer, x, (*before, size * (gap + 1), *after))
            x = cut_along(writer, x, axis, 0, size * (gap + 1) - gap)
    return x


@RULES.add("dynamic_slice")
def dynamic_slice(lowering: Lowering, equation: JaxprEqn, x: Operand, *starts: Operand) -> Operand:
    """Write ``Slice`` at constant starts, and ``Gather`` along the other axes."""
    sizes = equation.params["slice_sizes"]
    begins = [0] * len(sizes)
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        room = shape_of(x)[axis] - size
        if room and isinstance(start, np.ndarray):
            begins[axis] = int(np.clip(start, 0, room))
    ends = [
        begin + size if isinstance(start, np.ndarray) else shape_of(x)[axis]
        for axis, (start, begin, size) in enumerate(zip(starts, begins, sizes, strict=True))
    ]
    x = cut(lowering.writer, x, begins, ends)
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        if shape_of(x)[axis] != size:
            places = clipped_indices(lowering, start, shape_of(x)[axis] - size, size)
            x = gather_along(lowering.writer, x, places, axis)
    return x


def clipped_indices(lowering: Lowering, start: Operand, last: int, size: int) -> Operand:
    """Return the ``size`` indices from a start that is clipped to ``last``."""
    start = reshape(lowering.writer, inside(lowering, cast(lowering, start, np.int64), np.array(last)), (1,))
    return start if size == 1 else elements(lowering, "Add", start, np.arange(size))


def inside(lowering: Lowering, places: Operand, last: np.ndarray) -> Operand:
    """Clip indices to ``[0, last]``. ``last`` is a number, or a vector for the last axis."""
    if isinstance(places, np.ndarray):
        return np.asarray(np.clip(places, 0, last))
    low, high = range_of(places)
    if low >= 0 and high <= int(last.min(initial=2**62)):
        return places
    if not last.shape or len(set(last.tolist())) == 1:
        return elements(lowering, "Clip", places, np.array(0), np.array(last.min()))
    return elements(lowering, "Min", elements(lowering, "Max", places, np.array(0)), last)


def gather_along(writer: Writer, x: Operand, places: Operand, axis: int) -> Operand:
    """Write ``Gather`` along an axis, or ``Slice`` for evenly spaced constant indices."""
    shape = (*shape_of(x)[:axis], *shape_of(places), *shape_of(x)[axis + 1 :])
    if isinstance(x, np.ndarray) and isinstance(places, np.ndarray):
        return x.take(places, axis)
    if isinstance(places, np.ndarray) and (step := _step_of(places)) is not None:
        first, last = int(places.flat[0]), int(places.flat[-1])
        return reshape(writer, cut_along(writer, x, axis, first, last + (1 if step > 0 else -1), step), shape)
    return writer.node("Gather", x, places, shape=shape, dtype=dtype_of(x), axis=axis)


def _step_of(places: np.ndarray) -> int | None:
    flat = places.reshape(-1)
    if flat.size < 2:
        return 1 if flat.size else None
    steps = set(np.diff(flat).tolist())
    step = steps.pop()
    return None if steps or not step else step


@RULES.add("gather")
def gather(lowering: Lowering, equation: JaxprEqn, x: Operand, indices: Operand) -> Operand:
    """Write ``Gather``, ``GatherElements`` if all other axes are a batch, or ``GatherND``."""
    params = equation.params
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    fills = params["mode"] == lax.GatherScatterMode.FILL_OR_DROP
    writer, dtype = lowering.writer, dtype_of(x)
    indices = cast(lowering, indices, np.int64)
    last = np.array([shape_of(x)[axis] - sizes[axis] for axis in numbers.start_index_map], np.int64)
    exists = are_inside(lowering, indices, last) if fills else None
    indices = inside(lowering, indices, last)
    batch = shape_of(indices)[:-1]

    # Axes without an index are read from 0.
    indexed = [*numbers.start_index_map, *numbers.operand_batching_dims]
    ends = [size if axis in indexed else sizes[axis] for axis, size in enumerate(shape_of(x))]
    x = cut(writer, x, [0] * len(ends), ends)
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    windows = [axis for axis in sorted(numbers.start_index_map) if axis not in dropped]
    rest = [axis for axis in range(len(ends)) if axis not in indexed and axis not in dropped]

    pairs = list(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    found = None
    if not windows and not rest and len(numbers.start_index_map) == 1:
        found = _gather_elements(writer, x, reshape(writer, indices, batch), numbers.start_index_map[0], pairs)
    if found is None:
        columns = {
            axis: column_of(lowering, indices, column, axis, windows, sizes)
            for column, axis in enumerate(numbers.start_index_map)
        }
        for axis, dim in pairs:
            columns[axis] = _counted(batch[dim], dim, len(batch) + len(windows))
        columns |= _first_places(dropped, columns, len(batch) + len(windows))
        full = (*batch, *(sizes[axis] for axis in windows))
        if not columns:
            found = broadcast(writer, x, (*full, *shape_of(x)))
        elif len(columns) == 1:
            ((axis, places),) = columns.items()
            found = gather_along(writer, x, broadcast(writer, places, full), axis)
            found = _moved(writer, found, axis, len(full))
        else:
            order = sorted(columns)
            places = stacked_columns(writer, [columns[axis] for axis in order], full)
            x = transpose(writer, x, [*order, *rest])
            shape = (*full, *(shape_of(x)[len(order) :]))
            found = writer.node("GatherND", x, places, shape=shape, dtype=dtype)
    # The axes are the batch, then windows, then the rest.
    of_offset = [*windows, *rest]
    kept = sorted(of_offset)
    result = shape_of_atom(equation.outvars[0])
    in_batch = iter(range(len(batch)))
    order = [
        len(batch) + of_offset.index(kept[numbers.offset_dims.index(d)]) if d in numbers.offset_dims else next(in_batch)
        for d in range(len(result))
    ]
    found = transpose(writer, found, order)
    if exists is None:
        return found
    spread = [1 if d in numbers.offset_dims else size for d, size in enumerate(result)]
    fill = np.array(params["fill_value"], dtype)
    return elements(lowering, "Where", reshape(writer, exists, spread), found, fill, shape=result, dtype=dtype)


def _moved(writer: Writer, x: Operand, axis: int, count: int) -> Operand:
    """Move ``count`` axes from ``axis`` on to the front."""
    rank = len(shape_of(x))
    moved = range(axis, axis + count)
    return transpose(writer, x, [*moved, *(other for other in range(rank) if other not in moved)])


def _gather_elements(
    writer: Writer, x: Operand, places: Operand, axis: int, pairs: Sequence[tuple[int, int]]
) -> Operand | None:
    """Write ``GatherElements`` if the indices have a single axis besides the batch."""
    rank = len(shape_of(x))
    free = [dim for dim in range(len(shape_of(places))) if dim not in {dim for _, dim in pairs}]
    if rank < 2 or len(free) != 1 or len(pairs) != rank - 1:
        return None
    of_axis = {**dict(pairs), axis: free[0]}
    order = [of_axis[each] for each in range(rank)]
    places = transpose(writer, places, order)
    found = writer.node("GatherElements", x, places, shape=shape_of(places), dtype=dtype_of(x), axis=axis)
    return transpose(writer, found, np.argsort(order).tolist())


def column_of(
    lowering: Lowering, indices: Operand, column: int, axis: int, windows: Sequence[int], sizes: Any
) -> Operand:
    """Return the indices along an axis, of shape batch and windows."""
    batch = shape_of(indices)[:-1]
    start = cut_along(lowering.writer, indices, len(batch), column, column + 1)
    start = reshape(lowering.writer, start, (*batch, *(1 for _ in windows)))
    if axis not in windows or sizes[axis] == 1:
        return start
    places = _counted(sizes[axis], len(batch) + windows.index(axis), len(shape_of(start)))
    return elements(lowering, "Add", start, places)


def _counted(size: int, axis: int, rank: int) -> np.ndarray:
    """Count along an axis of an array with size 1 along all other axes."""
    return np.arange(size).reshape([-1 if place == axis else 1 for place in range(rank)])


def _first_places(dropped: Collection[int], columns: Mapping[int, Operand], rank: int) -> dict[int, Operand]:
    """Return index 0 for the axes that a slice lacks and that have no index."""
    return {axis: np.zeros((1,) * rank, np.int64) for axis in dropped if axis not in columns}


def stacked_columns(writer: Writer, columns: Sequence[Operand], shape: Sequence[int]) -> Operand:
    """Stack the indices of several axes along a new last axis."""
    return concatenate(
        writer, [reshape(writer, broadcast(writer, each, shape), (*shape, 1)) for each in columns], len(shape)
    )


def are_inside(lowering: Lowering, indices: Operand, last: np.ndarray) -> Operand | None:
    """Return a mask of the indices in range, or None if all are in range."""
    if isinstance(indices, np.ndarray):
        holds = np.asarray(np.all((indices >= 0) & (indices <= last), -1))
        return None if holds.all() else holds
    low, high = range_of(indices)
    if low >= 0 and high <= int(last.min(initial=2**62)):
        return None
    writer = lowering.writer
    conditions = []
    if low < 0:
        conditions.append(elements(lowering, "GreaterOrEqual", indices, np.array(0), dtype=bool))
    conditions.append(elements(lowering, "LessOrEqual", indices, last, dtype=bool))
    holds = conditions[0] if len(conditions) == 1 else elements(lowering, "And", *conditions)
    batch, count = shape_of(indices)[:-1], shape_of(indices)[-1]
    columns = [
        reshape(writer, cut_along(writer, holds, len(batch), column, column + 1), batch) for column in range(count)
    ]
    return functools.reduce(functools.partial(elements, lowering, "And"), columns)


#: The elementwise operator of a monoid. ``ScatterND`` has a reduction of this name.
_OPERATORS = {"sum": "Add", "prod": "Mul", "min": "Min", "max": "Max"}


@RULES.add("dynamic_update_slice")
def dynamic_update_slice(
    lowering: Lowering, equation: JaxprEqn, x: Operand, update: Operand, *starts: Operand
) -> Operand:
    """Write ``Concat`` around a slice at a constant start, or ``ScatterND``."""
    places = [
        inside(lowering, cast(lowering, start, np.int64), np.array(size - part))
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
    """Change a slice of an array, axis by axis, constant starts first."""
    writer, shape = lowering.writer, shape_of(x)
    partial = [each for each in range(len(shape)) if shape[each] != sizes[each]]
    if not partial:
        return change(x)
    known = [each for each in partial if isinstance(starts[each], np.ndarray)]
    axis = (known or partial)[0]
    start = starts[axis]
    if isinstance(start, np.ndarray):
        bounds = [0, int(start), int(start) + sizes[axis], shape[axis]]
        before, part, after = (cut_along(writer, x, axis, low, high) for low, high in itertools.pairwise(bounds))
        return concatenate(writer, [before, _updated(lowering, part, starts, sizes, change), after], axis)
    places = clipped_indices(lowering, start, shape[axis] - sizes[axis], sizes[axis])
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


@RULES.add(kind="scatter")
def scatter(lowering: Lowering, equation: JaxprEqn, x: Operand, indices: Operand, updates: Operand) -> Operand:
    """Write ``ScatterND``; a single slice at a constant start is changed in place by ``Concat``."""
    params = equation.params
    numbers = params["dimension_numbers"]
    operator = _OPERATORS.get(entry_of(equation).monoid)
    reduction, opset = operator and operator.lower(), 18 if operator in ("Min", "Max") else 16
    if entry_of(equation).subtracts:
        operator = "Sub"
    if operator is not None and dtype_of(x) == np.bool_:  # engines have no extremes of booleans here
        x, updates = (cast(lowering, each, np.int32) for each in (x, updates))
        return cast(lowering, scatter(lowering, equation, x, indices, updates), bool)
    writer, rank = lowering.writer, len(shape_of(x))
    dropped = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    windows = [axis for axis in range(rank) if axis not in dropped]
    sizes = [1] * rank
    for axis, dim in zip(windows, numbers.update_window_dims, strict=True):
        sizes[axis] = shape_of(updates)[dim]
    indexed = [*numbers.scatter_dims_to_operand_dims]
    last = np.array([shape_of(x)[axis] - sizes[axis] for axis in indexed], np.int64)
    indices = cast(lowering, indices, np.int64)
    clips = params["mode"] == lax.GatherScatterMode.CLIP
    exists = None if clips else are_inside(lowering, indices, last)
    indices = inside(lowering, indices, last)
    batch = shape_of(indices)[:-1]

    if (
        isinstance(indices, np.ndarray)
        and exists is None
        and math.prod(batch) == 1
        and not numbers.operand_batching_dims
    ):
        starts = [np.array(0)] * rank
        for axis, start in zip(indexed, np.asarray(indices).reshape(-1), strict=True):
            starts[axis] = np.asarray(start)
        update = reshape(writer, updates, sizes)  # the axes of windows are in the operand's order
        return _updated(
            lowering,
            x,
            starts,
            sizes,
            lambda part: update if operator is None else elements(lowering, operator, part, update),
        )
    if reduction is not None and writer.opset < opset:
        lowering.refuse(f"ScatterND has reduction={reduction!r} from opset {opset} on: give `opset={opset}`")
    if operator == "Sub":
        updates = elements(lowering, "Neg", updates)

    # Axes without an index are written from 0.
    partial = [axis for axis in windows if axis not in indexed and sizes[axis] != shape_of(x)[axis]]
    of_places = [axis for axis in windows if axis in indexed or axis in partial]
    columns = {axis: column_of(lowering, indices, place, axis, of_places, sizes) for place, axis in enumerate(indexed)}
    for axis in partial:
        columns[axis] = _counted(sizes[axis], len(batch) + of_places.index(axis), len(batch) + len(of_places))
    for axis, dim in zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True):
        columns[axis] = _counted(batch[dim], dim, len(batch) + len(of_places))
    columns |= _first_places(dropped, columns, len(batch) + len(of_places))
    if not columns:
        lowering.refuse("it writes several updates without an index; reduce the updates first")
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
        inner = cut_along(writer, written, 0, 0, shape_of(x)[order[0]])
    return transpose(writer, inner, np.argsort([*order, *rest]).tolist())


def _with_room(
    lowering: Lowering, target: Operand, places: Operand, exists: Operand, windows: int
) -> tuple[Operand, Operand]:
    """Append a row that collects dropped writes."""
    writer, shape = lowering.writer, shape_of(target)
    row = broadcast(writer, np.zeros((1,) * len(shape), dtype_of(target)), (1, *shape[1:]))
    outside = np.array([shape[0], *[0] * (shape_of(places)[-1] - 1)], np.int64)
    holds = reshape(writer, exists, (*shape_of(exists), *[1] * (windows + 1)))
    places = elements(lowering, "Where", holds, places, outside, shape=shape_of(places), dtype=np.int64)
    return concatenate(writer, [target, row], 0), places
