"""Rules that write recurrent layers and operators of a file as single nodes again."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.cells.cell import GRU, LSTM, RNN, SIGMOID, TANH
from jaxrnn.export import kernels
from jaxrnn.export.lowering import RULES, Lowering
from jaxrnn.export.quantized import dequantized
from jaxrnn.export.reshaping import bare, reshape
from jaxrnn.export.rules.elementwise import elements
from jaxrnn.export.small.control import layer_in_steps
from jaxrnn.export.writer import Operand, dtype_of, shape_of
from jaxrnn.jaxprs.equations import bind, type_of
from jaxrnn.jaxprs.equations import shape_of as shape_of_atom
from jaxrnn.jaxprs.own import computed

#: The operator of a cell, and the default activations.
_OPERATORS: dict[type, tuple[str, tuple[Any, ...]]] = {
    GRU: ("GRU", (SIGMOID, TANH)),
    LSTM: ("LSTM", (SIGMOID, TANH, TANH)),
    RNN: ("RNN", (TANH,)),
}
#: Activations that ONNX Runtime computes incorrectly: the first overflows, the second differs at the threshold.
_DIFFERENT = {"Softplus", "ThresholdedRelu"}
#: The engine that refuses a computed number of frames, and ignores activations, clips, coupled gates and a reversed
#: direction.
TRACT = "tract"
#: For tract, a layer with frames that may not exist is a node for each frame, up to this number of frames.
_FEW = 8
#: The types of layers in engines.
_TYPES = (np.float16, np.float32)


@RULES.add("recurrent_layer")
def layer(lowering: Lowering, equation: JaxprEqn, *operands: Operand) -> list[Operand]:
    """Write a single node, or the steps of the layer if engines would compute the node differently."""
    x, initial, weights, exists = jax.tree.unflatten(equation.params["structure"], operands)
    frames = shape_of(x)[0]
    if frames == 0 or (isinstance(exists, np.ndarray) and not exists.any()):
        return [np.zeros(shape_of_atom(equation.outvars[0]), dtype_of(x)), *initial]
    if not _is_node(equation, lowering.writer.target):
        return layer_in_steps(lowering, equation, *operands)
    if exists is None or (isinstance(exists, np.ndarray) and exists.all()):
        return _node(lowering, equation, x, initial, weights)
    if frames == 1:
        some = reshape(lowering.writer, exists, (shape_of(exists)[1], 1))
        y, *final = _node(lowering, equation, x, initial, weights)
        if equation.params["fills"]:
            y = _where(lowering, some, y, np.zeros((), dtype_of(y)))
    elif lowering.writer.target == TRACT:
        # Each copy of a node keeps a copy of the weights, and tract refuses some nodes in a Scan.
        return (_by_frame if frames <= _FEW else layer_in_steps)(lowering, equation, *operands)
    else:
        order, lengths, front = lowering.trace(_to_front, exists, x)
        y, *final = _node(lowering, equation, front, initial, weights, lengths)
        y, some = lowering.trace(_back, y, order, lengths)
    return [y, *(_where(lowering, some, *pair) for pair in zip(final, initial, strict=True))]


def _where(lowering: Lowering, chosen: Operand, x: Operand, other: Operand) -> Operand:
    return elements(lowering, "Where", bare(chosen), x, other, shape=shape_of(x), dtype=dtype_of(x))


def _by_frame(lowering: Lowering, equation: JaxprEqn, *operands: Operand) -> list[Operand]:
    """Write the layer on each frame as a node."""

    def steps(*arrays: Any) -> list[Any]:
        x, initial, weights, exists = jax.tree.unflatten(equation.params["structure"], arrays)

        ys, state = [], initial
        for frame in range(x.shape[0]):
            part = slice(frame, frame + 1)
            y, *state = bind(equation, jax.tree.leaves((x[part], tuple(state), weights, exists[part])))
            ys.append(y)
        return [jnp.concatenate(ys), *state]

    return lowering.trace(steps, *operands)


def _is_node(equation: JaxprEqn, target: str | None) -> bool:
    """Return True if engines compute the layer correctly as a single node."""
    cells, types = equation.params["cells"], equation.params["types"]
    alike = len({dataclasses.replace(cell, activations=SIGMOID) for cell in cells}) == 1
    clips = isinstance(cells[0], LSTM) and cells[0].clip is not None
    differs = any(each.name in _DIFFERENT for cell in cells for each in cell.activations)
    known = type(cells[0]) in _OPERATORS and type_of(equation.outvars[0]) in _TYPES
    if target == TRACT and not _is_plain(equation):
        return False
    return known and alike and not clips and not differs and types.products is None


def _is_plain(equation: JaxprEqn) -> bool:
    """Return True if tract, which ignores some attributes, computes the layer correctly as a single node."""
    cells = equation.params["cells"]
    *_, exists = jax.tree.unflatten(equation.params["structure"], equation.invars)
    return (
        equation.params["direction"] != "reverse"
        and (len(cells) == 1 or exists is None)
        and all(cell.activations == _OPERATORS[type(cell)][1] and cell.clip is None for cell in cells)
        and not any(getattr(cell, "input_forget", False) for cell in cells)
    )


def _node(
    lowering: Lowering,
    equation: JaxprEqn,
    x: Operand,
    initial: Sequence[Operand],
    weights: Any,
    lengths: Operand | None = None,
) -> list[Operand]:
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


def _to_front(exists: Any, x: Any) -> tuple[Any, Any, Any]:
    """Return the order of existing frames, then the rest, ``int64[time, rows]``, their number, and moved frames."""
    numbers = jnp.arange(len(exists), dtype=jnp.int64)[:, None]
    order = _sorting(jnp.where(exists, numbers, numbers + len(exists)))
    return order, jnp.broadcast_to(exists.sum(0, dtype=jnp.int32), x.shape[1:2]), _moved(x, order)


def _back(y: Any, order: Any, lengths: Any) -> tuple[Any, Any]:
    """Return frames at their places again, and which rows have frames, ``bool[batch, 1]``."""
    return _moved(y, _sorting(order)), lengths[:, None] > 0


def _sorting(numbers: Any) -> Any:
    """Return the order that sorts distinct numbers ``int64[time, rows]`` along time."""
    places = lax.broadcasted_iota(jnp.int64, numbers.shape, 0)
    return lax.sort([numbers, places], dimension=0, num_keys=1)[1]


def _moved(x: Any, order: Any) -> Any:
    """Move frames of ``[time, ..., rows, features]``; an order of a single row applies to all rows."""
    if order.shape[1] == 1:
        return jnp.take(x, order[:, 0], 0, mode="clip")
    order = jnp.expand_dims(order, (*range(1, x.ndim - 2), x.ndim - 1))
    others = tuple(range(1, x.ndim))
    numbers = lax.GatherDimensionNumbers((), (0,), (0,), others, others)
    order = jnp.broadcast_to(order, x.shape)[..., None]
    return lax.gather(x, order, numbers, (1,) * x.ndim, mode="promise_in_bounds")


@RULES.add("onnx_operator")
def operator(lowering: Lowering, equation: JaxprEqn, *operands: Operand) -> list[Operand]:
    """Write the operator, or the equations that compute it if the opset lacks it for these types and attributes."""
    params, opset = equation.params, lowering.writer.opset
    defaults = inspect.signature(params["function"]).parameters
    attributes: dict[str, Any] = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in params["attributes"]
        if value != defaults[key].default
    }
    name, each = params["name"], iter(operands)
    inputs = [next(each) if there else None for there in params["present"]]
    while inputs[-1] is None:
        inputs.pop()
    arrays = [each for each in inputs if isinstance(each, np.ndarray)]
    is_known = name == "DequantizeLinear" and len(arrays) == len(inputs) and attributes.keys() <= {"axis", "block_size"}
    layout = attributes.get("axis", 1), attributes.get("block_size", 0)
    if is_known and (known := dequantized(arrays, *layout)) is not None:
        return [known]
    types = [None if value is None else dtype_of(value) for value in inputs]
    if (
        not kernels.takes(name, opset, types)
        or not attributes.keys() <= onnx.defs.get_schema(name, opset).attributes.keys()
    ):
        return lowering.trace(functools.partial(computed, **params), *operands)
    results = [(shape_of_atom(variable), type_of(variable)) for variable in equation.outvars]
    return [*lowering.writer.nodes_of(name, inputs, results, **attributes)]
