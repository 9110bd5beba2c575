"""Sound cut into overlapping frames, passed through networks frame by frame, and overlap-added again."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import signal

from jaxrnn._files.messages import brief
from jaxrnn.errors import InputError
from jaxrnn.evaluation.networks import Network
from jaxrnn.evaluation.recordings import SAMPLES
from jaxrnn.evaluation.systems import MAX_SIZE, Piece, check_rate
from jaxrnn.steps.stepper import Stepper
from jaxrnn.steps.stepspec import OutputSpec

#: The sound that a chain gives.
AUDIO = "audio"


@brief
@dataclass(frozen=True)
class Chain:
    """A chain of networks over frames of sound.

    A frame is ``size`` samples, ``hop`` of them new; before the first there is silence. All that needs no state runs
    for all frames of a chunk at once.

    Example::

        stage = Stage(model, takes="magnitude", gives="mask")
        denoiser = Chain((stage,), size=256, hop=128, window="sqrt_hann")

    Attributes:
        stages: the networks, in order.
        size: samples of a frame.
        hop: samples from one frame to the next.
        window: name of a window of ``scipy.signal.get_window``, or ``"sqrt_hann"``, for analysis and synthesis; None
            for none.
        rate: samples a second.
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
            raise InputError(f"frames of {self.size} samples cannot be joined at every {self.hop}, which is no divisor")
        for stage in self.stages:
            stage.check(self.size)

    @property
    def gives_sound(self) -> bool:
        """Whether the frames are joined to sound again."""
        return any(stage.gives != "result" for stage in self.stages)

    @property
    def multiple(self) -> int:
        """A chunk holds whole hops, and whole pulses of them for every stage."""
        return self.hop * math.lcm(*(stage.network.spec.pulse for stage in self.stages))

    @property
    def before(self) -> int:
        """Samples of the past that the first frame of a chunk holds."""
        return self.size - self.hop

    @property
    def _results(self) -> dict[str, Stage]:
        return {stage.names[1]: stage for stage in self.stages if stage.gives == "result"}

    @property
    def delay(self) -> dict[str, int]:
        """A sample leaves when the last frame that holds it has come."""
        sound = {AUDIO: self.size - self.hop} if self.gives_sound else {}
        return sound | dict.fromkeys(self._results, 0)

    @property
    def per_frame(self) -> dict[str, float]:
        """A result comes with every hop."""
        sound = {AUDIO: 1.0} if self.gives_sound else {}
        return sound | dict.fromkeys(self._results, 1 / self.hop)

    def padded(self, frames: int) -> int:
        """Whole hops, and what the delay keeps back."""
        more = self.size - self.hop if self.gives_sound else 0
        return -(-(frames + more) // self.hop) * self.hop

    def expected(self, output: str, frames: int) -> int | None:
        """As much sound as came in; a result for every frame that holds a sample of the recording as its newest."""
        return frames if output == AUDIO else -(-frames // self.hop)

    @functools.cached_property
    def _window(self) -> tuple[np.ndarray | None, float]:
        """The window, and what overlapping frames are multiplied with to add up to what they were."""
        if self.window is None:
            return None, 1.0
        name, root = ("hann", True) if self.window == "sqrt_hann" else (self.window, False)
        try:
            values = np.asarray(signal.get_window(name, self.size, fftbins=True))
        except (ValueError, TypeError) as error:
            raise InputError(f"window: {error}") from error
        values = np.sqrt(values) if root else values
        return values.astype(np.float32), float(self.hop / np.sum(values**2))

    @property
    def identity(self) -> dict[str, Any]:
        """The frames, and each stage."""
        stages = [stage.identity for stage in self.stages]
        return {"size": self.size, "hop": self.hop, "window": self.window, "rate": self.rate, "stages": stages}

    @functools.cached_property
    def _packed(self) -> tuple[Any, ...]:
        return tuple(stage.packed(self.size) for stage in self.stages)

    def start(self, batch: int) -> Any:
        """Fresh states, and silence in the frames before the first."""
        return {
            "states": tuple(stage.network.start(batch) for stage in self.stages),
            "overlap": jnp.zeros((batch, self.size - self.hop), jnp.float32),
        }

    def run(
        self, carry: Any, parts: Mapping[str, jax.Array], frames: jax.Array, *, ending: bool
    ) -> tuple[dict[str, Piece], Any]:
        """One chunk of sound."""
        if SAMPLES not in parts:
            raise InputError(f"a chain takes sound, not arrays called {', '.join(parts)}")
        samples = parts[SAMPLES]
        if samples.ndim != 2 or not jnp.issubdtype(samples.dtype, jnp.floating):
            raise InputError(
                f"a chain takes sound of one channel as floats, full scale 1, not {samples.dtype} samples of shape "
                f"{samples.shape[2:]}"
            )
        # A step model keeps nothing back, so that its chunks are all alike.
        ending = ending and any(stage.network.spec.streams for stage in self.stages)
        return self._compiled(self._packed, carry, samples, frames, ending=ending)

    @functools.cached_property
    def _compiled(self) -> Any:
        return jax.jit(self._run, static_argnames="ending")

    def _run(
        self, packed: tuple[Any, ...], carry: Any, samples: jax.Array, frames: jax.Array, *, ending: bool
    ) -> tuple[dict[str, Piece], Any]:
        hops = (frames + self.hop - 1) // self.hop
        window, scale = self._window
        current = cut_frames(samples.astype(jnp.float32), self.size, self.hop)
        current = current if window is None else current * window
        spectrum = None
        results, states = {}, []
        for stage, params, state in zip(self.stages, packed, carry["states"], strict=True):
            if stage.takes != "samples" and spectrum is None:
                spectrum = jnp.fft.rfft(current)
            features = features_of(stage.takes, current if stage.takes == "samples" else spectrum)
            output, state = stage.advance(params, state, features, hops, ending=ending)
            states.append(state)
            if stage.gives == "result":
                results[stage.names[1]] = Piece(output, hops)
                continue
            if stage.gives == "samples":
                current, spectrum = output.reshape(current.shape), None
                continue
            bins = (*current.shape[:2], self.size // 2 + 1)
            factor = output.reshape(bins) if output[0, 0].size == bins[2] else complex_of(output.reshape((*bins, 2)))
            if spectrum is None:
                spectrum = jnp.fft.rfft(current)
            spectrum = with_mask(spectrum, factor) if stage.gives == "mask" else factor
            current = jnp.fft.irfft(spectrum, self.size)
        overlap = carry["overlap"]
        if self.gives_sound:
            joined = current if window is None else current * (window * np.float32(scale))
            sound, overlap = join_frames(joined, overlap, self.hop)
            results[AUDIO] = Piece(sound, hops * self.hop)
        return results, {"states": tuple(states), "overlap": overlap}


#: What a network can take of a frame, and what its output can be.
TAKES = ("samples", "magnitude", "spectrum")
GIVES = ("samples", "spectrum", "mask", "result")


@brief
@dataclass(frozen=True)
class Stage:
    """One network of a chain.

    Attributes:
        stepper: a model in steps, a streamed function without look-ahead, a compiled file, or one's own `Stepper`: it
            takes one frame and gives one.
        params: its parameters; None for the stepper's own.
        takes: ``"samples"`` of the frame, the ``"magnitude"`` of its spectrum, or the ``"spectrum"`` itself, with real
            and imaginary part last.
        gives: ``"samples"`` or a ``"spectrum"`` in place of the frame's, a ``"mask"`` to multiply the spectrum with
            (real or complex), or a ``"result"``, which is an output of the chain and changes nothing.
        input: the stepper's input; by default its only one.
        output: the stepper's output; by default its only one.

    Raises:
        StateError: the model forgets its state, so it has no steps; `Model.stream` turns it into a streamed function.
        InputError: the object is no stepper, it needs parameters, or it does not give a frame for every frame at once.
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
            if value not in known:
                raise InputError(f"{label}: {what} must be one of {', '.join(known)}, not {value!r}")
        output = next(each for each in self.network.spec.outputs if each.name == self.names[1])
        if self.network.spec.streams and (output.delay != 0 or output.rate != 1):
            raise InputError(
                f"{label}: a stage gives a frame for every frame at once, but {_lateness(output)}; run it alone, as "
                "Offline(stepper, params)"
            )

    @functools.cached_property
    def network(self) -> Network:
        """The stepper with its parameters."""
        return Network(self.stepper, self.params)

    @functools.cached_property
    def names(self) -> tuple[str, str]:
        """The stepper's input and output."""
        spec = self.network.spec
        return (
            _only(spec.label, "input", self.input, [each.name for each in spec.inputs]),
            _only(spec.label, "output", self.output, [each.name for each in spec.outputs]),
        )

    @property
    def identity(self) -> dict[str, Any]:
        """The stepper and its parameters, and its place in the chain."""
        return {"takes": self.takes, "gives": self.gives, "names": self.names, **self.network.identity}

    def check(self, size: int) -> dict[str, int]:
        """Hold frames of so many samples against the input: the sizes of the dimensions that it leaves open.

        Raises:
            InputError: they do not fit.
        """
        bins = size // 2 + 1
        elements = {"samples": size, "magnitude": bins, "spectrum": 2 * bins}[self.takes]
        (each,) = self.network.spec.inputs
        sizes = self.network.fitted(each, elements).sizes
        return {name: size for name, size in zip(each.shape or (), sizes, strict=True) if isinstance(name, str)}

    def packed(self, size: int) -> Any:
        """The parameters as `advance` takes them, for frames of so many samples."""
        return self.network.packed(self.check(size))

    def advance(
        self, params: Any, state: Any, features: jax.Array, counts: jax.Array, *, ending: bool
    ) -> tuple[jax.Array, Any]:
        """Features ``[batch, time, ...]``, as `Network.advance` takes them: the output ``[batch, time, ...]``."""
        name, output = self.names
        pieces, state = self.network.advance(params, state, {name: features}, counts, ending=ending)
        return pieces[output].values[:, : features.shape[1]], state


def _lateness(output: OutputSpec) -> str:
    if output.rate is None:
        return f"{output.name!r} has no frames of time"
    return f"{output.name!r} comes {output.delay} frame(s) late, {output.rate} of them for each input frame"


def _only(label: str, what: str, name: str | None, names: Sequence[str]) -> str:
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
    """Frames ``[batch, time, size]`` of ``[batch, samples]``, each ``hop`` after the one before."""
    count = (samples.shape[1] - size) // hop + 1
    if size % hop:
        return samples[:, np.arange(count)[:, None] * hop + np.arange(size)]
    hops = samples.reshape(samples.shape[0], -1, hop)
    return jnp.concatenate([hops[:, part : part + count] for part in range(size // hop)], -1)


def join_frames(frames: jax.Array, overlap: jax.Array, hop: int) -> tuple[jax.Array, jax.Array]:
    """Overlap-add: sound ``[batch, time * hop]`` of frames ``[batch, time, size]``, and the new overlap."""
    batch, time, size = frames.shape
    result = jnp.pad(overlap, ((0, 0), (0, time * hop))).reshape(batch, -1, hop)
    for part in range(size // hop):
        result = result.at[:, part : part + time].add(frames[..., part * hop : (part + 1) * hop])
    flat = result.reshape(batch, -1)
    return flat[:, : time * hop], flat[:, time * hop :]


def features_of(takes: str, frames: Any) -> jax.Array:
    """What a network takes of frames or of their spectra; a spectrum as real and imaginary parts ``[..., 2]``."""
    if takes == "spectrum":
        return jnp.stack([frames.real, frames.imag], -1)
    return jnp.abs(frames) if takes == "magnitude" else frames


def with_mask(spectrum: jax.Array, mask: jax.Array) -> jax.Array:
    """A spectrum multiplied by a real or complex mask."""
    if jnp.iscomplexobj(mask):
        return spectrum * mask
    return jax.lax.complex(spectrum.real * mask, spectrum.imag * mask)


def complex_of(pairs: jax.Array) -> jax.Array:
    """Real and imaginary parts ``[..., 2]`` as complex numbers."""
    return jax.lax.complex(pairs[..., 0], pairs[..., 1])
