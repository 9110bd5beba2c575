"""Where the batch, the features and the carry of a model's step are, read off its declarations and its graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from jaxrnn.errors import InputError, StateError
from jaxrnn.model import Model
from jaxrnn.nnx.slots import CarryForm, Slot
from jaxrnn.onnx.evaluate import BoundNode
from jaxrnn.onnx.registry import Movement
from jaxrnn.steps.specs import ArraySpec, Dimension

#: The names of the carries of a cell in the order of Flax: ``(c, h)`` in ``LSTMCell``, ``h`` in the other cells.
_FLAX_ORDER = ("c", "h")


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
    makers = model.program.block.makers()
    for node in model.program.block.nodes:
        carries = node.operator.traits.carries
        if carries is None or carries.hidden is None:
            continue
        places = [carries.states[name][0] for name in _FLAX_ORDER if name in carries.states]
        names = [_source(node.inputs[place], makers) if place < len(node.inputs) else None for place in places]
        if not names or set(names) != set(states) or len(names) != len(states):
            continue
        slots = [_slot(str(name), states[str(name)].shape, model.spec.batch_symbol) for name in names]
        # The states of both directions have two axes of features.
        if all(len(slot.features) == 1 for slot in slots):
            first, *rest = (slot.name for slot in slots)
            return (first, *rest) if rest else first
    return None


def _source(value: ir.Value | None, makers: Mapping[ir.Value, BoundNode]) -> str | None:
    """Return the graph input whose elements a value rearranges, or None."""
    while value is not None and (node := makers.get(value)) is not None:
        if node.operator.traits.moves is not Movement.REARRANGES:
            return None
        value = node.inputs[0]
    return None if value is None else value.name
