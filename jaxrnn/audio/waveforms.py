"""Networks over frames as functions from waveform to waveform."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn._files.arrays import read_arrays
from jaxrnn._files.messages import check_word, short_repr, without_folders
from jaxrnn._jax.context import compute_type, exact_types, jitted
from jaxrnn.audio.frames import Frames, Norm, Padding, Synthesis, complex_of, with_mask
from jaxrnn.cells.forms import Remat, matrix_products_in, product_type, recomputing
from jaxrnn.errors import InputError, is_count
from jaxrnn.model import Model
from jaxrnn.model.streaming import GraphFunction, operators_by_scope, stream_within, time_symbols
from jaxrnn.steps.specs import ArraySpec, bind, converted
from jaxrnn.steps.stepper import Bound, Stepper
from jaxrnn.steps.stepspec import milliseconds
from jaxrnn.streaming import Streamed
from jaxrnn.streaming.diagnostics import of_file

#: The arguments of `waveform_of` other than the model and its time, as keys of settings files.
STFT = ("size", "hop", "window", "padding", "norm", "synthesis", "takes", "gives", "exponent")
#: The names of the input and the output of a `Waveform`.
SAMPLES, AUDIO = "samples", "audio"
#: Features of a frame that a network can take, and roles of the output.
TAKES = ("samples", "magnitude", "spectrum")
GIVES = ("samples", "mask", "magnitude", "spectrum")


class _Layout(NamedTuple):
    """The layout of an array over frames: the kind, and the axes of frames, of the content, and of complex parts."""

    kind: str  # samples, real or complex
    axes: tuple[int, ...]

    def place(self, values: jax.Array, rank: int) -> jax.Array:
        """Move the axes of values ``[frames, content(, 2)]`` to this layout, with axes of size 1 elsewhere."""
        moved = jnp.transpose(values, np.argsort(self.axes).tolist())
        return jnp.expand_dims(moved, [axis for axis in range(rank) if axis not in self.axes])

    def take(self, array: jax.Array) -> jax.Array:
        """Return the values ``[frames, content(, 2)]`` of an array; the inverse of `place`."""
        squeezed = jnp.squeeze(array, [axis for axis in range(array.ndim) if axis not in self.axes])
        return jnp.transpose(squeezed, np.argsort(np.argsort(self.axes)).tolist())


def _layout_of(named: str, shape: Sequence[Any], time: int, frames: Frames) -> _Layout:
    """Find the axes of an array by their sizes; open sizes count as 1."""
    sizes = {axis: size for axis, size in enumerate(shape) if axis != time and is_count(size) and size != 1}
    kinds = {"samples": [frames.size], "real": [frames.bins], "complex": [frames.bins, 2]}
    for kind, expected in kinds.items():
        if sorted(sizes.values()) == sorted(expected):
            inverse = {size: axis for axis, size in sizes.items()}
            return _Layout(kind, (time, *(inverse[size] for size in expected)))
    largest = max(sizes.values(), default=0)
    hint = f"; {largest} frequencies are those of frames of {2 * (largest - 1)} samples" if largest > 3 else ""
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
    position. Sizes do not distinguish a mask from a magnitude or a spectrum, so `gives` is needed.

    Attributes:
        model: a model with steps of one frame and external state, or any other `Stepper` of that kind; with `symbol`,
            an offline model.
        takes: ``"samples"`` of the windowed frame, or the ``"magnitude"`` or ``"spectrum"`` of the frame; by default
            determined by the sizes.
        gives: ``"samples"`` that replace the frame, a ``"mask"`` that multiplies the spectrum (real or complex), or a
            new ``"magnitude"`` or ``"spectrum"``. A new magnitude keeps the phase of the frame. None if the sizes
            determine the role.
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
        """The step with parameters; only for a model in steps."""
        bound = Bound(self.model, self.params)
        if bound.spec.streams:
            raise InputError(f"{self.label} has a time axis: give the model itself, with symbol")
        return bound

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
            fitting = [each for each in arrays if {frames.size, frames.bins} & set(each.shape or ())]
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
        opened = time_symbols(self.model) if isinstance(self.model, Model) and self.symbol is None else ()
        if opened and not self.bound.spec.state:
            option = f"`symbol={opened[0]!r}`"
            raise InputError(f"{self.label} has no state, and leaves {opened[0]} open: give {option} if that is time")
        shape, time = (source.shape, source.shape.index(self.symbol)) if self.symbol else ((None, *source.shape), 0)
        layout = _layout_of(f"{self.label}: {source.as_input}", shape, time, frames)
        shown = {"samples": "samples", "real": "magnitude", "complex": "spectrum"}[layout.kind]
        if self.takes not in (None, shown):
            raise InputError(f"{self.label}: by its size, {source.as_input} takes {shown}, not {self.takes}")
        return layout

    def describe(self, frames: Frames) -> str:
        """Return a sentence about the input and the output."""
        layout, (source, target) = self.layout(frames), self.arrays(frames)
        feature = {"samples": "samples", "real": "magnitudes", "complex": "spectra"}[layout.kind]
        power = "" if self.exponent == 1 else f" to the power {self.exponent:g}"
        gives = f"gives {self.gives or 'samples'} as {target.name!r}"
        return f"{without_folders(self.label)} takes {feature}{power} as {source.name!r}, and {gives}"

    def run(self, params: Any, frames: Frames, values: jax.Array) -> tuple[str, jax.Array]:
        """Map features ``[frames, content(, 2)]`` to the role of the output, and values in the same layout."""
        (source, target), layout, count = self.arrays(frames), self.layout(frames), values.shape[0]
        placed = layout.place(values.astype(source.dtype), len(source.shape or ()) + (self.symbol is None))
        if self.symbol is None:
            bound = self.bound.with_params(params)
            result, time = bound.scan(bound.start(), {source.name: placed})[0][target.name], 0
        else:
            result = self._offline.apply(params, {source.name: placed})[target.name]
            time = self._time_of(target, result.shape, count)
        named = f"{self.label}: the output {target}"
        if result.shape[time] != count:
            raise InputError(f"{named} has {result.shape[time]} frames for {count} frames of the input")
        found = _layout_of(named, result.shape, time, frames)
        fitting = {"samples": ["samples"], "real": ["mask", "magnitude"], "complex": ["mask", "spectrum"]}[found.kind]
        role = self.gives or (fitting[0] if len(fitting) == 1 else None)
        if role not in fitting:
            why = f"is not {role}" if role else "does not say what it is"
            raise InputError(f"{named} {why}: its sizes fit {' or '.join(fitting)}; say which with `gives`")
        return role, found.take(result).astype(values.dtype)

    def _time_of(self, target: ArraySpec, shape: Sequence[Any], count: Any) -> int:
        """Return the axis of frames of an output of an offline model."""
        declared = target.shape or (None,) * len(shape)
        if self.symbol in declared:
            return declared.index(self.symbol)
        places = [axis for axis, size in enumerate(shape) if size == count and not isinstance(declared[axis], int)]
        if len(places) != 1:
            raise InputError(f"{self.label}: output {target} has no axis that is certainly {self.symbol!r}")
        return places[0]


class Waveform:
    """Networks over short-time spectra as a function from waveform to waveform.

    A `Waveform` has the functions of an offline `Model` with the input ``samples`` and the output ``audio``, each
    ``float32[samples]``: `apply` computes a whole recording, and `stream` returns the exact stream. The state
    of the stream contains the states of the networks. Waveforms of any length are accepted; zeros fill the last hop.

    Example::

        frames = jaxrnn.audio.Frames(256, 128, "sqrt_hann")
        enhance = jaxrnn.audio.Waveform(jaxrnn.audio.Network(model, gives="mask"), frames)
        streamed = enhance.stream()
        jaxrnn.export_onnx(streamed, enhance.params, "enhance.onnx", flush="flush.onnx")

    Args:
        networks: a `Network`, or several in sequence: each network takes the frames of the previous network.
        frames: the frames of the transform. The hop must divide the size.

    Attributes:
        inputs: ``samples``.
        outputs: ``audio``, of the same length.
        state: empty, because `apply` takes whole recordings.
        params: the parameters of the network, or a tuple for several networks.

    Raises:
        InputError: the frames do not fit a network, or do not reconstruct.
        StateError: the model forgets its state, so it has no steps; set `Network.symbol`.
    """

    inputs = (ArraySpec(SAMPLES, np.dtype("float32"), (SAMPLES,)),)
    outputs = (ArraySpec(AUDIO, np.dtype("float32"), (SAMPLES,)),)
    state = ()

    def __init__(self, networks: Network | Sequence[Network], frames: Frames):
        self.networks = (networks,) if isinstance(networks, Network) else tuple(networks)
        self.frames = frames
        if frames.size % frames.hop:
            near = [hop for hop in range(1, frames.size + 1) if frames.size % hop == 0]
            nearest = min(near, key=lambda hop: abs(hop - frames.hop))
            raise InputError(
                f"a hop of {frames.hop} does not divide the {frames.size} samples of a frame; the nearest that does: "
                f"{nearest}"
            )
        frames.check_inverse()
        for network in self.networks:
            network.layout(frames)

    @property
    def label(self) -> str:
        """The names of the networks."""
        return " + ".join(network.label for network in self.networks)

    @property
    def params(self) -> Any:
        """The parameters of the network, or a tuple for several networks."""
        params = tuple(network.parameters for network in self.networks)
        return params[0] if len(params) == 1 else params

    @property
    def program(self) -> Any:
        """The program of the only network, as `Model.program`."""
        (network,) = self.networks
        return getattr(network.model, "program", None)

    @property
    def description(self) -> list[str]:
        """Sentences about the networks and the frames."""
        note = self.frames.note
        return [*(network.describe(self.frames) for network in self.networks), *([] if note is None else [note])]

    def apply(
        self, params: Any, inputs: Mapping[str, Any], *, remat: Remat = None, dtype: Any = None
    ) -> dict[str, jax.Array]:
        """Return the waveform ``audio`` of a whole recording ``samples``, as a pure function.

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
            return {AUDIO: self._enhanced(params, arrays[SAMPLES])}

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Apply the networks with the default parameters."""
        return self.apply(self.params, inputs)

    @jitted
    def _enhanced(self, params: Any, samples: jax.Array) -> jax.Array:
        frames, length = self.frames, samples.shape[0]
        hops = (length + frames.hop - 1) // frames.hop
        with jax.named_scope("stft"):
            current: Any = frames.cut(jnp.pad(samples, (0, frames.hop * hops - length)))
        spectrum: Any = None
        for network, own in zip(self.networks, (params,) if len(self.networks) == 1 else params, strict=True):
            power = network.exponent
            if network.layout(frames).kind == "samples":
                current = frames.inverse(spectrum) if current is None else current
                features = current
            else:
                spectrum = frames.transform(current) if spectrum is None else spectrum
                complex_ = network.layout(frames).kind == "complex"
                seen = _to_power(spectrum, power)
                features = jnp.stack([seen.real, seen.imag], -1) if complex_ else jnp.abs(seen)
            role, values = network.run(own, frames, features)
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
        with jax.named_scope("istft"):
            joined = frames.inverse(spectrum) if current is None else current
            # With causal padding, all samples of the whole hops lie in all their frames.
            return frames.join(joined)[:length] if frames.padding == "causal" else frames.join(joined, length)

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
