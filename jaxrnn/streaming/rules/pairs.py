"""Values with time on two axes: one element for each pair of frames, such as the scores of an attention.

A `Pairs` is an expression. The expression is computed when a reduction removes one time axis. The frames along this
axis are the keys, and the frames along the other axis are the queries. A mask of positions must bound the distance
between a query and a key: outside of the bounds, an element must not change the result, as minus infinity in a maximum
or 0 in a sum. A step evaluates the expression for its queries and for the keys within the bounds, and keeps a history
of keys.

Example: with ``where(abs(i - j) <= 2, scores, -inf)``, a step of one frame evaluates five keys, and
the query waits for two frames.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.jaxprs.equations import free_axes, shape_of, trace, type_of
from jaxrnn.jaxprs.primitives import Rules, entry_of, on_elements
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
from jaxrnn.streaming.formulas import Formula, formula_of, operation_of, term_of
from jaxrnn.streaming.interpreter import PAIR_RULES, interpret
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.reach import Reach, union
from jaxrnn.streaming.rules.elementwise import frame_numbers, refuse_final_values, singular_operands
from jaxrnn.streaming.rules.parallel import (
    InseparableError,
    recurrent_sum,
    running_extreme,
    where_keys_exist,
)
from jaxrnn.streaming.rules.windows import Window, framed
from jaxrnn.streaming.totals import carried_as, identity_of
from jaxrnn.streaming.values import FAR, Chunk, FinalValue, Joined, Low, Mask, Outside, Pairs, is_length, static_number

#: Finite mask values at or below this number mean minus infinity: -10,000, as bfloat16 rounds it.
LOWEST = -9984.0
_HINT = "bound how far each frame sees with a mask of positions (frame i sees frame j only if abs(i - j) <= 16)"


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
        return self.run.start(timeline, self.delay) + self.first + np.arange(self.size(1 - self.query), dtype=np.int32)

    def existing(self, timeline: Timeline) -> Any:
        """Return a mask of the keys that exist, ``bool[keys]``, or True if all keys exist."""
        run = self.run
        run.facts.wait_for(timeline, self.delay - self.first + 1)
        where, end = self.positions(timeline), run.end(timeline)
        exist = where >= 0 if end is None else (where >= 0) & (where < end)
        return True if isinstance(exist, np.ndarray) and np.all(exist) else exist


@PAIR_RULES.add("iota")
def iota(run: Pass, equation: JaxprEqn) -> Pairs:
    """Count frames along a time axis, or count along a different axis."""
    shape, dimension = equation.params["shape"], equation.params["dimension"]
    axes, timeline = _two_axes(run, shape)
    if dimension not in axes:
        dtype = equation.params["dtype"]
        compute = lambda grid: lax.broadcasted_iota(dtype, _sized(shape, axes, grid), dimension)  # noqa: E731
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
    axes = _two_axes(run, shape)[0]

    def compute(grid: Grid) -> Any:
        return run.bind(equation, [_full(x, in_shape(equation), grid)], shape=_sized(shape, axes, grid))[0]

    return x.moved(compute, [dimensions[axis] for axis in x.axes])


def _broadcast(run: Pass, equation: JaxprEqn, x: Any, dimensions: Sequence[int] | None = None) -> Pairs:
    """Broadcast a value to the shape of the result."""
    shape = out_shape(equation)
    dimensions = tuple(range(len(shape))) if dimensions is None else dimensions
    axes, timeline = _two_axes(run, shape)
    if isinstance(x, Chunk):
        return _along(run, x, shape, dimensions)
    if isinstance(x, FinalValue):
        run.refuse("it spreads a value that is known at the end over pairs of frames", _HINT)
    formula = term_of(x)
    if formula is not None and formula.needs_length:
        return Pairs(lambda grid: formula.at(0, 0), axes, timeline, formula=formula, shape=shape)
    refuse_final_values(run, [x])
    array, number = jnp.asarray(x), _known(x)
    return Pairs(
        lambda grid: lax.broadcast_in_dim(array, _sized(shape, axes, grid), dimensions),
        axes, timeline, below=number, above=number, formula=formula,
        shape=shape, dtype=array.dtype, origin=(None, (array, None, dimensions)),
    )  # fmt: skip


def _two_axes(run: Pass, shape: Sequence[Any]) -> tuple[tuple[int, ...], Timeline]:
    axes = tuple(symbolic_axes(shape))
    if len(axes) != 2 or str(shape[axes[0]]) != str(shape[axes[1]]):
        run.refuse(
            f"its result has time on two axes of different lengths, or on more axes: {list(shape)}",
            "pair frames of one length, such as the queries and the keys of self-attention",
        )
    return axes, run.clock.timeline(shape[axes[0]])


def _sized(shape: Sequence[Any], axes: Sequence[int], grid: Grid) -> tuple[int, ...]:
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
    axes, timeline = _two_axes(run, shape)
    leaf, side = leaf_of(run, chunk), axes.index(dimensions[chunk.axis])
    return Pairs(
        lambda grid: lax.broadcast_in_dim(grid.frames(leaf, side), _sized(shape, axes, grid), tuple(dimensions)),
        axes, timeline, ((leaf, side),), formula=chunk.formula and (chunk.formula.swapped if side else chunk.formula),
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
        arrays = [_full(x, shape, grid) for x, shape in zip(operands, shapes, strict=True)]
        harmless = entry_of(equation).harmless
        for place in singular_operands(equation):
            if isinstance(x := operands[place], Pairs) and harmless is not None:
                arrays[place] = _harmless(x, grid, arrays[place], harmless)
        return run.bind(equation, arrays)[0]

    formula = formula_of(equation, operands)
    result = Pairs(compute, like.axes, like.timeline, _leaves(pairs), formula=formula).made_by(equation, operands)
    if formula is not None and (bounds := formula.bounds) is not None:
        below, above = (None if value is None else _typed(value, dtype) for value in (bounds.below, bounds.above))

        def computed(grid: Grid) -> Any:
            return _of_formula(run, like, formula, dtype, len(shape), grid)

        changed = {"compute": computed, "low": bounds.low, "high": bounds.high, "below": below, "above": above}
        return dataclasses.replace(result, **changed)
    if operation_of(equation) != equation.primitive.name:
        return None  # a call of operations, which have rules
    unclear = next((value.unclear for value in pairs if value.unclear), None)
    if unclear is None and dtype == np.bool_:
        unclear = describe_equation(run.path)
    below, above = (
        _outside(equation, [getattr(x, key) if isinstance(x, Pairs) else static_number(x) for x in operands])
        for key in ("below", "above")
    )
    low = min((value.low for value in pairs if value.below is not None), default=FAR)
    high = max((value.high for value in pairs if value.above is not None), default=-FAR)
    result = dataclasses.replace(result, low=low, high=high, below=below, above=above, unclear=unclear)
    # A mask may have other readers, so the equation of a mask does not count for a value that depends on the input.
    like_result = [value for value in pairs if _is_of_input(value) == _is_of_input(result)]
    masked = tuple(dict.fromkeys(place for value in like_result for place in value.masked))
    levels = [_low(below), _low(above)]
    if not masked and None in levels:
        masked = tuple(Mask(run.path, side, level) for side, level in enumerate(levels) if level is not None)
    return dataclasses.replace(result, masked=masked)


def _harmless(x: Pairs, grid: Grid, array: Any, value: float) -> Any:
    """Replace elements of keys and queries that do not exist, where buffers of frames begin with zeros.

    Elements that follow from the numbers of frames stay constants.
    """
    leaves = [(chunk, side) for chunk, side in x.leaves if chunk.reach is not None]
    late = [chunk.delay is not None and chunk.delay < grid.delay for chunk, side in leaves if side == grid.query]
    if any(side != grid.query for _, side in leaves):
        array = where_keys_exist(array, x.axes[1 - grid.query], grid.existing(x.timeline), value)
    if any(late):
        where = grid.run.start(x.timeline, grid.delay) + np.arange(grid.count, dtype=np.int32)
        array = where_keys_exist(array, x.axes[grid.query], where >= 0, value)
    return array


def _is_of_input(x: Pairs) -> bool:
    return any(chunk.reach is not None for chunk, _ in x.leaves)


def _is_scalar(x: Any) -> bool:
    return not isinstance(x, Chunk | FinalValue) and not is_length(x) and np.ndim(x) == 0


def _leaves(pairs: Iterable[Pairs]) -> tuple[tuple[Chunk, int], ...]:
    """Return the chunks of several expressions, each once."""
    return tuple({(id(chunk), side): (chunk, side) for each in pairs for chunk, side in each.leaves}.values())


def _of_formula(run: Pass, like: Pairs, formula: Formula, dtype: Any, rank: int, grid: Grid) -> Any:
    """Read elements from a table of the formula, with a row for each phase and a column for each distance."""
    queries, keys = np.arange(grid.count), np.arange(grid.size(1 - grid.query))
    formula, period = formula.swapped if grid.query else formula, formula.period
    table = formula.rows(grid.first + 1 - grid.count, grid.first + len(keys) - 1).astype(dtype)
    columns = keys - queries[:, None] + grid.count - 1
    if period == 1:
        array = jnp.asarray(table[0][columns])
    else:
        units = run.count if isinstance(run.count, int) else run.units_before
        run.facts.laps.note(period)
        phase = jnp.asarray((units * like.timeline.per_unit - grid.delay) % period, jnp.int32)
        if period * columns.size <= LARGEST:
            every = np.stack([table[(start + queries[:, None]) % period, columns] for start in range(period)])
            array = lax.dynamic_index_in_dim(jnp.asarray(every), phase, keepdims=False)
        else:
            array = jnp.asarray(table)[(phase + queries[:, None]) % np.int32(period), columns]
    outside = formula.bounds
    if grid.is_strict and outside is not None and None not in (outside.below, outside.above):
        where = grid.positions(like.timeline)
        beyond = jnp.where(where < 0, *(jnp.asarray(value, array.dtype) for value in (outside.below, outside.above)))
        array = jnp.where(grid.existing(like.timeline), array, beyond)
    array = array.T if grid.query else array
    return jnp.expand_dims(array, [axis for axis in range(rank) if axis not in like.axes])


#: Rules ``(equation, *values) -> value`` for values outside of the bounds that are not all numbers.
_OUTSIDE = Rules()


def _outside(equation: JaxprEqn, values: Sequence[Outside]) -> Outside:
    """Apply an operation to the values outside of the bounds; a score is None."""
    function = on_elements(equation)
    if function is not None and all(map(_is_number, values)):
        return _computed(function, equation, values)
    rule = _OUTSIDE.of(equation)
    return None if rule is None else rule(equation, *values)


def _is_number(value: Outside) -> bool:
    return isinstance(value, (bool, int, float))


def _computed(function: Callable[..., Any], equation: JaxprEqn, numbers: Sequence[Any]) -> Outside:
    """Apply a function of NumPy to numbers, in the types of the operands."""
    arrays = [np.asarray(number).astype(type_of(atom)) for number, atom in zip(numbers, equation.invars, strict=True)]
    with np.errstate(all="ignore"):
        return _typed(function(*arrays), type_of(equation.outvars[0]))


def _typed(value: Any, dtype: Any) -> Outside:
    """Cast a number and return the Python number, or None if NumPy and XLA may cast differently."""
    with np.errstate(all="ignore"):
        cast = np.asarray(value).astype(dtype)
        if jnp.issubdtype(dtype, jnp.inexact):
            return None if np.imag(cast) else float(np.real(cast))
        return cast.item() if cast.dtype.kind == "b" or (cast.dtype.kind in "iu" and cast == np.trunc(value)) else None


def _known(x: Any) -> Outside:
    """Return the real number that all elements of a constant equal, or None."""
    number = static_number(x)
    return (None if number.imag else number.real) if isinstance(number, complex) else number


def _is_floating(equation: JaxprEqn) -> bool:
    return jnp.issubdtype(type_of(equation.outvars[0]), np.floating)


_OUTSIDE.add("select_n")(lambda equation, which, *cases: cases[int(which)] if type(which) in (bool, int) else None)
_OUTSIDE.add("exp", "exp2", "logistic")(lambda equation, x: 0.0 if _lowered(equation, -math.inf, x) else None)
_OUTSIDE.add("add")(lambda equation, x, y: _lowered(equation, _level(x) + _level(y), x, y))


_OUTSIDE.add("imag", "real")(lambda equation, x: 0.0 if _is_number(x) and x == 0 else None)


@_OUTSIDE.add("and", "or")
def _decide_outside(equation: JaxprEqn, *values: Outside) -> Outside:
    decisive = equation.primitive.name == "or"
    return decisive if any(value is decisive for value in values) else None


@_OUTSIDE.add("ne")
def _test_for_nan(equation: JaxprEqn, x: Outside, _: Outside) -> Outside:
    return False if equation.invars[0] is equation.invars[1] and x is not None else None


@_OUTSIDE.add("convert_element_type", "reduce_precision", "stop_gradient")
def _cast_outside(equation: JaxprEqn, x: Outside) -> Outside:
    if _is_number(x):
        is_kept = "mantissa_bits" not in equation.params or x in (0, math.inf, -math.inf)
        return _computed(np.asarray, equation, [x]) if is_kept else None
    return x if _is_floating(equation) else None


@_OUTSIDE.add("integer_pow")
def _power_outside(equation: JaxprEqn, x: Outside) -> Outside:
    power = equation.params["y"]
    return _computed(lambda x: np.power(x, power), equation, [x]) if _is_number(x) and power > 0 else None


@_OUTSIDE.add("sub")
def _subtract_outside(equation: JaxprEqn, x: Outside, y: Outside) -> Outside:
    if isinstance(y, float) and y >= -LOWEST:
        return _lowered(equation, _level(x) - y, -y)
    return _lowered(equation, _level(x) - _level(y), x) if _low(y) is None else None


@_OUTSIDE.add("mul")
def _multiply_outside(equation: JaxprEqn, x: Outside, y: Outside) -> Outside:
    if 0 in (x, y) and _low(x) is _low(y) is None:
        return 0.0  # times a finite number
    low, factor = (y, x) if _low(x) is None else (x, y)
    return _lowered(equation, _level(low) * _level(factor), low) if _is_positive(factor) else None


@_OUTSIDE.add("div")
def _divide_outside(equation: JaxprEqn, x: Outside, y: Outside) -> Outside:
    if _is_number(x) and _is_number(y):
        return _computed(np.true_divide, equation, [x, y]) if _is_floating(equation) else None
    if x is not None and x == 0:
        return 0.0  # divided by a finite number
    return _lowered(equation, _level(x) / _level(y), x) if _is_positive(y) else None


def _is_positive(value: Outside) -> bool:
    return isinstance(value, (bool, int, float)) and value > 0


def _level(value: Outside) -> float:
    """Return the largest value, where a score counts as 0."""
    return value.level if isinstance(value, Low) else float(value or 0)


def _lowered(equation: JaxprEqn, level: float, *lows: Outside) -> Low | None:
    """Return the result of arithmetic if an operand and the result are low; otherwise None."""
    is_low = any(_low(value) is not None for value in lows) and _is_floating(equation)
    return Low(level) if is_low and level <= LOWEST else None


def _low(value: Outside) -> float | None:
    if isinstance(value, Low):
        return value.level
    number = isinstance(value, float)
    return value if number and value <= LOWEST else None


@PAIR_RULES.add("concatenate")
def concatenate(run: Pass, equation: JaxprEqn, *operands: Any) -> Pairs | Joined:
    """Join pairs of frames along another axis, such as attention heads, or along time, such as an attention sink."""
    dimension, parts = equation.params["dimension"], list(zip(operands, map(shape_of, equation.invars), strict=True))
    if is_symbolic(out_shape(equation)[dimension]):
        return _joined(run, dimension, parts)
    compute = lambda grid: run.bind(equation, [_full(x, shape, grid) for x, shape in parts])[0]  # noqa: E731
    below, above = (
        values[0] if len(set(values)) == 1 else None
        for values in ([getattr(x, key) for x in operands] for key in ("below", "above"))
    )
    return dataclasses.replace(
        operands[0], compute=compute, leaves=_leaves(operands), formula=None, shape=(), _kept={}, below=below,
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
    """Join columns or rows of one number to pairs of frames."""
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
        run.refuse("it merges the two time axes of pairs of frames, or splits one", _HINT)
    return x.moved(lambda grid: jnp.reshape(_full(x, old, grid), _sized(new, axes, grid)), axes)


def _full(x: Any, shape: Sequence[Any], grid: Grid) -> Any:
    """Return the elements in the shape of the operand: a formula may have axes of size 1."""
    return jnp.broadcast_to(x.on(grid), _sized(shape, x.axes, grid)) if isinstance(x, Pairs) else x


@PAIR_RULES.add(*(f"reduce_{kind}" for kind in ("max", "min", "sum", "prod", "and", "or")))
def reduction(run: Pass, equation: JaxprEqn, x: Pairs) -> Any:
    """Reduce the keys of each query, or other axes."""
    axes, kind = equation.params["axes"], entry_of(equation).monoid
    sides = [side for side, axis in enumerate(x.axes) if axis in axes]
    if len(sides) == 2:
        run.refuse("it reduces all pairs of frames, which are known only when the stream has ended", _HINT)
    shape = in_shape(equation)
    left = [axis - sum(d < axis for d in axes) for axis in x.axes]
    if not sides:
        moved = x.moved(lambda grid: run.bind(equation, [_full(x, shape, grid)])[0], left)
        kept = {"sum": (0,), "prod": (0, 1)}.get(kind)
        below, above = (value if kept is None or value in kept else None for value in (moved.below, moved.above))
        return dataclasses.replace(moved, below=below, above=above, formula=None)
    (key,) = sides
    grid, level, older = _grid(run, x, key, kind, type_of(equation.invars[0]))
    array = _full(x, shape, grid)
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
        if run.facts.past is None or not x.masked:
            _refuse_unbounded(run, x, ["earlier"], error)
        run.facts.masks += x.masked
        return result  # for shapes only: the function with the band follows, see `jaxrnn.streaming.rewriting`


def _grid(run: Pass, x: Pairs, key: int, kind: str, dtype: Any) -> tuple[Grid, float | None, bool]:
    """Return the pairs that a reduction reads, the level of a finite mask, and True if older keys are in the state."""
    neutral = None if kind == "max" else identity_of(kind, dtype)
    earlier, later = (x.below, x.above) if key == 1 else (x.above, x.below)
    levels, seen = [], []
    for value, name in ((earlier, "earlier"), (later, "later")):
        low = _low(value) if kind == "max" else None
        if low is None and (neutral is None or not isinstance(value, (bool, int, float)) or value != neutral):
            seen.append(name)
        levels += [] if low is None or math.isinf(low) else [low]
    older = seen == ["earlier"] and kind in ("sum", "max", "min")
    if seen and not older:
        _refuse_unbounded(run, x, seen)
    first, last = (x.low, x.high) if key == 1 else (-x.high, -x.low)
    if older:
        first = last
    elif first > last:
        first = last = 0
    ready = [chunk.delay + (last if side == key else 0) for chunk, side in x.leaves if chunk.delay is not None]
    delay = max([x.timeline.certain, *ready])
    return Grid(run, 1 - key, delay, first, last, run.frames_of(x.timeline)), max(levels, default=None), older


def _refuse_unbounded(run: Pass, x: Pairs, seen: Sequence[str], why_not: InseparableError | None = None) -> NoReturn:
    why = f"each frame depends on all {' and '.join(seen)} frames"
    masked, remedy = seen == ["earlier"] and x.masked, why_not.remedy if why_not else ""
    if why_not and (remedy or not masked):
        why += f", and the sum over these frames has no recurrent form, because {why_not}"
    if x.unclear is not None and len(seen) == 2:
        why += f", as {x.unclear} does not compare the numbers of two frames"
    past = "give `past=64` to mask keys that are more than 64 frames older than their query"
    run.refuse(why, _HINT, first=remedy or (past if masked else ""))


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
    weights = _full(x, in_shape(equation, place), grid)
    weights = _of_existing(x, grid, key, weights, 0, older)
    frames = grid.frames(other, key)

    def summed(weights: Any, **changed: Any) -> Any:
        arrays = [weights, frames.astype(weights.dtype)]
        return run.bind(equation, arrays if place == 0 else arrays[::-1], **changed)[0]

    if older:
        # XLA's CPU backend refuses some products of bfloat16 that accumulate in float32, so operands are cast, too.
        dtype = type_of(equation.outvars[0])
        wide = carried_as("sum", dtype)
        sums = lambda weights: summed(weights.astype(wide), preferred_element_type=wide)  # noqa: E731
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
        run.refuse("it multiplies two matrices of pairs of frames", _HINT)

    def product(*operands: Any) -> Any:
        spread = []
        for place, operand in enumerate(operands):
            contracted, _ = equation.params["dimension_numbers"]
            layout = [*_layout(equation, place), *contracted[place]]
            operand = jnp.transpose(operand.astype(dtype), [axis for axis in layout if axis >= 0])
            spread.append(lax.broadcast_in_dim(operand, shape, [d for d, axis in enumerate(layout) if axis >= 0]))
        products = lax.mul(*spread)
        return jnp.sum(products, range(len(shape) - len(sizes), len(shape)), dtype) if sizes else products

    structs = [jax.ShapeDtypeStruct(shape_of(atom), type_of(atom)) for atom in equation.invars]
    return interpret(run, trace(product, *structs)[0], [left, right])[0]


def _layout(equation: JaxprEqn, place: int) -> list[int]:
    """Return the axis of operand `place` for each axis of a product, or -1."""
    _, batch = equation.params["dimension_numbers"]
    first, second = ([axis if side == place else -1 for axis in axes] for side, axes in enumerate(free_axes(equation)))
    return [*batch[place], *first, *second]


def _product(run: Pass, equation: JaxprEqn, left: Chunk, right: Chunk) -> Pairs:
    axes, timeline = _two_axes(run, out_shape(equation))
    leaves = leaf_of(run, left), leaf_of(run, right)
    return Pairs(
        lambda grid: run.bind(equation, [grid.frames(leaf, side) for side, leaf in enumerate(leaves)])[0],
        axes, timeline, tuple((leaf, side) for side, leaf in enumerate(leaves)),
    )  # fmt: skip


def _times_constant(run: Pass, equation: JaxprEqn, x: Pairs, place: int, left: Any, right: Any) -> Pairs:
    """Multiply over other axes than time, for example to mix attention heads."""
    axes, _ = _two_axes(run, out_shape(equation))
    _, batch = (each[place] for each in equation.params["dimension_numbers"])
    if any(axis in batch for axis in x.axes):
        run.refuse("time is a batch axis of a product of pairs of frames", _HINT)

    def compute(grid: Grid) -> Any:
        array = _full(x, in_shape(equation, place), grid)
        return run.bind(equation, [array, right] if place == 0 else [left, array])[0]

    below, above = (0.0 if value == 0 and value is not None else None for value in (x.below, x.above))
    return dataclasses.replace(x.moved(compute, axes), below=below, above=above, formula=None)


@PAIR_RULES.add("gather")
def gather(run: Pass, equation: JaxprEqn, table: Any, indices: Any) -> Pairs | None:
    """Index a constant table by each pair of frames, as biases by relative position do."""
    numbers, shape = equation.params["dimension_numbers"], in_shape(equation, 1)
    if (
        not isinstance(indices, Pairs)
        or isinstance(table, Chunk | FinalValue | Pairs)
        or symbolic_axes(np.shape(table))
    ):
        return None
    if len(shape) - 1 in indices.axes or {*indices.axes} & {*numbers.start_indices_batching_dims}:
        return None
    batch = gathered_axes(equation)
    compute = lambda grid: run.bind(equation, [table, _full(indices, shape, grid)])[0]  # noqa: E731
    found = indices.moved(compute, [batch[axis] for axis in indices.axes])
    return dataclasses.replace(found, below=None, above=None, formula=None)


@PAIR_RULES.add("cumsum")
def cumsum(run: Pass, equation: JaxprEqn, x: Pairs) -> Pairs:
    """Sum over the queries after each key, as the segment sums of a state space model do."""
    axis, side = equation.params["axis"], 1
    if axis in x.axes:
        side = x.axes.index(axis)
    # The sum over rows of side 0 begins with the row after the key if earlier rows are 0.
    starts = (x.above == 0 and x.high == -1) if side == 0 else (x.below == 0 and x.low == 1)
    if axis in x.axes and (equation.params["reverse"] or not starts):
        run.refuse("it is a running sum over pairs of frames", _HINT)

    def compute(grid: Grid) -> Any:
        if axis in x.axes and (grid.query != side or grid.last != 0 or grid.first != 0):
            run.refuse("it is a running sum over pairs of frames", _HINT)
        return run.bind(equation, [_full(x, out_shape(equation), grid)])[0]

    result = x.moved(compute, x.axes)
    return dataclasses.replace(result, formula=None, below=None, above=None)
