"""Chains of networks over overlapping frames of sound, with overlap-add."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn._files.messages import check_word, short_repr
from jaxrnn.audio.frames import complex_of, synthesis_window, window_values, with_mask
from jaxrnn.audio.recordings import SAMPLES
from jaxrnn.audio.sounds import check_rate
from jaxrnn.errors import InputError
from jaxrnn.evaluation.systems import MAX_SIZE, BatchedStepper, Piece
from jaxrnn.steps.stepper import Stepper

#: The name of the sound output of a chain.
AUDIO = "audio"


@short_repr
@dataclass(frozen=True)
class Chain:
    """A chain of networks over frames of sound.

    Each frame has ``size`` samples and begins ``hop`` samples after the previous frame. Silence precedes the first
    sample. Stateless operations run for all frames of a chunk at once.

    Example::

        stage = Stage(model, takes="magnitude", gives="mask")
        denoiser = Chain((stage,), size=256, hop=128, window="sqrt_hann")

    Attributes:
        stages: the networks, in order.
        size: samples of a frame.
        hop: samples from one frame to the next.
        window: the name of a window of ``scipy.signal.get_window``, or ``"sqrt_hann"``, for analysis and synthesis;
            None to use no window.
        rate: samples per second.
    """

    stages: tuple[Stage, ...]
    size: int
    hop: int
    window: str | None = None
    rate: int = 16_000

    def __post_init__(self) -> None:
        check_rate(self.rate, "rate")
        if self.size > MAX_SIZE:
            raise InputError(f"a frame has at most {MAX_SIZE:,} samples, not {self.size:,}")
        if not self.stages or not 0 < self.hop <= self.size:
            raise InputError(f"a chain needs stages, and a hop of 1 to {self.size}, not {self.hop}")
        if self.gives_sound and self.size % self.hop:
            raise InputError(f"frames of {self.size} samples need a hop that divides their size, not {self.hop}")
        _ = self._windows
        for stage in self.stages:
            stage.check(self.size)

    @property
    def gives_sound(self) -> bool:
        """True if the frames are overlap-added to sound."""
        return any(stage.gives != "result" for stage in self.stages)

    @property
    def multiple(self) -> int:
        """Samples in the shortest chunk: a whole number of hops, and of pulses for each stage."""
        return self.hop * math.lcm(*(stage.network.spec.pulse for stage in self.stages))

    @property
    def before(self) -> int:
        """Samples of the past in the first frame of a chunk."""
        return self.size - self.hop

    def _by_output(self, sound: Any, result: Any) -> dict[str, Any]:
        results = [stage.names[1] for stage in self.stages if stage.gives == "result"]
        return ({AUDIO: sound} if self.gives_sound else {}) | dict.fromkeys(results, result)

    @property
    def delay(self) -> dict[str, int]:
        """Delay of the sound: a sample is complete after the last frame that contains it."""
        return self._by_output(self.before, 0)

    @property
    def per_frame(self) -> dict[str, float]:
        """Output frames per sample: 1 for sound, ``1 / hop`` for results."""
        return self._by_output(1.0, 1 / self.hop)

    def padded(self, frames: int) -> int:
        """Return the number of samples in whole hops that flushes the delay."""
        more = self.before if self.gives_sound else 0
        return -(-(frames + more) // self.hop) * self.hop

    def expected(self, output: str, frames: int) -> int | None:
        """Return the number of output frames: ``frames`` for sound, or the number of hops, rounded up, for results."""
        return frames if output == AUDIO else -(-frames // self.hop)

    @functools.cached_property
    def _windows(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the window of the analysis, and the window of the synthesis, which restores the level."""
        if self.window is None:
            return None
        values = window_values(self.window, self.size)
        synthesis = synthesis_window(values, self.hop) if self.gives_sound else values
        return values.astype(np.float32), synthesis.astype(np.float32)

    @property
    def identity(self) -> dict[str, Any]:
        """The frames and the stages as plain values."""
        stages = [stage.identity for stage in self.stages]
        return {"size": self.size, "hop": self.hop, "window": self.window, "rate": self.rate, "stages": stages}

    @functools.cached_property
    def _packed(self) -> tuple[Any, ...]:
        return tuple(stage.packed(self.size) for stage in self.stages)

    def start(self, batch: int) -> Any:
        """Return initial states, and silence before the first frame."""
        return {
            "states": tuple(stage.network.start(batch) for stage in self.stages),
            "overlap": jnp.zeros((batch, self.before), jnp.float32),
        }

    def run(
        self, carry: Any, parts: Mapping[str, jax.Array], frames: jax.Array, *, ending: bool
    ) -> tuple[dict[str, Piece], Any]:
        """Process a chunk of sound."""
        if SAMPLES not in parts:
            raise InputError(f"a chain takes sound, not arrays called {', '.join(parts)}")
        samples = parts[SAMPLES]
        if samples.ndim != 2 or not jnp.issubdtype(samples.dtype, jnp.floating):
            raise InputError(
                f"a chain takes sound of one channel as floats, full scale 1, not {samples.dtype} samples of shape "
                f"{samples.shape[2:]}"
            )
        # Step models have no delay, so that their last chunks need no flush.
        ending = ending and any(stage.network.spec.streams for stage in self.stages)
        return self._compiled(self._packed, carry, samples, frames, ending=ending)

    @functools.cached_property
    def _compiled(self) -> Any:
        return jax.jit(self._run, static_argnames="ending")

    def _run(
        self, packed: tuple[Any, ...], carry: Any, samples: jax.Array, frames: jax.Array, *, ending: bool
    ) -> tuple[dict[str, Piece], Any]:
        hops = (frames + self.hop - 1) // self.hop
        windows = self._windows
        current = cut_frames(samples.astype(jnp.float32), self.size, self.hop)
        current = current if windows is None else current * windows[0]
        spectrum = jnp.fft.rfft(current)  # XLA removes a transform that no stage uses
        results, states = {}, []
        for stage, params, state in zip(self.stages, packed, carry["states"], strict=True):
            if stage.takes == "samples":
                features = current
            elif stage.takes == "magnitude":
                features = jnp.abs(spectrum)
            else:
                features = jnp.stack([spectrum.real, spectrum.imag], -1)
            output, state = stage.advance(params, state, features, hops, ending=ending)
            states.append(state)
            if stage.gives == "result":
                results[stage.names[1]] = Piece(output, hops)
            elif stage.gives == "samples":
                current = output.reshape(current.shape)
                spectrum = jnp.fft.rfft(current)
            else:
                bins = (*current.shape[:2], self.size // 2 + 1)
                is_real = output[0, 0].size == bins[2]
                values = output.reshape(bins) if is_real else complex_of(output.reshape((*bins, 2)))
                spectrum = values if stage.gives == "spectrum" else with_mask(spectrum, values)
                current = jnp.fft.irfft(spectrum, self.size)
        overlap = carry["overlap"]
        if self.gives_sound:
            joined = current if windows is None else current * windows[1]
            sound, overlap = join_frames(joined, overlap, self.hop)
            results[AUDIO] = Piece(sound, hops * self.hop)
        return results, {"states": tuple(states), "overlap": overlap}


#: Features of a frame that a network can take, and roles of the output.
TAKES = ("samples", "magnitude", "spectrum")
GIVES = ("samples", "spectrum", "mask", "result")


@short_repr
@dataclass(frozen=True)
class Stage:
    """One network of a chain.

    Attributes:
        stepper: a model in steps, a streamed function without look-ahead, a compiled file, or a `Stepper` of your own,
            which maps a frame to a frame.
        params: the parameters; None to use the parameters of the stepper.
        takes: ``"samples"`` of the frame, the ``"magnitude"`` of the spectrum, or the ``"spectrum"``, with real and
            imaginary part last.
        gives: ``"samples"`` or a ``"spectrum"`` that replaces the frame, a ``"mask"`` that multiplies the spectrum
            (real or complex), or a ``"result"``, an output of the chain that leaves the frame unchanged.
        input: the input of the stepper; by default the only input.
        output: the output of the stepper; by default the only output.

    Raises:
        StateError: the model forgets its state, so it has no steps; `Model.stream` turns it into a streamed function.
        InputError: the object is not a stepper, parameters are missing, or the output has a delay or a different rate.
    """

    stepper: Stepper
    params: Any = field(default=None, repr=False, compare=False)
    _: KW_ONLY
    takes: str = "samples"
    gives: str = "result"
    input: str | None = None
    output: str | None = None

    def __post_init__(self) -> None:
        label = self.network.spec.label
        for value, known, what in ((self.takes, TAKES, "takes"), (self.gives, GIVES, "gives")):
            check_word(f"{label}: {what}", value, known)
        output = next(each for each in self.network.spec.outputs if each.name == self.names[1])
        if self.network.spec.streams and (output.delay != 0 or output.rate != 1):
            late = f"comes {output.delay} frame(s) late, {output.rate} of them for each input frame"
            raise InputError(
                f"{label}: a stage needs one output frame per input frame without delay, but {output.name!r} "
                f"{'has no frames of time' if output.rate is None else late}; run the network alone, as "
                "Offline(stepper, params)"
            )

    @functools.cached_property
    def network(self) -> BatchedStepper:
        """The stepper with parameters."""
        return BatchedStepper(self.stepper, self.params)

    @functools.cached_property
    def names(self) -> tuple[str, str]:
        """The input and the output of the stepper."""
        spec = self.network.spec
        return (
            _only(spec.label, "input", self.input, [each.name for each in spec.inputs]),
            _only(spec.label, "output", self.output, [each.name for each in spec.outputs]),
        )

    @property
    def identity(self) -> dict[str, Any]:
        """The stepper, the parameters, and the role in the chain."""
        return {"takes": self.takes, "gives": self.gives, "names": self.names, **self.network.identity}

    def check(self, size: int) -> dict[str, int]:
        """Return the sizes of the input's open dimensions for frames of ``size`` samples.

        Raises:
            InputError: the frames do not fit the input.
        """
        bins = size // 2 + 1
        elements = {"samples": size, "magnitude": bins, "spectrum": 2 * bins}[self.takes]
        (each,) = self.network.spec.inputs
        sizes = self.network.fitted(each, elements).sizes
        return {name: size for name, size in zip(each.shape or (), sizes, strict=True) if isinstance(name, str)}

    def packed(self, size: int) -> Any:
        """Return the parameters packed for `advance` and frames of ``size`` samples."""
        return self.network.packed(self.check(size))

    def advance(
        self, params: Any, state: Any, features: jax.Array, counts: jax.Array, *, ending: bool
    ) -> tuple[jax.Array, Any]:
        """Map features ``[batch, time, ...]`` to outputs ``[batch, time, ...]``, as `BatchedStepper.advance` does."""
        name, output = self.names
        pieces, state = self.network.advance(params, state, {name: features}, counts, ending=ending)
        return pieces[output].values[:, : features.shape[1]], state


def _only(label: str, what: str, name: str | None, names: Sequence[str]) -> str:
    """Return the chosen name of an input or output, by default the only name."""
    if name is None and len(names) == 1:
        return names[0]
    if name is None or name not in names:
        asked = f"has no {what} {name!r}" if name is not None else f"has {len(names)} {what}s besides its state"
        raise InputError(f"{label} {asked}: name one of {', '.join(names)} as {what}")
    if what == "input" and len(names) > 1:
        others = ", ".join(other for other in names if other != name)
        raise InputError(f"{label} also takes {others}: bind it with static")
    return name


def cut_frames(samples: jax.Array, size: int, hop: int) -> jax.Array:
    """Cut ``[batch, samples]`` into frames ``[batch, time, size]``, ``hop`` samples apart."""
    count = (samples.shape[1] - size) // hop + 1
    if size % hop:
        return samples[:, np.arange(count)[:, None] * hop + np.arange(size)]
    hops = samples.reshape(samples.shape[0], -1, hop)
    return jnp.concatenate([hops[:, part : part + count] for part in range(size // hop)], -1)


def join_frames(frames: jax.Array, overlap: jax.Array, hop: int) -> tuple[jax.Array, jax.Array]:
    """Overlap-add frames ``[batch, time, size]``: return sound ``[batch, time * hop]`` and the new overlap."""
    batch, time, size = frames.shape
    result = jnp.pad(overlap, ((0, 0), (0, time * hop))).reshape(batch, -1, hop)
    for part in range(size // hop):
        result = result.at[:, part : part + time].add(frames[..., part * hop : (part + 1) * hop])
    flat = result.reshape(batch, -1)
    return flat[:, : time * hop], flat[:, time * hop :]
