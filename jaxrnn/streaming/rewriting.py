"""Rewriting of traced functions: bands of attention, other sizes, and computations replaced by equations that stream.

A band limits attention to all frames, and so changes the function that is streamed: for `past` of `stream`, attention
to the whole past, and for `bounded` also attention to all frames. A pass finds the equations that write minus infinity
into the scores of later frames, or that read scores without a mask (`Mask`). `with_bands` adds equations that write the
same value into the scores of keys outside of the band. The attention of the resulting function is bounded, so the
function streams. `at_length` evaluates the function on a whole recording, without chunks and without state.

`with_numbers` replaces row and column numbers. tf2onnx writes ``tf.linalg.band_part``, and so Keras' causal mask, as a
running count of S * S ones that becomes a matrix ``n``. Then ``n // S`` is the row, and ``n % S`` is the column. A row
of S * S elements has no time axis. So both results are replaced by equations that count along an axis, and so are
running sums along the rows or columns of a matrix of ones, which Keras' layer `Attention` compares.

`with_shifts` replaces a reshape that shifts rows. TensorFlow and sequence-layers add overlapping frames so: rows of N
frames, which end in zeros, are joined, cut, and divided into rows of N - 1 frames. So row k moves by k frames, and its
first frames are zeros of the end of the row before. Rows that are cut and padded replace the result.

`with_time_apart` replaces arrays in which a reshape joins time with other axes. PyTorch exports a group norm as a norm
over one axis of all channels and frames. Time stays an axis in the computations on elements and the reductions between
the reshape and its inverse, so each statistic is of frames.

`resized` replaces `jax.image.resize` along time by whole factors. JAX computes the indices or the weights from the
length in floats. A call that traces to the same equations is replaced by repeated frames, every k-th frame, or sums of
neighbours.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun
from jax.extend.core.primitives import jit_p, pad_p, reshape_p, transpose_p

from jaxrnn.jaxprs.canonical import kept_name
from jaxrnn.jaxprs.equations import (
    Atom,
    Domain,
    bind,
    called,
    evaluate,
    needed,
    shape_of,
    trace,
    type_of,
    variables,
    with_rule,
)
from jaxrnn.jaxprs.numbering import fingerprint
from jaxrnn.jaxprs.primitives import Rules, entry_of
from jaxrnn.streaming.dimensions import (
    cut_of,
    in_shape,
    is_symbolic,
    out_shape,
    symbolic_axes,
    symbolic_sizes,
    value_of,
)
from jaxrnn.streaming.index_rules import index_of, operation_of
from jaxrnn.streaming.integers import UNKNOWN, Index, is_wide
from jaxrnn.streaming.values import Mask

#: Kinds of equations that call a function on their operands.
_CALLS = ("call", "checkpoint", "custom rule")


def with_bands(jaxpr: Any, masks: Sequence[Mask]) -> Any:
    """Return a jaxpr in which each mask also hides the keys outside of its band."""
    return _with_bands(jaxpr, [(mask, mask.path) for mask in masks])


def _with_bands(jaxpr: Any, masks: Sequence[tuple[Mask, tuple[JaxprEqn, ...]]]) -> Any:
    """Return a jaxpr with the bands; `masks` pairs each mask with the part of the path inside this jaxpr."""
    equations, own = [], [(mask, rest[0]) for mask, rest in masks if not rest[1:]]
    for equation in jaxpr.eqns:
        if inner := [(mask, rest[1:]) for mask, rest in masks if rest[0] is equation and rest[1:]]:
            equation = _with_bands_inside(equation, inner)
        equations.append(equation)
        for mask, place in own:
            if place.invars[0] in equation.outvars if mask.reads else place is equation:
                *others, result = equations[-1].outvars
                scores = Var(result.aval)
                equations[-1] = equations[-1].replace(outvars=[*others, scores])
                equations += _band(scores, result, mask, equation.source_info)
    return jaxpr.replace(eqns=equations)


def _with_bands_inside(equation: JaxprEqn, masks: Sequence[Any]) -> JaxprEqn:
    """Return an equation that contains jaxprs, with the band in these.

    A custom derivative rule would ignore the band, so the rule is dropped, and JAX differentiates the equations.
    """

    def changed(value: Any) -> Any:
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            return tuple(map(changed, value))
        jaxpr = getattr(value, "jaxpr", value)
        if not isinstance(jaxpr, Jaxpr):
            return value
        own = [(mask, rest) for mask, rest in masks if any(each is rest[0] for each in jaxpr.eqns)]
        jaxpr = _with_bands(jaxpr, own) if own else jaxpr
        return ClosedJaxpr(jaxpr, value.consts) if isinstance(value, ClosedJaxpr) else jaxpr

    if entry_of(equation).kind == "custom rule":
        inner = changed(equation.params["call_jaxpr"])
        return equation.replace(primitive=jit_p, params={"jaxpr": inner, "name": "banded"})
    return equation.replace(params={key: changed(value) for key, value in equation.params.items()})


def _band(scores: Var, result: Any, mask: Mask, source: Any) -> list[JaxprEqn]:
    """Return the equations that compute `result` from `scores`."""
    shape, dtype = shape_of(scores), type_of(scores)
    axes = symbolic_axes(shape)
    sizes = [shape[axis] for axis in axes]
    assert mask.band is not None
    past, future, block = mask.band.past, mask.band.future, mask.band.block

    def banded(array: Any) -> Any:
        query, key = (lax.broadcasted_iota(np.int32, sizes, side) for side in (1 - mask.keys, mask.keys))
        if block > 1:
            query = lax.div(query, np.int32(block)) * np.int32(block)
        seen = [] if past is None else [lax.ge(key + np.int32(past), query)]
        seen += [] if future is None else [lax.le(key, query + np.int32(block - 1 + future))]
        seen = lax.broadcast_in_dim(functools.reduce(lax.bitwise_and, seen), shape, axes)
        with np.errstate(over="ignore"):
            return lax.select(seen, array, lax.full(shape, np.asarray(mask.value).astype(dtype), dtype))

    return _replaced(banded, [scores], result, source)


def _replaced(function: Callable[..., Any], operands: Sequence[Atom], result: Var, source: Any) -> list[JaxprEqn]:
    """Return the equations that compute a variable as a function of operands."""
    inner = trace(function, *(jax.ShapeDtypeStruct(shape_of(each), type_of(each)) for each in operands))[0].jaxpr
    names = dict(zip((*inner.invars, *inner.outvars), (*operands, result), strict=True))
    return [each.replace(source_info=source) for each in renamed(inner.eqns, names)]


def renamed(equations: Sequence[JaxprEqn], names: Mapping[Any, Any]) -> list[JaxprEqn]:
    """Return equations with other variables."""

    def new(atom: Any) -> Any:
        return atom if isinstance(atom, Literal) else names.get(atom, atom)

    return [each.replace(invars=[*map(new, each.invars)], outvars=[*map(new, each.outvars)]) for each in equations]


def at_length(inner: Any, arguments: Sequence[Any], length: int) -> list[Any]:
    """Evaluate a jaxpr with a symbolic length on arrays of a whole recording of this length."""
    return at_sizes(inner, arguments, functools.partial(value_of, length=length))


def sizes_when_empty(inner: Any, arguments: Sequence[Any]) -> dict[str, int]:
    """Return the symbolic sizes that differ from their expressions in an empty recording, and their values there.

    JAX assumes at least one frame, so the length ``S - 1`` of ``x[1:]`` means 0 if there are 0 frames, and the
    length ``2*S - 1`` after padding between the frames means 0 as well. A call on `arguments`, the shapes of an empty
    recording, shows the true sizes.

    Raises:
        ValueError: two equal sizes differ in an empty recording.
        Exception: the function does not work on empty recordings.
    """
    known = {
        str(each): here
        for variable, argument in zip(inner.jaxpr.invars, arguments, strict=True)
        for each, here in zip(shape_of(variable), argument.shape, strict=True)
        if is_symbolic(each)
    }

    def size(each: Any) -> int:
        return known.get(str(each), max(0, int(value_of(each, 0))))

    def apply(equation: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
        params = equation.params
        if "slice_sizes" in params:  # a slice is shorter than the array by the same number as elsewhere
            for part, whole, here in zip(params["slice_sizes"], in_shape(equation), operands[0].shape, strict=True):
                if is_symbolic(part):
                    known.setdefault(str(part), max(0, int(here + value_of(part, 1) - value_of(whole, 1))))
        if entry_of(equation).kind in _CALLS:
            results = evaluate(called(equation), operands, apply)
        elif "limit_indices" in params:  # as in NumPy, slices end where the array ends
            bounds = zip(params["start_indices"], params["limit_indices"], operands[0].shape, strict=True)
            places = [[int(np.clip(size(each), 0, most)) for each in (start, end)] for start, end, most in bounds]
            begins, ends = zip(*((min(pair), pair[1]) for pair in places), strict=True)
            results = [lax.slice(operands[0], begins, ends, params["strides"])]
        else:
            results = bind_at_sizes(size, equation, operands)
        for variable, result in zip(equation.outvars, results, strict=True):
            for each, here in zip(shape_of(variable), np.shape(result), strict=True):
                value = known.setdefault(str(each), here) if is_symbolic(each) else each
                if value != here:
                    raise ValueError(f"sizes {each} are {value} and {here} in an empty recording")
        return results

    jax.eval_shape(lambda *arrays: evaluate(inner, arrays, apply), *arguments)
    return {spelling: here for spelling, here in known.items() if here != value_of(spelling, 0)}


def at_sizes(inner: Any, arguments: Sequence[Any], size: Callable[[Any], Any]) -> list[Any]:
    """Evaluate a jaxpr with other sizes in place of symbolic sizes."""
    return evaluate(inner, arguments, functools.partial(bind_at_sizes, size))


def bind_at_sizes(size: Callable[[Any], Any], equation: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
    """Return the results of an equation with other sizes, which may be symbolic, in place of symbolic sizes."""
    kind = entry_of(equation).kind
    if kind == "size":
        value, dtype = size(equation.params["dim"]), type_of(equation.outvars[0])
        return [jnp.asarray(value).astype(dtype) if is_symbolic(value) else np.asarray(value, dtype)]
    if kind in ("call", "checkpoint"):
        return at_sizes(called(equation), operands, size)
    if kind == "custom rule":
        as_traced = lambda *arrays: bind(equation, arrays)  # noqa: E731
        domain = Domain(functools.partial(at_sizes, size=size))
        return with_rule(equation, as_traced, domain, [None] * len(operands))(*operands)
    return bind(equation, operands, **{key: sized(value, size) for key, value in equation.params.items()})


def bind_in_place(size: Callable[[Any], Any], equation: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
    """Return the results as `bind_at_sizes`, in a trace in which the equation keeps the line of the user's code."""
    if entry_of(equation).kind in (*_CALLS, "size"):
        return bind_at_sizes(size, equation, operands)
    source = equation.source_info
    source = source.replace(name_stack=type(source.name_stack)())  # the evaluator enters the scope
    names: list[Any] = [Var(each.aval) for each in equation.invars]
    params = {key: sized(value, size) for key, value in equation.params.items()}
    changed = equation.replace(invars=names, params=params, source_info=source)
    single = jax.make_jaxpr(lambda: None)().jaxpr.replace(invars=names, outvars=equation.outvars, eqns=[changed])
    return jaxpr_as_fun(ClosedJaxpr(single, ()))(*operands)


def sized(value: Any, size: Callable[[Any], Any]) -> Any:
    """Return a parameter of an equation with other sizes."""
    if jax.export.is_symbolic_dim(value):
        return size(value)
    if isinstance(value, tuple | list):
        parts = [sized(part, size) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, ClosedJaxpr) and any(True for _ in symbolic_sizes(value.jaxpr)):
        structs = [
            jax.ShapeDtypeStruct(sized(each.shape, size), each.dtype, weak_type=each.weak_type)
            for each in value.in_avals
        ]
        return jax.make_jaxpr(lambda *arrays: at_sizes(value, arrays, size))(*structs)
    return value


#: Forms of counts: 0, and then ones; the number of each element of a row, or of a matrix with its width.
_STARTED, _COUNTED, _MATRIX = "started", "counted", "matrix"
#: What is known of integers: an index, or the form of a count.
Form = Index | tuple[str, Any]
#: Rules ``(equation, *operands) -> form`` of counts, or None.
_FORMS = Rules()


def with_numbers(jaxpr: Any) -> Any:
    """Return the jaxpr with rows and columns that are counted directly."""
    shapes = [out_shape(equation) for equation in jaxpr.eqns if equation.outvars]
    if not any(len(symbolic_axes(shape)) > 1 or any("^" in str(size) for size in shape) for shape in shapes):
        return jaxpr
    forms, equations = forms_of(jaxpr), []
    for equation in jaxpr.eqns:
        counted = _counted_axis(equation, [_form_of(atom, forms) for atom in equation.invars])
        equations += [equation] if counted is None else _count(equation, *counted)
    return jaxpr.replace(eqns=equations)


def forms_of(jaxpr: Any) -> dict[Var, Form]:
    """Return the indices of integers that equations compute from numbers and from the length."""
    forms: dict[Var, Form] = {}
    for equation in jaxpr.eqns:
        if len(equation.outvars) != 1 or not jnp.issubdtype(type_of(equation.outvars[0]), jnp.integer):
            continue
        operands, rule = [_form_of(atom, forms) for atom in equation.invars], _FORMS.of(equation)
        form = None if rule is None else rule(equation, *operands)
        if form is None:
            form = index_of(equation, [each if isinstance(each, Index) else UNKNOWN for each in operands], 1)
        if form is not UNKNOWN:
            forms[equation.outvars[0]] = form
    return forms


def number_of(atom: Atom, forms: Mapping[Var, Form]) -> Any:
    """Return the number or symbolic size that all integers equal, or None if it is not known."""
    form = _form_of(atom, forms)
    return form.level if isinstance(form, Index) and jnp.issubdtype(type_of(atom), jnp.integer) else None


def is_number(atom: Atom, number: Any, forms: Mapping[Var, Form]) -> bool:
    """Return True if all elements are known to be this number or symbolic size."""
    return (known := number_of(atom, forms)) is not None and str(known) == str(number)


def _form_of(atom: Atom, forms: Mapping[Var, Form]) -> Form:
    if isinstance(atom, Literal):
        return Index.constant(np.asarray(atom.val)) if shape_of(atom) == () else UNKNOWN
    return forms.get(atom, UNKNOWN)


def _is_level(form: Form, number: Any) -> bool:
    return isinstance(form, Index) and str(form.level) == str(number)


@_FORMS.add("pad")
def _padded(equation: JaxprEqn, x: Form, value: Form) -> Form | None:
    starts = equation.params["padding_config"] == ((1, -1, 0),) and _is_level(x, 1) and _is_level(value, 0)
    return (_STARTED, None) if starts else None


@_FORMS.add("cumsum")
def _summed(equation: JaxprEqn, x: Form) -> Form | None:
    is_count = x == (_STARTED, None) and not equation.params["reverse"] and is_wide(type_of(equation.outvars[0]))
    return (_COUNTED, None) if is_count else None


@_FORMS.add("reshape")
def _reshaped(equation: JaxprEqn, x: Form) -> Form | None:
    shape = out_shape(equation)
    return (_MATRIX, shape[1]) if x == (_COUNTED, None) and len(shape) == 2 else None


def _counted_axis(equation: JaxprEqn, operands: list[Form]) -> tuple[int, int] | None:
    """Return the axis along which the result counts, and the first number, or None."""
    x, divisor = [*operands, UNKNOWN, UNKNOWN][:2]
    entry = entry_of(equation)
    if entry.kind == "cumulative" and entry.monoid == "sum" and _is_level(x, 1):
        is_matrix = len(symbolic_axes(out_shape(equation))) > 1 and is_wide(type_of(equation.outvars[0]))
        return (equation.params["axis"], 1) if is_matrix and not equation.params["reverse"] else None
    if isinstance(x, Index) or x[0] != _MATRIX or not is_symbolic(x[1]) or not _is_level(divisor, x[1]):
        return None
    axis = {"div": 0, "floor_divide": 0, "rem": 1, "remainder": 1}.get(operation_of(equation))
    return None if axis is None else (axis, 0)


def _count(equation: JaxprEqn, axis: int, first: int) -> list[JaxprEqn]:
    (result,) = equation.outvars

    def count() -> jax.Array:
        numbers = lax.broadcasted_iota(type_of(result), shape_of(result), axis)
        return numbers + first if first else numbers

    *before, last = jax.make_jaxpr(count)().eqns
    return [each.replace(source_info=equation.source_info) for each in (*before, last.replace(outvars=[result]))]


def with_shifts(jaxpr: Any) -> Any:
    """Return the jaxpr in which rows that a reshape shifts are cut and padded."""
    made = {equation.outvars[0]: equation for equation in jaxpr.eqns if len(equation.outvars) == 1}
    forms, equations = forms_of(jaxpr), []
    for equation in jaxpr.eqns:
        found = _shifted(equation, made, forms)
        equations += [equation] if found is None else _replaced(*found, equation.outvars[0], equation.source_info)
    return jaxpr.replace(eqns=equations)


def _shifted(
    equation: JaxprEqn, made: Mapping[Any, JaxprEqn], forms: Mapping[Var, Form]
) -> tuple[Callable[..., Any], list[Atom]] | None:
    """Return the function that shifts rows as a reshape of joined rows does, and its operands, or None."""
    if equation.primitive is not reshape_p or (axis := _split_axis(in_shape(equation), out_shape(equation))) is None:
        return None
    cut = made.get(equation.invars[0])
    if cut is None or not cuts_from(cut, axis, 0, forms):
        return None
    joined = made.get(cut.invars[0])
    if joined is None or joined.primitive is not reshape_p:
        return None
    rows, (count, length) = joined.invars[0], out_shape(equation)[axis : axis + 2]
    if _split_axis(in_shape(cut), shape_of(rows)) != axis:
        return None
    step, end = shape_of(rows)[axis + 1] - length, _constant_end(rows, axis + 1, made)
    if end is None or is_symbolic(step) or step < 1 or count > shape_of(rows)[axis] or end[0] < count * step:
        return None

    def shifted(rows: Any, fill: Any) -> Any:
        parts = []
        for row in range(count):
            frames = lax.index_in_dim(rows, row, axis, keepdims=False)
            widths = [(row * step if each == axis else 0, 0, 0) for each in range(frames.ndim)]
            parts.append(lax.pad(lax.slice_in_dim(frames, 0, length - row * step, axis=axis), fill, widths))
        return jnp.stack(parts, axis)

    return shifted, [rows, end[1]]


def _split_axis(joined: Sequence[Any], split: Sequence[Any]) -> int | None:
    """Return the axis of time that a reshape divides into a fixed number of rows, or None."""
    axes = symbolic_axes(joined)
    if len(axes) != 1 or len(split) != len(joined) + 1 or symbolic_axes(split) != [axes[0] + 1]:
        return None
    others = [*joined[: axes[0]], *joined[axes[0] + 1 :]]
    return axes[0] if [*split[: axes[0]], *split[axes[0] + 2 :]] == others else None


def cuts_from(equation: JaxprEqn, axis: int, start: Any, forms: Mapping[Var, Form]) -> bool:
    """Return True if an equation takes consecutive elements of an axis, from this number or symbolic size on."""
    if (found := cut_of(equation)) is None or found[0] != axis:
        return False
    _, place = found
    if place is None:
        return str(equation.params["start_indices"][axis]) == str(start)
    return is_number(equation.invars[place], start, forms)


def _constant_end(atom: Atom, axis: int, made: Mapping[Any, JaxprEqn]) -> tuple[int, Atom] | None:
    """Return how many frames at the end of time are padding, and the value of the padding, or None."""
    equation = made.get(atom)
    if equation is None:
        return None
    old = in_shape(equation)
    if equation.primitive is pad_p:
        low, high, inner = equation.params["padding_config"][axis]
        return (int(high), equation.invars[1]) if low >= 0 and high > 0 and inner == 0 else None
    if equation.primitive is transpose_p:
        return _constant_end(equation.invars[0], equation.params["permutation"][axis], made)
    if equation.primitive is reshape_p and len(axes := symbolic_axes(old)) == 1:
        (before,), new = axes, out_shape(equation)
        stays = str(old[before]) == str(new[axis]) and math.prod(old[before + 1 :]) == math.prod(new[axis + 1 :])
        return _constant_end(equation.invars[0], before, made) if stays else None
    return None


@dataclass(frozen=True)
class _Apart:
    """An array of which a reshape joins time with other axes.

    ``shape`` is that of the reshape, and axis ``axis`` of it is `count` axes of the array `variable`.
    """

    variable: Var
    shape: tuple[Any, ...]
    axis: int
    count: int

    def divided(self, shape: Sequence[Any]) -> list[Any]:
        """Return a shape that broadcasts to ``shape``, with the axes of the array in place of the joined axis."""
        own = shape_of(self.variable)[self.axis : self.axis + self.count]
        is_whole = str(shape[self.axis]) == str(self.shape[self.axis])
        return [*shape[: self.axis], *(own if is_whole else [1] * self.count), *shape[self.axis + 1 :]]


def with_time_apart(closed: Any) -> Any:
    """Return the jaxpr in which time stays an axis where a reshape joins time with other axes."""
    found: dict[Var, _Apart] = {}
    names: dict[Var, Var] = {}
    equations: list[JaxprEqn] = []
    for equation in _renamed_as_made(closed.jaxpr.eqns, names):
        equations.append(equation)
        if len(equation.outvars) == 1:
            equations += _apart(equation, found, names)
    outvars: list[Any] = [atom if isinstance(atom, Literal) else names.get(atom, atom) for atom in closed.jaxpr.outvars]
    if not found:
        return closed
    live = needed(equations, outvars, effects=True)
    return ClosedJaxpr(closed.jaxpr.replace(eqns=live, outvars=outvars), closed.consts)


def _renamed_as_made(equations: Sequence[JaxprEqn], names: Mapping[Var, Var]) -> Iterator[JaxprEqn]:
    """Yield equations with the names that operands have when the equation is reached."""
    for equation in equations:
        yield renamed([equation], {each: names[each] for each in variables(equation.invars) if each in names})[0]


def _apart(equation: JaxprEqn, found: dict[Var, _Apart], names: dict[Var, Var]) -> list[JaxprEqn]:
    """Return equations that compute the result of an equation with time apart; note the result in `found` or `names`.

    The equations compute the result itself if time is an axis of the result, or if the result has no time.
    """
    (result,), shape = equation.outvars, out_shape(equation)
    operands = [found.get(each) if isinstance(each, Var) else None for each in equation.invars]
    entry, source, known = entry_of(equation), equation.source_info, next(filter(None, operands), None)

    if equation.primitive is reshape_p:
        x: Any = equation.invars[0] if known is None else known.variable
        divided = _divided(shape_of(x), shape)
        if divided is None and known is None:
            return []
        axis, sizes = divided or (0, shape[:1])
        variable = Var(result.aval.update(shape=(*shape[:axis], *sizes, *shape[axis + 1 :])))
        stays = list(map(str, shape_of(x))) == list(map(str, shape_of(variable)))
        variable, made = (x, []) if stays else (variable, _replaced(_shaped(variable), [x], variable, source))
        if divided is None:
            names[result] = variable
        else:
            found[result] = _Apart(variable, shape, axis, len(sizes))
        return made
    if known is None:
        return []
    if entry.kind == "reduction" and entry.monoid and known.axis in equation.params.get("axes", ()):
        before = known.axis
        axes = [axis + (known.count - 1) * (axis > before) for axis in equation.params["axes"] if axis != before]
        axes = tuple(sorted([*axes, *range(before, before + known.count)]))
        names[result] = Var(result.aval)
        return _replaced(lambda x: bind(equation, [x], axes=axes)[0], [known.variable], names[result], source)
    if entry.kind != "elementwise" or any(
        len(shape_of(atom)) not in (0, len(shape)) or (each is None and symbolic_axes(shape_of(atom)))
        for atom, each in zip(equation.invars, operands, strict=True)
    ):
        return []
    if any(each is not None and str(each.divided(shape)) != str(known.divided(shape)) for each in operands):
        return []

    def on_elements(*arrays: Any) -> Any:
        values, rest = [], iter(arrays)
        for atom, each in zip(equation.invars, operands, strict=True):
            x = atom.val if isinstance(atom, Literal) else next(rest)
            is_small = each is None and shape_of(atom)
            values.append(lax.reshape(x, known.divided(shape_of(atom))) if is_small else x)
        return bind(equation, values)[0]

    inputs = [atom if each is None else each.variable for atom, each in zip(equation.invars, operands, strict=True)]
    variable = Var(result.aval.update(shape=tuple(known.divided(shape))))
    found[result] = dataclasses.replace(known, variable=variable, shape=shape)
    return _replaced(on_elements, variables(inputs), variable, source)


def _shaped(variable: Var) -> Callable[[Any], Any]:
    """Return the reshape to the shape of a variable."""
    return lambda array: lax.reshape(array, shape_of(variable))


def _divided(old: Sequence[Any], new: Sequence[Any]) -> tuple[int, list[Any]] | None:
    """Return the axis of a reshape that joins time with other axes, and the sizes before, of and after time."""
    before, after = symbolic_axes(old), symbolic_axes(new)
    if len(before) != 1 or len(after) != 1:
        return None
    (time,), (axis,) = before, after
    parts = (old[:time], new[:axis]), (old[time + 1 :], new[axis + 1 :])
    outer, inner = (math.prod(before) / math.prod(after) for before, after in parts)
    if outer * inner == 1 or outer % 1 or inner % 1 or str(int(outer * inner) * old[time]) != str(new[axis]):
        return None
    return axis, [size for size in (int(outer), old[time], int(inner)) if str(size) != "1"]


#: Factors must be smaller than this number.
LARGEST_FACTOR = 1024


def resized(equation: JaxprEqn) -> Any:
    """Return the jaxpr that replaces a call of `jax.image.resize` along time, or None."""
    if kept_name(equation) != "_resize" or len(equation.invars) != 1:
        return None
    old, new = in_shape(equation), out_shape(equation)
    axes = [axis for axis in range(len(old)) if str(old[axis]) != str(new[axis])]
    if axes != symbolic_axes(old) or axes != symbolic_axes(new) or len(axes) != 1:
        return None
    (axis,) = axes
    up, down = (
        next((k for k in range(2, LARGEST_FACTOR) if str(k * a[axis]) == str(b[axis])), 0)
        for a, b in ((old, new), (new, old))
    )
    # The old length may be a multiple of the new length for some lengths only: S and floordiv(S, 2).
    x = jax.ShapeDtypeStruct(old, type_of(equation.invars[0]))
    found = fingerprint(equation.params["jaxpr"])
    forms: dict[str, Callable[[Any], Any]] = {}
    if up:
        forms["nearest"] = functools.partial(jnp.repeat, repeats=up, axis=axis)
        forms["linear"] = functools.partial(_linear, factor=up, axis=axis)
    elif down:
        forms["nearest"] = lambda x: x[(slice(None),) * axis + (slice(down // 2, None, down),)]
    for method, form in forms.items():
        traced, _ = trace(lambda x, method=method: jax.image.resize(x, new, method), x)
        if fingerprint(traced.jaxpr.eqns[0].params["jaxpr"]) == found:
            return trace(form, x)[0]
    return None


def _linear(x: Any, factor: int, axis: int) -> Any:
    """Enlarge time by linear interpolation between neighbours, with repeated first and last frames."""
    cut = functools.partial(lax.slice_in_dim, x, axis=axis)
    before = jnp.concatenate([cut(0, 1), cut(0, x.shape[axis] - 1)], axis)
    after = jnp.concatenate([cut(1, x.shape[axis]), cut(x.shape[axis] - 1, x.shape[axis])], axis)
    parts = []
    for phase in range(factor):
        place = (phase + 0.5) / factor - 0.5
        parts.append((1 - abs(place)) * x + abs(place) * (before if place < 0 else after))
    shape = [factor * size if each == axis else size for each, size in enumerate(x.shape)]
    return jnp.stack(parts, axis + 1).reshape(shape)
