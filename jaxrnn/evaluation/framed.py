"""Networks over frames of sound, for all frames of a chunk at once."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.audio.networks import Computing, Network
from jaxrnn.audio.recordings import SAMPLES
from jaxrnn.audio.sounds import check_rate
from jaxrnn.audio.waveforms import AUDIO, Waveform
from jaxrnn.errors import InputError
from jaxrnn.evaluation.systems import Piece, System, advance_one, identity_of, packed_for, start_of


class Framed:
    """A `jaxrnn.audio.Waveform` over recordings of any length, in chunks.

    Outputs are those of the waveform: sound, whose delay is that of a frame, and results for each hop. Operations
    without state run for all frames of a chunk at once. The networks run in steps, or are streams of frames without
    look-ahead. `evaluate` makes a `Framed` of a waveform.

    Example::

        network = Network(model, gives="mask")
        denoiser = Framed(Waveform(network, Frames(256, 128, "sqrt_hann")), rate=8_000)

    Args:
        waveform: the networks and the frames, whose padding is ``"causal"``.
        rate: samples per second.

    Raises:
        StateError: a model forgets its state, so it has no steps; `Model.stream` turns it into a streamed function.
        InputError: a network has no steps, its output has a delay or a different rate, or the padding is not causal.
    """

    def __init__(self, waveform: Waveform, *, rate: int = 16_000):
        check_rate(rate, "rate")
        frames = waveform.frames
        if frames.padding != "causal" or any(network.symbol is not None for network in waveform.networks):
            raise InputError(
                f"{waveform.label}: frames in chunks need networks in steps, and `padding='causal'`; run this waveform "
                "as its stream, Offline(waveform.stream(), waveform.params)"
            )
        for network in waveform.networks:
            _check_prompt(network, waveform)
        self.waveform, self.rate = waveform, rate
        self.multiple = frames.hop * math.lcm(*(network.bound.spec.pulse for network in waveform.networks))
        self.before = frames.size - frames.hop
        names = [each.name for each in waveform.outputs]
        self.delay = {name: self.before if name == AUDIO else 0 for name in names}
        self.per_frame = {name: 1.0 if name == AUDIO else 1 / frames.hop for name in names}

    def padded(self, frames: int) -> int:
        """Return the number of samples in whole hops that flushes the delay."""
        hop = self.waveform.frames.hop
        return -(-(frames + self.delay.get(AUDIO, 0)) // hop) * hop

    def expected(self, output: str, frames: int) -> int | None:
        """Return the number of output frames: ``frames`` for sound, or the number of hops, rounded up, for results."""
        return frames if output == AUDIO else -(-frames // self.waveform.frames.hop)

    @property
    def identity(self) -> dict[str, Any]:
        """The frames and the networks as plain values."""
        frames = dataclasses.asdict(self.waveform.frames)
        window = frames["window"] if isinstance(frames["window"], str) else np.asarray(frames["window"]).tolist()
        stages = [
            {
                "takes": network.layout(self.waveform.frames).kind,
                "gives": network.gives,
                "exponent": network.exponent,
                "names": [each.name for each in network.arrays(self.waveform.frames)],
                **identity_of(network.bound),
            }
            for network in self.waveform.networks
        ]
        return {"rate": self.rate, **frames, "window": window, "stages": stages}

    @functools.cached_property
    def _packed(self) -> tuple[Any, ...]:
        frames = self.waveform.frames
        return tuple(packed_for(network.bound, network.layout(frames).sizes) for network in self.waveform.networks)

    def start(self, batch: int) -> Any:
        """Return initial states, and silence before the first frame."""
        states = tuple(start_of(network.bound, batch) for network in self.waveform.networks)
        return {"states": states, "overlap": jnp.zeros((batch, self.before), jnp.float32)}

    def run(
        self, carry: Any, parts: Mapping[str, jax.Array], frames: jax.Array, *, ending: bool
    ) -> tuple[dict[str, Piece], Any]:
        """Process a chunk of sound."""
        label = self.waveform.label
        if SAMPLES not in parts:
            raise InputError(f"{label} takes sound, not arrays called {', '.join(parts)}")
        samples = parts[SAMPLES]
        if samples.ndim != 2 or not jnp.issubdtype(samples.dtype, jnp.floating):
            raise InputError(
                f"{label} takes sound of one channel as floats, full scale 1, not {samples.dtype} samples of shape "
                f"{samples.shape[2:]}"
            )
        # Step models have no delay, so that their last chunks need no flush.
        ending = ending and any(network.bound.spec.streams for network in self.waveform.networks)
        return self._compiled(self._packed, carry, samples, frames, ending=ending)

    @functools.cached_property
    def _compiled(self) -> Any:
        def run(packed: Any, carry: Any, samples: jax.Array, frames: jax.Array, *, ending: bool) -> Any:
            return jax.vmap(functools.partial(self._run, packed, ending=ending))(carry, samples, frames)

        return jax.jit(run, static_argnames="ending")

    def _run(
        self, packed: tuple[Any, ...], carry: Any, samples: jax.Array, count: jax.Array, *, ending: bool
    ) -> tuple[dict[str, Piece], Any]:
        """Process a chunk of one recording, whose first ``count`` samples exist."""
        frames, after = self.waveform.frames, []
        hops = (count + frames.hop - 1) // frames.hop

        def computing(network: Network, params: Any, state: Any) -> Computing:
            target = network.arrays(frames)[1]

            def compute(inputs: dict[str, jax.Array]) -> tuple[jax.Array, int]:
                arrays, _, new = advance_one(network.bound.with_params(params), state, inputs, hops, ending=ending)
                after.append(new)
                time = target.time_axis or 0
                return jax.lax.slice_in_dim(arrays[target.name], 0, cut.shape[0], axis=time), time

            return compute

        cut = dataclasses.replace(frames, padding="none").cut(samples.astype(jnp.float32))
        each = zip(self.waveform.networks, packed, carry["states"], strict=True)
        joined, results = self.waveform.through(cut, [computing(*parts) for parts in each])
        pieces, overlap = {name: Piece(values, hops) for name, values in results.items()}, carry["overlap"]
        if joined is not None:
            weights = frames.synthesis_weights
            weighted = joined if weights is None else joined * weights.astype(np.float32)
            sound, overlap = _added(weighted, overlap, frames.hop)
            pieces[AUDIO] = Piece(sound, hops * frames.hop)
        return pieces, {"states": tuple(after), "overlap": overlap}


def system_of(given: System | Waveform | Callable[[], System | Waveform]) -> System:
    """Return a system: the given system, the system of a waveform, or that of the result of a function."""
    made: Any = given() if callable(given) and not isinstance(given, Waveform) else given
    return Framed(made) if isinstance(made, Waveform) else made


def _check_prompt(network: Network, waveform: Waveform) -> None:
    """Check that a stream gives one output frame per input frame without delay; otherwise raise InputError."""
    spec = network.bound.spec
    _, named = network.arrays(waveform.frames)
    output = next(each for each in spec.outputs if each.name == named.name)
    if spec.streams and (output.delay != 0 or output.rate != 1):
        late = f"comes {output.delay} frame(s) late, {output.rate} of them for each input frame"
        raise InputError(
            f"{network.label}: a network over frames needs one output frame per input frame without delay, but "
            f"{output.name!r} {'has no frames of time' if output.rate is None else late}; run the network alone, as "
            "Offline(stepper, params)"
        )


def _added(frames: jax.Array, overlap: jax.Array, hop: int) -> tuple[jax.Array, jax.Array]:
    """Overlap-add frames ``[time, size]``: return sound ``[time * hop]`` and the new overlap."""
    time, size = frames.shape
    result = jnp.pad(overlap, (0, time * hop)).reshape(-1, hop)
    for part in range(size // hop):
        result = result.at[part : part + time].add(frames[:, part * hop : (part + 1) * hop])
    flat = result.reshape(-1)
    return flat[: time * hop], flat[time * hop :]
