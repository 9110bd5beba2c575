"""The common layout of all examples: the mode of a training, arrays, time axes and frames."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import jax
import numpy as np

from jaxrnn._files.messages import describe, first_line, near_or_all, pairs_of
from jaxrnn._jax.context import exact_types
from jaxrnn.audio.waveforms import Waveform
from jaxrnn.errors import InputError, JaxrnnError, check_kind
from jaxrnn.model import Model
from jaxrnn.model.streaming import time_symbols
from jaxrnn.onnx.reading import labelled
from jaxrnn.steps.specs import ArraySpec
from jaxrnn.training.examples import Example, read_example
from jaxrnn.training.options import Sequences, TimeAxis
from jaxrnn.training.student import Student


@dataclasses.dataclass(frozen=True)
class ExampleLayout:
    """The names, types, shapes and time axes that all examples share."""

    mode: str  # "apply", "step" or "scan"
    inputs: tuple[ArraySpec, ...]
    axes: dict[str, int]  # time axis by array, counted from the front
    frame_sizes: dict[str, int]  # elements per frame, for arrays whose length gives the number of frames
    example: Example  # the first example
    label: str  # of the first example
    outputs: tuple[str, ...]
    sequences: Sequences
    state: tuple[str, ...]  # names of state inputs, which examples do not have
    wide: bool  # keep 64-bit types
    reason: str = ""  # for an inferred mode

    @property
    def used_sequences(self) -> Sequences:
        """Return the options of sequences with the mode and the time axes in use."""
        named = dict(self.sequences.time_axis) if isinstance(self.sequences.time_axis, Mapping) else {}
        return dataclasses.replace(self.sequences, mode=self.mode, time_axis=named | self.axes or None)

    def __str__(self) -> str:
        time = f"time along {pairs_of(self.axes)}" if self.axes else "no time axis"
        return f"mode {self.mode!r}, {time}"

    def read(self, label: str, value: Any) -> Example:
        """Read an example, and check that the layout equals that of the first example."""
        with labelled(label):
            example = read_example(value, self.inputs, self.state, wide=self.wide)
            self.check(example)
        return example

    def frames(self, example: Example) -> int:
        """Return the number of frames of an example, which must agree in all inputs of the model."""
        counts: dict[str, int] = {}
        for name, size in self.frame_sizes.items():
            length = example[name].shape[self.axes[name]]
            if length % size:
                raise InputError(
                    f"{name!r} has {length} elements along axis {self.axes[name]}, which is not a multiple of the "
                    f"frame size {size}; cut or pad it to {length // size * size} or {-(-length // size) * size}"
                )
            counts[name] = length // size
        if len(set(counts.values())) > 1:
            raise InputError(f"the arrays have different numbers of frames: {counts}")
        frames = next(iter(counts.values()), 1)
        if not frames:
            raise InputError(f"{next(iter(counts))!r} has no frames; leave such examples out")
        return frames

    def rate(self, name: str, example: Example) -> Fraction:
        """Return the elements along the time axis of an array per frame of the example."""
        return Fraction(example[name].shape[self.axes[name]], self.frames(example))

    def check(self, example: Example) -> None:
        """Check that an example equals the first example in arrays, types, sizes and rates, except in length."""
        frames, explicit = self.frames(example), self.sequences.time_axis is not None
        for name, first in self.example.items():
            array, axis = example.get(name), self.axes.get(name)
            if array is None:
                raise InputError(f"{name!r} is missing, which {self.label} has{near_or_all(name, example)}")
            free = [size for a, size in enumerate(array.shape) if a != axis]
            fits = len(array.shape) == len(first.shape) and free == [s for a, s in enumerate(first.shape) if a != axis]
            if not fits or array.dtype != first.dtype or (not explicit and array.shape != first.shape):
                hint = "" if explicit else self._hint(example)
                raise InputError(f"{name!r} is {describe(array)}, but {describe(first)} in {self.label}{hint}")
            if self.sequences.chunk is not None and axis is not None:
                rate, expected = Fraction(array.shape[axis], frames), self.rate(name, self.example)
                if rate != expected:
                    raise InputError(
                        f"{name!r} has {array.shape[axis]} elements along axis {axis} for {frames} frames, where the "
                        f"{self.label} has {expected} for each frame, so it cannot be cut into chunks; if this axis "
                        f"is not time, leave {name!r} out of time_axis={{name: axis}}"
                    )
        unknown = [name for name in example if name not in self.example]
        if unknown:
            raise InputError(f"{unknown[0]!r} is not in {self.label}{near_or_all(unknown[0], self.example)}")

    def _hint(self, example: Example) -> str:
        """Suggest a time axis if this example and the first example differ along one axis of each array."""
        if self.mode == "step" and not self.axes:
            return "; examples of one step each have one shape"
        axes = {}
        for name, first in self.example.items():
            array = example.get(name)
            if array is None or array.ndim != first.ndim or array.shape == first.shape:
                continue
            unequal = [axis for axis in range(array.ndim) if array.shape[axis] != first.shape[axis]]
            axes[name] = unequal[0] if len(unequal) == 1 else None
        if not axes or None in axes.values():
            return ""
        given = f"`sequences=Sequences(mode={self.mode!r}, time_axis={axes})`"
        return f"; to train on unequal lengths say where time is: {given}"


def check_model(model: Any) -> Any:
    """Check that an object can be trained: a model, or a waveform or student of a model, with the same functions."""
    kinds = "a Model, as jaxrnn.load returns, a jaxrnn.audio.Waveform, or a jaxrnn.training.Student"
    check_kind("model", model, (Model, Waveform, Student), kinds)
    inner = model.model if isinstance(model, Student) else model
    if isinstance(inner, Waveform) and not all(isinstance(each.model, Model) for each in inner.networks[:2]):
        raise InputError(f"{inner.label} is no Model of a file, and only those are trained")
    if isinstance(inner, Waveform) and len(inner.networks) > 1:
        raise InputError(f"{inner.label} has {len(inner.networks)} networks: train each one as a Waveform of its own")
    return model


def make_layout(model: Model, sequences: Sequences, label: str, value: Any) -> ExampleLayout:
    """Return the layout of the first example.

    Raises an InputError if the example, the time axis or the chunk does not fit, and a StateError if the model has no
    steps.
    """
    chosen = choose_mode(model, sequences, value)
    mode, time_axis = chosen.name, sequences.time_axis
    wide = jax.dtypes.canonicalize_dtype(np.float64) == np.float64 or any(
        array.dtype == np.float64 for array in [*model.program.parameters.values(), *model.inputs]
    )
    state = () if mode == "apply" else tuple(str(variable.input) for variable in model.state)
    infos, outputs = _inputs(model, mode), tuple(info.name for info in model.outputs)
    with labelled(label):
        if mode == "apply":
            initial = [str(variable.input) for variable in model.state if variable.kind == "external"]
            missing = [name for name in initial if isinstance(value, Mapping) and name not in value]
            if missing:
                raise InputError(
                    f"{missing[0]!r} is missing: in mode 'apply' examples hold the state before their first frame. "
                    "Modes 'step' and 'scan' carry it; leave mode out to have the one that fits"
                )
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
    if mode == "apply":  # inputs of an encoder and a decoder may differ: the first input counts
        sizes = dict(list(sizes.items())[:1])
    if not sizes:
        sizes = dict.fromkeys(list(axes)[:1], 1)
    layout = ExampleLayout(mode, infos, axes, sizes, example, label, outputs, sequences, state, wide, chosen.reason)
    _check_chunks(layout, model)
    return layout


def _inputs(model: Model, mode: str) -> tuple[ArraySpec, ...]:
    return model.inputs if mode == "apply" else model.spec.inputs


def _symbol(model: Model, mode: Mode, time_axis: TimeAxis, example: Example) -> str | None:
    symbols = list(mode.times)
    if time_axis is not None and len(symbols) > 1:
        axes = _given_axes(time_axis, example, [info.name for info in model.outputs])
        at = [(info.shape or ())[axes[info.name]] for info in _inputs(model, mode.name) if info.name in axes]
        symbols = [symbol for symbol in symbols if symbol in at]
    if mode.name == "step" and len(symbols) > 1:
        raise InputError(
            f"{model.label}: any of the open dimensions {', '.join(symbols)} could be time; say which axis of each "
            f"array is: `sequences=Sequences(mode='step', time_axis={{NAME: ...}})`"
        )
    if mode.name == "step" and not symbols and time_axis is not None:
        raise InputError(
            f"{model.label}: no open dimension of its inputs is time, so there are no sequences for mode 'step'. Mode "
            f"'scan' runs a step for each frame: `sequences=Sequences(mode='scan', time_axis=...)`; without time_axis, "
            "each example is one step"
        )
    return symbols[0] if len(symbols) == 1 else None


def _given_axes(time_axis: TimeAxis, example: Example, outputs: Sequence[str]) -> dict[str, int]:
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
    array, declared = example[info.name], info.shape
    if declared is None or array.ndim != len(declared):
        return 0 if array.ndim else None
    unequal = [a for a, size in enumerate(declared) if isinstance(size, int) and array.shape[a] != size]
    if len(unequal) == 1 and array.shape[unequal[0]] % declared[unequal[0]] == 0:
        return unequal[0]
    framed = any(each.shape is not None and example[each.name].ndim == len(each.shape) + 1 for each in infos)
    return None if framed or not array.ndim else 0


def _frame_size(info: ArraySpec, example: Example, axes: Mapping[str, int], mode: str) -> int:
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


#: A dimension is time if a step accepts this multiple of its size. At twice the size, a window may still be one frame.
_TIMES = 4

Shapes = Mapping[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Mode:
    """The mode of a training, the open dimensions that could be time, and the reason for the choice."""

    name: str
    times: tuple[str, ...]
    reason: str = ""


def choose_mode(model: Model, sequences: Sequences, value: Any) -> Mode:
    """Return the given mode, or the mode that fits the model and the first example.

    A model without state runs whole. If an input has one axis more than in a step, a scan runs a step for each frame. A
    sequence along an axis of the file is a sequence for a step if the step also accepts several times as many frames;
    otherwise the axis is not time (a window of samples, for example), and the example is one step.
    """
    if isinstance(model, Student) and sequences.mode in ("step", "scan"):
        raise InputError(f"mode={sequences.mode!r}: a student with bounded futures computes whole recordings: 'apply'")
    if sequences.mode == "apply":
        return Mode("apply", time_symbols(model))
    if sequences.mode is None and not any(variable.kind == "external" for variable in model.state):
        return Mode("apply", time_symbols(model), "it carries no state from call to call")
    symbols, batch = time_symbols(model), model.spec.batch_symbol
    sizes = (size for info in model.spec.inputs for size in info.shape or () if size in symbols and size != batch)
    named = tuple(str(size) for size in dict.fromkeys(sizes))
    given = value if isinstance(value, Mapping) else {}
    shapes = {info.name: np.shape(given[info.name]) for info in model.spec.inputs if info.name in given}
    partial = len(shapes) < len(model.spec.inputs)  # reading the example raises the error
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


def _framed(model: Model, shapes: Shapes) -> str | None:
    ranks = {info.name: len(info.shape) for info in model.spec.inputs if info.shape is not None}
    return next((name for name, shape in shapes.items() if len(shape) - 1 == ranks.get(name)), None)


def _is_joined(info: ArraySpec, shape: tuple[int, ...], time_axis: TimeAxis) -> bool:
    axis = time_axis.get(info.name) if isinstance(time_axis, Mapping) else time_axis
    if axis is None or info.shape is None or len(info.shape) != len(shape) or not -len(shape) <= axis < len(shape):
        return False
    return isinstance(info.shape[axis], int)


def _times(model: Model, shapes: Shapes, symbols: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(symbol for symbol in symbols if _refusal(model, shapes, symbol) is None)


def _refusal(model: Model, shapes: Shapes, longer: str | None = None) -> JaxrnnError | None:
    """Return the error of a step for these shapes, several times as long along a dimension; None if it runs."""
    inputs = {}
    for info in model.spec.inputs:
        if info.dtype is None:
            return None  # not an array: reading the example raises the error
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


def _check_step(model: Model, shapes: Shapes) -> None:
    for info in model.spec.inputs:
        check_one_stream(model, info, shapes[info.name])
    refusal = _refusal(model, shapes)
    if refusal is not None:
        listed = ", ".join(f"{name!r} {list(shape)}" for name, shape in shapes.items())
        raise InputError(
            f"the example is not a step of {model.label}, with {listed}: {first_line(refusal).rstrip('.')}. A "
            "recording has the frames that a step takes along a separate first axis, [frames, ...]: "
            f"`sequences=Sequences(mode='scan', time_axis=0)`"
        ) from refusal


def check_one_stream(model: Model, info: ArraySpec, shape: Sequence[int]) -> None:
    """Check that an input of a step has batch size 1."""
    batch = model.spec.batch_symbol
    if batch is None or info.shape is None or len(info.shape) != len(shape):
        return
    for declared, size in zip(info.shape, shape, strict=True):
        if declared == batch and size != 1:
            raise InputError(
                f"{info.name!r} has the size {size} where its batch {batch!r} is, and an example is one stream: give "
                "each stream as an example. Frames have a separate first axis, [frames, ...]: "
                f"`sequences=Sequences(mode='scan', time_axis=0)`"
            )


def check_rank(model: Model, mode: str, info: ArraySpec, array: np.ndarray, axis: int | None) -> None:
    """Check that an input has the rank for the mode, and batch size 1; an InputError names the mode that fits."""
    if info.shape is None:
        return
    more, got = array.ndim - len(info.shape), f"{info.name!r} is {describe(array)}"
    if more == 1 and mode != "scan" and any(variable.kind == "external" for variable in model.state):
        raise InputError(
            f"{got}, one axis more than mode {mode!r} takes: mode 'scan' runs a step for each frame along an axis in "
            f"front, `sequences=Sequences(mode='scan', time_axis=0)`"
        )
    if mode != "apply":
        shape = array.shape if axis is None or not more else (*array.shape[:axis], *array.shape[axis + 1 :])
        check_one_stream(model, info, shape)
    # Frames may also be concatenated along an axis of fixed size.
    if more == 0 and mode == "scan" and axis is not None and not isinstance(info.shape[axis], int):
        raise InputError(
            f"{got}: mode 'scan' takes a recording, which has one axis more, for its frames: [frames, "
            f"{', '.join(map(str, array.shape))}]. Mode 'step' takes one step in each example, or a sequence along an "
            f"axis of the file's own: `sequences=Sequences(mode='step')`"
        )
