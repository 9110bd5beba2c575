"""`lower`: a jaxpr as a model of ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes
from jax.extend.core import ClosedJaxpr

from jaxrnn.guards import exact_types
from jaxrnn.jaxprs.equations import shape_of, type_of
from jaxrnn.lowering.lowering import Lowering
from jaxrnn.lowering.rules import RULES
from jaxrnn.lowering.writer import Operand, Writer, make_value

#: The newest version of the file format that engines of the opset's time read.
_IR_VERSION = 8


@dataclass(frozen=True)
class Argument:
    """What a function takes.

    Attributes:
        name: of the input or initializer.
        value: a known array, such as a parameter; None for an input of the graph.
    """

    name: str
    value: np.ndarray | None = None


def lower(
    closed: ClosedJaxpr, arguments: Sequence[Argument], results: Sequence[str], *, opset: int = 17, label: str = ""
) -> ir.Model:
    """Write a jaxpr as a model of ONNX.

    Args:
        closed: the jaxpr; all sizes are numbers.
        arguments: its inputs, in order. Those with a value are known: what depends on them alone is computed now.
        results: the names of its outputs.
        opset: the version of ONNX's operators.
        label: the name of the graph.

    Returns:
        The model, not checked.

    Raises:
        UnsupportedError: a primitive has no counterpart, or needs a newer opset; names its node or line.
    """
    writer = Writer(opset)
    for name in (*(argument.name for argument in arguments if argument.value is None), *results):
        writer.unused(name)
    values: list[Operand] = []
    for argument, variable in zip(arguments, closed.jaxpr.invars, strict=True):
        if argument.value is None:
            values.append(make_value(argument.name, shape_of(variable), type_of(variable)))
        else:
            array = np.asarray(argument.value)
            writer.parameter(argument.name, array)
            values.append(array)
    inputs = [value for value in values if isinstance(value, ir.Value)]
    with exact_types():
        found = Lowering(writer, RULES).evaluate(closed, values)
    outputs = _outputs(writer, results, found, inputs)
    graph = ir.Graph(
        inputs, outputs, nodes=writer.nodes, initializers=writer.initializers, opset_imports={"": opset}, name=label
    )
    model = ir.Model(graph, ir_version=_IR_VERSION, producer_name="jaxrnn")
    for each in (passes.CommonSubexpressionEliminationPass(), passes.RemoveUnusedNodesPass()):
        each(model)
    return model


def _outputs(
    writer: Writer, names: Sequence[str], operands: Sequence[Operand], inputs: Sequence[ir.Value]
) -> list[ir.Value]:
    """Results under their names: each output of a graph is a value of its own, and no input."""
    outputs: list[ir.Value] = []
    for name, operand in zip(names, operands, strict=True):
        value = writer.value(operand)
        if value.producer() is None or any(value is other for other in (*inputs, *outputs)):
            value = writer.node("Identity", value)
        value.name = name
        outputs.append(value)
    return outputs
