"""Rules for primitives that move elements."""

from __future__ import annotations

import numpy as np
from jax.extend.core import JaxprEqn

from jaxrnn.export.lowering import Lowering, Rule
from jaxrnn.export.movement import broadcast, concatenate, cut, pad, reshape, spread, transpose
from jaxrnn.export.writer import Operand, dtype_of, shape_of
from jaxrnn.jaxprs.equations import shape_of as shape_of_atom


def reshaped(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write ``Reshape``."""
    return reshape(lowering.writer, x, shape_of_atom(equation.outvars[0]))


def split(lowering: Lowering, equation: JaxprEqn, x: Operand) -> list[Operand]:
    """Write ``Split``."""
    axis, sizes = equation.params["axis"], [int(size) for size in equation.params["sizes"]]
    if len(sizes) == 1:
        return [x]
    results = [(shape_of_atom(each), dtype_of(x)) for each in equation.outvars]
    return [*lowering.writer.nodes_of("Split", [x, np.array(sizes, np.int64)], results, axis=axis)]


def stacked(lowering: Lowering, equation: JaxprEqn, *parts: Operand) -> Operand:
    """Write ``Concat`` along a new axis."""
    axis, shape = equation.params["axis"], list(shape_of_atom(equation.outvars[0]))
    shape[axis] = 1
    return concatenate(lowering.writer, [reshape(lowering.writer, part, shape) for part in parts], axis)


def reversed_(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write ``Slice`` with steps of -1."""
    shape, axes = shape_of(x), equation.params["dimensions"]
    back = [axis in axes and size > 1 for axis, size in enumerate(shape)]
    return cut(
        lowering.writer,
        x,
        [size - 1 if turned else 0 for turned, size in zip(back, shape, strict=True)],
        [-1 if turned else size for turned, size in zip(back, shape, strict=True)],
        [-1 if turned else 1 for turned in back],
    )


def tiled(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write ``Tile``, or ``Expand`` for axes of size 1."""
    counts, shape = equation.params["reps"], shape_of_atom(equation.outvars[0])
    if all(count == 1 for count in counts):
        return reshape(lowering.writer, x, shape)
    if len(counts) == len(shape_of(x)) and all(
        1 in (size, count) for size, count in zip(shape_of(x), counts, strict=True)
    ):
        return broadcast(lowering.writer, x, shape)
    return lowering.writer.node("Tile", x, np.array(counts, np.int64), shape=shape, dtype=dtype_of(x))


def padded(lowering: Lowering, equation: JaxprEqn, x: Operand, value: Operand) -> Operand:
    """Write ``Pad``, and ``Slice`` for negative widths."""
    config, writer = equation.params["padding_config"], lowering.writer
    x = spread(writer, x, [gap for _, _, gap in config], value)
    shape = shape_of(x)
    starts = [max(-low, 0) for low, _, _ in config]
    ends = [size - max(-high, 0) for size, (_, high, _) in zip(shape, config, strict=True)]
    if any(start >= end for start, end in zip(starts, ends, strict=True)):
        return broadcast(writer, value, shape_of_atom(equation.outvars[0]))
    x = cut(writer, x, starts, ends)
    return pad(writer, x, [(max(low, 0), max(high, 0)) for low, high, _ in config], value)


RULES: dict[str, Rule] = {
    "broadcast_in_dim": lambda lowering, equation, x: broadcast(
        lowering.writer, x, shape_of_atom(equation.outvars[0]), equation.params["broadcast_dimensions"]
    ),
    "concatenate": lambda lowering, equation, *parts: concatenate(lowering.writer, parts, equation.params["dimension"]),
    "expand_dims": reshaped,
    "pad": padded,
    "reshape": reshaped,
    "rev": reversed_,
    "slice": lambda lowering, equation, x: cut(
        lowering.writer, x, *(equation.params[name] for name in ("start_indices", "limit_indices", "strides"))
    ),
    "split": split,
    "squeeze": reshaped,
    "stack": stacked,
    "tile": tiled,
    "transpose": lambda lowering, equation, x: transpose(lowering.writer, x, equation.params["permutation"]),
}
