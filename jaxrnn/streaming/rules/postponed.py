"""Rules for values that do not fit into a step, but from which later equations take parts that fit.

Two forms of attention compute such values. With an attention *sink*, the scores ``[n, n + 1]`` have a column that is no
frame (`Joined`). Operations apply to the pairs of frames and to the column, and reductions join both.

With *relative positions* as in Transformer-XL, an array has a row for each distance: row r of ``[2 * n - 1, features]``
belongs to the distance ``r - (n - 1)``, which the length decides. But each row is a function of ``r - n`` (`Rows`),
such as a slice of a table that begins at row ``512 - n``. A pad, a reshape and a slice shift the products with the
queries (`_Skewed`): then column j of query i belongs to the distance ``j - i``, and only these rows are computed.

Source: Dai et al., "Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context", 2019, appendix B.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.jaxprs.equations import bind, free_axes, shape_of, trace, type_of
from jaxrnn.jaxprs.primitives import Rules, entry_of
from jaxrnn.streaming.dimensions import constant_value, cut_of, in_shape, out_shape, symbolic_axes
from jaxrnn.streaming.interpreter import POSTPONED_RULES, interpret
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.rewriting import bind_at_sizes
from jaxrnn.streaming.rules.movement import in_reverse
from jaxrnn.streaming.rules.pairs import Grid, leaf_of
from jaxrnn.streaming.totals import join_of
from jaxrnn.streaming.values import Chunk, Deferred, FinalValue, Joined, Pairs, Postponed, Rows, is_length, is_static


@dataclass(frozen=True, eq=False, kw_only=True)
class _Skewed(Postponed):
    """Products of queries ``[..., n, size]`` with rows, on the way to pairs of frames."""

    query: Chunk
    rows: Rows
    equation: JaxprEqn  # the product of queries and rows
    stage: int = 0  # the number of operations since the product: pad, reshape, slice, reshape


@POSTPONED_RULES.add("floor_divide", "remainder", "convert_element_type", kind="elementwise")
def elementwise(run: Pass, equation: JaxprEqn, *operands: Any) -> Any:
    """Apply an operation to each part, or to each row."""
    joined = [value for value in operands if isinstance(value, Joined) and value.axis >= 0]
    if not joined:
        return _by_rows(equation, operands)
    like, shapes = joined[0], list(map(shape_of, equation.invars))
    fits = all(
        str(value.shapes) in (str(like.shapes), "((),)")
        if isinstance(value, Joined)
        else not shape or shape[like.axis] == 1
        for value, shape in zip(operands, shapes, strict=True)
    )
    return dataclasses.replace(like, parts=_of_parts(run, equation, like, operands)) if fits else None


def _of_parts(run: Pass, equation: JaxprEqn, like: Joined, operands: Sequence[Any]) -> tuple[Any, ...]:
    """Apply an equation to each part of joined operands."""
    results = []
    for place, shape in enumerate(like.shapes):
        here, structs = [], []
        for value, atom in zip(operands, equation.invars, strict=True):
            is_number = isinstance(value, Joined) and value.axis < 0
            here.append(value.parts[0 if is_number else place] if isinstance(value, Joined) else value)
            size = () if is_number else shape if isinstance(value, Joined) else shape_of(atom)
            structs.append(jax.ShapeDtypeStruct(size, type_of(atom)))

        def of_part(*arrays: Any, shape: Any = shape) -> Any:
            spread = (
                lax.full(shape, x) if isinstance(value, Joined) and value.axis < 0 else x
                for x, value in zip(arrays, operands, strict=True)
            )
            return bind(equation, list(spread))

        results += interpret(run, trace(of_part, *structs)[0], here)
    return tuple(results)


@POSTPONED_RULES.add(*(f"reduce_{kind}" for kind in ("max", "min", "sum", "prod", "and", "or")))
def reduction(run: Pass, equation: JaxprEqn, x: Any) -> Any:
    """Reduce each part along the joined axis, and join the results."""
    if not isinstance(x, Joined) or x.axis not in equation.params["axes"]:
        return None
    join = join_of(entry_of(equation).monoid)
    struct = jax.ShapeDtypeStruct(out_shape(equation), type_of(equation.outvars[0]))
    result, *others = _of_parts(run, equation, x, [x])
    for other in others:
        (result,) = interpret(run, trace(join, struct, struct)[0], [result, other])
    return result


@POSTPONED_RULES.add("dynamic_slice", "gather", "slice")
def cut(run: Pass, equation: JaxprEqn, x: Any, *indices: Any) -> Any:
    """Take parts of an axis."""
    if not isinstance(x, Joined | _Skewed):
        return _by_rows(equation, (x, *indices))
    if (found := _cut_of(equation, (x, *indices))) is None:
        return None
    axis, start, size = found
    if isinstance(x, _Skewed):
        return _cut_skewed(run, equation, x, axis, start, size)
    ends = np.cumsum([0, *(shape[x.axis] for shape in x.shapes)])  # integers and symbolic dimensions
    places = [place for place, end in enumerate(ends) if str(end) in (str(start), str(start + size))]
    if axis != x.axis or len(places) != 2:
        return None
    kept = slice(*places)
    parts = x.parts[kept]
    return parts[0] if len(parts) == 1 else dataclasses.replace(x, parts=parts, shapes=x.shapes[kept])


def _cut_of(equation: JaxprEqn, operands: Sequence[Any]) -> tuple[int, Any, Any] | None:
    """Return axis, start and size of a cut along a single axis, or None if the start is not known."""
    if (found := cut_of(equation)) is None:
        return None
    axis, place = found
    start = np.array(equation.params["start_indices"][axis]) if place is None else operands[place]
    known = is_static(start) and np.size(start) == 1
    return (axis, np.asarray(start).reshape(-1)[0], out_shape(equation)[axis]) if known else None


def _by_rows(equation: JaxprEqn, operands: Sequence[Any]) -> Rows | None:
    """Apply an equation that computes each row from the same row of its operands, or return None."""
    like, shape = next((value for value in operands if isinstance(value, Rows)), None), out_shape(equation)
    if like is None:
        return None
    axes = symbolic_axes(shape)
    fits = all(_fits(value, atom, like) for value, atom in zip(operands, equation.invars, strict=True))
    if not fits or len(axes) != 1 or str(shape[axes[0]]) != str(like.size):
        return None
    keeps = _KEEPS_ROWS.of(equation)
    if keeps is None or not keeps(equation, operands, like.axis, axes[0]):
        return None

    def at(differences: Any) -> Any:
        count, arrays = len(differences), []
        for value in operands:
            if isinstance(value, Rows):
                value = value.at(differences)
            elif isinstance(value, Chunk):
                sizes = [count if axis == value.axis else each for axis, each in enumerate(value.array.shape)]
                value = jnp.broadcast_to(value.array, sizes)
            arrays.append(value)
        return bind_at_sizes(lambda _: count, equation, arrays)[0]

    return dataclasses.replace(like, axis=axes[0], at=at, counts=None)


def _fits(value: Any, atom: Any, like: Rows) -> bool:
    """Return True for rows of the same origin, equal rows, and constants."""
    if isinstance(value, Rows):
        pairs = (value.axis, like.axis), (value.size, like.size), (value.origin, like.origin)
        return all(str(one) == str(other) for one, other in pairs)
    if isinstance(value, Chunk):
        return value.delay is value.reach is None and str(value.timeline.size) == str(like.size)
    return (
        not isinstance(value, FinalValue | Pairs | Deferred)
        and not is_length(value)
        and not symbolic_axes(shape_of(atom))
    )


#: Rules ``(equation, operands, axis, new) -> bool``: True if an equation computes each row along axis `new` from the
#: row along `axis` of the operands.
_KEEPS_ROWS = Rules()


@_KEEPS_ROWS.add(kind="call")
@_KEEPS_ROWS.add("broadcast_in_dim", "transpose", kind="elementwise")
def _keeps_all_rows(*_: Any) -> bool:
    return True


@_KEEPS_ROWS.add("reshape")
def _reshapes_around_rows(equation: JaxprEqn, _: Sequence[Any], axis: int, new: int) -> bool:
    return math.prod(in_shape(equation)[:axis]) == math.prod(out_shape(equation)[:new])


@_KEEPS_ROWS.add("dot_general")
def _multiplies_rows(equation: JaxprEqn, operands: Sequence[Any], axis: int, _: int) -> bool:
    return axis in free_axes(equation)[0 if isinstance(operands[0], Rows) else 1]


@_KEEPS_ROWS.add("dynamic_slice")
def _cuts_rows(equation: JaxprEqn, operands: Sequence[Any], axis: int, _: int) -> bool:
    return isinstance(operands[0], Rows) and (found := _cut_of(equation, operands)) is not None and found[0] != axis


@_KEEPS_ROWS.add("gather")
def _gathers_for_rows(equation: JaxprEqn, operands: Sequence[Any], axis: int, new: int) -> bool:
    if isinstance(operands[0], Rows):
        return _cuts_rows(equation, operands, axis, new)
    # A look-up in a constant table.
    return not symbolic_axes(in_shape(equation)) and axis < len(in_shape(equation, 1)) - 1


@_KEEPS_ROWS.add("concatenate")
def _joins_beside_rows(equation: JaxprEqn, _: Sequence[Any], axis: int, __: int) -> bool:
    return equation.params["dimension"] != axis


@_KEEPS_ROWS.add("slice")
def _slices_beside_rows(equation: JaxprEqn, _: Sequence[Any], axis: int, __: int) -> bool:
    return str(in_shape(equation)[axis]) == str(out_shape(equation)[axis])


@POSTPONED_RULES.add("broadcast_in_dim", "reshape", "transpose")
def moved(run: Pass, equation: JaxprEqn, x: Any, *sizes: Any) -> Any:
    """Move the axes of rows, of each part, or of products."""
    if isinstance(x, _Skewed):
        return _exchanged(equation, x)
    if not isinstance(x, Joined):
        return _by_rows(equation, (x, *sizes))
    shape = [*out_shape(equation)]
    if (new := _NEW_AXES.of(equation)(equation, x.axis)) is None:
        return None
    parts, shapes = [], []
    for part, before in zip(x.parts, x.shapes, strict=True):
        after = tuple(before[x.axis] if axis == new else size for axis, size in enumerate(shape))
        struct = jax.ShapeDtypeStruct(before, type_of(equation.invars[0]))
        changed = {key: after for key in ("shape", "new_sizes") if key in equation.params}
        parts += interpret(
            run, trace(lambda part, changed=changed: bind(equation, [part], **changed), struct)[0], [part]
        )
        shapes.append(after)
    return Joined(x.error, axis=new, parts=tuple(parts), shapes=tuple(shapes))


#: Rules ``(equation, axis) -> axis`` of the result, or None if the axis merges with others.
_NEW_AXES = Rules[Callable[..., int | None]]()


@_NEW_AXES.add("broadcast_in_dim")
def _axis_of_broadcast(equation: JaxprEqn, axis: int) -> int:
    return equation.params["broadcast_dimensions"][axis]


@_NEW_AXES.add("transpose")
def _axis_of_transpose(equation: JaxprEqn, axis: int) -> int:
    return equation.params["permutation"].index(axis)


@_NEW_AXES.add("reshape")
def _axis_of_reshape(equation: JaxprEqn, axis: int) -> int | None:
    old, new = in_shape(equation), out_shape(equation)
    place = next((d for d, size in enumerate(new) if str(size) == str(old[axis])), None)
    stays = place is not None and str(math.prod(old[:axis])) == str(math.prod(new[:place]))
    return place if stays else None


@POSTPONED_RULES.add("rev")
def rev(run: Pass, equation: JaxprEqn, x: Any) -> Any:
    """Reverse numbers that count from the end, which are then numbers from the start, or the reverse."""
    if not isinstance(x, Rows) or x.counts is None or equation.params["dimensions"] != (x.axis,):
        return None
    factor, summand = x.counts
    return in_reverse(run, equation, x.axis, factor, summand - factor * x.origin)


@POSTPONED_RULES.add("dot_general")
def dot_general(run: Pass, equation: JaxprEqn, *operands: Any) -> Any:
    """Multiply rows with a constant, or with queries."""
    place = next(place for place, value in enumerate(operands) if isinstance(value, Postponed))
    rows, other = operands[place], operands[1 - place]
    if not isinstance(rows, Rows):
        return None
    if not isinstance(other, Chunk):
        return _by_rows(equation, operands)
    rank, free = len(out_shape(equation)), free_axes(equation)
    is_last = place == 1 and rows.axis == free[1][-1] and other.axis == free[0][-1] and len(free[1]) == 1
    if not is_last or symbolic_axes(out_shape(equation)) != [rank - 2, rank - 1]:
        return None
    return _Skewed(rows.error, query=leaf_of(run, other), rows=rows, equation=equation)


@POSTPONED_RULES.add("concatenate")
def concatenate(run: Pass, equation: JaxprEqn, *operands: Any) -> Any:
    """Join columns to rows, or a column before the products of each query."""
    x, axis = operands[-1], equation.params["dimension"]
    if any(isinstance(value, Rows) for value in operands):
        return _by_rows(equation, operands)
    if not isinstance(x, _Skewed) or len(operands) != 2 or axis != len(out_shape(equation)) - 1:
        return None
    return dataclasses.replace(x, stage=1) if x.stage == 0 and in_shape(equation)[axis] == 1 else None


@POSTPONED_RULES.add("pad")
def pad(run: Pass, equation: JaxprEqn, x: Any, _: Any) -> Any:
    """Put a column before the products of each query."""
    *others, last = (tuple(map(str, config)) for config in equation.params["padding_config"])
    is_column = last == ("1", "0", "0") and set(others) <= {("0", "0", "0")}
    return dataclasses.replace(x, stage=1) if isinstance(x, _Skewed) and x.stage == 0 and is_column else None


def _shape(x: _Skewed) -> list[Any]:
    """Return the shape after each operation on products."""
    *others, count, size = out_shape(x.equation)
    last = [(count, size), (count, size + 1), (size + 1, count), (size, count), (count, size)]
    return [*others, *last[x.stage]]


def _exchanged(equation: JaxprEqn, x: _Skewed) -> _Skewed | None:
    """Exchange the sizes of queries and rows, which moves the products of each query by one column."""
    result = dataclasses.replace(x, stage=x.stage + 1) if x.stage in (1, 3) else x
    return result if result is not x and str(list(out_shape(equation))) == str(_shape(result)) else None


def _cut_skewed(run: Pass, equation: JaxprEqn, x: _Skewed, axis: int, start: Any, size: Any) -> Any:
    rank, (count, rows) = len(out_shape(equation)), out_shape(x.equation)[-2:]
    if x.stage == 2 and (axis, str(start), str(size)) == (rank - 2, "1", str(rows)):
        result = dataclasses.replace(x, stage=3)
        return _pairs(run, result, ahead=False) if str(count) == str(rows) else result
    is_square = x.stage == 4 and (axis, str(start), str(size)) == (rank - 1, "0", str(count))
    return _pairs(run, x, ahead=True) if is_square else None


def _pairs(run: Pass, x: _Skewed, *, ahead: bool) -> Pairs | None:
    """Return the products with the rows of the distances ``j - i``; without `ahead`, only for ``j <= i``."""
    rank, count = len(out_shape(x.equation)), out_shape(x.equation)[-2]
    last = constant_value(count - 1 - x.rows.origin, count)  # the row of distance 0
    if last is None:
        return None

    def compute(grid: Grid) -> Any:
        latest = grid.last if grid.query == 0 else -grid.first
        if latest > 0 and not ahead:
            run.refuse(
                "its products with later frames are those of other queries", "mask the keys after each query, j <= i"
            )
        first = (0, grid.first) if grid.query == 0 else (grid.first, 0)
        i, j = (start + np.arange(grid.size(side)) for side, start in enumerate(first))
        apart = j - i[:, None]
        rows = x.rows.at(jnp.arange(apart.min() + last, apart.max() + last + 1))
        (products,) = run.bind(x.equation, [grid.frames(x.query, 0), rows])
        places = np.broadcast_to(apart - apart.min(), (*products.shape[:-1], len(j)))
        return jnp.take_along_axis(products, jnp.asarray(places), -1, mode="clip")

    return Pairs(compute, (rank - 2, rank - 1), x.query.timeline, ((x.query, 0),))
