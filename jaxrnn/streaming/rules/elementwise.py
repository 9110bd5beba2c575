"""Rules for operations on each element, for positions in time, and for integers that count frames.

Operands with different delays are first delayed to the largest delay. Integers that count frames are tracked exactly
(`Numbers.affine`), because indexing is written with such integers: ``x[::2]`` reads frames ``2 * i``, and overlapping
frames are ``hop * i + arange(size)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn, Literal
from jax.extend.core.primitives import lt_p

from jaxrnn.errors import StreamError
from jaxrnn.jaxprs.equations import type_of
from jaxrnn.jaxprs.primitives import Rules, entry_of, numpy_of
from jaxrnn.streaming.dimensions import (
    LARGEST,
    Timeline,
    constant_value,
    is_symbolic,
    largest_value,
    out_shape,
    symbolic_axes,
    value_of,
)
from jaxrnn.streaming.formulas import STEEPEST, Formula
from jaxrnn.streaming.interpreter import RULES
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.reach import Reach, union
from jaxrnn.streaming.values import (
    Affine,
    Chunk,
    Clipped,
    Deferred,
    FinalValue,
    Rows,
    along,
    is_fixed,
    is_length,
    is_wide,
    reach_of,
    static_integer,
)

#: The largest offset of integers that count frames (`Numbers.affine`).
SMALL = 1 << 20


@RULES.add(kind="elementwise")
def elementwise(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """Stream an elementwise operation."""
    entry = entry_of(equation)
    operands = _with_frames(run, _constant_lengths(equation, operands))
    known = against_the_length(run, equation, operands)
    if known is not None:
        return [known]
    affine = affine_of(equation, operands)
    counting = [
        value.numbers.affine[0] for value in operands if isinstance(value, Chunk) and value.numbers.affine is not None
    ]
    if any(map(is_length, operands)):
        rows = _from_length(run, equation, operands)
        if rows is not None:
            return [rows]
        down = min(counting, default=0) < 0
        return [Deferred(from_the_end(run) if down else unknown_yet(run), down)]
    if singular := singular_operands(equation):
        operands = tuple(
            run.harmless(value, entry.harmless) if place in singular else value for place, value in enumerate(operands)
        )
    arrays, like = align(run, operands)
    if len(arrays) > 2:  # JAX broadcasts one or two operands
        shape = np.broadcast_shapes(*map(np.shape, arrays))
        arrays = [array if np.ndim(array) == 0 else jnp.broadcast_to(array, shape) for array in arrays]
    if entry.arithmetic == "convert" and operands[0].numbers.growth:
        results = [run.now.cast_positions(arrays[0], operands[0].numbers.growth, equation.params["new_dtype"])]
    else:
        results = run.bind(equation, arrays)
    made = [run.make(result, like.axis, like.timeline, like.delay, like.reach, affine) for result in results]
    clipped = _clipped(equation, operands)
    return made if clipped is None else [made[0].noting(clipped=clipped)]


@RULES.add("select_n", takes=(Deferred,))
def select(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """Stream a selection; if all frames take the same case, the result is this case."""
    which, *cases = _with_frames(run, _constant_lengths(equation, operands))
    case = chosen(which, cases)
    unusable = next((value for value in (which, *cases) if isinstance(value, Deferred)), None)
    if case is not None or unusable is not None:
        return [unusable if case is None else case]
    return elementwise(run, equation, which, *cases)


@RULES.add("div", "rem")
def divide(run: Pass, equation: JaxprEqn, x: Any, divisor: Any) -> list[Any]:
    """Stream a division or a remainder. A lap is a multiple of static divisors, so that remainders stay right."""
    x, divisor = _constant_lengths(equation, [x, divisor])
    if isinstance(x, Chunk) and is_fixed(divisor) and np.issubdtype(np.asarray(divisor).dtype, np.integer):
        for number in {abs(int(each)) for each in np.unique(divisor)} - {0}:
            run.notes.repeat(number // math.gcd(number, x.timeline.per_unit))
    return elementwise(run, equation, x, divisor)


def singular_operands(equation: JaxprEqn) -> list[int]:
    """Return the places of the operands of an elementwise operation in which the derivative may be singular."""
    entry, atoms = entry_of(equation), equation.invars
    if entry.kind != "elementwise" or entry.harmless is None or equation.params.get("y", -1) > 0:
        return []  # positive powers are smooth
    inexact = [jnp.issubdtype(type_of(atom), jnp.inexact) and not isinstance(atom, Literal) for atom in atoms]
    return [place for place in range(len(atoms))[entry.singular or slice(None)] if inexact[place]]


def _clipped(equation: JaxprEqn, operands: Sequence[Any]) -> Clipped | None:
    """Return the bounds of a result that counts frames between bounds, or None."""
    x, bound = (*operands, None)[:2] if isinstance(operands[0], Chunk) else (*operands[::-1], None)[:2]
    if not isinstance(x, Chunk) or not is_wide(type_of(equation.outvars[0])):
        return None
    entry, (affine, low, high) = entry_of(equation), x.numbers.clipped or (x.numbers.affine, None, None)
    number = static_integer(bound)
    if affine is None or affine[0] < 1 or number is None:
        return x.numbers.clipped if entry.arithmetic == "convert" else None
    if entry.monoid == "max" and high is None and not is_symbolic(number):
        return affine, max(number, number if low is None else low), None
    return (affine, low, number) if entry.monoid == "min" and high is None else None


def align(run: Pass, operands: Sequence[Any]) -> tuple[list[Any], Chunk]:
    """Return the arrays of the operands for the same frames, and a chunk without array that describes the result."""
    chunks = [value for value in operands if isinstance(value, Chunk)]
    like = chunks[0]
    for chunk in chunks[1:]:
        if chunk.axis != like.axis or (str(chunk.timeline.size) != str(like.timeline.size)):
            run.refuse(
                f"its operands have time on axis {like.axis} ({like.timeline.size} frames) and on axis {chunk.axis} "
                f"({chunk.timeline.size} frames)",
                "give both the same time axis and length",
            )
    outers = {chunk.outer for chunk in chunks if chunk.delay is not None} or {max(chunk.outer for chunk in chunks)}
    if len(outers) > 1:
        run.refuse(
            "its operands merge time with another axis in different orders",
            "merge the axes of both in the same order",
        )
    reach = union([*(chunk.reach for chunk in chunks), reach_everywhere(operands, like.timeline)])
    earliest = earliest_delay(run, operands, like.timeline)
    moving = [chunk for chunk in chunks if chunk.delay is not None]
    if not moving and earliest == -LARGEST:
        widest = max(chunks, key=lambda chunk: chunk.array.shape[chunk.axis])
        return [value.array if isinstance(value, Chunk) else value for value in operands], Chunk(
            None, widest.axis, widest.timeline, None, reach
        )
    delay = max([earliest, *(chunk.delay for chunk in moving if chunk.delay is not None)])
    timeline = (moving or chunks)[0].timeline
    arrays = []
    for value in operands:
        if isinstance(value, Chunk):
            if value.delay is None:
                value = Chunk(value.array, value.axis, timeline, None, None)
            value = run.delayed(value, delay).array
        arrays.append(run.unstreamed(value))
    return arrays, Chunk(None, like.axis, timeline, delay, reach)


def known_at_end(values: Sequence[Any]) -> bool:
    """Return True if a value is known only when the stream ends."""
    return any(isinstance(value, FinalValue) or is_length(value) for value in values)


def refuse_final_values(run: Pass, operands: Sequence[Any]) -> None:
    """Refuse operands that are known only when the stream ends."""
    if known_at_end(operands):
        raise unknown_yet(run)


def earliest_delay(run: Pass, values: Sequence[Any], timeline: Timeline) -> int:
    """Return the smallest delay at which frames may read values that are not streams, such as the first frame.

    Values that are known only when the stream ends are refused.
    """
    delay = -LARGEST
    for value in values:
        if is_length(value):
            raise unknown_yet(run)
        if isinstance(value, FinalValue):
            if value.since is None:
                raise unknown_yet(run)
            # Frame 0 leaves when more units than delay / per_unit have come.
            delay = max(delay, timeline.per_unit * (math.ceil(value.since) - 1))
    return delay


def everywhere(run: Pass, value: Any, axis: int, timeline: Timeline) -> Chunk:
    """Return a chunk in which each frame equals a value that is not a stream; the value has size 1 along `axis`."""
    delay = earliest_delay(run, [value], timeline)
    return run.spread(Chunk(run.unstreamed(value), axis, timeline, None, reach_everywhere([value], timeline)), delay)


def _with_frames(run: Pass, operands: Sequence[Any]) -> tuple[Any, ...]:
    """Turn final values with a time axis into chunks."""
    chunks = [value for value in operands if isinstance(value, Chunk)]
    like = next((chunk for chunk in chunks if chunk.delay is not None), chunks[0] if chunks else None)
    if like is None:
        return tuple(operands)
    return tuple(
        everywhere(run, value, like.axis, like.timeline)
        if isinstance(value, FinalValue) and np.ndim(value.array) == like.array.ndim
        else value
        for value in operands
    )


def reach_everywhere(values: Iterable[Any], timeline: Timeline) -> Reach | None:
    """Return the reach of frames that all read the same values, such as the first frame."""
    reach = reach_of(values)
    return None if reach is None else reach.everywhere(timeline)


def backwards(run: Pass) -> StreamError:
    """Return the error for an operation that reverses time."""
    return run.refusal(
        "it reverses time, so its first frame is the last of the stream",
        "use a model that runs forward in time (a bidirectional recurrence needs the whole recording)",
    )


def from_the_end(run: Pass) -> StreamError:
    """Return the error for positions that count from the end."""
    return run.refusal(
        "it counts frames from the end, so its first frame is known only when the stream has ended",
        "count from the start, such as jnp.arange(x.shape[0])",
    )


def _from_length(run: Pass, equation: JaxprEqn, operands: Sequence[Any]) -> Rows | None:
    """Return the sum or difference of numbers of frames and a length, or None."""
    signs, (x, *_) = entry_of(equation).signs, sorted(operands, key=is_length)
    if (
        len(operands) != 2
        or not signs
        or not isinstance(x, Chunk)
        or x.numbers.affine is None
        or x.numbers.clipped is not None
    ):
        return None
    place = 0 if operands[0] is x else 1
    length, scale, offsets = operands[1 - place], signs[place] * x.numbers.affine[0], signs[place] * x.numbers.affine[1]
    dtype, axis, rank = type_of(equation.outvars[0]), x.axis, x.array.ndim
    if not is_length(length) or np.size(length) != 1 or abs(scale) != 1 or offsets.size != 1 or not is_wide(dtype):
        return None
    total = signs[1 - place] * length.reshape(-1)[0] + int(offsets.flat[0])  # of which the numbers fall, or grow
    constant = int(value_of(total, 0))
    at = lambda differences: along(scale * differences + constant, axis, rank).astype(dtype)  # noqa: E731
    fields: Any = {"size": x.timeline.size, "origin": -scale * (total - constant), "counts": (scale, constant)}
    return Rows(from_the_end(run), backwards=scale < 0, axis=axis, at=at, **fields) if x.outer == 1 else None


def unknown_yet(run: Pass) -> StreamError:
    """Return the error for an operation that reads a value from the end of the stream in each frame."""
    return run.refusal(
        "it uses a value in every frame that is known only when the stream has ended (a sum, mean or maximum over "
        "time, a final state, or the length)",
        "use a causal form (cumulative or windowed statistics), or return the value as a separate output",
    )


def _constant_lengths(equation: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    """Replace a length by a number if the length is constant for all recordings in which the result has frames."""
    size = next(filter(is_symbolic, out_shape(equation)))

    def of(value: Any, atom: Any) -> Any:
        number = constant_value(value.flat[0], size) if is_length(value) and np.size(value) == 1 else None
        return value if number is None else np.full(np.shape(value), number, type_of(atom))

    return list(map(of, operands, equation.invars))


#: Rules ``(equation, operands) -> scale and offsets`` of results that count frames, or None.
_AFFINE = Rules[Callable[[JaxprEqn, Sequence[Any]], Affine | None]]()


def affine_of(equation: JaxprEqn, operands: Sequence[Any]) -> Affine | None:
    """Return scale and offsets of a result that counts frames, or None."""
    rule = _AFFINE.of(equation)
    return None if rule is None else rule(equation, operands)


def _counts(operands: Sequence[Any]) -> list[Affine]:
    """Return scale and offsets of all operands, or an empty list if an operand does not count frames."""
    terms = [_term(value) for value in operands]
    known = [term for term in terms if term is not None and _is_small(*term)]
    return known if len(known) == len(terms) and any(isinstance(value, Chunk) for value in operands) else []


def _wide_counts(equation: JaxprEqn, operands: Sequence[Any]) -> list[Affine]:
    """Return the numbers of `_counts` as 64-bit integers, or an empty list if the result may overflow."""
    known = _counts(operands) if is_wide(type_of(equation.outvars[0])) else []
    return [(scale, offsets.astype(np.int64)) for scale, offsets in known]


def _if_small(scale: int, offsets: np.ndarray) -> Affine | None:
    return (scale, offsets) if _is_small(scale, offsets) else None


@_AFFINE.add("add", "add_any", "convert_element_type", "neg", "stop_gradient", "sub")
def _linear_count(equation: JaxprEqn, operands: Sequence[Any]) -> Affine | None:
    known = _wide_counts(equation, operands)
    if not known:
        return None
    pairs = list(zip(entry_of(equation).signs or (1,), known, strict=True))
    total = sum((sign * offsets for sign, (_, offsets) in pairs), np.zeros((), np.int64))
    return _if_small(sum(sign * scale for sign, (scale, _) in pairs), total)


@_AFFINE.add("mul")
def _multiplied_count(equation: JaxprEqn, operands: Sequence[Any]) -> Affine | None:
    known = _wide_counts(equation, operands)
    if all(scale for scale, _ in known):
        return None
    (scale, offsets), (_, factor) = known if known[1][0] == 0 else known[::-1]
    if scale and factor.size != 1:
        return None
    return _if_small(scale * int(factor.reshape(-1)[0]) if scale else 0, offsets * factor)


@_AFFINE.add("ge", "gt", "le", "lt")
def _compared_count(equation: JaxprEqn, operands: Sequence[Any]) -> Affine | None:
    """Return a comparison with the same outcome in all frames."""
    known, compare = _counts(operands), numpy_of(equation)
    if not known:
        return _compared_bounds(operands[0], _term(operands[1]), compare)
    (scale, offsets), (other_scale, other_offsets) = known
    scale, offsets = scale - other_scale, offsets.astype(np.int64) - other_offsets.astype(np.int64)
    # Growing numbers above 0 stay above 0, and falling numbers below 0 stay below 0.
    stays = (scale >= 0 and np.all(offsets >= 0)) or (scale <= 0 and np.all(offsets < 0))
    splits_at_zero = bool(compare(-1, 0)) != bool(compare(0, 0))
    return (0, compare(offsets, 0)) if stays and (splits_at_zero or scale == 0) else None


def _compared_bounds(x: Any, bound: Affine | None, compare: Callable[..., Any]) -> Affine | None:
    """Return the outcome ``x < bound`` or ``x >= bound`` of numbers between bounds that are never below the bound."""
    splits_at_zero = bool(compare(-1, 0)) != bool(compare(0, 0))
    if not splits_at_zero or not isinstance(x, Chunk) or x.numbers.clipped is None or bound is None or bound[0] != 0:
        return None
    (_, offsets), low, high = x.numbers.clipped
    low, limit = int(np.min(offsets)) if low is None else low, int(np.max(bound[1]))
    over = None if high is None else largest_value(limit - high, x.timeline.size)
    is_above = low >= limit and (high is None or (over is not None and over <= 0))
    return (0, np.full((1,) * x.array.ndim, bool(compare(0, 0)))) if is_above else None


@_AFFINE.add("and", "or", "xor")
def _logic_count(equation: JaxprEqn, operands: Sequence[Any]) -> Affine | None:
    known = _counts(operands)
    if not known or any(scale for scale, _ in known):
        return None
    return 0, numpy_of(equation)(*(offsets for _, offsets in known))


def _is_small(scale: int, offsets: np.ndarray) -> bool:
    """Return True if numbers of frames do not overflow in 32 bits, in recordings of a usual length."""
    return abs(scale) <= STEEPEST and bool(np.all((offsets <= SMALL) & (offsets >= -SMALL)))


def against_the_length(run: Pass, equation: JaxprEqn, operands: Sequence[Any]) -> Chunk | None:
    """Return a comparison of frame numbers with the length, or their minimum; None if the operation is neither.

    Example: a mask of the last frames. The length decides only the last frames, so each frame waits until the result is
    certain.
    """
    entry, is_less = entry_of(equation), equation.primitive is lt_p
    compare, is_least = numpy_of(equation) if entry.compares else None, entry.monoid == "min"
    places = [place for place, value in enumerate(operands) if isinstance(value, Chunk) and _counted(value)]
    if (compare is None and not is_least) or len(places) != 1 or not is_length(operands[1 - places[0]]):
        return None
    chunk, limit = operands[places[0]], operands[1 - places[0]]
    affine = _counted(chunk) if is_least or is_less else chunk.numbers.affine
    low = None if chunk.numbers.clipped is None else chunk.numbers.clipped[1]
    bounded = chunk.numbers.clipped is not None and is_less
    if affine is None or (bounded and places[0] == 1):
        return None
    scale, offsets = affine
    size = chunk.timeline.size
    if scale == 0 or (is_least and scale < 0) or np.size(limit) != 1 or chunk.outer != 1:
        return None
    beyond = constant_value(scale * size - limit.reshape(-1)[0], size)
    if beyond is None:
        return None
    # The last frame is frame ``size - 1``. In frame ``size``, the number would exceed the limit by this much.
    surplus = offsets + beyond
    if bounded and low is not None and (scale != 1 or low > -beyond):
        return None  # the lower bound may reach the length of a short recording
    if compare is not None and scale > 0 and np.all(surplus <= scale):
        # No frame exceeds the limit: the result may be the same in all frames, as in a test of bounds.
        ends = [
            compare(each, 0) if places[0] == 0 else compare(0, each) for each in (surplus - scale, -1 + 0 * surplus)
        ]
        if np.array_equal(*ends):
            shape = [1 if axis == chunk.axis else size for axis, size in enumerate(chunk.array.shape)]
            known = np.broadcast_to(np.asarray(ends[0]), shape)
            return run.make(jnp.asarray(known), chunk.axis, chunk.timeline, None, None, (0, known))
    if bounded:
        return None
    # Until the stream has more frames than a lower bound, the length may be below the bound.
    least = [] if low is None else [low + beyond]
    wait = max(0, *(int(each) // scale for each in (*surplus.flat, *least)))
    chunk = run.spread(chunk)
    timeline = chunk.timeline
    delay = max(chunk.delay or 0, timeline.certain + wait)
    end, where = run.now.end(timeline), run.now.indices(timeline, delay)
    if compare is None:
        x = run.delayed(chunk, delay)
        most = run.unstreamed(limit).reshape(()).astype(x.array.dtype)
        array = x.array if end is None else jnp.minimum(x.array, most)
        return run.same(x, array).noting(clipped=_clipped(equation, operands))
    left = np.full(where.shape, wait + 1) if end is None else end - where
    difference = jnp.asarray(surplus, jnp.int32) - along(jnp.asarray(left, jnp.int32) * scale, chunk.axis, surplus.ndim)
    zero = jnp.zeros_like(difference)
    (outcome,) = run.bind(equation, [difference, zero] if places[0] == 0 else [zero, difference])
    shape = [run.frames_of(timeline) if axis == chunk.axis else size for axis, size in enumerate(chunk.array.shape)]
    return run.make(jnp.broadcast_to(outcome, shape), chunk.axis, timeline, delay, None)


def _counted(chunk: Chunk) -> Affine | None:
    """Return the numbers of frames in a chunk, without bounds."""
    return chunk.numbers.affine if chunk.numbers.clipped is None else chunk.numbers.clipped[0]


def _term(value: Any) -> Affine | None:
    """Return scale and offsets of an operand; a static number has scale 0."""
    if isinstance(value, Chunk):
        return value.numbers.affine
    if is_fixed(value) and np.asarray(value).dtype.kind in "iub":
        return 0, np.asarray(value)
    return None


def chosen(predicate: Any, cases: Sequence[Any]) -> Any:
    """Return the stream that a selection takes in all frames; None if the choice is not static or not a stream."""
    if not isinstance(predicate, Chunk) or predicate.numbers.affine is None or predicate.numbers.affine[0] != 0:
        return None
    outcomes = np.unique(predicate.numbers.affine[1])
    if len(outcomes) != 1:
        return None
    case = cases[int(outcomes[0])]
    return case if isinstance(case, Chunk) else None


@RULES.add("iota")
def iota(run: Pass, equation: JaxprEqn) -> Chunk:
    """Count along time, or along a different axis, where all frames are equal."""
    shape, dimension = list(equation.params["shape"]), equation.params["dimension"]
    dtype = equation.params["dtype"]
    (axis,) = symbolic_axes(shape)
    size, shape[axis] = shape[axis], 1
    if dimension != axis:
        return run.make(lax.broadcasted_iota(dtype, shape, dimension), axis, run.clock.timeline(size), None, None)
    return frame_numbers(run, size, dtype, axis, shape)


def frame_numbers(run: Pass, size: Any, dtype: Any, axis: int = 0, others: Sequence[int] = (1,)) -> Chunk:
    """Return the number of each frame of an axis, in a shape with other axes."""
    timeline, shape = run.clock.timeline(size), list(others)
    delay = timeline.certain
    frames = frame_numbers_at(run, timeline, delay, dtype)
    shape[axis] = run.frames_of(timeline)
    array = jnp.broadcast_to(along(frames, axis, len(shape)), shape)
    affine = (1, np.zeros((1,) * len(shape), np.int64)) if is_wide(dtype) else None
    with run.growing_by(timeline.per_unit if is_wide(dtype) else 0):
        chunk = run.make(array, axis, timeline, delay, None, affine)
    counts = is_wide(dtype) and math.prod(others) == 1
    return chunk.noting(formula=Formula.counting()) if counts else chunk


def frame_numbers_at(run: Pass, timeline: Timeline, delay: int, dtype: Any) -> Any:
    """Return the number of each frame of a chunk as an array."""
    run.notes.repeat(1, timeline.per_unit)
    now, before = run.now, run.now.counted()
    first = jnp.asarray(now.count if isinstance(now.count, int) else before, before.dtype)
    first = first * np.asarray(timeline.per_unit, first.dtype) - np.asarray(delay, first.dtype)
    return now.cast_positions(first + jnp.arange(run.frames_of(timeline), dtype=first.dtype), timeline.per_unit, dtype)


@RULES.add("dim_as_value")
def dim_as_value(run: Pass, equation: JaxprEqn) -> np.ndarray:
    """Return the length as a static value, a symbolic dimension in an object array."""
    boxed = np.empty((), object)
    boxed[()] = equation.params["dim"]
    return boxed
