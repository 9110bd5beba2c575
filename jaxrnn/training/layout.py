"""The common layout of all examples: arrays, time axes and frames."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from jaxrnn._files.messages import describe, near_or_all, pairs_of
from jaxrnn.errors import InputError, JaxrnnError
from jaxrnn.steps.specs import ArraySpec
from jaxrnn.training.examples import Example, read_example
from jaxrnn.training.options import Sequences, sequences_argument


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
        """Return an example as arrays, after checking that its layout is that of the first example."""
        with naming(label):
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
                        f"is no time, leave {name!r} out of time_axis={{name: axis}}"
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
        return f"; to train on unequal lengths say where time is: {sequences_argument(mode=self.mode, time_axis=axes)}"


@contextlib.contextmanager
def naming(label: str) -> Iterator[None]:
    """Prefix errors with the label of an example."""
    try:
        yield
    except JaxrnnError as error:
        raise type(error)(f"{label}: {error}") from error
