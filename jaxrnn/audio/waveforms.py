"""Networks over frames as functions from waveform to waveform."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn._files.arrays import read_arrays
from jaxrnn._jax.context import compute_type, exact_types, jitted
from jaxrnn.audio.frames import Frames, Norm, Padding, Synthesis, complex_of, with_mask
from jaxrnn.audio.networks import Computing, Network
from jaxrnn.cells.forms import Remat, matrix_products_in, product_type, recomputing
from jaxrnn.errors import InputError
from jaxrnn.model import Model
from jaxrnn.model.streaming import GraphFunction, operators_by_scope, stream_within
from jaxrnn.steps.specs import ArraySpec, bind, converted
from jaxrnn.steps.stepspec import milliseconds
from jaxrnn.streaming import Streamed
from jaxrnn.streaming.diagnostics import of_file

#: The arguments of `waveform_of` other than the model and its time, as keys of settings files.
STFT = ("size", "hop", "window", "padding", "norm", "synthesis", "takes", "gives", "exponent")
#: The names of the input and the output of a `Waveform`.
SAMPLES, AUDIO = "samples", "audio"


class Waveform:
    """Networks over short-time spectra as a function from waveform to waveform.

    A `Waveform` has the functions of an offline `Model` with the input ``samples`` and the output ``audio``, each
    ``float32[samples]``: `apply` computes a whole recording, and `stream` returns the exact stream. The state
    of the stream contains the states of the networks. Waveforms of any length are accepted; zeros fill the last hop.
    `jaxrnn.evaluation.evaluate` runs a waveform over recordings.

    Example::

        frames = jaxrnn.audio.Frames(256, 128, "sqrt_hann")
        enhance = jaxrnn.audio.Waveform(jaxrnn.audio.Network(model, gives="mask"), frames)
        streamed = enhance.stream()
        jaxrnn.export_onnx(streamed, enhance.params, "enhance.onnx", flush="flush.onnx")

    Args:
        networks: a `Network`, or several in sequence: each network takes the frames of the previous network. If all
            give results, there is no output ``audio``.
        frames: the frames of the transform. For ``audio``, the hop must divide the size.

    Attributes:
        inputs: ``samples``.
        outputs: ``audio``, of the same length, and results, ``[frames, ...]``: with causal padding one for each hop.
        state: empty, because `apply` takes whole recordings.
        params: the parameters of the network, or a tuple for several networks.

    Raises:
        InputError: the frames do not fit a network, or do not reconstruct.
        StateError: the model forgets its state, so it has no steps; set `Network.symbol`.
    """

    inputs = (ArraySpec(SAMPLES, np.dtype("float32"), (SAMPLES,)),)
    state = ()

    def __init__(self, networks: Network | Sequence[Network], frames: Frames):
        self.networks = (networks,) if isinstance(networks, Network) else tuple(networks)
        self.frames = frames
        if self.gives_sound and frames.size % frames.hop:
            near = [hop for hop in range(1, frames.size + 1) if frames.size % hop == 0]
            nearest = min(near, key=lambda hop: abs(hop - frames.hop))
            raise InputError(
                f"a hop of {frames.hop} does not divide the {frames.size} samples of a frame; the nearest that does: "
                f"{nearest}"
            )
        if self.gives_sound:
            _ = frames.synthesis_weights
        for network in self.networks:
            network.layout(frames)
        names = [each.name for each in self.outputs]
        if len({*names}) < len(names) or not names:
            raise InputError(f"a waveform needs networks whose outputs have different names, not {', '.join(names)}")

    @property
    def gives_sound(self) -> bool:
        """True if the frames become sound."""
        return any(network.gives != "result" for network in self.networks)

    @property
    def outputs(self) -> tuple[ArraySpec, ...]:
        """The sound and the results."""
        sound = [ArraySpec(AUDIO, np.dtype("float32"), (SAMPLES,))] if self.gives_sound else []
        targets = [each.arrays(self.frames)[1] for each in self.networks if each.gives == "result"]
        return (*sound, *(ArraySpec(each.name, each.dtype, None) for each in targets))

    @property
    def label(self) -> str:
        """The names of the networks."""
        return " + ".join(network.label for network in self.networks)

    @property
    def params(self) -> Any:
        """The parameters of the network, or a tuple for several networks."""
        params = tuple(network.parameters for network in self.networks)
        return params[0] if len(params) == 1 else params

    def split(self, params: Any) -> tuple[Any, ...]:
        """Return the parameters of each network."""
        return (params,) if len(self.networks) == 1 else tuple(params)

    @property
    def program(self) -> Any:
        """The program of the only network, as `Model.program`."""
        (network,) = self.networks
        return getattr(network.model, "program", None)

    @property
    def description(self) -> list[str]:
        """Sentences about the networks and the frames."""
        note = self.frames.note if self.gives_sound else None
        return [*(network.describe(self.frames) for network in self.networks), *([] if note is None else [note])]

    def apply(
        self, params: Any, inputs: Mapping[str, Any], *, remat: Remat = None, dtype: Any = None
    ) -> dict[str, jax.Array]:
        """Return the waveform ``audio`` of a whole recording ``samples``, and results, as a pure function.

        Args:
            params: as in `params`.
            inputs: ``samples``, ``float32[samples]``.
            remat: as in `Model.apply`.
            dtype: as in `Model.apply`, for the networks.

        Raises:
            InputError: the input, or the output of a network, does not fit.
        """
        arrays = bind(self.inputs, inputs, convert=converted)
        with exact_types(), recomputing(remat), matrix_products_in(compute_type(dtype) or product_type()):
            return self._whole(params, arrays[SAMPLES])

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Apply the networks with the default parameters."""
        return self.apply(self.params, inputs)

    @jitted
    def _whole(self, params: Any, samples: jax.Array) -> dict[str, jax.Array]:
        frames, length = self.frames, samples.shape[0]
        hops = (length + frames.hop - 1) // frames.hop
        with jax.named_scope("stft"):
            cut = frames.cut(jnp.pad(samples, (0, frames.hop * hops - length)))
        networks = zip(self.networks, self.split(params), strict=True)
        joined, outputs = self.through(cut, [network.whole(own, frames) for network, own in networks])
        if frames.padding == "causal":  # also of the frames that only complete the sound
            outputs = {name: values[:hops] for name, values in outputs.items()}
        if joined is None:
            return outputs
        with jax.named_scope("istft"):
            # With causal padding, all samples of the whole hops lie in all their frames.
            sound = frames.join(joined)[:length] if frames.padding == "causal" else frames.join(joined, length)
        return {AUDIO: sound, **outputs}

    def through(self, cut: jax.Array, computing: Sequence[Computing]) -> tuple[jax.Array | None, dict[str, jax.Array]]:
        """Pass windowed frames ``[frames, size]`` through the networks, each with the function that computes it.

        Returns the frames for the synthesis, without its window, or None without sound; and the results.
        """
        frames, results = self.frames, {}
        current: Any = cut
        spectrum: Any = None
        for network, compute in zip(self.networks, computing, strict=True):
            power, kind = network.exponent, network.layout(frames).kind
            if kind == "samples":
                current = frames.inverse(spectrum) if current is None else current
                features = current
            else:
                spectrum = frames.transform(current) if spectrum is None else spectrum
                seen = _to_power(spectrum, power)
                features = jnp.stack([seen.real, seen.imag], -1) if kind == "spectrum" else jnp.abs(seen)
            role, values = network.run(frames, features, compute)
            if role == "result":
                results[network.arrays(frames)[1].name] = values
                continue
            if role == "samples":
                current, spectrum = values, None
                continue
            spectrum = frames.transform(current) if spectrum is None else spectrum
            values = values if values.ndim == 2 else complex_of(values)
            if role == "mask":
                values = with_mask(_to_power(spectrum, power), values)
            elif role == "magnitude":
                values = with_mask(_to_power(spectrum, 0), values)
            spectrum, current = _to_power(values, 1 / power), None
        if not self.gives_sound:
            return None, results
        with jax.named_scope("istft"):
            return (frames.inverse(spectrum) if current is None else current), results

    def stream(
        self,
        symbol: str = SAMPLES,
        pulse: int | None = None,
        *,
        dims: Mapping[str, int | str] | None = None,
        multiple: int = 1,
        constraints: Sequence[str] = (),
        past: int | None = None,
        future: int | Mapping[str, int] | None = None,
        block: int | None = None,
    ) -> Streamed:
        """Return the exact stream from pulses of samples to pulses of samples.

        Args:
            symbol: ``"samples"``.
            pulse: samples in each step, a multiple of the hop; by default one hop.
            dims: as in `Model.stream`, but empty, because a waveform has no other dimensions.
            multiple: a number that divides the length of each recording in samples.
            constraints: as in `Model.stream`, about the number of samples.
            past: as in `Model.stream`.
            future: as in `Model.stream`: frames of the networks, not samples.
            block: as in `Model.stream`.

        Raises:
            InputError: the waveform does not have this dimension.
            StreamError: part of a network cannot be streamed, or the pulse does not fit the hop.
        """
        for name in (symbol, *(dims or {})):
            if name != SAMPLES or name in (dims or {}):
                raise InputError(f"{self.label}: a waveform has the dimension {SAMPLES!r} only, not {name!r}")
        least = {"reflect": self.frames.size // 2 + 1, "none": self.frames.size - self.frames.hop + 1}
        shortest = -(-least.get(self.frames.padding, 1) // multiple)
        limits = [*constraints, *([f"S >= {shortest}"] if shortest > 1 else [])]
        example = {SAMPLES: jax.ShapeDtypeStruct((self.frames.hop * multiple,), np.float32)}
        whole, options = _Whole(self), {"past": past, "future": future, "block": block}  # type: ignore[arg-type]
        options |= {"axes": {SAMPLES: 0}, "params": self.params, "multiple": multiple, "constraints": limits}
        with exact_types(), of_file(whole.operators):
            return stream_within(whole, example, pulse=pulse, **options)


def waveform_of(
    model: Model,
    symbol: str | None,
    *,
    size: int,
    hop: int,
    window: str = "hann",
    padding: Padding = "causal",
    norm: Norm = "none",
    synthesis: Synthesis = "window",
    takes: str | None = None,
    gives: str | None = None,
    exponent: float = 1.0,
) -> Waveform:
    """Return the waveform of a single network. Commands and files of settings take their options from here.

    Args:
        model: the network.
        symbol: the time dimension of an offline network; None if the network takes a frame per step.
        size: samples of a frame of a network over spectra, which then is a function from waveform to waveform, from
            the input ``samples`` to the output ``audio``.
        hop: samples from one frame to the next.
        window: a window of SciPy such as ``hann``, ``sqrt_hann`` for its square root, or a ``.npy`` file.
        padding: ``causal`` for frames that end with a hop, ``zeros`` or ``reflect`` for centred frames, ``none`` for
            whole frames only.
        norm: divide spectra by nothing, by the root of the length (``ortho``), or by the sum of the ``window``.
        synthesis: overlapping frames are multiplied by the ``window`` again and normalised, or only added (``sum``).
        takes: what the network takes of a frame: ``magnitude``, ``spectrum`` or ``samples``, or ``INPUT=KIND``; by
            default by the sizes.
        gives: what the network gives: a ``mask``, ``magnitude``, ``spectrum`` or ``samples``, or ``OUTPUT=KIND``. Sizes
            cannot tell a mask from a magnitude or a spectrum.
        exponent: the network sees magnitudes to this power, such as 0.3.
    """
    values: Any = read_arrays(window) if window.endswith(".npy") else window
    frames = Frames(size, hop, values, padding=padding, norm=norm, synthesis=synthesis)
    (source, takes), (target, gives) = (
        (None, None) if text is None else (name or None, kind)
        for text in (takes, gives)
        for name, _, kind in [(text or "").rpartition("=")]
    )
    return Waveform(Network(model, takes, gives, symbol=symbol, exponent=exponent, input=source, output=target), frames)


class _Whole(GraphFunction):
    """A waveform as a function of parameters and inputs, for `stream`."""

    @property
    def operators(self) -> dict[str, str]:
        """The operators of all networks by scope."""
        waveform: Any = self.model
        models = [network.model for network in waveform.networks if isinstance(network.model, Model)]
        return {scope: name for model in models for scope, name in operators_by_scope(model.program.block).items()}


def latency(streamed: Streamed, rate: float) -> float:
    """Return the milliseconds from a sample of the input to the same sample of the output: the pulse and the delay.

    Args:
        streamed: the stream of a `Waveform`.
        rate: samples per second.
    """
    return milliseconds(streamed.spec.pulse + (streamed.spec.delay[AUDIO] or 0), rate)


def _to_power(spectrum: jax.Array, exponent: float) -> jax.Array:
    """Raise magnitudes to a power and keep the phase; zeros stay zeros, or with exponent 0 become 1."""
    if exponent == 1:
        return spectrum
    magnitude = jnp.abs(spectrum)
    exists = magnitude > 0
    # Zeros are replaced before the power, because gradients of the power are infinite there.
    factor = jnp.where(exists, magnitude, 1) ** np.asarray(exponent - 1, magnitude.dtype)
    result = with_mask(spectrum, factor)
    return result if exponent else jnp.where(exists, result, 1)
