"""Convolutions: ``Conv`` on channels first."""

from __future__ import annotations

from jax.extend.core import JaxprEqn

from jaxrnn.jaxprs.equations import type_of
from jaxrnn.lowering.lowering import Lowering, Rule
from jaxrnn.lowering.movement import transpose
from jaxrnn.lowering.writer import Operand, shape_of


def convolve(lowering: Lowering, equation: JaxprEqn, x: Operand, kernel: Operand) -> Operand:
    """``Conv``."""
    params = equation.params
    numbers = params["dimension_numbers"]
    if params["batch_group_count"] != 1 or any(distance != 1 for distance in params["lhs_dilation"]):
        lowering.refuse("a convolution over a dilated operand or groups of a batch has no operator")
    low, high = zip(*params["padding"], strict=True) if params["padding"] else ((), ())
    if any(width < 0 for width in (*low, *high)):
        lowering.refuse("a convolution that crops its operand has no operator")
    writer = lowering.writer
    x, kernel = transpose(writer, x, numbers.lhs_spec), transpose(writer, kernel, numbers.rhs_spec)
    result = [equation.outvars[0].aval.shape[axis] for axis in numbers.out_spec]  # pyright: ignore
    y = writer.node(
        "Conv",
        x,
        kernel,
        shape=result,
        dtype=type_of(equation.outvars[0]),
        kernel_shape=list(shape_of(kernel)[2:]),
        strides=list(params["window_strides"]),
        dilations=list(params["rhs_dilation"]),
        pads=[*low, *high],
        group=params["feature_group_count"],
    )
    return transpose(writer, y, [numbers.out_spec.index(axis) for axis in range(len(result))])


RULES: dict[str, Rule] = {"conv_general_dilated": convolve}
