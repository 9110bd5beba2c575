"""Where the batch, the features and the carry of a model's step are, read off its declarations and its graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from jaxrnn.errors import InputError, StateError
from jaxrnn.model import Model
from jaxrnn.nnx.slots import CarryForm, Slot
from jaxrnn.steps.specs import ArraySpec, Dimension

#: The inputs of a recurrent operator that hold its state, in the order in which the cell of Flax carries them:
#: ``(c, h)`` in ``LSTMCell``, ``h`` in ``GRUCell`` and ``SimpleCell``.
_CARRIED_INPUTS = {"LSTM": (6, 5), "GRU": (5,), "RNN": (5,)}
#: Operators that change where axes of size 1 are, and nothing else that counts once those are dropped.
_RESHAPING = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Transpose"})


@dataclasses.dataclass(frozen=True)
class StepLayout:
    """The arrays of one step of a model with one input, one output and a state.

    Attributes:
        input: its features may be of open size.
        output: None where a step of a single node gives nothing but its state: ``h`` is then the output.
        carry: the states.
        batched: whether a batch is a leading axis over single steps, because the file does not say everywhere where
            the batch is.
    """

    input: Slot
    output: Slot | None
    carry: CarryForm
    batched: bool


def step_layout(model: Model, dims: Mapping[str, int]) -> StepLayout:
    """The layout of a model's step.

    Args:
        model: with steps of one input and one output.
        dims: sizes of open dimensions of the input besides the batch. Without one, the last axis is features of any
            size, and another axis is one frame.

    Raises:
        StateError: the model has no steps, or no state.
        InputError: it has several inputs or outputs, or ``dims`` names no open dimension.
    """
    inputs, outputs = model.spec.inputs, model.spec.outputs
    if not model.state:
        raise StateError(f"{model.label} keeps no state from call to call, so it is no cell; use jaxrnn.nnx.Module")
    names = _flax_carry(model)
    if len(inputs) != 1 or len(outputs) > 1 or not (outputs or names):
        raise InputError(
            f"a cell has one input and one output besides its state, but {model.label} takes {_listed(inputs)} and "
            f"gives {_listed(outputs)}: bind inputs with jaxrnn.load(path, static={{name: value}}), or use "
            "jaxrnn.nnx.Module"
        )
    symbol = model.spec.batch_symbol
    slot = _slot(inputs[0].name, _frame(inputs[0], symbol, dims), symbol)
    states = tuple(_slot(variable.name, variable.shape, symbol) for variable in model.state)
    output = _slot(outputs[0].name, outputs[0].shape or (), symbol) if outputs else None
    every = [slot, *states, *([output] if output else [])]
    carry = CarryForm(states, names or {slot.name: slot.name for slot in states})
    return StepLayout(slot, output, carry, batched=any(each.axis is None for each in every))


def _frame(info: ArraySpec, symbol: str | None, dims: Mapping[str, int]) -> tuple[Dimension, ...]:
    """The shape of the input of one step."""
    if info.shape is None:
        raise InputError(
            f"{info.as_input} has no declared rank, so its features cannot be found; use jaxrnn.nnx.Module"
        )
    is_open = [isinstance(size, str) and size != symbol for size in info.shape]
    named = [size for size, free in zip(info.shape, is_open, strict=True) if free]
    unknown = [name for name in dims if name not in named]
    if unknown:
        known = ", ".join(map(str, named)) or "none"
        raise InputError(
            f"dims: {info.as_input} has no open dimension {unknown[0]!r} besides the batch; it has: {known}"
        )
    last = len(info.shape) - 1
    return tuple(
        dims.get(str(size), size if axis == last else 1) if free else size
        for axis, (size, free) in enumerate(zip(info.shape, is_open, strict=True))
    )


def _slot(name: str, shape: Sequence[Dimension], symbol: str | None) -> Slot:
    axis = None if symbol is None or symbol not in shape else list(shape).index(symbol)
    return Slot(name, tuple(size for place, size in enumerate(shape) if place != axis), axis)


def _listed(infos: Sequence[ArraySpec]) -> str:
    return ", ".join(map(str, infos)) or "nothing"


def _flax_carry(model: Model) -> tuple[str, ...] | str | None:
    """The names of the states as Flax's own cell carries them, if all are of one LSTM, GRU or RNN of one direction."""
    states = {variable.name: variable for variable in model.state}
    for node in model.program.block.nodes:
        places = _CARRIED_INPUTS.get(node.operator.name, ())
        names = [_source(node.inputs[place]) if place < len(node.inputs) else None for place in places]
        if not names or set(names) != set(states) or len(names) != len(states):
            continue
        slots = [_slot(str(name), states[str(name)].shape, model.spec.batch_symbol) for name in names]
        # The states of both directions have two axes of features.
        if all(len(slot.features) == 1 for slot in slots):
            first, *rest = (slot.name for slot in slots)
            return (first, *rest) if rest else first
    return None


def _source(value: ir.Value | None) -> str | None:
    """The graph input that a value is, but for axes of size 1."""
    while value is not None and (node := value.producer()) is not None:
        if node.op_type not in _RESHAPING:
            return None
        value = node.inputs[0]
    return None if value is None else value.name
