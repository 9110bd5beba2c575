"""How the first example lies in time: its time axes and its frames, which all examples share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrnn._files.arguments import NAME
from jaxrnn._files.messages import describe, near_or_all
from jaxrnn.errors import InputError
from jaxrnn.steps.specs import ArraySpec
from jaxrnn.training.examples import Example, read_example
from jaxrnn.training.layout import ExampleLayout, naming
from jaxrnn.training.modes import Mode, check_rank, choose_mode
from jaxrnn.training.options import OPEN, Sequences, TimeAxis, sequences_argument

if TYPE_CHECKING:
    from jaxrnn.model import Model


def make_layout(model: Model, sequences: Sequences, label: str, value: Any) -> ExampleLayout:
    """Find out how the first example lies in time.

    Args:
        model: the model.
        sequences: how it runs over sequences.
        label: what the first example is called.
        value: the first example, as the caller gave it.

    Raises:
        InputError: it is no example, the time axis does not fit it, or a chunk is no whole number of elements.
        StateError: what is state is ambiguous, or the model forgets it so that it has no steps.
    """
    chosen = choose_mode(model, sequences, value)
    mode, wide, time_axis = chosen.name, _computes_wide(model), sequences.time_axis
    state = () if mode == "apply" else tuple(str(variable.input) for variable in model.state)
    infos, outputs = _inputs(model, mode), tuple(info.name for info in model.outputs)
    with naming(label):
        if mode == "apply":
            _check_state(model, value)
        example = read_example(value, infos, state, wide=wide)
    symbol = None if mode == "scan" else _symbol(model, chosen, time_axis, example)
    axes = _given_axes(time_axis, example, outputs)
    for info in infos:
        if time_axis is None and mode == "scan" and (axis := _frame_axis(info, infos, example)) is not None:
            axes[info.name] = axis
        check_rank(model, mode, info, example[info.name], axes.get(info.name))
        if symbol is None or symbol not in (info.shape or ()) or (mode == "apply" and time_axis is not None):
            continue
        declared = (info.shape or ()).index(symbol)
        if axes.setdefault(info.name, declared) != declared:
            raise InputError(
                f"time_axis says {axes[info.name]} for {info.as_input}, whose time is axis {declared} in mode "
                f"{mode!r}; give the axis of each array: time_axis={axes | {info.name: declared}}"
            )
    sizes = {info.name: _frame_size(info, example, axes, mode) for info in infos if info.name in axes}
    if mode == "apply":  # inputs of an encoder and a decoder may differ: the first one counts
        sizes = dict(list(sizes.items())[:1])
    if not sizes:
        sizes = dict.fromkeys(list(axes)[:1], 1)
    layout = ExampleLayout(mode, infos, axes, sizes, example, label, outputs, sequences, state, wide, chosen.reason)
    _check_chunks(layout, model)
    return layout


def _check_state(model: Model, value: Any) -> None:
    """See that an example has the state too, where it goes in as any other input.

    Raises:
        InputError: it has not.
    """
    names = [str(variable.input) for variable in model.state if variable.kind == "external"]
    missing = [name for name in names if isinstance(value, Mapping) and name not in value]
    if missing:
        raise InputError(
            f"{missing[0]!r} is missing: in mode 'apply' examples hold the state before their first frame. Modes "
            "'step' and 'scan' carry it; leave mode out to have the one that fits"
        )


def _computes_wide(model: Model) -> bool:
    """Whether 64-bit types stay so: as the caller has set JAX, and always for a model that computes in float64."""
    arrays = [*model.program.parameters.values(), *model.inputs]
    return jax.dtypes.canonicalize_dtype(np.float64) == np.float64 or any(array.dtype == np.float64 for array in arrays)


def _inputs(model: Model, mode: str) -> tuple[ArraySpec, ...]:
    """The arrays that an example has for the model: all inputs, or those that are not state."""
    return model.inputs if mode == "apply" else model.spec.inputs


def _symbol(model: Model, mode: Mode, time_axis: TimeAxis, example: Example) -> str | None:
    """The one open dimension that is time; None in a mode that needs none."""
    symbols = list(mode.times)
    if time_axis is not None and len(symbols) > 1:
        axes = _given_axes(time_axis, example, [info.name for info in model.outputs])
        at = [(info.shape or ())[axes[info.name]] for info in _inputs(model, mode.name) if info.name in axes]
        symbols = [symbol for symbol in symbols if symbol in at]
    if mode.name == "step" and len(symbols) > 1:
        raise InputError(
            f"{model.label}: any of the open dimensions {', '.join(symbols)} could be time; say which axis of each "
            f"array is: {sequences_argument(mode='step', time_axis={NAME: OPEN})}"
        )
    if mode.name == "step" and not symbols and time_axis is not None:
        raise InputError(
            f"{model.label}: no open dimension of its inputs is time, so there are no sequences for mode 'step'. Mode "
            f"'scan' runs a step for each frame: {sequences_argument(mode='scan', time_axis=OPEN)}; without time_axis, "
            "each example is one step"
        )
    return symbols[0] if len(symbols) == 1 else None


def _given_axes(time_axis: TimeAxis, example: Example, outputs: Sequence[str]) -> dict[str, int]:
    """The time axis of every array that has one, as the caller says."""
    if time_axis is None:
        return {}
    if isinstance(time_axis, int):
        return {
            name: time_axis % array.ndim for name, array in example.items() if -array.ndim <= time_axis < array.ndim
        }
    axes = {}
    for name, axis in time_axis.items():
        if name not in example:
            if name not in outputs:
                hint = near_or_all(name, [*example, *outputs])
                raise InputError(f"time_axis: no example and no output has {name!r}{hint}")
            continue
        if not isinstance(axis, int) or not -example[name].ndim <= axis < example[name].ndim:
            raise InputError(f"time_axis: {name!r} is {describe(example[name])} and has no axis {axis!r}")
        axes[name] = axis % example[name].ndim
    return axes


def _frame_axis(info: ArraySpec, infos: Sequence[ArraySpec], example: Example) -> int | None:
    """Where a scan takes frames from, which the caller does not say; None for an input that is constant.

    It is the axis in front of those of a step; or the one along which frames were joined, whose size is a multiple of
    the file's. An input without either is constant if another one has frames.
    """
    array, declared = example[info.name], info.shape
    if declared is None or array.ndim != len(declared):
        return 0 if array.ndim else None
    unequal = [a for a, size in enumerate(declared) if isinstance(size, int) and array.shape[a] != size]
    if len(unequal) == 1 and array.shape[unequal[0]] % declared[unequal[0]] == 0:
        return unequal[0]
    framed = any(each.shape is not None and example[each.name].ndim == len(each.shape) + 1 for each in infos)
    return None if framed or not array.ndim else 0


def _frame_size(info: ArraySpec, example: Example, axes: Mapping[str, int], mode: str) -> int:
    """Elements of an input along its time axis that make one frame: 1, or those of a step where frames are joined."""
    if mode != "scan" or info.shape is None or example[info.name].ndim != len(info.shape):
        return 1
    size = info.shape[axes[info.name]]
    assert isinstance(size, int), "its rank was checked"
    return size


def _check_chunks(layout: ExampleLayout, model: Model) -> None:
    chunk = layout.sequences.chunk
    if chunk is None:
        return
    if layout.mode == "apply":
        raise InputError(
            f"chunk={chunk}: {model.label} carries no state from chunk to chunk in mode 'apply'; leave chunk out, or "
            "choose mode 'step' or 'scan' if it has a state"
        )
    for name in layout.axes:
        elements = layout.rate(name, layout.example) * chunk
        if elements.denominator != 1:
            raise InputError(
                f"chunk={chunk} frames are {elements} elements of {name!r}; choose a multiple of "
                f"{layout.rate(name, layout.example).denominator}, or leave {name!r} out of time_axis if that axis is "
                "no time"
            )
