"""Operations inside each frame: an equation with time as a batch axis applies directly to a chunk."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.streaming.dimensions import in_shape
from jaxrnn.streaming.interpreter import interpret
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.reach import union
from jaxrnn.streaming.rules.elementwise import refuse_final_values
from jaxrnn.streaming.values import Chunk

#: The number of trailing axes that an operation of linear algebra works on; all earlier axes are batch axes.
CORE_AXES = {
    **dict.fromkeys(
        ("cholesky", "eig", "eigh", "geqrf", "householder_product", "lu", "qr", "svd", "triangular_solve"), 2
    ),
    "lu_pivots_to_permutation": 1,
}


def per_frame(
    run: Pass, equation: JaxprEqn, operands: Sequence[Any], axes: Sequence[int | None], out: int, **changed: Any
) -> list[Chunk]:
    """Apply an equation to the frames of a step.

    Args:
        run: the pass.
        equation: the equation, in which time is a batch axis.
        operands: the operands of the equation.
        axes: the time axis of each operand; None if the operand has no time axis.
        out: the time axis of each result.
        changed: parameters of the equation that change.
    """
    refuse_final_values(run, operands)
    for value, axis in zip(operands, axes, strict=True):
        if isinstance(value, Chunk) and value.axis != axis:
            run.refuse("it mixes frames at different times", "let it work on each frame separately, as under jax.vmap")
    values = run.together(*(run.spread(value) if isinstance(value, Chunk) else value for value in operands))
    chunks = [value for value in values if isinstance(value, Chunk)]
    like, reach = chunks[0], union(chunk.reach for chunk in chunks)
    if any(chunk.outer != like.outer for chunk in chunks):
        run.refuse("its operands merge time with another axis in different orders", "merge both in the same order")
    arrays = [value.array if isinstance(value, Chunk) else value for value in values]
    return [run.make(array, out, like.timeline, like.delay, reach) for array in run.bind(equation, arrays, **changed)]


def linear_algebra(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Chunk]:
    """Decompose a matrix in each frame."""
    core = CORE_AXES[equation.primitive.name]
    axis = next(value.axis for value in operands if isinstance(value, Chunk))
    if axis >= len(in_shape(equation)) - core:
        run.refuse("it decomposes a matrix of all frames", "decompose a matrix in each frame")
    refuse_final_values(run, operands)
    values = run.together(*(run.spread(value) if isinstance(value, Chunk) else value for value in operands))
    # A right side may be a tangent, which must stay linear.
    values[0] = run.harmless(values[0], _conditioned(values[0]))
    return per_frame(run, equation, values, [axis] * len(operands), axis)


def _conditioned(value: Any) -> np.ndarray:
    """Return a matrix for frames that do not exist; its distinct singular values keep all derivatives finite."""
    rows, columns = np.shape(getattr(value, "array", value))[-2:]
    return np.eye(rows, columns) * np.arange(1, columns + 1)


def linear_solve(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Chunk]:
    """Solve a linear system in each frame; derivatives go through the system, and not through the solver."""
    refuse_final_values(run, operands)
    lengths, solvers = equation.params["const_lengths"], equation.params["jaxprs"]
    values = run.together(*(run.spread(value) if isinstance(value, Chunk) else value for value in operands))
    ends = list(itertools.accumulate(lengths))
    constants = [values[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    right = values[ends[-1] :]
    if not all(isinstance(value, Chunk) for value in right):
        run.refuse("the right side of its equation is not streamed", "broadcast the right side over time")

    def solver(jaxpr: Any, constants: Sequence[Any]) -> Callable[[list[Any]], list[Any]]:
        def on_arrays(arrays: list[Any]) -> list[Any]:
            chunks = [chunk.holding(array) for chunk, array in zip(right, arrays, strict=True)]
            alone = run.child("", None, stateless=True)  # masks that a pass keeps must not leave the trace of a solver
            return [value.array for value in interpret(alone, jaxpr, [*constants, *chunks])]

        return on_arrays

    matrix, _, solve, transposed = (
        None if jaxpr is None else solver(jaxpr, own) for jaxpr, own in zip(solvers, constants, strict=True)
    )
    assert matrix is not None
    assert solve is not None
    backwards = None if transposed is None else lambda _, b: transposed(b)
    arrays = lax.custom_linear_solve(matrix, [value.array for value in right], lambda _, b: solve(b), backwards)
    reach = union(value.reach for value in values if isinstance(value, Chunk))
    return [run.make(array, b.axis, b.timeline, b.delay, reach) for array, b in zip(arrays, right, strict=True)]


def bitcast(run: Pass, equation: JaxprEqn, x: Chunk) -> list[Chunk]:
    """Read the bits of each element as another type; the axis of the parts of an element is never time."""
    return run.frame_by_frame(equation, x)


def random(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Chunk]:
    """Draw random numbers in each frame, from keys that depend on the number of the frame."""
    axis = next((value.axis for value in operands if isinstance(value, Chunk)), None)
    if axis is None:
        run.refuse("its numbers depend on the number of frames", "draw random numbers outside")
    return per_frame(run, equation, operands, [axis if isinstance(value, Chunk) else None for value in operands], axis)


RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(CORE_AXES, linear_algebra),
    "custom_linear_solve": linear_solve,
    "bitcast_convert_type": bitcast,
    **{f"random_{name}": random for name in ("bits", "clone", "fold_in", "seed", "split", "unwrap", "wrap")},
}
