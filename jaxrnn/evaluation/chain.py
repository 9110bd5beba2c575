"""Sound cut into overlapping frames, through networks that take a frame at a time, and joined again."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import signal

from jaxrnn._files.messages import brief
from jaxrnn.errors import InputError
from jaxrnn.evaluation.frames import complex_of, cut_frames, features_of, join_frames, with_mask
from jaxrnn.evaluation.limits import MAX_SIZE, check_rate
from jaxrnn.evaluation.recordings import SAMPLES
from jaxrnn.evaluation.stage import Stage
from jaxrnn.evaluation.systems import Piece

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
