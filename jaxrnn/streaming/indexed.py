"""Loops by frame number, which become scans over frames.

Example: ``lax.fori_loop(0, n, lambda i, y: y.at[i].set(f(x[i])), jnp.zeros_like(x))`` reads a frame of `x` and writes a
frame of `y` in each iteration, so each iteration holds both recordings. `by_frames` rewrites such a loop in steps. Each
step leaves a loop with the same results:

- A ``while`` that counts up to a length becomes a scan over the numbers (`_counted`).
- Equations of the body that read a recording or the length, but not the carry, run before the loop for all iterations
  at once (`_hoisted`). A read at the number of the iteration becomes a gather, for which rules exist.
- An array that the body only writes into becomes an output of the scan, written after the loop (`_written`).
- A gather keeps only the index along time, if a slice can replace the other indices (`_with_needed_indices`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import InconclusiveDimensionOperation, JaxprEqn, Literal, Var
from jax.extend.core.primitives import concatenate_p, dynamic_update_slice_p, gather_p, scan_p, slice_p, while_p

from jaxrnn._jax import varying
from jaxrnn._jax.versions import Scan
from jaxrnn.jaxprs.canonical import rewritten
from jaxrnn.jaxprs.equations import (
    Atom,
    bind,
    dependents,
    evaluate,
    needed,
    read,
    read_by,
    run,
    shape_of,
    type_of,
    variables,
)
from jaxrnn.jaxprs.primitives import entry_of
from jaxrnn.streaming.dimensions import has_symbols, in_shape, is_symbolic, symbolic_axes
from jaxrnn.streaming.rewriting import Form, forms_of, number_of

#: A function of the operands of an equation.
Function = Callable[..., Any]


def by_frames(closed: Any) -> Any:
    """Return the program in which loops by frame number are scans over frames."""
    closed = rewritten(closed, functools.partial(_next_step, forms_of(closed.jaxpr)))
    return closed.replace(jaxpr=_with_needed_indices(closed.jaxpr))


def _next_step(forms: Mapping[Var, Form], equation: JaxprEqn) -> Function | None:
    """Return a function with the results of a loop that is one step closer to a scan over frames, or None."""
    if equation.primitive is while_p:
        return _counted(equation, forms)
    if equation.primitive is scan_p and is_symbolic(equation.params["length"]):
        return _hoisted(equation) or _written(equation)
    return None


def _counted(equation: JaxprEqn, forms: Mapping[Var, Form]) -> Function | None:
    """Return a ``while`` that counts up to a length as a scan over the numbers, or None."""
    tests, body = equation.params["cond_jaxpr"], equation.params["body_jaxpr"]
    first, second = equation.params["cond_nconsts"], equation.params["body_nconsts"]
    start = equation.invars[first + second :]
    ends = list(zip(body.jaxpr.invars[second:], body.jaxpr.outvars, strict=True))
    kept = [before is after for before, after in ends]
    if (test := _test(tests.jaxpr)) is None:
        return None
    number, end = test
    if number not in tests.jaxpr.invars[first:]:
        return None
    counter = tests.jaxpr.invars.index(number) - first
    outer = [*equation.invars[:first], *(atom if same else None for atom, same in zip(start, kept, strict=True))]
    known = dict(zip(tests.jaxpr.invars, outer, strict=True))
    is_operand = isinstance(end, Var) and end in known
    limit = number_of(known[end], forms) if is_operand else number_of(end, forms_of(tests.jaxpr))
    begin = number_of(start[counter], forms)
    if limit is None or begin is None or not _counts_up(body.jaxpr, *ends[counter]) or not _is_length(limit - begin):
        return None
    dtype, moving = type_of(start[counter]), [place for place, same in enumerate(kept) if not same and place != counter]

    def scan(*operands: Any) -> list[Any]:
        fixed, values = operands[first : first + second], list(operands[first + second :])

        def step(carry: list[Any], number: Any) -> tuple[list[Any], None]:
            before = list(values)
            for place, value in zip(moving, carry, strict=True):
                before[place] = value
            before[counter] = number
            after = evaluate(body, [*fixed, *before])
            return [after[place] for place in moving], None

        numbers = lax.broadcasted_iota(dtype, (limit - begin,), 0)
        numbers = numbers if str(begin) == "0" else numbers + jnp.asarray(begin, dtype)
        last, _ = varying.scan(step, [values[place] for place in moving], numbers)
        for place, value in zip(moving, last, strict=True):
            values[place] = value
        values[counter] = jnp.asarray(limit, dtype)
        return values

    return scan


def _test(jaxpr: Any) -> tuple[Any, Any] | None:
    """Return the operands of the comparison ``number < limit`` that a condition consists of, or None."""
    made = [each for each in jaxpr.eqns if each.outvars == jaxpr.outvars]
    if len(made) != 1 or made[0].primitive not in (lax.lt_p, lax.gt_p):
        return None
    first, second = made[0].invars
    return (first, second) if made[0].primitive is lax.lt_p else (second, first)


def _counts_up(jaxpr: Any, before: Any, after: Any) -> bool:
    """Return True if a body adds 1 to a number."""
    made = [each for each in jaxpr.eqns if after in each.outvars]
    if len(made) != 1 or made[0].primitive is not lax.add_p or before not in made[0].invars:
        return False
    (step,) = (atom for atom in made[0].invars if atom is not before)
    return isinstance(step, Literal) and step.val == 1


def _is_length(size: Any) -> bool:
    """Return True for a symbolic size that is never negative."""
    try:
        return is_symbolic(size) and bool(size >= 0)
    except InconclusiveDimensionOperation:
        return False


def _hoisted(equation: JaxprEqn) -> Function | None:
    """Return a scan before which the reads of recordings and lengths run for all iterations, or None."""
    body, parts = equation.params["jaxpr"], Scan.of(equation)
    jaxpr = body.jaxpr
    consts, carry, slices = parts.split(jaxpr.invars)
    whole = {each for each in (*jaxpr.constvars, *consts) if symbolic_axes(shape_of(each))}
    lengths = {each for eqn in jaxpr.eqns if entry_of(eqn).kind == "size" or has_symbols(eqn) for each in eqn.outvars}
    early = dependents(jaxpr.eqns, whole | lengths) - dependents(jaxpr.eqns, carry)
    late = [each for each in jaxpr.eqns if not early.issuperset(each.outvars)]
    used = {*variables(jaxpr.outvars), *(variable for each in late for variable in variables(each.invars))}
    targets = [each for eqn in jaxpr.eqns for each in eqn.outvars if each in early and each in used]
    has_recording = not whole.isdisjoint(read_by(jaxpr.eqns)) or any(symbolic_axes(shape_of(each)) for each in carry)
    if not targets or not has_recording or used & whole or any(symbolic_axes(shape_of(each)) for each in targets):
        return None
    equations = needed(jaxpr.eqns, targets)
    moving = dependents(equations, slices)
    of_frames = [each for each in targets if each in moving]
    fixed = [each for each in targets if each not in moving]

    def scan(*operands: Any) -> list[Any]:
        known, start, frames = parts.split(operands)
        constants = dict(zip((*jaxpr.constvars, *consts), (*body.consts, *known), strict=True))

        def reads(frame: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            values = {**constants, **dict(zip(slices, frame, strict=True))}
            run(equations, values)
            return [values[each] for each in of_frames], [values[each] for each in fixed]

        each, same = jax.vmap(reads, out_axes=(0, None))(frames) if frames else reads(())

        def step(before: list[Any], frame: Any) -> tuple[list[Any], list[Any]]:
            inputs = ((slices, frame[0]), (of_frames, frame[1]), (fixed, same), (carry, before))
            values = dict(constants)
            for names, arrays in inputs:
                values.update(zip(names, arrays, strict=True))
            run(needed(late, jaxpr.outvars), values)
            results = [read(atom, values) for atom in jaxpr.outvars]
            return results[: parts.carry], results[parts.carry :]

        last, outputs = _scan(equation, step, start, (frames, each))
        return [*last, *outputs]

    return scan


def _scan(equation: JaxprEqn, step: Function, carry: list[Any], frames: Any) -> tuple[list[Any], list[Any]]:
    """Scan a step as an equation does."""
    params = equation.params
    return varying.scan(
        step, carry, frames, length=params["length"], reverse=params["reverse"], unroll=params["unroll"]
    )


def _written(equation: JaxprEqn) -> Function | None:
    """Return a scan with an array that the body only writes into as an output, or None."""
    body, parts = equation.params["jaxpr"], Scan.of(equation)
    jaxpr = body.jaxpr
    _, carry, slices = parts.split(jaxpr.invars)
    # Where all iterations write the same element, the last iteration wins.
    moving = dependents(jaxpr.eqns, slices) - dependents(jaxpr.eqns, carry)
    writes: list[tuple[int, _Write]] = []
    for place, ends in enumerate(zip(carry, jaxpr.outvars[: parts.carry], strict=True)):
        write = _only_write(jaxpr, *ends)
        if write is not None and write.number in moving:
            writes.append((place, write))
    if not writes:
        return None
    place, write = writes[0]
    rest = [each for each in jaxpr.eqns if each is not write.equation]
    outvars = [atom for index, atom in enumerate(jaxpr.outvars) if index != place]

    def scan(*operands: Any) -> list[Any]:
        known, start, frames = parts.split(operands)
        array = start.pop(place)

        def step(values: list[Any], frame: list[Any]) -> tuple[list[Any], Any]:
            values = [*values[:place], None, *values[place:]]
            inputs = [*body.consts, *known, *values, *frame]
            environment = dict(zip((*jaxpr.constvars, *jaxpr.invars), inputs, strict=True))
            run(rest, environment)
            results = [read(atom, environment) for atom in outvars]
            written = read(write.number, environment), read(write.frame, environment)
            return results[: parts.carry - 1], (results[parts.carry - 1 :], written)

        last, (outputs, (numbers, written)) = _scan(equation, step, start, frames)
        last.insert(place, write.apply(array, numbers, written))
        return [*last, *outputs]

    return scan


class _Write(NamedTuple):
    """An equation that writes a frame into an array, and the function that writes the frames of all iterations."""

    equation: JaxprEqn
    number: Atom
    frame: Atom
    apply: Callable[[Any, Any, Any], Any]


def _only_write(jaxpr: Any, before: Var, after: Atom) -> _Write | None:
    """Return the write that is the only use of an array before it, or None."""
    uses = [each for each in jaxpr.eqns if before in each.invars]
    alone = len(uses) == 1 and uses[0].outvars == [after] and uses[0].invars.count(before) == 1
    read_again = any(after in each.invars for each in jaxpr.eqns) or jaxpr.outvars.count(after) > 1
    return _write_of(uses[0]) if alone and not read_again and before not in jaxpr.outvars else None


def _write_of(equation: JaxprEqn) -> _Write | None:
    """Return the write of a single frame along the axis of time, or None."""
    if equation.primitive is dynamic_update_slice_p:
        array, frame, *starts = equation.invars
        axes = [
            axis for axis, sizes in enumerate(zip(shape_of(array), shape_of(frame), strict=True)) if _differ(*sizes)
        ]
        if len(axes) != 1 or axes != symbolic_axes(shape_of(array)) or shape_of(frame)[axes[0]] != 1:
            return None
        (axis,) = axes

        def write(array: Any, numbers: Any, frames: Any) -> Any:
            others = tuple(range(1, frames.ndim - 1))
            layout = lax.ScatterDimensionNumbers(others, (axis,), (axis,))
            mode = lax.GatherScatterMode.CLIP
            return lax.scatter(array, numbers[:, None], jnp.squeeze(frames, axis + 1), layout, mode=mode)

        return _Write(equation, starts[axis], frame, write)
    if entry_of(equation).kind != "scatter":
        return None
    (array, index, frame), layout = equation.invars, equation.params["dimension_numbers"]
    is_frame = shape_of(index) == (1,) and list(layout.inserted_window_dims) == symbolic_axes(shape_of(array))
    if not is_frame or layout.inserted_window_dims != layout.scatter_dims_to_operand_dims:
        return None
    later = layout._replace(update_window_dims=tuple(axis + 1 for axis in layout.update_window_dims))
    changed = {"dimension_numbers": later, "indices_are_sorted": False, "unique_indices": False}
    return _Write(equation, index, frame, lambda *operands: bind(equation, operands, **changed)[0])


def _differ(one: Any, other: Any) -> bool:
    return str(one) != str(other)


def _with_needed_indices(jaxpr: Any) -> Any:
    """Return a jaxpr in which slices replace the indices of a gather along axes other than time."""
    joined = {each.outvars[0]: each for each in jaxpr.eqns if each.primitive is concatenate_p}
    forms, equations = forms_of(jaxpr), []
    for equation in jaxpr.eqns:
        equations.append(equation)
        if equation.primitive is not gather_p or (indices := joined.get(equation.invars[1])) is None:
            continue
        numbers, shape, sizes = equation.params["dimension_numbers"], in_shape(equation), equation.params["slice_sizes"]
        clips = equation.params["mode"] in (lax.GatherScatterMode.CLIP, lax.GatherScatterMode.PROMISE_IN_BOUNDS)
        by_column = indices.params["dimension"] == len(in_shape(equation, 1)) - 1
        if not clips or not by_column or len(indices.invars) != len(numbers.start_index_map):
            continue
        columns, part, start = (
            dict(zip(numbers.start_index_map, indices.invars, strict=True)),
            [*shape],
            [0] * len(shape),
        )
        for dim, column in [*columns.items()]:
            number = number_of(column, forms)
            if dim in numbers.collapsed_slice_dims:
                continue
            if not _differ(sizes[dim], shape[dim]):  # the index is clipped to 0
                del columns[dim]
            elif number is not None and not is_symbolic(number) and not is_symbolic(shape[dim]):
                start[dim], part[dim] = min(max(int(number), 0), shape[dim] - sizes[dim]), sizes[dim]
                del columns[dim]
        if len(columns) == 1:
            (dim, column), x = *columns.items(), Var(equation.invars[0].aval.update(shape=tuple(part)))
            limits = tuple(low + size for low, size in zip(start, part, strict=True))
            cut = {"start_indices": tuple(start), "limit_indices": limits, "strides": None}
            changed = {**equation.params, "dimension_numbers": numbers._replace(start_index_map=(dim,))}
            equations[-1:] = [
                equation.replace(primitive=slice_p, invars=equation.invars[:1], outvars=[x], params=cut),
                equation.replace(invars=[x, column], params=changed),
            ]
    return jaxpr.replace(eqns=equations)
