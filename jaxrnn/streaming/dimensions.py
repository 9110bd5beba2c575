"""Symbolic dimensions: evaluation for any length, also a traced length, periods of their growth, and timelines.

JAX prints a symbolic dimension as an expression that ``jax.export.symbolic_shape`` can read. This module parses the
printed expression, which is public. Example: ``floordiv(S, 2)`` has period 2, because 2 more frames add exactly 1.

A timeline is the number of frames of a value after a number of input frames, with the delay at which all frames exist.
Example: ``x[2:]`` has length ``S - 2``. After S input frames there are S - 2 frames, so the last two frames of a chunk
with delay 0 do not exist yet. With a delay of 2, all frames that a step returns exist: `Timeline.certain` is 2.
"""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import InconclusiveDimensionOperation, JaxprEqn

from jaxrnn._jax.sizes import by_bounds
from jaxrnn.answers import Answer, Unknown
from jaxrnn.errors import StreamError
from jaxrnn.jaxprs.equations import inner_jaxprs, shape_of, walk
from jaxrnn.jaxprs.primitives import Rules, entry_of

#: The symbol of the length: the number of input frames.
SYMBOL = "S"
#: Function names in the printed form of a dimension.
FUNCTIONS = ("floordiv", "mod", "max", "min")


class UndecidedError(StreamError):
    """Raised if a function can be streamed only under stricter constraints on the length.

    Sizes are only in the text of errors of JAX and of operators, so that the properties read the text.
    """

    @property
    def parts(self) -> list[str]:
        """The divisions, remainders, maxima and minima of the length in the reason."""
        return parts_of(str(self))

    @property
    def numbers(self) -> set[int]:
        """The numbers in the reason, of which one may be the only length that works."""
        return _numbers_in(str(self))

    @property
    def bounds(self) -> set[int]:
        """The numbers in the reason with which a length is compared, of which one may be the largest that works."""
        compared = re.findall("comparison '(.*)' is inconclusive", str(self))
        return _numbers_in(" ".join([*(part for part in self.parts if part.startswith("min(")), *compared]))


def _numbers_in(text: str) -> set[int]:
    return {int(number) for number in re.findall(r"\d+", text)}


def is_symbolic(size: Any) -> bool:
    """Return True if a dimension depends on the length of the stream."""
    return not isinstance(size, (int, np.integer))


def symbolic_axes(shape: Any) -> list[int]:
    """Return the axes of a shape that depend on the length of the stream."""
    return [axis for axis, size in enumerate(shape) if is_symbolic(size)]


def expression(size: Any) -> ast.expr:
    """Return the syntax tree of a dimension or constraint."""
    return _parsed(str(size))[0]


def names_in(node: ast.AST) -> set[str]:
    """Return the names of symbols and functions in a syntax tree."""
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


@functools.cache
def _parsed(spelling: str) -> tuple[ast.expr, Any]:
    tree = ast.parse(spelling.replace("^", "**"), mode="eval")
    return tree.body, compile(tree, "<dimension>", "eval")


def value_of(size: Any, length: Any) -> Any:
    """Return the value of a dimension for a length: an integer, a NumPy array of integers, or a traced integer."""
    if not is_symbolic(size):
        return int(size)
    numbers: Any = jnp if isinstance(length, Array) else np
    values = (lambda a, b: a // b, lambda a, b: a % b, numbers.maximum, numbers.minimum)
    names = {SYMBOL: length, **dict(zip(FUNCTIONS, values, strict=True))}
    result = eval(_parsed(str(size))[1], {"__builtins__": {}}, names)
    return int(result) if isinstance(length, int) else result


def period_of(size: Any) -> int:
    """Return a number of frames after which a dimension has grown by a whole number, not necessarily the smallest.

    Only long recordings follow the period. The outcome of a constraint repeats with the same period.
    """
    return 1 if not is_symbolic(size) else _period(expression(size))


def _period(node: ast.expr) -> int:
    inner = math.lcm(*(_period(part) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("floordiv", "mod"):
        divisor = node.args[1]
        if names_in(divisor):
            raise UndecidedError(f"a length is divided by a length that depends on time: {ast.unparse(node)}")
        return inner * abs(int(ast.literal_eval(divisor)))
    return inner


def magnitude_of(size: Any) -> int:
    """Return a length beyond which ``max`` and ``min`` in a dimension always choose the same argument."""
    constants = [
        abs(node.value)
        for node in ast.walk(expression(size))
        if isinstance(node, ast.Constant) and isinstance(node.value, int)
    ]
    return (1 + sum(constants)) * period_of(size)


def parts_of(text: str) -> list[str]:
    """Return the divisions, remainders, maxima and minima of S in a text, such as an error message, shortest first."""
    found = set()
    for match in re.finditer(rf"\b(?:{'|'.join(FUNCTIONS)})\(", text):
        depth, end = 1, match.end()
        while depth and end < len(text):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        part = text[match.start() : end]
        if not depth and _is_dimension(part):
            found.add(part)
    return sorted(found, key=lambda part: (len(part), part))


def _is_dimension(text: str) -> bool:
    try:
        return names_in(expression(text)) - set(FUNCTIONS) == {SYMBOL} and period_of(text) > 0
    except (SyntaxError, ValueError, TypeError, IndexError, UndecidedError):
        return False


def constant_value(dimension: Any, size: Any) -> int | None:
    """Return the value of a dimension that is constant for all lengths with ``size > 0``, or None."""
    if not is_symbolic(dimension):
        return int(dimension)
    least, most = (largest_value(each, size) for each in (-dimension, dimension))
    return most if least is not None and most is not None and -least == most else None


def largest_value(dimension: Any, size: Any) -> int | None:
    """Return the largest value of a dimension over all lengths with ``size > 0``; None if it grows, or is not known."""
    return _largest(str(dimension), str(size)) if is_symbolic(dimension) else int(dimension)


@functools.cache
def _largest(dimension: str, size: str) -> int | None:
    try:
        far = max(magnitude_of(dimension), magnitude_of(size))
    except UndecidedError:  # a division by the length
        return None
    if 3 * far > LARGEST:
        return None
    lengths = np.arange(1, 3 * far + 2)
    values, counts = (np.broadcast_to(value_of(each, lengths), lengths.shape) for each in (dimension, size))
    most, earlier = (int(np.max(values[:end][counts[:end] > 0], initial=-LARGEST)) for end in (len(lengths), 2 * far))
    return most if earlier == most > -LARGEST else None


def is_at_least(size: Any, number: int) -> bool:
    """Return True if a dimension is at least a number for all lengths that the constraints allow, as far as known."""
    try:
        return bool(size >= number)
    except InconclusiveDimensionOperation:
        return False


def is_at_most(size: Any, number: int) -> bool:
    """Return True if a dimension is at most a number for all lengths that the constraints allow, as far as known."""
    return is_at_least(-size, -number)


def as_multiple(dimension: Any, size: Any) -> tuple[int, int] | None:
    """Return a and b if a dimension is ``a * size + b`` for all lengths, else None."""
    lengths = np.arange(1, 3 * max(magnitude_of(dimension), magnitude_of(size)) + 3)
    values, counts = (np.broadcast_to(value_of(each, lengths), lengths.shape) for each in (dimension, size))
    factor = int((values[-1] - values[0]) // max(counts[-1] - counts[0], 1))
    offset = int(values[0] - factor * counts[0])
    return (factor, offset) if np.array_equal(values, factor * counts + offset) else None


def is_zero(size: Any, allow: Callable[[Any], Any] | None = None, period: int = 1, far: int = 1) -> Answer:
    """Return True if a dimension is 0 for all lengths, False if for no length, else Unknown.

    `allow` selects the lengths, and repeats its answers with a period from a length `far` on.
    """
    try:
        far, period = max(far, magnitude_of(size)), math.lcm(period, period_of(size))
    except UndecidedError:  # a division by the length
        far = LARGEST
    if 2 * far + 3 * period > LARGEST:
        return by_bounds(size)
    lengths = np.arange(1, 2 * far + 3 * period)
    zero = np.broadcast_to(value_of(size, lengths) == 0, lengths.shape)
    zero = zero if allow is None else zero[allow(lengths)]
    if zero.any() and not zero.all():
        return Unknown(f"'{size}' is 0 for some lengths only")
    return bool(zero.all())


def out_shape(equation: JaxprEqn) -> Any:
    """Return the shape of the first result of an equation, for a whole recording."""
    return shape_of(equation.outvars[0])


def in_shape(equation: JaxprEqn, index: int = 0) -> Any:
    """Return the shape of an operand of an equation, for a whole recording."""
    return shape_of(equation.invars[index])


def gathered_axes(equation: JaxprEqn) -> list[int]:
    """Return the axes of the result of a gather that are axes of the indices."""
    return [d for d in range(len(out_shape(equation))) if d not in equation.params["dimension_numbers"].offset_dims]


def cut_of(equation: JaxprEqn) -> tuple[int, int | None] | None:
    """Return the axis of which an equation takes consecutive elements, and the operand with the first place.

    The operand is None for a slice, which has the place among its parameters. Other equations return None.
    """
    if (find := _STARTS.of(equation)) is None or len(old := in_shape(equation)) != len(new := out_shape(equation)):
        return None
    axes = [axis for axis in range(len(old)) if str(old[axis]) != str(new[axis])]
    place = find(equation, axes[0]) if len(axes) == 1 else 0
    return None if place == 0 else (axes[0], place)


#: Rules ``(equation, axis) -> operand`` with the start of a cut along an axis: 0, the array, if the equation does more.
_STARTS = Rules[Callable[..., int | None]]()


@_STARTS.add("slice")
def _start_of_slice(equation: JaxprEqn, _: int) -> int | None:
    return 0 if any(step != 1 for step in equation.params["strides"] or ()) else None


@_STARTS.add("dynamic_slice")
def _start_of_dynamic_slice(_: JaxprEqn, axis: int) -> int:
    return 1 + axis


@_STARTS.add("gather")
def _start_of_gather(equation: JaxprEqn, axis: int) -> int:
    numbers = equation.params["dimension_numbers"]
    whole = numbers.start_index_map == (axis,) and numbers.offset_dims == tuple(range(len(out_shape(equation))))
    return int(whole)


def frames_of_window(equation: JaxprEqn, time: int) -> tuple[int, Any] | None:
    """Return the time axis of the updates, and numbers of dimensions in which each frame of a window is an update.

    Return None if the scatter does not write a single window of a fixed number of frames.
    """
    numbers = equation.params["dimension_numbers"]
    if in_shape(equation, 1) != (1,) or numbers.inserted_window_dims or numbers.operand_batching_dims:
        return None
    place = numbers.update_window_dims[time]
    if is_symbolic(in_shape(equation, 2)[place]):
        return None
    windows = tuple(each for each in numbers.update_window_dims if each != place)
    return place, numbers._replace(update_window_dims=windows, inserted_window_dims=(time,))


def symbolic_sizes(jaxpr: Any, path: tuple[JaxprEqn, ...] = ()) -> Iterator[tuple[Any, tuple[JaxprEqn, ...]]]:
    """Yield each dimension in a jaxpr that depends on the length of the stream, at any depth, with a path.

    The path is the equation with this dimension, preceded by the equations that contain the equation.
    """
    for variable in (*jaxpr.invars, *jaxpr.constvars):
        for size in filter(is_symbolic, shape_of(variable)):
            yield size, path
    for equation in jaxpr.eqns:
        here = (*path, equation)
        for inner in inner_jaxprs(equation):
            yield from symbolic_sizes(inner, here)
        shapes = map(shape_of, equation.outvars)
        for size in (*own_sizes(equation), *(size for shape in shapes for size in filter(is_symbolic, shape))):
            yield size, here


def sizes_in(jaxpr: Any) -> set[str]:
    """Return the dimensions in a jaxpr that depend on the length, of arrays and of values, as JAX prints them."""
    values = filter(is_symbolic, map(counted_size, walk(jaxpr)))
    return {str(size) for size in (*values, *(size for size, _ in symbolic_sizes(jaxpr)))}


def counted_size(equation: JaxprEqn) -> Any:
    """Return the size that an equation counts, or reads as a number; 0 for other equations."""
    kind, params = entry_of(equation).kind, equation.params
    if kind == "constant" and "dimension" in params:
        return params["shape"][params["dimension"]]
    return params["dim"] if kind == "size" else 0


def own_sizes(equation: JaxprEqn) -> list[Any]:
    """Return a list with the symbolic length of a loop. If the loop scans no arrays, no shape contains the length."""
    length = equation.params.get("length")
    return [] if length is None or not is_symbolic(length) else [length]


def has_symbols(equation: JaxprEqn) -> bool:
    """Return True if a loop, or a function inside an equation, depends on the length of the stream."""
    return bool(own_sizes(equation)) or any(
        reads_length(inner) or any(True for _ in symbolic_sizes(inner)) for inner in inner_jaxprs(equation)
    )


def reads_length(jaxpr: Any) -> bool:
    """Return True if a jaxpr, at any depth, computes with the length of the stream."""
    return any(entry_of(equation).kind == "size" for equation in walk(jaxpr))


#: The largest number of lengths or elements in a table, and the largest constant in a formula.
LARGEST = 1 << 22


class Timeline:
    """The frames of a streamed axis, as a function of the number of input frames.

    For long recordings, each unit of input frames adds `per_unit` frames. A unit is the smallest pulse.
    """

    def __init__(self, size: Any, outer: int, unit: int, length_of: Callable[[Any, Any], Any] = value_of):
        #: The symbolic dimension, the number of streams concatenated along the axis, and the smallest pulse.
        self.size, self.outer, self.unit = size, outer, unit
        self._length_of = length_of
        far = magnitude_of(size) // unit + 1
        if far * unit > LARGEST:
            raise StreamError(f"the length {size} becomes regular only after {far * unit} frames, too late to stream")
        table = np.broadcast_to(self.length(np.arange(0, (far + 2) * unit)), ((far + 2) * unit,))
        # JAX's expression assumes at least one frame. For 0 frames, the value may exceed the value for one frame.
        table = np.append(np.minimum(table[0], table[1]), table[1:])
        if np.any(np.diff(table) < 0):
            raise StreamError(f"a time axis of length {size} shrinks as more frames arrive, so it cannot be streamed")
        lengths = table[::unit]
        self.per_unit = int(lengths[-1] - lengths[-2])  # frames for each unit
        if self.per_unit < 1:
            raise UndecidedError(
                f"a time axis of length {size} does not grow with the input, so it cannot be streamed; keep all frames "
                "after a fixed frame, or a fixed number of frames"
            )
        lead = np.arange(len(lengths)) * self.per_unit - lengths
        #: The smallest delay at which each frame of a chunk certainly exists.
        self.certain = int(lead.max())
        #: The number of units after which each unit adds exactly `per_unit` frames.
        self.settled = int(np.max(np.flatnonzero(lead != lead[-1]), initial=-1)) + 1

    @property
    def rate(self) -> Fraction:
        """Frames for each input frame."""
        return Fraction(self.per_unit, self.unit)

    def length(self, total: Any) -> Any:
        """Return the number of frames of one stream after `total` input frames, which may be traced."""
        return self._length_of(self.size, total) // self.outer


@dataclass(frozen=True)
class Laps:
    """A rule for counting units in 32 bits without overflow: near the limit, the count falls back by a lap.

    A lap is a multiple of the periods of all remainders in the function. So remainders of positions, and comparisons
    with numbers far below the limit, stay right. Floats and unsigned integers of positions add the laps that were lost.
    Example: at 16 kHz, a count of samples falls back after 37 hours, and from then on every 18 hours.

    Attributes:
        period: a common multiple of the periods, in units.
        fastest: the largest growth of a position or a length in one unit.
    """

    period: int = 1
    fastest: int = 1

    @property
    def limit(self) -> int:
        """The largest count of units, which leaves room for the frames of one more pulse."""
        return (2**31 - 2**25) // self.fastest

    @property
    def length(self) -> int:
        """The number of units in a lap, about half of the limit."""
        half = self.limit // 2
        # Divisors that are computed at run time probably divide these numbers.
        periods = [math.lcm(self.period, 2**power * 3**2 * 5**2 * 7) for power in (16, 10)] + [self.period]
        period = next((each for each in periods if each <= half), half)
        return half // period * period

    def including(self, period: int, growth: Fraction | int = 0) -> Laps:
        """Return the rule for further values of this period, which grow by `growth` in a unit."""
        return Laps(math.lcm(self.period, period), max(self.fastest, math.ceil(abs(growth))))

    def completed(self, units: Any) -> Any:
        """Return the number of laps by which a count of units exceeds the limit."""
        room = np.asarray(self.limit - self.length + 1, units.dtype)
        return lax.div(jnp.maximum(units - room, np.zeros((), units.dtype)), np.asarray(self.length, units.dtype))


class Clock:
    """The timelines of a traced function.

    `unit` is the smallest pulse, a common multiple of the periods of all sizes. `multiple` is the number of input
    frames for each frame of the trace. `allow` is True for lengths that recordings may have, in frames of the trace,
    and `most` is the largest of these lengths, or None. `when_empty` has the sizes in an empty recording that differ
    from their expressions.
    """

    def __init__(
        self,
        unit: int,
        multiple: int,
        allow: Callable[[np.ndarray], np.ndarray],
        most: int | None,
        when_empty: Mapping[str, int],
    ):
        self.unit, self.multiple, self.when_empty = unit, multiple, when_empty
        self._allow, self._most = allow, most

    def lengths(self, least: int) -> list[int]:
        """Return up to four allowed lengths, from `least` on if possible, that end at different places in a unit.

        If the constraints allow no longer recording, one of the lengths is the largest that they allow.
        """
        begin = least if self._most is None else max(0, min(least, self._most - self.unit))
        span, allowed = 4 * self.unit + 1024, np.empty(0, int)
        while not len(allowed):
            if span > 4 * LARGEST:
                raise StreamError(f"the constraints allow no length between {begin} and {begin + span}")
            lengths = np.arange(begin, begin + span)
            allowed, span = lengths[self._allow(lengths)], 4 * span
        places = np.linspace(0, min(len(allowed) - 1, self.unit), 4).astype(int)
        return sorted({int(length) for length in allowed[places]})

    def pace(self, size: Any) -> tuple[int, Fraction]:
        """Return the period of a long dimension in units, and the growth in a unit."""
        try:
            period = math.lcm(period_of(size), self.unit)
        except UndecidedError:  # a division by the length
            return 1, Fraction(0)
        far = -(-magnitude_of(size) // period) * period
        units = period // self.unit
        return units, Fraction(value_of(size, far + period) - value_of(size, far), units)

    @functools.cache  # noqa: B019 - a clock lives as long as the function that was traced with it
    def _timeline(self, spelling: str, outer: int, size: Any) -> Timeline:
        return Timeline(size, outer, self.unit, self.length_of)

    def length_of(self, size: Any, total: Any) -> Any:
        """Return the value of a dimension in a recording, which may be empty; see `value_of`."""
        value = value_of(size, total)
        if str(size) not in self.when_empty:
            return value
        numbers: Any = jnp if isinstance(total, Array) else np
        value = numbers.where(total == 0, self.when_empty[str(size)], value)
        return int(value) if isinstance(total, int) else value

    def timeline(self, size: Any, outer: int = 1) -> Timeline:
        """Return the timeline of an axis of symbolic size that contains `outer` streams."""
        return self._timeline(str(size), outer, size)


def smallest_period(size: Any) -> int:
    """Return the smallest number of frames after which a long dimension grows by the same number."""
    period, start = period_of(size), magnitude_of(size)
    if period > LARGEST or start > LARGEST:
        raise StreamError(f"a time axis of length {size} has a pattern of {period} frames, which is too long to stream")
    table = np.broadcast_to(value_of(size, np.arange(start, start + 3 * period)), (3 * period,))
    for candidate in (d for d in range(1, period + 1) if period % d == 0):
        steps = table[candidate:] - table[:-candidate]
        if np.all(steps == steps[0]):
            return candidate
    if "^" in str(size):
        raise StreamError(f"its result has a row for each pair of frames, {size}: every frame depends on all frames")
    raise StreamError(f"a time axis of length {size} does not grow evenly with the input, so it cannot be streamed")
