"""Unread frames: a rewriting of a program in which such frames need not be known.

``jnp.roll(x, 1, 0)`` puts the last frame of a recording first, and a stream does not know this frame before the end.
In ``jnp.roll(x, 1, 0)[1:]``, ``jnp.roll(x, 1, 0).at[0].set(0)`` and ``jnp.where(i == 0, 0, jnp.roll(x, 1, 0))``, no
output reads the frame. A backward pass counts the unread first frames of each value, and zeros take the
place of the parts of a concatenation that lie among these frames. Values of positions and constants in the first frames
decide which case a selection takes there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.extend.core import JaxprEqn, Literal, Var
from jax.extend.core.primitives import broadcast_in_dim_p, reshape_p

from jaxrnn.jaxprs.canonical import kept_name
from jaxrnn.jaxprs.equations import called, dependents, shape_of, trace, type_of
from jaxrnn.jaxprs.primitives import Rules, entry_of
from jaxrnn.streaming.dimensions import (
    cut_of,
    frames_of_window,
    in_shape,
    is_at_least,
    is_symbolic,
    out_shape,
    symbolic_axes,
)
from jaxrnn.streaming.rewriting import bind_at_sizes
from jaxrnn.streaming.values import FAR

#: The largest number of frames in front of a stream that are followed, and of elements in the first frames.
_MOST_FRAMES, _MOST_ELEMENTS = 256, 1 << 16

#: What is known of the first frames: arrays in which each length is this number of frames.
Known = Mapping[Any, np.ndarray]
#: Rules ``(equation, axis, unread, known) -> numbers``: the unread first frames of each operand, from those of the
#: result, which has time on an axis. Operands of other equations are read from the first frame on.
_RULES: Rules[Callable[..., Sequence[int]]] = Rules()


def without_unread(jaxpr: Any, constants: Sequence[Any]) -> Any:
    """Return the jaxpr with zeros for the parts of concatenations before streams that no output reads."""
    depend = dependents(jaxpr.eqns, jaxpr.invars)
    counts = [
        end
        for equation in jaxpr.eqns
        if entry_of(equation).joins
        for atom, end in zip(equation.invars, _ends_in_front(equation), strict=False)
        if end <= _MOST_FRAMES and isinstance(atom, Var) and atom in depend
    ]
    if not counts:
        return jaxpr
    known = _first_frames(jaxpr, constants, max(counts))
    equations: list[JaxprEqn] = []

    def changed(equation: JaxprEqn, unread: int) -> JaxprEqn:
        atoms, zeros = list(equation.invars), []
        for place, end in enumerate(_ends_in_front(equation) if entry_of(equation).joins else ()):
            if end <= unread and isinstance(atoms[place], Var):
                zeros.append(_zeros(equation, atoms[place]))
                atoms[place] = zeros[-1].outvars[0]
        equations.extend([equation := equation.replace(invars=atoms) if zeros else equation, *zeros])
        return equation

    _follow(jaxpr, [0] * len(jaxpr.outvars), known, changed)
    return jaxpr.replace(eqns=equations[::-1])


def _ends_in_front(equation: JaxprEqn) -> list[int]:
    """Return the frame after each operand of a concatenation before the first stream."""
    axis, ends = equation.params["dimension"], [0]
    for atom in equation.invars if symbolic_axes(out_shape(equation)) == [axis] else ():
        if is_symbolic(size := shape_of(atom)[axis]):
            break
        ends.append(ends[-1] + size)
    return ends[1:]


def _zeros(equation: JaxprEqn, like: Any) -> JaxprEqn:
    """Return an equation that computes zeros of the shape and type of a variable."""
    closed, _ = trace(lambda: lax.full(shape_of(like), 0, type_of(like)))
    (last,) = closed.jaxpr.eqns
    return last.replace(outvars=[Var(like.aval)], source_info=equation.source_info)


def _first_frames(jaxpr: Any, constants: Sequence[Any], count: int) -> Known:
    """Return the values of the first frames that follow from positions and constants only."""
    known: dict[Any, np.ndarray] = {
        each: np.asarray(value)
        for each, value in zip(jaxpr.constvars, constants, strict=True)
        if isinstance(value, np.ndarray | jax.Array) and not isinstance(value, Tracer)
        and value.dtype.kind in "biu" and value.size <= _MOST_ELEMENTS
    }  # fmt: skip
    with jax.ensure_compile_time_eval():
        for equation in jaxpr.eqns:
            operands = [each.val if isinstance(each, Literal) else known.get(each) for each in equation.invars]
            if entry_of(equation).arithmetic == "select" and operands[0] is not None:
                operands = _of_chosen(equation, operands)
            if any(each is None for each in operands) or not _is_by_frames(equation):
                continue
            if math.prod(count if is_symbolic(size) else size for size in out_shape(equation)) <= _MOST_ELEMENTS:
                (result,) = bind_at_sizes(lambda _: count, equation, operands)
                known[equation.outvars[0]] = np.asarray(result)
    return known


def _of_chosen(equation: JaxprEqn, operands: list[Any]) -> list[Any]:
    """Return the operands of a selection with the case that all elements take in place of other cases."""
    which, *cases = operands
    taken = np.unique(which)
    return operands if len(taken) != 1 else [which, *[cases[int(taken[0])]] * len(cases)]


def _is_by_frames(equation: JaxprEqn) -> bool:
    """Return True if each frame of the only result follows from the same frame of the operands."""
    entry = entry_of(equation)
    if len(equation.outvars) != 1 or equation.effects or len(symbolic_axes(out_shape(equation))) > 1:
        return False
    is_division = kept_name(equation) in ("floor_divide", "remainder")
    if entry.kind in ("elementwise", "constant") or is_division or equation.primitive is broadcast_in_dim_p:
        return True
    return equation.primitive is reshape_p and _keeps_frames(equation)


def _keeps_frames(equation: JaxprEqn) -> bool:
    """Return True if a reshape moves elements inside each frame only."""
    old, new = in_shape(equation), out_shape(equation)
    axes = symbolic_axes(old), symbolic_axes(new)
    if list(map(len, axes)) != [1, 1]:
        return axes == ([], [])
    (before,), (after,) = axes
    return math.prod(old[:before]) == math.prod(new[:after]) and str(old[before]) == str(new[after])


def _follow(
    jaxpr: Any, results: Sequence[int], known: Known, changed: Callable[[JaxprEqn, int], JaxprEqn] | None = None
) -> list[int]:
    """Return the numbers of unread first frames of the inputs, given those numbers for the outputs.

    `changed` replaces each equation, from the last to the first; the operands of the new equation count.
    """
    unread: dict[Any, int] = {}

    def note(atoms: Sequence[Any], numbers: Sequence[int]) -> None:
        for atom, number in zip(atoms, numbers, strict=True):
            if isinstance(atom, Var):
                unread[atom] = min(unread.get(atom, FAR), number)

    note(jaxpr.outvars, results)
    for equation in reversed(jaxpr.eqns):
        counts = [unread.get(each, FAR) for each in equation.outvars]
        equation = equation if changed is None else changed(equation, min(counts, default=0))
        note(equation.invars, _of_operands(equation, counts, known))
    return [unread.get(each, FAR) for each in jaxpr.invars]


def _of_operands(equation: JaxprEqn, counts: Sequence[int], known: Known) -> Sequence[int]:
    """Return the number of unread first frames of each operand."""
    if counts and min(counts) >= FAR and not equation.effects:
        return [FAR] * len(equation.invars)
    if entry_of(equation).kind in ("call", "checkpoint", "custom rule") and not equation.effects:
        inner = called(equation)
        if len(inner.jaxpr.invars if hasattr(inner, "jaxpr") else inner.invars) == len(equation.invars):
            return _follow(getattr(inner, "jaxpr", inner), counts, {})
    rule, axes = _RULES.of(equation), symbolic_axes(out_shape(equation)) if equation.outvars else []
    if rule is None or len(counts) != 1 or len(axes) != 1 or equation.effects:
        return [0] * len(equation.invars)
    return rule(equation, axes[0], counts[0], known)


@_RULES.add("transpose", kind="elementwise")
def _same(equation: JaxprEqn, axis: int, unread: int, known: Known) -> Sequence[int]:
    return [unread] * len(equation.invars)


@_RULES.add("broadcast_in_dim")
def _broadcast(equation: JaxprEqn, axis: int, unread: int, known: Known) -> Sequence[int]:
    moves = [equation.params["broadcast_dimensions"][each] for each in symbolic_axes(in_shape(equation))]
    return [unread if moves == [axis] else 0] * len(equation.invars)


@_RULES.add("reshape")
def _reshaped(equation: JaxprEqn, axis: int, unread: int, known: Known) -> Sequence[int]:
    return [unread if _keeps_frames(equation) else 0] * len(equation.invars)


@_RULES.add("select_n")
def _chosen(equation: JaxprEqn, axis: int, unread: int, known: Known) -> Sequence[int]:
    """Frames that a selection takes from another case are not read either."""
    which, *cases = equation.invars
    frames = known.get(which)
    if frames is None or not frames.ndim:
        return [unread] * len(equation.invars)
    frames = np.moveaxis(frames, axis, 0).reshape(frames.shape[axis], -1)

    def first(case: int) -> int:
        taken = np.any(frames[unread:] == case, 1)
        return unread + (int(np.argmax(taken)) if taken.any() else len(taken))

    return [unread, *map(first, range(len(cases)))]


@_RULES.add("slice")
def _sliced(equation: JaxprEqn, axis: int, unread: int, known: Known) -> Sequence[int]:
    start, strides = equation.params["start_indices"][axis], equation.params["strides"]
    return [unread * (strides[axis] if strides else 1) + (0 if is_symbolic(start) else start)]


@_RULES.add("dynamic_slice", "gather")
def _cut(equation: JaxprEqn, axis: int, unread: int, known: Known) -> Sequence[int]:
    found, rest = cut_of(equation), [0] * (len(equation.invars) - 1)
    if found is None or found[0] != axis or found[1] is None:
        return [0, *rest]
    start, surplus = _number_of(equation.invars[found[1]], known), in_shape(equation)[axis] - out_shape(equation)[axis]
    fits = start is not None and not is_symbolic(surplus) and 0 <= start <= surplus
    return [unread + start if start is not None and fits else 0, *rest]


def _number_of(atom: Any, known: Known) -> int | None:
    value = np.asarray(atom.val) if isinstance(atom, Literal) else known.get(atom)
    return None if value is None or value.size != 1 else int(value.reshape(-1)[0])


@_RULES.add("concatenate")
def _joined(equation: JaxprEqn, axis: int, unread: int, known: Known) -> Sequence[int]:
    if equation.params["dimension"] != axis:
        return [unread] * len(equation.invars)
    ends = _ends_in_front(equation)
    begin, rest = [0, *ends][-1], len(equation.invars) - len(ends) - 1
    return [*(FAR if end <= unread else 0 for end in ends), max(0, unread - begin), *[0] * rest]


@_RULES.add("pad")
def _padded(equation: JaxprEqn, axis: int, unread: int, known: Known) -> Sequence[int]:
    low, _, interior = equation.params["padding_config"][axis]
    return [max(0, unread - low) if not is_symbolic(low) and not interior else 0, 0]


@_RULES.add("scatter")
def _overwritten(equation: JaxprEqn, axis: int, unread: int, known: Known) -> Sequence[int]:
    """Frames that a scatter overwrites are not read."""
    numbers, indices = equation.params["dimension_numbers"], known.get(equation.invars[1])
    kept = [dim for dim in range(len(out_shape(equation))) if dim != axis]
    if indices is None or equation.params["mode"] != lax.GatherScatterMode.FILL_OR_DROP:
        return [unread, 0, 0]
    written: list[int] = indices.reshape(-1).tolist()
    if (window := frames_of_window(equation, axis)) is not None:
        place, numbers = window
        written = [written[0] + step for step in range(in_shape(equation, 2)[place])]
        if not is_at_least(out_shape(equation)[axis], written[-1] + 1):
            return [unread, 0, 0]
    sizes = [in_shape(equation, 2)[place] for place in numbers.update_window_dims]
    if numbers.inserted_window_dims == numbers.scatter_dims_to_operand_dims == (axis,):
        is_whole = sizes == [out_shape(equation)[dim] for dim in kept]
        while is_whole and unread in written:
            unread += 1
    return [unread, 0, 0]
