"""The interpreter of `stream`: evaluates a jaxpr traced over all of time on the chunks of one step.

Time is the one symbolic dimension of the jaxpr. Every pass, the warm-up before the first step, a step, and the flush,
goes through the same rules, one for each primitive (`jaxrnn.streaming.registry`), so they cannot drift apart.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jax.extend.core import JaxprEqn, Literal

from jaxrnn.jaxprs import equations
from jaxrnn.jaxprs.equations import CALLS, Atom, shape_of, type_of
from jaxrnn.streaming.access import has_symbols, own_sizes
from jaxrnn.streaming.dimensions import is_symbolic, symbolic_axes
from jaxrnn.streaming.known import fold
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.registry import ALWAYS, RULES
from jaxrnn.streaming.values import Chunk, Deferred, FinalValue, Late, is_known, is_length, reach_of, settled_since
from jaxrnn.streaming.watching import tell

#: What looks at a value that cannot be streamed: it may choose another, or say better what is wrong.
LOOKING = ("select_n", "gather", "jit", "pjit", "closed_call", "core_call", "remat2", "checkpoint", "custom_lin")


#: Primitives whose rules take chunks with late frames.
LATE = {*CALLS, "remat2", "checkpoint", "concatenate", "conv_general_dilated", "gather", "slice"}
LATE |= {f"reduce_window{kind}" for kind in ("", "_sum", "_max", "_min")}
#: Primitives through which late frames go like any others: rules for each frame alone, without singular derivatives.
FRAME_BY_FRAME = {
    *("broadcast_in_dim", "concatenate", "reshape", "slice", "squeeze", "transpose"),
    *("add", "convert_element_type", "copy", "max", "min", "mul", "neg", "sub"),
}


def interpret(run: Pass, inner: Any, arguments: Sequence[Any], *, late: bool = False) -> list[Any]:
    """Return the outputs of a jaxpr on chunks, values known at the end, and arrays.

    Args:
        run: the pass.
        inner: the jaxpr, closed or without constants.
        arguments: its inputs.
        late: chunks may come out with late frames.
    """
    results = equations.evaluate(inner, arguments, functools.partial(apply, run))
    results = _typed(getattr(inner, "jaxpr", inner).outvars, results)
    return results if late else list(map(run.on_time, results))


def apply(run: Pass, equation: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    """The results of one equation."""
    with run.at(equation):
        results = _apply(run, equation, _typed(equation.invars, operands))
        tell(run.path, equation, results, run.clock)
        return results


def _typed(atoms: Iterable[Atom], values: Iterable[Any]) -> list[Any]:
    """Values, of which literals are known arrays of their type."""
    pairs = zip(atoms, values, strict=True)
    return [np.asarray(value, type_of(atom)) if isinstance(atom, Literal) else value for atom, value in pairs]


def _apply(run: Pass, equation: JaxprEqn, operands: list[Any]) -> list[Any]:
    name = equation.primitive.name
    unusable = next((value for value in operands if isinstance(value, Deferred)), None)
    if unusable is not None and name not in LOOKING:
        return [unusable] * len(equation.outvars)
    shapes = [shape_of(variable) for variable in equation.outvars]
    crowded = next((shape for shape in shapes if len(symbolic_axes(shape)) > 1), None)
    if crowded is not None:
        run.refuse(
            f"its result has time on two axes, {list(crowded)}: every frame depends on all frames, also on later ones",
            "let each frame depend on a fixed number of past frames, or move this part out of the function",
        )
    streamed = any(isinstance(value, Chunk) for value in operands) or any(map(symbolic_axes, shapes))
    streamed = streamed or any(True for _ in own_sizes(equation))
    inside = not streamed and has_symbols(equation)
    if not streamed and not inside and all(map(is_known, operands)):
        folded = fold(equation, operands)
        if folded is not None:
            return folded
    if name in RULES and (streamed or inside or name in ALWAYS):
        if any(isinstance(value, Chunk) and value.late for value in operands):
            fronts = _fronts(name, equation, operands)
            if fronts is not None:
                return _with_fronts(run, equation, operands, fronts)
            if name not in LATE:
                operands = list(map(run.on_time, operands))
        results = _listed(RULES[name](run, equation, *operands))
        if len(results) != len(equation.outvars):
            run.refuse(
                f"its rule returns {len(results)} results, and the primitive has {len(equation.outvars)}",
                "return one chunk or array for each result, in order",
            )
        return results
    if streamed:
        run.refuse(
            "jaxrnn has no streaming rule for it",
            "use other operations, move this part out of the function that is streamed, or add a rule with "
            "jaxrnn.streaming.register",
        )
    final = any(isinstance(value, FinalValue) or is_length(value) for value in operands)
    results = run.bind(equation, [run.unstreamed(value) for value in operands])
    return [FinalValue(result, settled_since(operands), reach_of(operands)) for result in results] if final else results


def _listed(results: Any) -> list[Any]:
    return list(results) if isinstance(results, (list, tuple)) else [results]


def _fronts(name: str, equation: JaxprEqn, operands: Sequence[Any]) -> list[Any] | None:
    """Return the operands with the late frames alone, as if all frames were equal; None if that is not possible."""
    chunks = [value for value in operands if isinstance(value, Chunk)]
    late = [chunk for chunk in chunks if chunk.late is not None]
    alike = {
        (each.timeline, each.delay, each.late.since, each.late.array.shape[each.axis]) for each in late if each.late
    }
    sizes = {str(size) for variable in equation.outvars for size in shape_of(variable) if is_symbolic(size)}
    possible = (
        (name in FRAME_BY_FRAME or (name == "gather" and _is_inside_frames(equation, *operands)))
        and len(alike) == 1
        and sizes == {str(late[0].timeline.size)}
        and all(chunk.late is not None or chunk.delay is None for chunk in chunks)
        and not any(isinstance(value, FinalValue) for value in operands)
        # The lengths that a shape needs are operands, too.
        and (name in ("broadcast_in_dim", "reshape") or not any(map(is_length, operands)))
    )
    if not possible:
        return None
    return [
        dataclasses.replace(value, array=value.late.array, delay=None, affine=None, late=None)
        if isinstance(value, Chunk) and value.late is not None
        else value
        for value in operands
    ]


def _is_inside_frames(equation: JaxprEqn, x: Any, indices: Any) -> bool:
    """Return True for a gather that takes the same part of every frame."""
    numbers = equation.params["dimension_numbers"]
    touched = {*numbers.start_index_map, *numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    return isinstance(x, Chunk) and x.axis not in touched and not isinstance(indices, Chunk)


def _with_fronts(run: Pass, equation: JaxprEqn, operands: Sequence[Any], fronts: Sequence[Any]) -> list[Any]:
    """Return the results of an equation that works on each frame alone, with late frames."""
    rule = RULES[equation.primitive.name]
    since = next(value.late.since for value in operands if isinstance(value, Chunk) and value.late is not None)
    whole = [dataclasses.replace(value, late=None) if isinstance(value, Chunk) else value for value in operands]
    pairs = zip(_listed(rule(run, equation, *whole)), _listed(rule(run, equation, *fronts)), strict=True)
    return [
        # What has no elements has no late ones either.
        result if result.delay is None else dataclasses.replace(result, affine=None, late=Late(front.array, since))
        for result, front in pairs
    ]
