"""In which mode a model runs over its examples: as the caller says, or as its state and the first example say."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrnn._files.messages import describe, first_line
from jaxrnn._jax.context import exact_types
from jaxrnn.errors import InputError, JaxrnnError
from jaxrnn.model.inspection import time_symbols
from jaxrnn.steps.specs import ArraySpec
from jaxrnn.training.options import Sequences, TimeAxis, sequences_argument

if TYPE_CHECKING:
    from jaxrnn.model import Model

#: How many times as many frames a step must take along a dimension that is time. A window of samples may be twice as
#: long and still be one frame.
_TIMES = 4

Shapes = Mapping[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Mode:
    """How a model runs over its examples.

    Attributes:
        name: ``"apply"``, ``"step"`` or ``"scan"``.
        times: the open dimensions of the file that could be time.
        reason: why it is this one, where the caller does not say.
    """

    name: str
    times: tuple[str, ...]
    reason: str = ""


def choose_mode(model: Model, sequences: Sequences, value: Any) -> Mode:
    """The mode that the caller names, or else the one that fits the model and the first example.

    A model without state of its own runs whole. Where an input has one axis more than in a step, frames go one by one.
    A sequence along the file's own axis is one for a step if the step takes several times as many frames as it has;
    where it does not, that axis is no time (a window of samples, for instance), and the example is one step.

    Args:
        model: the model.
        sequences: what the caller says.
        value: the first example, unchecked.

    Raises:
        StateError: what is state is ambiguous, or the model forgets it so that it has no steps.
        InputError: the example is no step of the model, and no sequence of them.
    """
    if sequences.mode == "apply":
        return Mode("apply", time_symbols(model))
    if sequences.mode is None and not any(variable.kind == "external" for variable in model.state):
        return Mode("apply", time_symbols(model), "it carries no state from call to call")
    named, shapes = _named_times(model), _shapes(model, value)
    partial = len(shapes) < len(model.spec.inputs)  # which is refused where the example is read
    if sequences.mode is not None:
        if sequences.mode == "scan" or sequences.time_axis is not None or partial or _framed(model, shapes):
            return Mode(sequences.mode, named)
        times = _times(model, shapes, named)
        if not times:
            _check_step(model, shapes)
        return Mode(sequences.mode, times)
    if framed := _framed(model, shapes):
        return Mode("scan", named, f"{framed!r} has one axis more than in a step")
    if not named:
        return Mode("scan", named, "its step takes one frame")
    times = named if partial else _times(model, shapes, named)
    if times:
        return Mode("step", times, f"its step takes any number of frames along {' or '.join(map(repr, times))}")
    if any(_is_joined(info, shapes.get(info.name, ()), sequences.time_axis) for info in model.spec.inputs):
        return Mode("scan", named, "the axis that is time has one size in a step")
    _check_step(model, shapes)
    return Mode("step", (), "each example has the shape of one step")


def _named_times(model: Model) -> tuple[str, ...]:
    """Open dimensions of the inputs of a step that could be time by their names."""
    symbols, batch = time_symbols(model), model.spec.batch_symbol
    sizes = (size for info in model.spec.inputs for size in info.shape or () if size in symbols and size != batch)
    return tuple(str(size) for size in dict.fromkeys(sizes))


def _shapes(model: Model, value: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of those inputs of a step that the first example has."""
    if not isinstance(value, Mapping):
        return {}
    return {info.name: np.shape(value[info.name]) for info in model.spec.inputs if info.name in value}


def _framed(model: Model, shapes: Shapes) -> str | None:
    """An input that has one axis more than in a step."""
    ranks = {info.name: len(info.shape) for info in model.spec.inputs if info.shape is not None}
    return next((name for name, shape in shapes.items() if len(shape) - 1 == ranks.get(name)), None)


def _is_joined(info: ArraySpec, shape: tuple[int, ...], time_axis: TimeAxis) -> bool:
    """Whether frames are one after another along an axis of a step whose size the file fixes."""
    axis = time_axis.get(info.name) if isinstance(time_axis, Mapping) else time_axis
    if axis is None or info.shape is None or len(info.shape) != len(shape) or not -len(shape) <= axis < len(shape):
        return False
    return isinstance(info.shape[axis], int)


def _times(model: Model, shapes: Shapes, symbols: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the open dimensions along which a step takes several times as many elements as the example has."""
    return tuple(symbol for symbol in symbols if _refusal(model, shapes, symbol) is None)


def _refusal(model: Model, shapes: Shapes, longer: str | None = None) -> JaxrnnError | None:
    """What a step says of inputs of these shapes, several times as long along a dimension; None where it runs."""
    inputs = {}
    for info in model.spec.inputs:
        if info.dtype is None:
            return None  # no array, which is refused where the example is read
        shape = shapes[info.name]
        if info.shape is not None and len(info.shape) == len(shape):
            shape = tuple(
                size * _TIMES if declared == longer else size for size, declared in zip(shape, info.shape, strict=True)
            )
        inputs[info.name] = jax.ShapeDtypeStruct(shape, info.dtype)
    try:
        with exact_types():
            jax.eval_shape(model.step, model.params, model.init(), inputs)
    except JaxrnnError as error:
        return error
    return None


def _as_scan() -> str:
    """What most refusals ask for."""
    return sequences_argument(mode="scan", time_axis=0)


def _check_step(model: Model, shapes: Shapes) -> None:
    for info in model.spec.inputs:
        check_one_stream(model, info, shapes[info.name])
    refusal = _refusal(model, shapes)
    if refusal is not None:
        listed = ", ".join(f"{name!r} {list(shape)}" for name, shape in shapes.items())
        raise InputError(
            f"the example is no step of {model.label}, with {listed}: {first_line(refusal).rstrip('.')}. A recording "
            "has the frames that a step takes along an axis of their own in front, [frames, ...]: "
            f"{_as_scan()}"
        ) from refusal


def check_one_stream(model: Model, info: ArraySpec, shape: Sequence[int]) -> None:
    """See that an input of a step, of this shape, has no batch.

    Raises:
        InputError: it has one.
    """
    batch = model.spec.batch_symbol
    if batch is None or info.shape is None or len(info.shape) != len(shape):
        return
    for declared, size in zip(info.shape, shape, strict=True):
        if declared == batch and size != 1:
            raise InputError(
                f"{info.name!r} has the size {size} where its batch {batch!r} is, and an example is one stream: give "
                "each stream as an example. Frames have an axis of their own in front, [frames, ...]: "
                f"{_as_scan()}"
            )


def check_rank(model: Model, mode: str, info: ArraySpec, array: np.ndarray, axis: int | None) -> None:
    """See that an input has the axes that a mode asks for, and is of one stream.

    Args:
        model: the model.
        mode: ``"apply"``, ``"step"`` or ``"scan"``.
        info: the input, as the mode takes it.
        array: of the first example.
        axis: of its frames; None where it has none.

    Raises:
        InputError: it has not; names the mode that it fits, and how to say so.
    """
    if info.shape is None:
        return
    more, got = array.ndim - len(info.shape), f"{info.name!r} is {describe(array)}"
    if more == 1 and mode != "scan" and any(variable.kind == "external" for variable in model.state):
        raise InputError(
            f"{got}, one axis more than mode {mode!r} takes: mode 'scan' runs a step for each frame along an axis in "
            f"front, {_as_scan()}"
        )
    if mode != "apply":
        shape = array.shape if axis is None or not more else (*array.shape[:axis], *array.shape[axis + 1 :])
        check_one_stream(model, info, shape)
    # Frames may also be one after another along an axis of a step whose size the file fixes.
    if more == 0 and mode == "scan" and axis is not None and not isinstance(info.shape[axis], int):
        raise InputError(
            f"{got}: mode 'scan' takes a recording, which has one axis more, for its frames: [frames, "
            f"{', '.join(map(str, array.shape))}]. Mode 'step' takes one step in each example, or a sequence along an "
            f"axis of the file's own: {sequences_argument(mode='step')}"
        )
