"""How examples lie in time: how a model runs over them, which axis of which array is time, and what a frame is."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrnn.errors import InputError, JaxrnnError
from jaxrnn.messages import near_or_all
from jaxrnn.model.inspection import time_symbols
from jaxrnn.onnx.values import describe
from jaxrnn.specs import ArraySpec
from jaxrnn.training.examples import Example, read_example
from jaxrnn.training.options import Sequences, TimeAxis

if TYPE_CHECKING:
    from jaxrnn.model import Model


@dataclasses.dataclass(frozen=True)
class ExampleLayout:
    """What all examples of a training share.

    Attributes:
        mode: ``"apply"``, ``"step"`` or ``"scan"``.
        inputs: the arrays that the model takes.
        axes: the time axis of every array that has one, counted from the front.
        frame_sizes: elements along that axis that make one frame, for the arrays whose length counts the frames.
        example: an example, for names, types and all sizes but those along time.
        label: what it is called.
        outputs: the names of what the model gives.
        sequences: what the caller said of them.
        state: names of the model's inputs that are state, which no example has.
        wide: whether 64-bit types stay so.
    """

    mode: str
    inputs: tuple[ArraySpec, ...]
    axes: dict[str, int]
    frame_sizes: dict[str, int]
    example: Example
    label: str
    outputs: tuple[str, ...]
    sequences: Sequences
    state: tuple[str, ...]
    wide: bool

    def read(self, label: str, value: Any) -> Example:
        """An example, which must be like the first one.

        Raises:
            InputError: it is not, or is none at all; names it.
        """
        with naming(label):
            example = read_example(value, self.inputs, self.state, wide=self.wide)
            self.check(example)
        return example

    def frames(self, example: Example) -> int:
        """How many frames an example has.

        Raises:
            InputError: none, a part of one, or not the same number in all of the model's inputs.
        """
        counts: dict[str, int] = {}
        for name, size in self.frame_sizes.items():
            length = example[name].shape[self.axes[name]]
            if length % size:
                raise InputError(
                    f"{name!r} has {length} elements along axis {self.axes[name]}, which is no whole number of frames "
                    f"of {size}; cut or pad it to {length // size * size} or {-(-length // size) * size}"
                )
            counts[name] = length // size
        if len(set(counts.values())) > 1:
            raise InputError(f"the arrays have different numbers of frames: {counts}")
        frames = next(iter(counts.values()), 1)
        if not frames:
            raise InputError(f"{next(iter(counts))!r} has no frames; leave such examples out")
        return frames

    def rate(self, name: str, example: Example) -> Fraction:
        """Elements along the time axis of an array for each frame of the example."""
        return Fraction(example[name].shape[self.axes[name]], self.frames(example))

    def check(self, example: Example) -> None:
        """See that an example is like the first one but for its length.

        Raises:
            InputError: it has other arrays, types, sizes or rates.
        """
        frames, explicit = self.frames(example), self.sequences.time_axis is not None
        for name, first in self.example.items():
            array, axis = example.get(name), self.axes.get(name)
            if array is None:
                raise InputError(f"{name!r} is missing, which {self.label} has{near_or_all(name, example)}")
            free = [size for a, size in enumerate(array.shape) if a != axis]
            fits = len(array.shape) == len(first.shape) and free == [s for a, s in enumerate(first.shape) if a != axis]
            if not fits or array.dtype != first.dtype or (not explicit and array.shape != first.shape):
                mend = "" if explicit else "; to train on unequal lengths say which axis is time: time_axis=..."
                raise InputError(f"{name!r} is {describe(array)}, but {describe(first)} in {self.label}{mend}")
            if self.sequences.chunk is not None and axis is not None:
                rate, expected = Fraction(array.shape[axis], frames), self.rate(name, self.example)
                if rate != expected:
                    raise InputError(
                        f"{name!r} has {array.shape[axis]} elements along axis {axis} for {frames} frames, where the "
                        f"{self.label} has {expected} for each frame, so it cannot be cut into chunks; if this axis "
                        f"is no time, leave {name!r} out of time_axis={{name: axis}}"
                    )
        unknown = [name for name in example if name not in self.example]
        if unknown:
            raise InputError(f"{unknown[0]!r} is not in {self.label}{near_or_all(unknown[0], self.example)}")


def find_mode(model: Model, mode: str | None) -> str:
    """How to run a model: what the caller says, or what its state and its open dimensions say.

    Raises:
        StateError: what is state is ambiguous, or the model forgets it so that it has no steps.
    """
    if mode is None:
        if not any(variable.kind == "external" for variable in model.state):
            return "apply"
        return "step" if _symbols(model) else "scan"
    if mode != "apply":
        _ = model.spec.inputs
    return mode


def computes_wide(model: Model) -> bool:
    """Whether 64-bit types stay so: as the caller has set JAX, and always for a model that computes in float64."""
    arrays = [*model.program.parameters.values(), *model.inputs]
    return jax.dtypes.canonicalize_dtype(np.float64) == np.float64 or any(array.dtype == np.float64 for array in arrays)


def inputs_of(model: Model, mode: str) -> tuple[ArraySpec, ...]:
    """The arrays that an example has for the model: all inputs, or those that are not state."""
    return model.inputs if mode == "apply" else model.spec.inputs


@contextlib.contextmanager
def naming(label: str) -> Iterator[None]:
    """An error inside says which example it is of."""
    try:
        yield
    except JaxrnnError as error:
        raise type(error)(f"{label}: {error}") from error


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
    mode, wide, time_axis = find_mode(model, sequences.mode), computes_wide(model), sequences.time_axis
    state = () if mode == "apply" else tuple(str(variable.input) for variable in model.state)
    infos, outputs = inputs_of(model, mode), tuple(info.name for info in model.outputs)
    with naming(label):
        example = read_example(value, infos, state, wide=wide)
    symbol = None if mode == "scan" else _symbol(model, mode, time_axis, example)
    axes = _given_axes(time_axis, example, outputs)
    for info in infos:
        if time_axis is None and mode == "scan" and np.ndim(example[info.name]):
            axes[info.name] = 0
        if symbol is None or symbol not in (info.shape or ()) or (mode == "apply" and time_axis is not None):
            continue
        declared = (info.shape or ()).index(symbol)
        if axes.setdefault(info.name, declared) != declared:
            raise InputError(
                f"time_axis says {axes[info.name]} for input {info}, but its time is axis {declared}; give the axis of "
                f"each array: time_axis={{{info.name!r}: {declared}, ...}}"
            )
    sizes = {info.name: _frame_size(info, example, axes, mode) for info in infos if info.name in axes}
    if mode == "apply":  # inputs of an encoder and a decoder may differ: the first one counts
        sizes = dict(list(sizes.items())[:1])
    if not sizes:
        sizes = dict.fromkeys(list(axes)[:1], 1)
    layout = ExampleLayout(mode, infos, axes, sizes, example, label, outputs, sequences, state, wide)
    _check_chunks(layout, model)
    return layout


def _symbols(model: Model) -> list[str]:
    """Open dimensions of the inputs of a step that could be time."""
    found = (size for info in model.spec.inputs for size in info.shape or () if size in time_symbols(model))
    return [str(size) for size in dict.fromkeys(found) if size != model.spec.batch_symbol]


def _symbol(model: Model, mode: str, time_axis: TimeAxis, example: Example) -> str | None:
    """The one open dimension that is time."""
    symbols = list(time_symbols(model)) if mode == "apply" else _symbols(model)
    if time_axis is not None and len(symbols) > 1:
        axes = _given_axes(time_axis, example, [info.name for info in model.outputs])
        at = [(info.shape or ())[axes[info.name]] for info in inputs_of(model, mode) if info.name in axes]
        symbols = [symbol for symbol in symbols if symbol in at]
    if mode == "step" and len(symbols) != 1:
        raise InputError(
            f"{model.label}: mode 'step' needs one open dimension that is time, but there are "
            f"{', '.join(symbols) or 'none'}; say which axis it is with time_axis, or choose mode='scan'"
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


def _frame_size(info: ArraySpec, example: Example, axes: Mapping[str, int], mode: str) -> int:
    """Elements of an input along its time axis that make one frame: 1, or those of a step where frames are joined."""
    if mode != "scan" or info.shape is None or example[info.name].ndim != len(info.shape):
        return 1
    size: Any = info.shape[axes[info.name]]
    if not isinstance(size, int):
        raise InputError(
            f"input {info} got {describe(example[info.name])}: a recording has one axis more, for its frames"
        )
    return size


def _check_chunks(layout: ExampleLayout, model: Model) -> None:
    chunk = layout.sequences.chunk
    if chunk is None:
        return
    if layout.mode == "apply":
        raise InputError(
            f"chunk={chunk}: {model.label} carries no state from chunk to chunk in mode 'apply'; leave chunk out"
        )
    for name in layout.axes:
        elements = layout.rate(name, layout.example) * chunk
        if elements.denominator != 1:
            raise InputError(
                f"chunk={chunk} frames are {elements} elements of {name!r}; choose a multiple of "
                f"{layout.rate(name, layout.example).denominator}, or leave {name!r} out of time_axis if that axis is "
                "no time"
            )
