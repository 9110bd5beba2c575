"""Rules: what is known of the result of an equation on integers, from what is known of the operands.

Example: of ``2 * i`` and the number 1, ``add`` makes the index of ``2 * i + 1``, and ``ge`` makes the number False or
True if the answer is the same in all frames of all recordings.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend.core import InconclusiveDimensionOperation, JaxprEqn

from jaxrnn.jaxprs.canonical import kept_name
from jaxrnn.jaxprs.casts import converted
from jaxrnn.jaxprs.equations import type_of
from jaxrnn.jaxprs.primitives import Rules, entry_of, numpy_of
from jaxrnn.streaming.dimensions import cut_of, in_shape, is_at_most, is_symbolic, out_shape, symbolic_axes
from jaxrnn.streaming.integers import (
    LARGEST_FACTOR,
    STEEPEST,
    UNKNOWN,
    Index,
    common,
    computed,
    differences,
    is_wide,
    sum_of,
)


def operation_of(equation: JaxprEqn) -> str:
    """Return the name of the primitive, or of the called function for divisions of `jax.numpy`."""
    return kept_name(equation) or equation.primitive.name


@dataclass(frozen=True, eq=False)
class _Operation:
    """An operation on values that follow from the numbers of frames."""

    equation: JaxprEqn
    terms: Sequence[Index]
    frames: int  # in a unit

    @property
    def dtype(self) -> np.dtype:
        """The type of the result."""
        return np.dtype(type_of(self.equation.outvars[0]))

    @property
    def size(self) -> Any:
        """The symbolic number of frames of the result, or None."""
        return next(filter(is_symbolic, out_shape(self.equation)), None)

    @property
    def cases(self) -> Sequence[Index]:
        """The operands of which the result has elements; of a selection that is known, only the operand chosen."""
        cases = self.terms[entry_of(self.equation).moved or slice(None)]
        fixed = self.terms[0].fixed if entry_of(self.equation).arithmetic == "select" else None
        which = None if fixed is None else common(fixed)
        return cases if which is None else [cases[int(which)]]

    @property
    def function(self) -> Callable[..., Any]:
        """The operation in NumPy."""
        return numpy_of(self.equation)

    @property
    def fixed(self) -> list[np.ndarray]:
        """The operands, numbers or lengths, if all are the same in all frames; otherwise an empty list."""
        known = [each.elements for each in self.terms if each.elements is not None]
        return known if len(known) == len(self.terms) else []

    def made(
        self, function: Callable[..., Any], drift: Fraction = Fraction(0), *, rounds: bool = False, **changed: Any
    ) -> Index:
        """Return the index of a function of the operands; only a function that rounds takes quotients."""
        functions = [each.at for each in self.terms if each.at is not None and not each.needs_length]
        if len(functions) < len(self.terms) or (not rounds and any(each.is_quotient for each in self.terms)):
            return UNKNOWN
        fields: dict[str, Any] = {
            "period": math.lcm(*(each.period for each in self.terms)),
            "constants": sum(each.constants for each in self.terms),
            "scale": math.lcm(*(each.scale for each in self.terms)),
            "degree": max(each.degree for each in self.terms),
        }

        def at(i: Any, j: Any) -> Any:
            with np.errstate(invalid="ignore"):  # of the infinities in masks
                return function(*(each(i, j) for each in functions))

        return Index(at, drift, **{**fields, **changed}).held_in(self.dtype, self.size)

    @property
    def growth(self) -> Fraction | int:
        """The growth in one unit of a result that follows the positions of frames, or 0."""
        growths, entry = [each.growth for each in self.terms], entry_of(self.equation)
        if not any(growths) or not is_wide(type_of(self.equation.outvars[0])):
            return 0
        if entry.moved is not None:
            first, *others = (each.growth for each in self.cases)
            return first if all(each == first for each in others) else 0
        if entry.homogeneous:
            return self.function(*map(Fraction, growths))
        numbers = [each.number for each in self.terms]
        if entry.arithmetic != "multiply":
            return 0
        if entry.divides:
            return Fraction(growths[0]) / numbers[1] if numbers[1] else 0
        pairs = zip(growths, reversed(numbers), strict=True)
        found = [growth * number for growth, number in pairs if number is not None and abs(number) <= LARGEST_FACTOR]
        return found[0] if len(found) == 1 and abs(found[0]) <= STEEPEST * self.frames else 0


#: Rules ``(operation) -> Index``, keyed by the name of the operation.
_RULES = Rules[Callable[..., Index]]()


def index_of(equation: JaxprEqn, terms: Sequence[Index], frames: int) -> Index:
    """Return the index of the result of an equation, if a unit has this number of `frames`."""
    rule, operation = _RULES.of(operation_of(equation)), _Operation(equation, terms, frames)
    found, growth = UNKNOWN if rule is None else rule(operation), operation.growth
    if found is UNKNOWN and not growth:
        return UNKNOWN
    moves = found.drift or (found.unclipped is not None and any(found.unclipped[:2]))
    is_limited = any(each.is_limited for each in terms) or bool(moves and not is_wide(type_of(equation.outvars[0])))
    return dataclasses.replace(found, growth=growth, is_limited=is_limited)


@_RULES.add("broadcast_in_dim")
def _broadcast(operation: _Operation) -> Index:
    return _reshaped(operation, operation.equation.params["broadcast_dimensions"])


@_RULES.add("transpose")
def _transposed(operation: _Operation) -> Index:
    return _laid_out(operation, lambda c: c.transpose(operation.equation.params["permutation"]))


@_RULES.add("reshape")
def _split_or_merged(operation: _Operation) -> Index:
    old, new = in_shape(operation.equation), out_shape(operation.equation)
    times = [symbolic_axes(shape) for shape in (old, new)]
    inner = [math.prod(shape[axes[0] + 1 :]) for shape, axes in zip((old, new), times, strict=True) if axes]
    if operation.terms[0].level is None and (list(map(len, times)) != [1, 1] or inner[0] != inner[1]):
        return UNKNOWN  # other axes merge into time, or time is split
    whole, parts = ([axis for axis, size in enumerate(shape) if str(size) != "1"] for shape in (old, new))
    is_same = [str(old[axis]) for axis in whole] == [str(new[axis]) for axis in parts]
    moved = dict(zip(whole, parts, strict=True)) if is_same else {}
    return _reshaped(operation, [moved.get(axis) for axis in range(len(old))] if is_same else None)


def _reshaped(operation: _Operation, axes: Sequence[int | None] | None) -> Index:
    """Return the index if each axis has a new place, or None for an axis of size 1; None if axes merge or split."""
    sizes = [1] * len(out_shape(operation.equation))

    def reshaped(c: np.ndarray) -> np.ndarray | None:
        for size, axis in zip(c.shape, axes or (), strict=bool(axes)):
            if axis is not None:
                sizes[axis] = size
        return c.reshape(sizes) if axes else None

    return _laid_out(operation, reshaped)


def _laid_out(operation: _Operation, change: Callable[[np.ndarray], np.ndarray | None]) -> Index:
    """Return the index in a new layout of the axes, in which `change` puts several columns, if it can."""
    x = dataclasses.replace(operation.terms[0], columns=())
    if x.unclipped is None:
        return x
    a, b, c = x.unclipped
    c = change(c) if c.size > 1 else c.reshape([1] * len(out_shape(operation.equation)))
    return UNKNOWN if c is None else dataclasses.replace(x, unclipped=(a, b, c))


@_RULES.add("dim_as_value")
def _length(operation: _Operation) -> Index:
    return Index.of(0, 0, operation.equation.params["dim"])


@_RULES.add("concatenate")
def _joined(operation: _Operation) -> Index:
    equation, last = operation.equation, len(out_shape(operation.equation)) - 1
    dimension, parts = (
        equation.params["dimension"],
        [in_shape(equation, place) for place in range(len(equation.invars))],
    )
    if dimension == last and all(str(shape[last]) == "1" for shape in parts):
        return Index(columns=tuple(operation.terms))
    if dimension in symbolic_axes(out_shape(equation)):
        return _continued(operation, dimension)
    lines = [each.linear for each in operation.terms]
    if None in lines:
        return UNKNOWN
    slopes = {line[:2] for line in lines if line is not None}
    frames = [_of_a_frame(line[2], shape) for line, shape in zip(lines, parts, strict=True) if line is not None]
    (a, b), *others = slopes
    return (
        UNKNOWN
        if others
        else Index.of(a, b, np.concatenate(frames, dimension)).held_in(operation.dtype, operation.size)
    )


def _continued(operation: _Operation, axis: int) -> Index:
    """Return the index of numbers of frames behind constants that count in the same steps, or `UNKNOWN`."""
    *starts, last = operation.terms
    shapes = [in_shape(operation.equation, place) for place in range(len(starts))]
    if last.affine is None or common(last.affine[1]) is None or any(is_symbolic(shape[axis]) for shape in shapes):
        return UNKNOWN
    fixed = [each.fixed for each in starts]
    parts = [np.broadcast_to(each, shape) for each, shape in zip(fixed, shapes, strict=True) if each is not None]
    if not parts or len(parts) < len(starts):
        return UNKNOWN
    (hop, offsets), front = last.affine, np.concatenate(parts, axis)
    distances = np.arange(front.shape[axis]) - front.shape[axis]
    distances = distances.reshape([-1 if each == axis else 1 for each in range(front.ndim)])
    if not np.array_equal(front, np.broadcast_to(hop * distances + offsets, front.shape)):
        return UNKNOWN
    return Index.of(hop, 0, offsets - hop * front.shape[axis]).held_in(operation.dtype, operation.size)


@_RULES.add("cumsum")
def _summed(operation: _Operation) -> Index:
    return operation.terms[0] if operation.terms[0].number == 0 else UNKNOWN


def _of_a_frame(summands: np.ndarray, shape: Sequence[Any]) -> np.ndarray:
    """Return summands for all elements of a frame of an array of this shape."""
    return np.broadcast_to(summands, [1 if is_symbolic(size) else size for size in shape])


@_RULES.add("tile")
def _tiled(operation: _Operation) -> Index:
    shape, times = in_shape(operation.equation), operation.equation.params["reps"]
    if any(times[axis] != 1 for axis in symbolic_axes(shape)):
        return UNKNOWN
    return _laid_out(operation, lambda c: np.tile(_of_a_frame(c, shape), times))


@_RULES.add("slice", "dynamic_slice")
def _cut(operation: _Operation) -> Index:
    """Return the index of a column that was joined, or of rows of a table whose rows differ by the same number."""
    (x, *starts), found = operation.terms, cut_of(operation.equation)
    if found is not None and len(x.columns) > 1 and found[0] == len(out_shape(operation.equation)) - 1:
        axis, place = found
        column = operation.equation.params["start_indices"][axis] if place is None else starts[place - 1].number
        return x.columns[column] if str(out_shape(operation.equation)[axis]) == "1" and column is not None else UNKNOWN
    if found is None or x.fixed is None or not is_symbolic(out_shape(operation.equation)[found[0]]):
        return UNKNOWN
    axis, place = found
    start = operation.equation.params["start_indices"][axis] if place is None else starts[place - 1].number
    size, steps = out_shape(operation.equation)[axis], np.unique(np.diff(x.fixed.astype(np.int64), axis=axis))
    if start is None or is_symbolic(start) or len(steps) != 1 or not is_at_most(size, x.fixed.shape[axis] - start):
        return UNKNOWN
    first = np.take(x.fixed, [start], axis)
    return Index.of(int(steps[0]), 0, first).held_in(operation.dtype, operation.size)


@_RULES.add("gather")
def _gathered(operation: _Operation) -> Index:
    """Return the index of parts of each frame, or of entries of a table that counts."""
    equation, (x, indices) = operation.equation, operation.terms
    if (found := _cut(operation)) is not UNKNOWN:
        return found
    numbers, sizes, shape = equation.params["dimension_numbers"], equation.params["slice_sizes"], in_shape(equation)
    if len(x.columns) > 1 and numbers.start_index_map == numbers.collapsed_slice_dims == (len(shape) - 1,):
        column = indices.number if sizes[:-1] == shape[:-1] and numbers.offset_dims == (*range(len(shape) - 1),) else -1
        if column is None or not 0 <= column < len(x.columns):
            return UNKNOWN
        return _laid_out(dataclasses.replace(operation, terms=x.columns[column : column + 1]), lambda c: c[..., 0])
    if x.fixed is not None and x.fixed.ndim == 1 and tuple(sizes) == (1,) and indices.linear is not None:
        return _looked_up(operation, x.fixed.tolist(), indices)
    touched = {*numbers.start_index_map, *numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    if indices.fixed is None or numbers.operand_batching_dims or touched.intersection(symbolic_axes(shape)):
        return UNKNOWN
    places = indices.fixed[..., : len(numbers.start_index_map)]
    most = np.array([shape[axis] - sizes[axis] for axis in numbers.start_index_map])
    is_inside = bool(np.all(places >= 0) and np.all(places <= most))
    return _laid_out(operation, lambda c: None) if is_inside else UNKNOWN


def _looked_up(operation: _Operation, table: Sequence[int], indices: Index) -> Index:
    """Return the index of entries of a table of equally distant numbers, if no frame reads beyond the table."""
    steps = {after - before for before, after in itertools.pairwise(table)}
    assert indices.linear is not None
    (a, b, c), size = indices.linear, operation.size
    if len(steps) != 1 or size is None or indices.needs_length or min(a, b) < 0 or np.min(c) < 0:
        return UNKNOWN
    if not is_at_most((a + b) * (size - 1) + int(np.max(c)), len(table) - 1):
        return UNKNOWN
    (step,) = steps
    c = c[..., 0] if c.ndim > len(out_shape(operation.equation)) else c
    return Index.of(step * a, step * b, table[0] + step * c).held_in(operation.dtype, operation.size)


@_RULES.add("convert_element_type", "stop_gradient")
def _converted(operation: _Operation) -> Index:
    (x,), dtype = operation.terms, operation.dtype
    if x.at is None and x.unclipped is None and type_of(operation.equation.invars[0]) == np.bool_:
        return Index(least=0)
    if x.is_quotient:  # a cast rounds to 0
        truncates = dtype.kind in "iu" and dtype.itemsize >= 4 and x.least is not None and x.least >= 0
        return _floor(operation) if truncates else UNKNOWN
    old = type_of(operation.equation.invars[0])
    if operation.fixed and dtype.kind in "iub" and not x.needs_length:
        (elements,) = operation.fixed
        is_float = jnp.issubdtype(old, jnp.inexact)
        return Index.constant(converted(elements.astype(np.float64) if is_float else elements, dtype))
    if (dtype == np.bool_) != (old == np.bool_):
        cast = (lambda value: value != 0) if dtype == np.bool_ else (lambda value: value * 1)
        return UNKNOWN if x.drift else operation.made(cast, least=0)
    return x.held_in(dtype, operation.size)


@_RULES.add("floor")
def _floor(operation: _Operation) -> Index:
    (x,) = operation.terms
    if not x.is_quotient:
        return _converted(operation)
    return operation.made(lambda value: np.floor(value).astype(int), x.drift, least=x.least, rounds=True)


@_RULES.add("add", "add_any", "neg", "sub")
def _linear(operation: _Operation) -> Index:
    signs, least = entry_of(operation.equation).signs, [each.least for each in operation.terms]
    drift = sum((sign * each.drift for sign, each in zip(signs, operation.terms, strict=True)), Fraction(0))
    known = None if None in least or min(signs) < 0 else sum(number for number in least if number is not None)
    if (line := sum_of(signs, [each.linear for each in operation.terms])) is not None:
        return Index.of(*line).held_in(operation.dtype, operation.size)
    return operation.made(operation.function, drift, least=known)


@_RULES.add("eq", "ge", "gt", "le", "lt", "ne")
def _compared(operation: _Operation) -> Index:
    """Return a comparison; a number if all frames of recordings of all lengths give the same answer."""
    (x, y), size = operation.terms, operation.size
    ends = None if size is None and not operation.fixed else differences(x, y, 1 if size is None else size)
    if ends is not None:
        first, *others = (operation.function(each, 0) for each in (*ends, np.clip(0, *ends)))
        if all(np.array_equal(first, other) for other in others):
            return Index.constant(np.asarray(first))
    if (line := sum_of((1, -1), [x.linear, y.linear])) is not None and (x.at is None or y.at is None):
        difference = Index.of(*line)  # of numbers that are not equal in all elements of a frame
        operation = dataclasses.replace(operation, terms=[difference, Index.constant(np.zeros((), np.int64))])
    return _with_equal_drifts(operation, drift=Fraction(0), degree=0)


@_RULES.add("select_n")
def _chosen(operation: _Operation) -> Index:
    return operation.cases[0] if len(operation.cases) == 1 else _with_equal_drifts(operation)


def _with_equal_drifts(operation: _Operation, **changed: Any) -> Index:
    cases = operation.cases
    choice = operation.terms[: -len(cases)]
    if any(each.drift for each in choice) or len({each.drift for each in cases}) > 1:
        return UNKNOWN
    return operation.made(operation.function, **{"drift": cases[0].drift, **changed})


@_RULES.add("max", "min")
def _clipped(operation: _Operation) -> Index:
    if operation.fixed:
        try:
            return Index.of(0, 0, computed(operation.function, *operation.fixed)).held_in(
                operation.dtype, operation.size
            )
        except InconclusiveDimensionOperation:
            return UNKNOWN
    found, (x, bound) = _with_equal_drifts(operation), operation.terms
    x, level = (x, bound.level) if x.level is None else (bound, x.level)
    if level is None or x.counted is None or x.counted[0] < 1 or x.high is not None or not is_wide(operation.dtype):
        return found
    if entry_of(operation.equation).monoid == "min":
        return dataclasses.replace(found, unclipped=x.unclipped, low=x.low, high=level)
    if is_symbolic(level):
        return found
    low = level if x.low is None else max(x.low, level)
    return dataclasses.replace(found, unclipped=x.unclipped, low=low)


@_RULES.add("clamp", "sign")
def _without_drift(operation: _Operation, **changed: Any) -> Index:
    return UNKNOWN if any(each.drift for each in operation.terms) else operation.made(operation.function, **changed)


_RULES.add("abs")(functools.partial(_without_drift, least=0))


@_RULES.add("not")
def _negated(operation: _Operation) -> Index:
    return _logic(operation) if operation.dtype == np.bool_ else UNKNOWN


@_RULES.add("and", "or", "xor")
def _logic(operation: _Operation) -> Index:
    if operation.fixed and not any(each.needs_length for each in operation.terms):
        return Index.constant(np.asarray(operation.function(*operation.fixed)))
    return _without_drift(operation) if operation.dtype == np.bool_ else UNKNOWN


@_RULES.add("reduce_and", "reduce_or")
def _decided(operation: _Operation) -> Index:
    """Return the result of `any` or `all` over the keys of each query, if the key of the query itself decides it."""
    equation, (x,) = operation.equation, operation.terms
    shape, axes = in_shape(equation), equation.params["axes"]
    times = symbolic_axes(shape)
    if len(times) != 2 or str(shape[times[0]]) != str(shape[times[1]]) or len({*times} & {*axes}) != 1:
        return UNKNOWN
    decisive = entry_of(equation).monoid == "or"
    is_known = x.at is not None and not x.drift and not x.needs_length
    return Index.constant(np.asarray(decisive)) if is_known and np.all(x.rows(0, 0) == decisive) else UNKNOWN


@_RULES.add("mul")
def _product(operation: _Operation) -> Index:
    x, factor = operation.terms if operation.terms[1].number is not None else operation.terms[::-1]
    number, line = factor.number, None
    if operation.fixed:
        line = 0, 0, computed(operator.mul, *operation.fixed)
    elif number is not None and x.linear is not None:
        a, b, c = x.linear
        line = a * number, b * number, c * number
    if line is not None:
        return Index.of(*line).held_in(operation.dtype, operation.size)
    if number is None:
        degree, constants = x.degree + factor.degree, max(x.constants, 1) * max(factor.constants, 1)
        return _without_drift(operation, constants=constants, degree=degree) if degree <= 2 else UNKNOWN
    least = None if x.least is None or number < 0 else x.least * number
    constants = x.constants * max(abs(number), 1)
    return operation.made(operator.mul, x.drift * number, constants=constants, least=least)


def _divided(function: Callable[..., Any], operation: _Operation, *, rounds: Callable[..., Any] = np.trunc) -> Index:
    x, number = operation.terms[0], operation.terms[1].number
    if number is None or number < 1:
        return UNKNOWN
    is_quotient = function is operator.floordiv
    fields = {"scale": x.scale * number, "constants": x.constants}
    divided = functools.partial(operation.made, period=math.lcm(x.period, number * x.drift.denominator), **fields)
    if operation.dtype.kind not in "iub":
        if rounds is np.floor or not is_quotient or not x.drift:
            return UNKNOWN
        least = None if x.least is None else x.least // number
        return divided(np.true_divide, x.drift / number, is_quotient=True, least=least)
    may_be_negative = x.least is None or x.least < 0
    if rounds is np.trunc and may_be_negative:
        return UNKNOWN  # rounding to 0 does not repeat on both sides of 0
    drift = x.drift / number if is_quotient else Fraction(0)
    return divided(function, drift, least=None if may_be_negative and is_quotient else 0)


_RULES.add("div")(functools.partial(_divided, operator.floordiv))
_RULES.add("rem")(functools.partial(_divided, operator.mod))
_RULES.add("floor_divide")(functools.partial(_divided, operator.floordiv, rounds=np.floor))
_RULES.add("remainder")(functools.partial(_divided, operator.mod, rounds=np.floor))


@_RULES.add("square")
def _square(operation: _Operation) -> Index:
    (x,) = operation.terms
    return _without_drift(operation, constants=max(x.constants, 1) ** 2, degree=2) if x.degree <= 1 else UNKNOWN


@_RULES.add("shift_right_arithmetic")
def _shifted(operation: _Operation) -> Index:
    """Return a shift by a number of bits as a division, rounded down, by a power of 2."""
    x, bits = operation.terms
    if bits.number is None or not 0 <= bits.number < 8 * operation.dtype.itemsize - 1:
        return UNKNOWN
    if operation.dtype.kind != "i":  # the highest bit would be a sign
        return UNKNOWN
    divided = dataclasses.replace(operation, terms=[x, Index.constant(np.asarray(1 << bits.number))])
    return _divided(operator.floordiv, divided, rounds=np.floor)
