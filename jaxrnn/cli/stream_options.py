"""Options that turn an offline model, or a network over spectra, into a stream."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from jaxrnn.cli.options import FRAMES, Decorator, ModelFile, NumberRange, grouped, refuse
from jaxrnn.errors import StateError

if TYPE_CHECKING:
    from jaxrnn.model import Model
    from jaxrnn.steps.stepper import Stepper
    from jaxrnn.streaming import Streamed


@dataclass(frozen=True)
class SoundOptions:
    """The options that put a network over spectra between two transforms.

    Without ``--stft``, only ``hop`` may be given, and only in commands with ``hop_alone``.
    """

    stft: int | None
    hop: float | None
    window: str | None
    padding: str | None
    norm: str | None
    synthesis: str | None
    takes: str | None
    gives: str | None
    exponent: float | None
    hop_alone: bool = False

    def __post_init__(self):
        names = ["window", "padding", "norm", "synthesis", "takes", "gives", "exponent"]
        names += [] if self.hop_alone else ["hop"]
        if self.stft is None:
            refuse({f"--{name}": getattr(self, name) for name in names}, "needs --stft SAMPLES, the length of a frame")
        elif self.hop is None or self.hop != int(self.hop):
            raise click.UsageError("--stft needs --hop SAMPLES, a whole number: the distance between frames")

    def __bool__(self) -> bool:
        return self.stft is not None

    @property
    def keys(self) -> dict[str, Any]:
        """The values as keys of ``system.stream.stft`` in the settings of an evaluation."""
        values = {"size": self.stft, **vars(self), "hop": int(self.hop or 0)}
        return {key: value for key, value in values.items() if key not in ("stft", "hop_alone") and value is not None}

    def load(self, file: ModelFile, symbol: str | None) -> Model:
        """Load a model; with ``--stft``, return the `jaxrnn.audio.Waveform` of the model.

        ``symbol`` is the time dimension of an offline network; None if the network takes a frame per step.
        """
        model = file.load()
        if not self:
            return model
        from jaxrnn.audio.waveforms import waveform_of

        waveform: Any = waveform_of(model, symbol, **self.keys)  # which has the functions of a model
        return waveform


def described(model: Any) -> list[str]:
    """Return sentences about a function of waveforms; empty for other models."""
    return getattr(model, "description", [])


def sound_options(hop: str = "", *, hop_alone: bool = False) -> Decorator:
    """Return the options of `SoundOptions` as the argument ``sound``; ``hop`` is more help for ``--hop``."""
    return grouped(
        "sound",
        functools.partial(SoundOptions, hop_alone=hop_alone),
        click.option(
            "--stft",
            type=click.IntRange(min=4),
            metavar="SAMPLES",
            help="Make a network over spectra a function from waveform to waveform, with frames of this number of "
            "samples. The input is then called samples, and the output audio.",
        ),
        click.option(
            "--hop",
            type=NumberRange(0, min_open=True),
            metavar="SAMPLES",
            help=f"Samples from one frame to the next. {hop}".strip(),
        ),
        click.option(
            "--window",
            metavar="NAME",
            help="With --stft: a window of SciPy such as hann, sqrt_hann for its square root, or a .npy file. "
            "[default: hann]",
        ),
        click.option(
            "--padding",
            type=click.Choice(["causal", "zeros", "reflect", "none"]),
            help="With --stft: causal for frames that end with a hop, zeros or reflect for centred frames, none for "
            "whole frames only. [default: causal]",
        ),
        click.option(
            "--norm",
            type=click.Choice(["none", "ortho", "window"]),
            help="With --stft: divide spectra by nothing, by the root of the length, or by the sum of the window. "
            "[default: none]",
        ),
        click.option(
            "--synthesis",
            type=click.Choice(["window", "sum"]),
            help="With --stft: overlapping frames are windowed again and normalised, or only added. [default: window]",
        ),
        click.option(
            "--takes",
            metavar="[NAME=]KIND",
            help="With --stft: what the network takes of a frame, as its input NAME: magnitude, spectrum, or samples. "
            "[default: by the sizes]",
        ),
        click.option(
            "--gives",
            metavar="[NAME=]KIND",
            help="With --stft: what the network gives as its output NAME: a mask, magnitude, spectrum, or samples. "
            "Sizes cannot tell a mask from a magnitude or a spectrum.",
        ),
        click.option(
            "--exponent",
            type=NumberRange(0, min_open=True),
            metavar="POWER",
            help="With --stft: the network sees magnitudes to this power, such as 0.3. [default: 1]",
        ),
    )


@dataclass(frozen=True)
class PulseOptions:
    """The options of a stream. ``symbol`` is None for a model in steps."""

    symbol: str | None
    pulse: int | None
    multiple: int
    shortest: int
    longest: int | None
    past: int | None
    sound: SoundOptions
    network: str | None  # the time of the network in the function of waveforms

    @property
    def option(self) -> str:
        """The option that asks for a stream."""
        return "--stft" if self.sound else "--symbol"

    def load(self, file: ModelFile) -> Model:
        """Load a model, or with ``--stft`` the function of waveforms."""
        return self.sound.load(file, self.network)

    def stream(self, model: Model, dims: Mapping[str, int]) -> Streamed:
        """Return the stream of a model, with sizes of open dimensions other than time."""
        assert self.symbol is not None
        least = -(-self.shortest // self.multiple)
        constraints = [f"S >= {least}"] if self.shortest > self.multiple else []
        constraints += [] if self.longest is None else [f"S <= {self.longest // self.multiple}"]
        options = {"multiple": self.multiple, "constraints": constraints, "past": self.past}
        return model.stream(self.symbol, self.pulse, dims=dims, **options)

    def offline(self, stepper: Stepper, model: Model, params: Any) -> Callable[..., Any]:
        """Return the function of whole recordings that the stream of a model equals."""
        if self.past is None and not self.sound:
            from jaxrnn.verification.arbiter import Whole

            return Whole(model, params)
        if self.past is None:
            return functools.partial(model.apply, params)
        streamed: Any = stepper
        return functools.partial(streamed.offline, params)


def _pulses(
    symbol: str | None,
    pulse: int | None,
    multiple: int | None,
    shortest: int | None,
    longest: int | None,
    past: int | None,
    sound: SoundOptions,
) -> PulseOptions:
    network = None
    if sound:
        symbol, network = "samples", symbol
    options = {"--pulse": pulse, "--multiple": multiple, "--shortest": shortest, "--longest": longest, "--past": past}
    check_pulse_options(symbol, options)
    if longest is not None and longest < max(shortest or 1, multiple or 1):
        raise click.UsageError(f"no recording has at most --longest {longest} frames and fits the other options")
    return PulseOptions(symbol, pulse, multiple or 1, shortest or 1, longest, past, sound, network)


def check_pulse_options(symbol: str | None, options: Mapping[str, Any]) -> None:
    """Refuse options of a stream without ``--symbol``."""
    if symbol is None:
        refuse(options, "needs --symbol NAME, the dimension that is time")


def check_steps(model: Model) -> None:
    """Refuse a model that forgets its state, and name the options that make a stream of the model."""
    from jaxrnn.model.streaming import time_symbols

    forgets = any(variable.kind == "internal" for variable in model.state)
    try:
        _ = model.spec
    except StateError as error:
        if not forgets:
            raise
        symbols = time_symbols(model)
        hint = "For pulses (--symbol NAME), export the file with a symbolic dimension for time"
        if symbols:
            others = f" (or {', '.join(symbols[1:])}, whichever is time)" if symbols[1:] else ""
            hint = f"Here, in pulses of the recording: --symbol {symbols[0]}{others}"
        raise StateError(f"{error}. {hint}") from error


#: The options of a stream without those of `sound_options`.
_PULSE_OPTIONS = grouped(
    "pulses",
    _pulses,
    click.option(
        "--symbol",
        metavar="NAME",
        help="The open dimension of the inputs that is time: run in pulses of it. 'jaxrnn inspect' lists candidates.",
    ),
    click.option(
        "--pulse",
        **FRAMES,
        help="With --symbol: new input frames per step. [default: the fewest that fit the strides]",
    ),
    click.option(
        "--multiple",
        **FRAMES,
        help="With --symbol: the length of each recording is a multiple of this number of frames.",
    ),
    click.option(
        "--shortest",
        **FRAMES,
        help="With --symbol: the fewest frames of a recording. Give this option if an error asks for it.",
    ),
    click.option(
        "--longest",
        **FRAMES,
        help="With --symbol: the most frames of a recording, such as the rows of a table of positions.",
    ),
    click.option(
        "--past",
        **FRAMES,
        help="With --symbol, for causal attention without a bound: mask keys that are more than this number of frames "
        "older than their query. This changes the model.",
    ),
)


def pulse_options(hop: str = "") -> Decorator:
    """Return the options that turn an offline model into a stream, as the argument ``pulses``.

    ``hop`` is the help for ``--hop`` in commands that take ``--hop`` without ``--stft``.
    """
    return lambda command: sound_options(hop, hop_alone=bool(hop))(_PULSE_OPTIONS(command))
