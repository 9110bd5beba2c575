"""Recurrent layers: ``LSTM``, ``GRU`` and ``RNN``, with the weights as they are.

Where ONNX Runtime differs from the specification, what is written is right in both. It begins a sequence without frames
from zeros, so its final carry is chosen; it knows no default coefficients of activations, so all are written. It clips
less of an LSTM than it should, has two activations of its own, and no layers of float64: these layers are written out
in operators on elements.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import JaxprEqn

from jaxrnn.cells import GRU, LSTM, RNN
from jaxrnn.cells.activations import SIGMOID, TANH
from jaxrnn.cells.layers import written_out
from jaxrnn.jaxprs.equations import shape_of as shape_of_atom
from jaxrnn.jaxprs.equations import type_of
from jaxrnn.lowering.lowering import Lowering, Rule
from jaxrnn.lowering.movement import bare, reshape
from jaxrnn.lowering.rules.elementwise import elements
from jaxrnn.lowering.rules.existing import Existing
from jaxrnn.lowering.writer import Operand, dtype_of, shape_of

#: The operator of a cell, and its activations where the node names none.
_OPERATORS: dict[type, tuple[str, tuple[Any, ...]]] = {
    GRU: ("GRU", (SIGMOID, TANH)),
    LSTM: ("LSTM", (SIGMOID, TANH, TANH)),
    RNN: ("RNN", (TANH,)),
}
#: Activations that ONNX Runtime computes as they are not specified: one overflows, one differs at its threshold.
_DIFFERENT = {"Softplus", "ThresholdedRelu"}
#: The types that engines run layers in.
_TYPES = (np.float16, np.float32)


def layer(lowering: Lowering, equation: JaxprEqn, *operands: Operand) -> list[Operand]:
    """One node; where engines would compute something else, the steps of the layer one by one."""
    x, initial, weights, exists = jax.tree.unflatten(equation.params["structure"], operands)
    frames, batch = shape_of(x)[:2]
    if frames == 0 or (isinstance(exists, np.ndarray) and not exists.any()):
        return [np.zeros(shape_of_atom(equation.outvars[0]), dtype_of(x)), *initial]
    if not _is_node(equation):
        return _written_out(lowering, equation, operands)
    if exists is None or (isinstance(exists, np.ndarray) and exists.all()):
        return _node(lowering, equation, x, initial, weights)
    if frames == 1:
        some = reshape(lowering.writer, exists, (shape_of(exists)[1], 1))
        y, *final = _node(lowering, equation, x, initial, weights)
        if equation.params["fills"]:
            y = _where(lowering, some, y, np.zeros((), dtype_of(y)))
    else:
        existing = Existing.of(lowering, exists)
        some = existing.some
        y, *final = _node(lowering, equation, existing.to_front(x), initial, weights, existing.lengths(batch))
        y = existing.back(y)
    return [y, *(_where(lowering, some, *pair) for pair in zip(final, initial, strict=True))]


def _where(lowering: Lowering, chosen: Operand, x: Operand, other: Operand) -> Operand:
    return elements(lowering, "Where", bare(chosen), x, other, shape=shape_of(x), dtype=dtype_of(x))


def _is_node(equation: JaxprEqn) -> bool:
    """Whether engines compute the layer rightly as one node."""
    cells, types = equation.params["cells"], equation.params["types"]
    alike = len({dataclasses.replace(cell, activations=SIGMOID) for cell in cells}) == 1
    clips = isinstance(cells[0], LSTM) and cells[0].clip is not None
    differs = any(each.name in _DIFFERENT for cell in cells for each in cell.activations)
    known = type(cells[0]) in _OPERATORS and type_of(equation.outvars[0]) in _TYPES
    return known and alike and not clips and not differs and types.products is None


def _node(
    lowering: Lowering,
    equation: JaxprEqn,
    x: Operand,
    initial: Sequence[Operand],
    weights: Any,
    lengths: Operand | None = None,
) -> list[Operand]:
    """The results of one node: outputs and final carries."""
    cells: Any = equation.params["cells"]
    operator, usual = _OPERATORS[type(cells[0])]
    w, r, bias, peephole = weights
    starts = [None if isinstance(each, np.ndarray) and not each.any() else each for each in initial]
    inputs: list[Any] = [x, w, r, bias, lengths, *starts, peephole]
    while inputs[-1] is None:
        inputs.pop()
    activations = [each for cell in cells for each in cell.activations]
    attributes: dict[str, Any] = {"hidden_size": shape_of(r)[-1], "clip": cells[0].clip}
    if equation.params["direction"] != "forward":
        attributes["direction"] = equation.params["direction"]
    if activations != [*usual] * len(cells):
        attributes["activations"] = [each.name for each in activations]
        for place, name in enumerate(("activation_alpha", "activation_beta")):
            attributes[name] = [each.coefficients[place] for each in activations if len(each.coefficients) > place]
    for name in ("input_forget", "linear_before_reset"):
        if getattr(cells[0], name, False):
            attributes[name] = 1
    results = [(shape_of_atom(each), type_of(each)) for each in equation.outvars]
    attributes = {name: value for name, value in attributes.items() if value != []}
    return [*lowering.writer.nodes_of(operator, inputs, results, **attributes)]


def _written_out(lowering: Lowering, equation: JaxprEqn, operands: Sequence[Operand]) -> list[Operand]:
    """The equations of all steps."""
    params = equation.params

    def steps(*arrays: Any) -> list[Any]:
        x, initial, weights, exists = jax.tree.unflatten(params["structure"], arrays)
        y, final = written_out(params["cells"], weights, x, initial, direction=params["direction"], exists=exists)
        return [y, *final]

    with params["types"].in_force():
        closed = jax.make_jaxpr(steps)(*(jax.ShapeDtypeStruct(shape_of(each), dtype_of(each)) for each in operands))
    return lowering.evaluate(closed, operands)


RULES: dict[str, Rule] = {"recurrent_layer": layer}
