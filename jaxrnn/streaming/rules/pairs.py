"""Values with time on two axes: one element for each pair of frames, such as the scores of an attention.

A `Pairs` is an expression. The expression is computed when a reduction removes one time axis (`rules.keys`). The
frames along this axis are the keys, and the frames along the other axis are the queries. A mask of positions must
bound the distance between a query and a key: outside of the bounds, an element must not change the result, as minus
infinity in a maximum or 0 in a sum. A step evaluates the expression for its queries and for the keys within the
bounds, and keeps a history of keys.

Example: with ``where(abs(i - j) <= 2, scores, -inf)``, a step of one frame evaluates five keys, and
the query waits for two frames.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.extend.core import JaxprEqn

from jaxrnn.jaxprs.equations import shape_of, trace, type_of
from jaxrnn.jaxprs.primitives import entry_of
from jaxrnn.streaming.diagnostics import describe_equation
from jaxrnn.streaming.dimensions import (
    LARGEST,
    Timeline,
    gathered_axes,
    in_shape,
    is_symbolic,
    out_shape,
    symbolic_axes,
)
from jaxrnn.streaming.index_rules import operation_of
from jaxrnn.streaming.integers import UNKNOWN, Index, is_held_by_all
from jaxrnn.streaming.interpreter import PAIR_RULES, interpret
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.rules.elementwise import frame_numbers, singular_operands
from jaxrnn.streaming.rules.outside import lowness_of, outside_of, real_number, typed
from jaxrnn.streaming.rules.parallel import where_keys_exist
from jaxrnn.streaming.rules.windows import Window, framed
from jaxrnn.streaming.values import (
    FAR,
    Chunk,
    FinalValue,
    Joined,
    Mask,
    Pairs,
    index_after,
    is_fixed,
    is_length,
    static_number,
    term_of,
)

HINT = "bound how far each frame sees with a mask of positions (frame i sees frame j only if abs(i - j) <= 16)"


@dataclass(frozen=True)
class Grid:
    """The pairs of a step: all queries of the step, and the keys at distances `first` to `last` from each query.

    Attributes:
        run: the pass.
        query: the side of the queries, 0 or 1.
        delay: the delay of the queries.
        first, last: the range of distances from a query to the keys.
        count: the number of queries.
    """

    run: Pass = field(compare=False, repr=False)
    query: int
    delay: int
    first: int
    last: int
    count: int

    def size(self, side: int) -> int:
        """Return the frames along a side."""
        return self.count if side == self.query else self.count + self.last - self.first

    @property
    def mirrored(self) -> Grid:
        """Return the same pairs with the sides exchanged."""
        return dataclasses.replace(self, query=1 - self.query)

    def frames(self, chunk: Chunk, side: int) -> Any:
        """Return the frames of a chunk along a side; key frames that do not exist are 0."""
        if side == self.query:
            return self.run.delayed(chunk, self.delay).array
        chunk = self.run.delayed(chunk, self.delay - self.last)
        length = self.last - self.first + 1
        window = Window(length=length, stride=1, dilation=1, spacing=1, low=-self.first)
        keys = framed(self.run, chunk, window, 1, 0, chunk.timeline.size)
        return jnp.moveaxis(keys.frames, keys.axis, chunk.axis)

    @property
    def is_strict(self) -> bool:
        """Return True if no query is one of the keys, so that the first queries may see no key that exists."""
        return not self.first <= 0 <= self.last

    def positions(self, timeline: Timeline) -> Any:
        """Return the numbers of the key frames."""
        return (
            self.run.now.start(timeline, self.delay) + self.first + np.arange(self.size(1 - self.query), dtype=np.int32)
        )

    def existing(self, timeline: Timeline) -> Any:
        """Return a mask of the keys that exist, ``bool[keys]``, or True if all keys exist."""
        run = self.run
        run.notes.wait_for(timeline, self.delay - self.first + 1)
        where, end = self.positions(timeline), run.now.end(timeline)
        exist = where >= 0 if end is None else (where >= 0) & (where < end)
        return True if isinstance(exist, np.ndarray) and np.all(exist) else exist


@PAIR_RULES.add("iota")
def iota(run: Pass, equation: JaxprEqn) -> Pairs:
    """Count frames along a time axis, or count along a different axis."""
    shape, dimension = equation.params["shape"], equation.params["dimension"]
    axes, timeline = two_axes(run, shape)
    if dimension not in axes:
        dtype = equation.params["dtype"]
        compute = lambda grid: lax.broadcasted_iota(dtype, sized(shape, axes, grid), dimension)  # noqa: E731
        return Pairs(compute, axes, timeline)
    counted = frame_numbers(run, shape[dimension], equation.params["dtype"])
    return _along(run, counted, shape, (dimension,))


@PAIR_RULES.add("broadcast_in_dim")
def broadcast_in_dim(run: Pass, equation: JaxprEqn, x: Any, *_: Any) -> Pairs | Joined:
    """Broadcast to two axes of time."""
    shape, dimensions = out_shape(equation), equation.params["broadcast_dimensions"]
    sizes = [str(size) for size in shape if is_symbolic(size)]
    if _is_scalar(x) and len(sizes) == 2 and sizes[0] != sizes[1]:
        return _joined(run, -1, [(x, ())])
    if not isinstance(x, Pairs):
        return _broadcast(run, equation, x, dimensions)
    axes = two_axes(run, shape)[0]

    def compute(grid: Grid) -> Any:
        return run.bind(equation, [full(x, in_shape(equation), grid)], shape=sized(shape, axes, grid))[0]

    return x.moved(compute, [dimensions[axis] for axis in x.axes])


def _broadcast(run: Pass, equation: JaxprEqn, x: Any, dimensions: Sequence[int] | None = None) -> Pairs:
    """Broadcast a value to the shape of the result."""
    shape = out_shape(equation)
    dimensions = tuple(range(len(shape))) if dimensions is None else dimensions
    axes, timeline = two_axes(run, shape)
    if isinstance(x, Chunk):
        return _along(run, x, shape, dimensions)
    if isinstance(x, FinalValue):
        run.refuse("it spreads a value that is known at the end over pairs of frames", HINT)
    index = term_of(x).of_pairs
    if index.needs_length:
        return Pairs(lambda grid: index.rows(0, 0), axes, timeline, index=index, shape=shape)
    run.refuse_final_values([x])
    array, number = jnp.asarray(x), real_number(x)
    return Pairs(
        lambda grid: lax.broadcast_in_dim(array, sized(shape, axes, grid), dimensions),
        axes, timeline, below=number, above=number, index=index,
        shape=shape, dtype=array.dtype, origin=(None, (array, None, dimensions)),
    )  # fmt: skip


def two_axes(run: Pass, shape: Sequence[Any]) -> tuple[tuple[int, ...], Timeline]:
    """Return the two axes of time in a shape, and their timeline."""
    axes = tuple(symbolic_axes(shape))
    if len(axes) != 2 or str(shape[axes[0]]) != str(shape[axes[1]]):
        run.refuse(
            f"its result has time on two axes of different lengths, or on more axes: {list(shape)}",
            "pair frames of one length, such as the queries and the keys of self-attention",
        )
    return axes, run.clock.timeline(shape[axes[0]])


def sized(shape: Sequence[Any], axes: Sequence[int], grid: Grid) -> tuple[int, ...]:
    """Return a shape with the numbers of queries and keys in place of the lengths."""
    sizes = list(shape)
    for side, axis in enumerate(axes):
        sizes[axis] = grid.size(side)
    return tuple(sizes)


def leaf_of(run: Pass, chunk: Chunk) -> Chunk:
    """Return a chunk with one stream, for an expression of pairs."""
    if chunk.outer != 1:
        run.refuse("one of its time axes is merged with another axis", "split the axes first")
    return run.on_time(run.spread(chunk))


def _along(run: Pass, chunk: Chunk, shape: Sequence[Any], dimensions: Sequence[int]) -> Pairs:
    """Return a chunk that is broadcast along a second axis of time."""
    axes, timeline = two_axes(run, shape)
    leaf, side = leaf_of(run, chunk), axes.index(dimensions[chunk.axis])
    index = chunk.index.placed(dimensions, len(shape))
    level = None if index.number is None else typed(index.number, leaf.array.dtype)
    return Pairs(
        lambda grid: lax.broadcast_in_dim(grid.frames(leaf, side), sized(shape, axes, grid), tuple(dimensions)),
        axes, timeline, ((leaf, side),), below=level, above=level, index=index.swapped if side else index,
        shape=tuple(shape), dtype=leaf.array.dtype, origin=(None, (leaf, side, tuple(dimensions))),
    )  # fmt: skip


@PAIR_RULES.add("floor_divide", "remainder", kind="elementwise")
def elementwise(run: Pass, equation: JaxprEqn, *operands: Any) -> Pairs | None:
    """Apply an operation to each element."""
    shape = out_shape(equation)
    # Other values, with axes of size 1, are broadcast to the shape of the result.
    atoms = zip(equation.invars, operands, strict=True)
    shapes = [shape_of(atom) if isinstance(x, Pairs) else shape for atom, x in atoms]
    operands = tuple(x if isinstance(x, Pairs) or _is_scalar(x) else _broadcast(run, equation, x) for x in operands)
    pairs = [value for value in operands if isinstance(value, Pairs)]
    like, dtype = pairs[0], type_of(equation.outvars[0])

    def compute(grid: Grid) -> Any:
        arrays = [full(x, shape, grid) for x, shape in zip(operands, shapes, strict=True)]
        harmless = entry_of(equation).harmless
        for place in singular_operands(equation):
            if isinstance(x := operands[place], Pairs) and harmless is not None:
                arrays[place] = _harmless(x, grid, arrays[place], harmless)
        return run.bind(equation, arrays)[0]

    index = index_after(equation, operands)
    result = Pairs(compute, like.axes, like.timeline, _leaves(pairs), index=index).made_by(equation, operands)
    if index.bounds is not None:
        known = _of_positions(run, index, like, dtype, shape)
        changed = {key: getattr(known, key) for key in ("compute", "low", "high", "below", "above")}
        return dataclasses.replace(result, **changed)
    if operation_of(equation) != equation.primitive.name:
        return None  # a call of operations, which have rules
    unclear = next((value.unclear for value in pairs if value.unclear), None)
    if unclear is None and dtype == np.bool_:
        unclear = f"{describe_equation(run.path)} {_unclear(equation, operands)}"
    least = [term_of(x).least for x in operands]
    below, above = (
        outside_of(equation, [getattr(x, key) if isinstance(x, Pairs) else static_number(x) for x in operands], least)
        for key in ("below", "above")
    )
    low = min((value.low for value in pairs if value.below is not None), default=FAR)
    high = max((value.high for value in pairs if value.above is not None), default=-FAR)
    result = dataclasses.replace(result, low=low, high=high, below=below, above=above, unclear=unclear)
    # A mask may have other readers, so the equation of a mask does not count for a value that depends on the input.
    like_result = [value for value in pairs if _is_of_input(value) == _is_of_input(result)]
    masked = tuple(dict.fromkeys(place for value in like_result for place in value.masked if dtype != np.bool_))
    levels = [lowness_of(below), lowness_of(above)]
    if not masked and None in levels:
        masked = tuple(Mask(run.path, side, level) for side, level in enumerate(levels) if level is not None)
    return dataclasses.replace(result, masked=masked)


def _unclear(equation: JaxprEqn, operands: Sequence[Any]) -> str:
    """Return why no index describes a comparison."""
    types = [type_of(atom) for atom, x in zip(equation.invars, operands, strict=True) if isinstance(x, Pairs)]
    fixed = [not _is_of_input(x) for x in operands if isinstance(x, Pairs)]
    if all(fixed) and not is_held_by_all(types[0]):
        return (
            f"compares numbers of {types[0].name}, which does not hold the numbers of all frames: count in int32, or "
            "give `constraints=['S <= 100']` if no longer recordings occur"
        )
    return "does not compare the numbers of two frames"


def _harmless(x: Pairs, grid: Grid, array: Any, value: float) -> Any:
    """Replace elements of keys and queries that do not exist, where buffers of frames begin with zeros.

    Elements that follow from the numbers of frames stay constants.
    """
    leaves = [(chunk, side) for chunk, side in x.leaves if chunk.reach is not None]
    late = [chunk.delay is not None and chunk.delay < grid.delay for chunk, side in leaves if side == grid.query]
    if any(side != grid.query for _, side in leaves):
        array = where_keys_exist(array, x.axes[1 - grid.query], grid.existing(x.timeline), value)
    if any(late):
        where = grid.run.now.start(x.timeline, grid.delay) + np.arange(grid.count, dtype=np.int32)
        array = where_keys_exist(array, x.axes[grid.query], where >= 0, value)
    return array


def _is_of_input(x: Pairs) -> bool:
    return any(chunk.reach is not None for chunk, _ in x.leaves)


def _is_scalar(x: Any) -> bool:
    return not isinstance(x, Chunk | FinalValue) and not is_length(x) and np.ndim(x) == 0


def _leaves(pairs: Iterable[Pairs]) -> tuple[tuple[Chunk, int], ...]:
    """Return the chunks of several expressions, each once."""
    return tuple({(id(chunk), side): (chunk, side) for each in pairs for chunk, side in each.leaves}.values())


def _of_index(run: Pass, like: Pairs, index: Index, dtype: Any, rank: int, grid: Grid) -> Any:
    """Read elements from a table of the index, with a row for each phase and a column for each distance."""
    queries, keys = np.arange(grid.count), np.arange(grid.size(1 - grid.query))
    index, period = index.swapped if grid.query else index, index.period
    table = index.rows(grid.first + 1 - grid.count, grid.first + len(keys) - 1).astype(dtype)
    columns = keys - queries[:, None] + grid.count - 1
    if period == 1:
        array = jnp.asarray(table[0][columns])
    else:
        units = run.now.count if isinstance(run.now.count, int) else run.now.counted()
        run.notes.repeat(period)
        phase = jnp.asarray((units * like.timeline.per_unit - grid.delay) % period, jnp.int32)
        if period * columns.size <= LARGEST:
            every = np.stack([table[(start + queries[:, None]) % period, columns] for start in range(period)])
            array = lax.dynamic_index_in_dim(jnp.asarray(every), phase, keepdims=False)
        else:
            array = jnp.asarray(table)[(phase + queries[:, None]) % np.int32(period), columns]
    outside = index.bounds
    if grid.is_strict and outside is not None and None not in (outside.below, outside.above):
        where = grid.positions(like.timeline)
        beyond = jnp.where(where < 0, *(jnp.asarray(value, array.dtype) for value in (outside.below, outside.above)))
        array = jnp.where(grid.existing(like.timeline), array, beyond)
    array = array.T if grid.query else array
    return jnp.expand_dims(array, [axis for axis in range(rank) if axis not in like.axes])


@PAIR_RULES.add("slice", "dynamic_slice")
def cut(run: Pass, equation: JaxprEqn, table: Any, *starts: Any) -> Pairs | None:
    """Take rows and columns of a constant table whose elements follow from the distance of two frames.

    Fixed masks are such tables. The constraints guarantee that the table is large enough.
    """
    shape, axes = out_shape(equation), symbolic_axes(out_shape(equation))
    if len(axes) != 2 or not isinstance(table, np.ndarray | jax.Array) or isinstance(table, Tracer):
        return None
    starts = equation.params.get("start_indices", starts)
    begin = {axis: static_number(starts[axis]) for axis in axes}
    rest = [axis for axis in range(len(shape)) if axis not in axes]
    size = min(table.shape[axis] for axis in axes)
    if len({*begin.values()}) != 1 or None in begin.values() or any(table.shape[d] != shape[d] for d in rest):
        return None
    elements = np.moveaxis(np.asarray(table), axes, (0, 1))[:size, :size].reshape(size, size, -1)
    is_by_distance = np.array_equal(elements[1:, 1:], elements[:-1, :-1]) and np.all(elements == elements[..., :1])
    if elements.dtype.kind not in "biu" or not is_by_distance or {*(equation.params.get("strides") or ())} - {1}:
        return None
    by_distance = np.concatenate([elements[:0:-1, 0, 0], elements[0, :, 0]])
    at = lambda i, j: by_distance[np.clip(j - i + size - 1, 0, 2 * size - 2)]  # noqa: E731
    axes, timeline = two_axes(run, shape)
    index, like = Index(at, constants=size, degree=0), Pairs(lambda grid: table, axes, timeline)
    return _of_positions(run, index, like, elements.dtype, shape)


def _parts(run: Pass, equation: JaxprEqn, x: Pairs, indices: np.ndarray) -> Pairs | None:
    """Take parts along other axes than time, such as the mask of a stream of a batch."""
    numbers, sizes, shape = equation.params["dimension_numbers"], equation.params["slice_sizes"], in_shape(equation)
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    most = np.array([shape[axis] - sizes[axis] for axis in numbers.start_index_map if axis not in x.axes])
    if {*x.axes} & {*numbers.start_index_map, *dropped} or np.any(indices < 0) or np.any(indices > most):
        return None
    kept = [axis for axis in range(len(shape)) if axis not in dropped]
    axes = [numbers.offset_dims[kept.index(axis)] for axis in x.axes]
    parts = lambda grid: sized(sizes, x.axes, grid)  # noqa: E731
    return x.moved(lambda grid: run.bind(equation, [full(x, shape, grid), indices], slice_sizes=parts(grid))[0], axes)


def _of_positions(run: Pass, index: Index, like: Pairs, dtype: Any, shape: Sequence[Any]) -> Pairs:
    """Return elements that follow from the positions of frames."""
    bounds = index.bounds
    assert bounds is not None
    below, above = (None if value is None else typed(value, dtype) for value in (bounds.below, bounds.above))
    return Pairs(
        lambda grid: _of_index(run, like, index, dtype, len(shape), grid),
        like.axes, like.timeline, low=bounds.low, high=bounds.high, below=below, above=above, index=index,
    )  # fmt: skip


@PAIR_RULES.add("tile")
def tile(run: Pass, equation: JaxprEqn, x: Pairs) -> Pairs | None:
    """Repeat the elements along other axes."""
    if any(equation.params["reps"][axis] != 1 for axis in x.axes):
        return None
    return x.moved(lambda grid: run.bind(equation, [full(x, in_shape(equation), grid)])[0], x.axes)


@PAIR_RULES.add("concatenate")
def concatenate(run: Pass, equation: JaxprEqn, *operands: Any) -> Pairs | Joined:
    """Join pairs of frames along another axis, such as attention heads, or along time, such as an attention sink."""
    dimension, parts = equation.params["dimension"], list(zip(operands, map(shape_of, equation.invars), strict=True))
    if is_symbolic(out_shape(equation)[dimension]):
        return _joined(run, dimension, parts)
    compute = lambda grid: run.bind(equation, [full(x, shape, grid) for x, shape in parts])[0]  # noqa: E731
    below, above = (
        values[0] if len(set(values)) == 1 else None
        for values in ([getattr(x, key) for x in operands] for key in ("below", "above"))
    )
    return dataclasses.replace(
        operands[0], compute=compute, leaves=_leaves(operands), index=UNKNOWN, shape=(), _kept={}, below=below,
        above=above, low=min(x.low for x in operands), high=max(x.high for x in operands),
        unclear=next((x.unclear for x in operands if x.unclear), None),
        masked=tuple(dict.fromkeys(mask for x in operands for mask in x.masked)),
    )  # fmt: skip


def _joined(run: Pass, axis: int, parts: Sequence[tuple[Any, Any]]) -> Joined:
    hint = "join numbers of each query to the scores before a softmax, and cut off their columns behind it"
    error = run.refusal("it joins pairs of frames along time", hint)
    return Joined(error, axis=axis, parts=tuple(x for x, _ in parts), shapes=tuple(tuple(shape) for _, shape in parts))


@PAIR_RULES.add("pad")
def pad(run: Pass, equation: JaxprEqn, x: Any, value: Any) -> Joined | None:
    """Join columns or rows of a single number to pairs of frames."""
    config, shape = equation.params["padding_config"], in_shape(equation)
    axes = [axis for axis, amounts in enumerate(config) if any(each != 0 for each in amounts)]
    known = isinstance(x, Pairs) and len(axes) == 1 and not any(map(is_symbolic, config[axes[0]]))
    if not known or min(config[axes[0]]) < 0 or config[axes[0]][2]:
        return None
    (axis,), (low, high, _) = axes, config[axes[0]]

    def joined(x: Any, value: Any) -> Any:
        ends = (lax.full([*shape[:axis], int(each), *shape[axis + 1 :]], value) for each in (low, high))
        return lax.concatenate([part for part in (next(ends), x, next(ends)) if part.shape[axis] != 0], axis)

    structs = [jax.ShapeDtypeStruct(shape_of(atom), type_of(atom)) for atom in equation.invars]
    (result,) = interpret(run, trace(joined, *structs)[0], [x, value])
    return dataclasses.replace(result, error=_joined(run, axis, []).error)  # of the pad


@PAIR_RULES.add("transpose")
def transpose(run: Pass, equation: JaxprEqn, x: Pairs) -> Pairs:
    """Change the order of the axes."""
    order = list(equation.params["permutation"])
    return x.moved(lambda grid: run.bind(equation, [x.on(grid)])[0], [order.index(axis) for axis in x.axes])


@PAIR_RULES.add("reshape")
def reshape(run: Pass, equation: JaxprEqn, x: Pairs, *_: Any) -> Pairs:
    """Reshape the axes around both axes of time."""
    old, new = in_shape(equation), out_shape(equation)
    axes = symbolic_axes(new)

    def around(shape: Sequence[Any], places: Sequence[int]) -> list[int]:
        first, second = places
        return [math.prod(shape[:first]), math.prod(shape[first + 1 : second]), math.prod(shape[second + 1 :])]

    if len(axes) != 2 or around(old, x.axes) != around(new, axes):
        run.refuse("it merges the two time axes of pairs of frames, or splits one", HINT)
    return x.moved(lambda grid: jnp.reshape(full(x, old, grid), sized(new, axes, grid)), axes)


def full(x: Any, shape: Sequence[Any], grid: Grid) -> Any:
    """Return the elements in the shape of the operand: a table may have axes of size 1."""
    return jnp.broadcast_to(x.on(grid), sized(shape, x.axes, grid)) if isinstance(x, Pairs) else x


@PAIR_RULES.add("gather")
def gather(run: Pass, equation: JaxprEqn, table: Any, indices: Any) -> Pairs | None:
    """Index a constant table by each pair of frames, as biases by relative position do."""
    numbers, shape = equation.params["dimension_numbers"], in_shape(equation, 1)
    if isinstance(table, Pairs) and is_fixed(indices):
        return _parts(run, equation, table, np.asarray(indices))
    if len(numbers.offset_dims) == len(out_shape(equation)) and is_fixed(indices) and np.ndim(indices) == 1:
        starts = np.zeros(len(in_shape(equation)), np.int64)
        starts[list(numbers.start_index_map)] = indices
        return cut(run, equation, table, *starts)
    if (
        not isinstance(indices, Pairs)
        or isinstance(table, Chunk | FinalValue | Pairs)
        or symbolic_axes(np.shape(table))
    ):
        return None
    if len(shape) - 1 in indices.axes or {*indices.axes} & {*numbers.start_indices_batching_dims}:
        return None
    batch = gathered_axes(equation)
    compute = lambda grid: run.bind(equation, [table, full(indices, shape, grid)])[0]  # noqa: E731
    found = indices.moved(compute, [batch[axis] for axis in indices.axes])
    return dataclasses.replace(found, below=None, above=None, index=UNKNOWN)
