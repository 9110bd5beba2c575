"""Sums and extremes over the keys of each query, which turn pairs of frames into frames (see `rules.pairs`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.jaxprs import casts
from jaxrnn.jaxprs.equations import free_axes, shape_of, trace, type_of
from jaxrnn.jaxprs.primitives import entry_of
from jaxrnn.streaming.diagnostics import BANDED
from jaxrnn.streaming.dimensions import Timeline, in_shape, out_shape, symbolic_axes
from jaxrnn.streaming.integers import UNKNOWN
from jaxrnn.streaming.interpreter import PAIR_RULES, interpret
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.reach import Reach, union
from jaxrnn.streaming.rules.outside import lowness_of
from jaxrnn.streaming.rules.pairs import HINT, Grid, full, leaf_of, two_axes
from jaxrnn.streaming.rules.parallel import InseparableError, recurrent_sum, running_extreme, where_keys_exist
from jaxrnn.streaming.totals import carried_as, identity_of, is_idempotent
from jaxrnn.streaming.values import Chunk, Mask, Pairs, index_after


@PAIR_RULES.add(*(f"reduce_{kind}" for kind in ("max", "min", "sum", "prod", "and", "or")))
def reduction(run: Pass, equation: JaxprEqn, x: Pairs) -> Any:
    """Reduce the keys of each query, or other axes."""
    axes, kind = equation.params["axes"], entry_of(equation).monoid
    sides = [side for side, axis in enumerate(x.axes) if axis in axes]
    if len(sides) == 2:
        run.refuse("it reduces all pairs of frames, which are known only when the stream has ended", HINT)
    shape = in_shape(equation)
    left = [axis - sum(d < axis for d in axes) for axis in x.axes]
    if not sides:
        moved = x.moved(lambda grid: run.bind(equation, [full(x, shape, grid)])[0], left)
        kept = {"sum": (0,), "prod": (0, 1)}.get(kind)
        below, above = (value if kept is None or value in kept else None for value in (moved.below, moved.above))
        return dataclasses.replace(moved, below=below, above=above, index=UNKNOWN)
    (key,) = sides
    grid, level, older = _grid(run, x, key, kind, type_of(equation.invars[0]))
    array = full(x, shape, grid)
    array = _of_existing(x, grid, key, array, identity_of(kind, array.dtype), older)
    array = array.astype(carried_as(kind, array.dtype)) if older else array
    (result,) = run.bind(equation, [array])
    if older:
        kept = [axis for axis in range(len(shape)) if axis not in axes]
        summed = lambda weights: run.bind(equation, [weights])[0]  # noqa: E731
        result = _with_older(run, x, grid, kind, result, summed, kept).astype(type_of(equation.outvars[0]))
    if level is not None:  # a finite mask means minus infinity only if some score is far above it
        with np.errstate(over="ignore"):  # a low number may be minus infinity in float16
            lowest = np.asarray(level / 2).astype(result.dtype)
        result = jnp.where(result > lowest, result, jnp.nan)
    made = run.make(result, left[1 - key], x.timeline, grid.delay, _reach(x.leaves, x.timeline, grid, older))
    made = made.noting(index) if (index := index_after(equation, [x])).has_numbers else made
    # A query that does not exist may see no key. A softmax then has the derivative NaN.
    return run.harmless(made)


def _of_existing(x: Pairs, grid: Grid, key: int, array: Any, value: Any, older: bool) -> Any:
    """Replace keys that do not exist, except for queries that see no key that exists.

    All keys of such a query are outside of the mask: the result may be NaN, as of a softmax of minus infinities.
    """
    exist = grid.existing(x.timeline)
    if exist is True or older or not grid.is_strict:
        return where_keys_exist(array, x.axes[key], exist, value)
    near = np.arange(grid.count)[:, None] + np.arange(grid.last - grid.first + 1)
    kept = jnp.asarray(exist) | ~jnp.any(jnp.asarray(exist)[near], 1, keepdims=True)
    kept = kept if x.axes[1 - key] < x.axes[key] else kept.T
    others = [axis for axis in range(array.ndim) if axis not in x.axes]
    return jnp.where(jnp.expand_dims(kept, others), array, jnp.asarray(value, array.dtype))


def _with_older(
    run: Pass, x: Pairs, grid: Grid, kind: str, result: Any, summed: Callable[[Any], Any], layout: Sequence[int]
) -> Any:
    """Add the keys before the pulse to the reduction of the keys inside the pulse."""
    try:
        exist = grid.existing(x.timeline)
        if kind == "sum":
            return result + recurrent_sum(run, x, grid, exist, summed, layout)
        return running_extreme(run, kind, x, grid, exist)
    except InseparableError as error:
        _note_attention(run, x, kind, ["earlier"], x.masked, error)
        return result


def _grid(run: Pass, x: Pairs, key: int, kind: str, dtype: Any) -> tuple[Grid, float | None, bool]:
    """Return the pairs that a reduction reads, the level of a finite mask, and True if older keys are in the state."""
    neutral = None if kind == "max" else identity_of(kind, dtype)
    earlier, later = (x.below, x.above) if key == 1 else (x.above, x.below)
    first, last = (x.low, x.high) if key == 1 else (-x.high, -x.low)
    levels, seen, numbers = [], [], []
    for value, name in ((earlier, "earlier"), (later, "later")):
        low = lowness_of(value) if kind == "max" else None
        is_number = low is None and isinstance(value, (bool, int, float))
        if low is None and not (neutral is not None and is_number and value == neutral):
            (numbers if is_number and is_idempotent(kind) else seen).append(name)
        levels += [] if low is None or math.isinf(low) else [low]
    if seen:
        seen = sorted([*seen, *numbers])
    elif numbers:  # one key stands for all keys outside: the next one, or the key of the query, which exists
        first, last = min(first - ("earlier" in numbers), 0), max(last + ("later" in numbers), 0)
    older = seen == ["earlier"] and kind in ("sum", "max", "min")
    if seen and not older:
        _note_attention(run, x, kind, seen, x.masked or (Mask(run.path, key, -math.inf, reads=True),))
        first = last = 0
    elif older:
        first = last
    elif first > last:
        first = last = 0
    ready = [chunk.delay + (last if side == key else 0) for chunk, side in x.leaves if chunk.delay is not None]
    delay = max([x.timeline.certain, *ready])
    return Grid(run, 1 - key, delay, first, last, run.frames_of(x.timeline)), max(levels, default=None), older


def _note_attention(
    run: Pass, x: Pairs, kind: str, seen: Sequence[str], masks: Sequence[Mask], why_not: InseparableError | None = None
) -> None:
    """Note the masks of attention that gets a band, or refuse the attention.

    The pass goes on for shapes only: the function with the bands follows, see `jaxrnn.streaming.rewriting`. In this
    function, the sums of the exponentials of banded scores are bounded, too.
    """
    band = run.facts.bands and run.facts.bands(run.path)
    found = dict.fromkeys(dataclasses.replace(mask, band=band.on(seen)) for mask in masks) if band else {}
    if not band or not band.bounds(seen) or not (x.masked or kind == "max" or run.facts.masks):
        is_offline = band is None and len(seen) == 2 and kind == "max" and x.unclear is None
        needs_past = band is not None and band.past is None
        _refuse_unbounded(run, x, seen, why_not, needs_past=needs_past, first=BANDED if is_offline else "")
    if x.masked or kind == "max":
        run.notes.note(masks=tuple(dict.fromkeys((*run.facts.masks, *found))))


def _refuse_unbounded(
    run: Pass, x: Pairs, seen: Sequence[str], why_not: InseparableError | None = None, *, needs_past: bool = False,
    first: str = "",
) -> NoReturn:  # fmt: skip
    why = f"each frame depends on all {' and '.join(seen)} frames"
    masked, remedy = seen == ["earlier"] and x.masked, why_not.remedy if why_not else ""
    if why_not and (remedy or not masked):
        why += f", and the sum over these frames has no recurrent form, because {why_not}"
    if x.unclear is not None and len(seen) == 2:
        why += f", as {x.unclear}"
    past = "give `past=64` to mask keys that are more than 64 frames older than their query"
    run.refuse(why, HINT, first=remedy or (past if masked or needs_past else first))


def _reach(leaves: Iterable[tuple[Chunk, int]], timeline: Timeline, grid: Grid, older: bool) -> Reach | None:
    length = grid.last - grid.first + 1

    def of_keys(reach: Reach) -> Reach:
        reach = reach.under(timeline, length, 1, 1, 1, -grid.first)
        return reach.unbounded if older else reach

    return union(chunk.reach if side == grid.query else chunk.reach and of_keys(chunk.reach) for chunk, side in leaves)


@PAIR_RULES.add("dot_general")
def dot_general(run: Pass, equation: JaxprEqn, left: Any, right: Any) -> Any:
    """Multiply each pair of frames of two streams, or sum over the keys of pairs of frames."""
    (left_summed, right_summed), (left_batch, right_batch) = equation.params["dimension_numbers"]
    operands = [(left, left_summed, left_batch), (right, right_summed, right_batch)]
    pairs = [place for place, (value, *_) in enumerate(operands) if isinstance(value, Pairs)]
    if not pairs:
        return _product(run, equation, left, right)
    if len(pairs) == 2:
        return _by_elements(run, equation, left, right)
    (place,) = pairs
    x, x_summed, x_batch = operands[place]
    other, other_summed, _ = operands[1 - place]
    sides = [side for side, axis in enumerate(x.axes) if axis in x_summed]
    if not sides and not isinstance(other, Chunk):
        return _times_constant(run, equation, x, place, left, right)
    partner = dict(zip(x_summed, other_summed, strict=True))
    fits = len(sides) == 1 and isinstance(other, Chunk) and partner[x.axes[sides[0]]] == other.axis
    if not fits or x.axes[1 - sides[0]] in x_batch:
        return _by_elements(run, equation, left, right)
    (key,) = sides
    other = leaf_of(run, other)
    with_other = dataclasses.replace(x, leaves=(*x.leaves, (other, key)))
    grid, _, older = _grid(run, with_other, key, "sum", type_of(equation.invars[place]))
    weights = full(x, in_shape(equation, place), grid)
    weights = _of_existing(x, grid, key, weights, 0, older)
    frames = grid.frames(other, key)

    def summed(weights: Any, frames: Any = frames, **changed: Any) -> Any:
        arrays = [weights, frames]
        return run.bind(equation, arrays if place == 0 else arrays[::-1], **changed)[0]

    if older:
        # XLA's CPU backend refuses some products of bfloat16 that accumulate in float32, so operands are cast, too.
        dtype = type_of(equation.outvars[0])
        wide = carried_as("sum", dtype)
        operands = lambda weights: (weights.astype(wide), frames.astype(wide))  # noqa: E731
        sums = lambda weights: summed(*operands(weights), preferred_element_type=wide)  # noqa: E731
        result = _with_older(run, x, grid, "sum", sums(weights), sums, _layout(equation, place)).astype(dtype)
    else:
        result = summed(weights)
    (axis,) = symbolic_axes(out_shape(equation))
    return run.make(result, axis, x.timeline, grid.delay, _reach(with_other.leaves, x.timeline, grid, older))


def _by_elements(run: Pass, equation: JaxprEqn, left: Any, right: Any) -> Any:
    """Multiply pairs of frames with frames of their queries or keys, or with other pairs, and sum the products."""
    (summed, _), _ = equation.params["dimension_numbers"]
    dtype, sizes = type_of(equation.outvars[0]), [in_shape(equation)[axis] for axis in summed]
    shape = [*out_shape(equation), *sizes]
    if len(symbolic_axes(shape)) != 2:
        run.refuse("it multiplies two matrices of pairs of frames", HINT)
    keeps = all(casts.kept(type_of(atom), dtype).all for atom in equation.invars)
    wide = dtype if keeps else carried_as("sum", dtype)

    def product(*operands: Any) -> Any:
        spread = []
        for place, operand in enumerate(operands):
            contracted, _ = equation.params["dimension_numbers"]
            layout = [*_layout(equation, place), *contracted[place]]
            operand = jnp.transpose(operand.astype(wide), [axis for axis in layout if axis >= 0])
            spread.append(lax.broadcast_in_dim(operand, shape, [d for d, axis in enumerate(layout) if axis >= 0]))
        products = lax.mul(*spread)
        products = jnp.sum(products, range(len(shape) - len(sizes), len(shape)), wide) if sizes else products
        return products.astype(dtype)

    structs = [jax.ShapeDtypeStruct(shape_of(atom), type_of(atom)) for atom in equation.invars]
    return interpret(run, trace(product, *structs)[0], [left, right])[0]


def _layout(equation: JaxprEqn, place: int) -> list[int]:
    """Return the axis of operand `place` for each axis of a product, or -1."""
    _, batch = equation.params["dimension_numbers"]
    first, second = ([axis if side == place else -1 for axis in axes] for side, axes in enumerate(free_axes(equation)))
    return [*batch[place], *first, *second]


def _product(run: Pass, equation: JaxprEqn, left: Chunk, right: Chunk) -> Pairs:
    axes, timeline = two_axes(run, out_shape(equation))
    leaves = leaf_of(run, left), leaf_of(run, right)
    return Pairs(
        lambda grid: run.bind(equation, [grid.frames(leaf, side) for side, leaf in enumerate(leaves)])[0],
        axes, timeline, tuple((leaf, side) for side, leaf in enumerate(leaves)),
    )  # fmt: skip


def _times_constant(run: Pass, equation: JaxprEqn, x: Pairs, place: int, left: Any, right: Any) -> Pairs:
    """Multiply over other axes than time, for example to mix attention heads."""
    axes, _ = two_axes(run, out_shape(equation))
    _, batch = (each[place] for each in equation.params["dimension_numbers"])
    if any(axis in batch for axis in x.axes):
        run.refuse("time is a batch axis of a product of pairs of frames", HINT)

    def compute(grid: Grid) -> Any:
        array = full(x, in_shape(equation, place), grid)
        return run.bind(equation, [array, right] if place == 0 else [left, array])[0]

    below, above = (0.0 if value == 0 and value is not None else None for value in (x.below, x.above))
    return dataclasses.replace(x.moved(compute, axes), below=below, above=above, index=UNKNOWN)


@PAIR_RULES.add("cumsum")
def cumsum(run: Pass, equation: JaxprEqn, x: Pairs) -> Pairs:
    """Sum over the queries after each key, as the segment sums of a state space model do."""
    axis, side = equation.params["axis"], 1
    if axis in x.axes:
        side = x.axes.index(axis)
    # The sum over rows of side 0 begins with the row after the key if earlier rows are 0.
    starts = (x.above == 0 and x.high == -1) if side == 0 else (x.below == 0 and x.low == 1)
    if axis in x.axes and (equation.params["reverse"] or not starts):
        run.refuse("it is a running sum over pairs of frames", HINT)

    def compute(grid: Grid) -> Any:
        if axis in x.axes and (grid.query != side or grid.last != 0 or grid.first != 0):
            run.refuse("it is a running sum over pairs of frames", HINT)
        return run.bind(equation, [full(x, out_shape(equation), grid)])[0]

    result = x.moved(compute, x.axes)
    return dataclasses.replace(result, index=UNKNOWN, below=None, above=None)
