"""Networks over frames: the arrays that a network takes and gives, their axes, and the meaning of outputs."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn._files.messages import check_word, short_repr, without_folders
from jaxrnn.audio.frames import Frames
from jaxrnn.errors import InputError, is_count
from jaxrnn.model import Model
from jaxrnn.model.streaming import time_symbols
from jaxrnn.steps.specs import ArraySpec
from jaxrnn.steps.stepper import Bound, Stepper

#: Features of a frame that a network can take, and roles of the output.
TAKES = ("samples", "magnitude", "spectrum")
GIVES = ("samples", "mask", "magnitude", "spectrum", "result")
#: A function of the inputs of a network over frames: the array of the output, and the axis of frames.
Computing = Callable[[dict[str, jax.Array]], tuple[jax.Array, int]]


class _Layout(NamedTuple):
    """The layout of an array over frames: the content, and the axes of frames, of the content, and of complex parts."""

    kind: str  # samples, magnitude for real numbers, or spectrum
    axes: tuple[int, ...]
    sizes: dict[str, int]  # of the open dimension that holds a frame, by name

    def place(self, values: jax.Array, rank: int) -> jax.Array:
        """Move the axes of values ``[frames, content(, 2)]`` to this layout, with axes of size 1 elsewhere."""
        moved = jnp.transpose(values, np.argsort(self.axes).tolist())
        return jnp.expand_dims(moved, [axis for axis in range(rank) if axis not in self.axes])

    def take(self, array: jax.Array) -> jax.Array:
        """Return the values ``[frames, content(, 2)]`` of an array; the inverse of `place`."""
        squeezed = jnp.squeeze(array, [axis for axis in range(array.ndim) if axis not in self.axes])
        return jnp.transpose(squeezed, np.argsort(np.argsort(self.axes)).tolist())


def _layout_of(named: str, shape: Sequence[Any], time: int, frames: Frames, takes: str | None = None) -> _Layout:
    """Find the axes of an array by their sizes. Open sizes count as 1, but with ``takes``, one open size can fit."""
    sizes = {axis: size for axis, size in enumerate(shape) if axis != time and is_count(size) and size != 1}
    opened = [axis for axis, size in enumerate(shape) if axis != time and isinstance(size, str)]
    kinds = {"samples": [frames.size], "magnitude": [frames.bins], "spectrum": [frames.bins, 2]}
    for kind, expected in kinds.items():
        missing = list((Counter(expected) - Counter(sizes.values())).elements())
        if len(sizes) + len(missing) != len(expected) or len(missing) > (kind == takes and len(opened) == 1):
            continue
        inverse = {size: axis for axis, size in (sizes | dict(zip(opened, missing, strict=False))).items()}
        named_sizes = {shape[axis]: size for axis, size in zip(opened, missing, strict=False)}
        return _Layout(kind, (time, *(inverse[size] for size in expected)), named_sizes)
    largest = max(sizes.values(), default=0)
    hint = f"; {largest} frequencies are those of frames of {2 * (largest - 1)} samples" if largest > 3 else ""
    if len(opened) == 1 and takes is None and not sizes:
        hint = f"; if {shape[opened[0]]} is the size of a frame, say what the network takes with `takes`"
    raise InputError(
        f"{named} does not fit frames of {frames.size} samples: besides time it needs one axis of {frames.bins} "
        f"frequencies (and one of 2 for complex numbers), or one axis of {frames.size} samples{hint}"
    )


@short_repr
@dataclass(frozen=True)
class Network:
    """A network over frames, with the meaning of the input and the output.

    The sizes of the arrays determine the axes, and distinguish samples (``size``), real numbers for each frequency
    (``size // 2 + 1``), and complex numbers (also an axis of 2: real and imaginary part). Axes of size 1 can be at any
    position. Sizes do not distinguish a mask from a magnitude or a spectrum, so `gives` is needed. One open size
    can be that of a frame if `takes` says which.

    Attributes:
        model: a model with steps of one frame and external state, or any other `Stepper` of that kind; with `symbol`,
            an offline model.
        takes: ``"samples"`` of the windowed frame, or the ``"magnitude"`` or ``"spectrum"`` of the frame; by default
            determined by the sizes.
        gives: ``"samples"`` that replace the frame, a ``"mask"`` that multiplies the spectrum (real or complex), or a
            new ``"magnitude"`` or ``"spectrum"``. A new magnitude keeps the phase of the frame. A ``"result"``, such
            as a probability, is a separate output, and leaves the frame unchanged. None if the sizes determine the
            role.
        symbol: the time dimension of an offline model, in frames; None if the model runs in steps.
        exponent: the exponent of compressed spectra: the network sees magnitudes to this power, with the phase. The
            mask, magnitude or spectrum of the network is decompressed.
        input: the name of the input; by default the only input.
        output: the name of the output; by default the only output.
        params: the parameters; by default the parameters of the model.
    """

    model: Model | Stepper
    takes: str | None = None
    gives: str | None = None
    _: KW_ONLY
    symbol: str | None = None
    exponent: float = 1.0
    input: str | None = None
    output: str | None = None
    params: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, known in (("takes", TAKES), ("gives", GIVES)):
            if getattr(self, name) is not None:
                check_word(f"`{name}`", getattr(self, name), known)
        if not (math.isfinite(self.exponent) and self.exponent > 0):
            raise InputError(f"`exponent` must be a number above 0, not {self.exponent!r}")

    @functools.cached_property
    def bound(self) -> Bound:
        """The step with parameters; only for a model in steps, or a stream without delay."""
        return Bound(self.model, self.params)

    @property
    def label(self) -> str:
        """The name of the model in messages."""
        return self.model.label if isinstance(self.model, Model) else self.model.spec.label

    @property
    def parameters(self) -> Any:
        """The parameters of the network."""
        return self.bound.params if self.symbol is None or self.params is not None else self._offline.params

    @property
    def _offline(self) -> Model:
        if not isinstance(self.model, Model):
            raise InputError(f"{self.label} is not a model of whole recordings, so `symbol` does not apply")
        return self.model

    def arrays(self, frames: Frames) -> tuple[ArraySpec, ArraySpec]:
        """Return the input and output of the network: the chosen arrays, or the only arrays that fit."""
        there = self._offline if self.symbol is not None else self.bound.spec
        source = self._chosen("input", self.input, there.inputs, frames)
        if others := ", ".join(each.name for each in there.inputs if each is not source):
            hint = f"; if {others} is its state, leave out `symbol`" if self.symbol else ""
            fixed = "`jaxrnn.load(path, static={NAME: VALUE})`"
            raise InputError(f"{self.label} also takes {others}: fix each with {fixed}{hint}")
        return source, self._chosen("output", self.output, there.outputs, frames)

    def _chosen(self, what: str, name: str | None, arrays: Sequence[ArraySpec], frames: Frames) -> ArraySpec:
        names = [each.name for each in arrays]
        if name is None:
            is_result = what == "output" and self.gives == "result"
            sizes = set() if is_result else {frames.size, frames.bins}
            fitting = [each for each in arrays if sizes & set(each.shape or ())]
            if len(fitting) == 1 or len(arrays) == 1:
                return (fitting or arrays)[0]
        if name not in names:
            missing = f"has {len(names)} {what}s" if name is None else f"has no {what} {name!r}"
            raise InputError(f"{self.label} {missing}: choose one of {', '.join(names)} with `{what}=NAME`")
        return arrays[names.index(name)]

    def layout(self, frames: Frames) -> _Layout:
        """Return the layout of the input."""
        source, _ = self.arrays(frames)
        if source.shape is None:
            raise InputError(f"{self.label}: {source.as_input} has no declared rank, so its axes are not known")
        if self.symbol is not None and self.symbol not in source.shape:
            opened = ", ".join(size for size in source.shape if isinstance(size, str)) or "none"
            raise InputError(
                f"{self.label}: {source.as_input} has no dimension {self.symbol!r}; its open dimensions: {opened}"
            )
        if self.symbol is not None:
            shape, time = source.shape, source.shape.index(self.symbol)
        elif self.bound.spec.streams:
            shape, time = source.shape, source.time_axis
        else:
            shape, time = (None, *source.shape), 0
        if time is None:
            raise InputError(f"{self.label}: {source.as_input} has no time axis")
        takes = self.takes if self.symbol is None else None
        layout = _layout_of(f"{self.label}: {source.as_input}", shape, time, frames, takes)
        if self.takes not in (None, layout.kind):
            raise InputError(f"{self.label}: by its size, {source.as_input} takes {layout.kind}, not {self.takes}")
        if isinstance(self.model, Model) and self.symbol is None and not self.bound.spec.state:
            for name in time_symbols(self.model):
                if name not in layout.sizes:
                    option = f"`symbol={name!r}`"
                    raise InputError(
                        f"{self.label} has no state, and leaves {name} open: give {option} if that is time"
                    )
        return layout

    def describe(self, frames: Frames) -> str:
        """Return a sentence about the input and the output."""
        layout, (source, target) = self.layout(frames), self.arrays(frames)
        feature = {"samples": "samples", "magnitude": "magnitudes", "spectrum": "spectra"}[layout.kind]
        power = "" if self.exponent == 1 else f" to the power {self.exponent:g}"
        gives = f"gives {self.gives or 'samples'} as {target.name!r}"
        return f"{without_folders(self.label)} takes {feature}{power} as {source.name!r}, and {gives}"

    def run(self, frames: Frames, values: jax.Array, compute: Computing) -> tuple[str, jax.Array]:
        """Map features ``[frames, content(, 2)]`` to the role of the output, and values in the same layout.

        ``compute`` computes the network. A result is ``[frames, ...]``, without a batch axis of size 1.
        """
        (source, target), layout, count = self.arrays(frames), self.layout(frames), values.shape[0]
        stacked = self.symbol is None and not self.bound.spec.streams
        result, time = compute(
            {source.name: layout.place(values.astype(source.dtype), len(source.shape or ()) + stacked)}
        )
        named = f"{self.label}: the output {target}"
        if result.shape[time] != count:
            raise InputError(f"{named} has {result.shape[time]} frames for {count} frames of the input")
        if self.gives == "result":
            return "result", in_front(result, time)
        found = _layout_of(named, result.shape, time, frames)
        fitting = ["samples"] if found.kind == "samples" else ["mask", found.kind]
        role = self.gives or (fitting[0] if len(fitting) == 1 else None)
        if role not in fitting:
            why = f"is not {role}" if role else "does not say what it is"
            raise InputError(f"{named} {why}: its sizes fit {' or '.join(fitting)}; say which with `gives`")
        return role, found.take(result).astype(values.dtype)

    def whole(self, params: Any, frames: Frames) -> Computing:
        """Return a function of all frames of a recording."""
        _, target = self.arrays(frames)

        def compute(inputs: dict[str, jax.Array]) -> tuple[jax.Array, int]:
            if self.symbol is None:
                bound = self.bound.with_params(params)
                return bound.scan(bound.start(), inputs)[0][target.name], 0
            result = self._offline.apply(params, inputs)[target.name]
            (values,) = inputs.values()
            return result, self._time_of(target, result.shape, values.shape[self.layout(frames).axes[0]])

        if self.symbol is None and self.bound.spec.streams:
            raise InputError(f"{self.label} has a time axis: give the model itself, with symbol")
        return compute

    def _time_of(self, target: ArraySpec, shape: Sequence[Any], count: Any) -> int:
        """Return the axis of frames of an output of an offline model."""
        declared = target.shape or (None,) * len(shape)
        if self.symbol in declared:
            return declared.index(self.symbol)
        places = [axis for axis, size in enumerate(shape) if size == count and not isinstance(declared[axis], int)]
        if len(places) != 1:
            raise InputError(f"{self.label}: output {target} has no axis that is certainly {self.symbol!r}")
        return places[0]


def in_front(array: jax.Array, axis: int) -> jax.Array:
    """Return an output of a recording as ``[time, ...]``, without a batch axis of size 1."""
    moved = jnp.moveaxis(array, axis, 0)
    return moved[:, 0] if moved.ndim > 1 and moved.shape[1] == 1 else moved
