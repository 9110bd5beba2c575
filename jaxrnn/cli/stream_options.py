"""Options that turn an offline model, or a network over spectra, into a stream."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import click

from jaxrnn.cli.commands import FrameCount, Given, NumberRange, Option, Taken
from jaxrnn.cli.options import ModelFile, refuse
from jaxrnn.errors import StateError

if TYPE_CHECKING:
    from jaxrnn.model import Model
    from jaxrnn.steps.stepper import Stepper
    from jaxrnn.streaming import Streamed


#: The offline limit among several futures.
ALL = "all"


class SoundOptions(Given):
    """The options that put a network over spectra between two transforms, as arguments of `waveform_of`.

    Without ``--stft``, only ``hop`` may be given, and only in commands with ``hop_alone``.
    """

    hop_alone: ClassVar[bool] = False

    def __init__(self, **options: Any):
        super().__init__(**options)
        if not self:
            alone = ("hop",) if self.hop_alone else ()
            given = {f"--{name}": value for name, value in self.items() if name not in alone}
            refuse(given, "needs --stft SAMPLES, the length of a frame")
        elif self.hop is None or self.hop != int(self.hop):
            raise click.UsageError("--stft needs --hop SAMPLES, a whole number: the distance between frames")
        else:
            self["hop"] = int(self.hop)

    def __bool__(self) -> bool:
        return "size" in self

    @property
    def hop(self) -> float | None:
        """Samples from one frame to the next."""
        return self.get("hop")

    def load(self, file: ModelFile, symbol: str | None) -> Model:
        """Load a model; with ``--stft``, return the `jaxrnn.audio.Waveform` of the model.

        ``symbol`` is the time dimension of an offline network; None if the network takes a frame per step.
        """
        model = file.load()
        if not self:
            return model
        from jaxrnn.audio.waveforms import waveform_of

        waveform: Any = waveform_of(model, symbol, **dict(self))  # which has the functions of a model
        return waveform


class SoundOrHop(SoundOptions):
    """The same for commands that take ``--hop`` also for models without ``--stft``."""

    hop_alone = True


_POSITIVE = NumberRange(0, min_open=True)
_SOUND = Taken(
    "jaxrnn.audio.waveforms:waveform_of",
    prefix="With --stft:",
    size=Option(("--stft",), "SAMPLES", click.IntRange(4)),
    hop=Option(metavar="SAMPLES", type=_POSITIVE),
    window=Option(metavar="NAME"),
    padding=Option(),
    norm=Option(),
    synthesis=Option(),
    takes=Option(metavar="[INPUT=]KIND"),
    gives=Option(metavar="[OUTPUT=]KIND"),
    exponent=Option(metavar="POWER", type=_POSITIVE),
)
Sound = Annotated[SoundOptions, _SOUND]


def described(model: Any) -> list[str]:
    """Return sentences about a function of waveforms; empty for other models."""
    return getattr(model, "description", [])


@dataclass(frozen=True)
class PulseOptions:
    """The options of a stream.

    Attributes:
        sound: The transforms around a network over spectra.
        symbol: The open dimension of the inputs that is time: run in pulses of it. 'jaxrnn inspect' lists candidates.
        pulse: With --symbol: new input frames per step. [default: the fewest that fit the strides]
        multiple: With --symbol: the length of each recording is a multiple of this number of frames.
        shortest: With --symbol: the fewest frames of a recording. Give this option if an error asks for it.
        longest: With --symbol: the most frames of a recording, such as the rows of a table of positions.
        past: With --symbol, for causal attention without a bound: mask keys that are more than this number of frames
            older than their query. This changes the model.
        future: With --symbol, for an offline model: backward recurrences, statistics over the whole recording, and
            attention to all frames see this number of later frames; with --stft, frames of spectra. This changes the
            model; --past then bounds the attention.
        block: With --future: frames that share their end. [default: 1; for recurrences the future]
    """

    sound: Sound
    symbol: Annotated[str, Option(metavar="NAME")] | None = None
    pulse: FrameCount | None = None
    multiple: FrameCount | None = None
    shortest: FrameCount | None = None
    longest: FrameCount | None = None
    past: FrameCount | None = None
    future: Annotated[int, Option(metavar="FRAMES", type=click.IntRange(0))] | None = None
    block: FrameCount | None = None

    def __post_init__(self):
        names = ("pulse", "multiple", "shortest", "longest", "past", "future", "block")
        self.need_symbol({f"--{name}": getattr(self, name) for name in names})
        if self.future is None:
            refuse({"--block": self.block}, "goes with --future: it is the number of frames that share their end")
        if self.longest is not None and self.longest < max(self.shortest or 1, self.multiple or 1):
            raise click.UsageError(
                f"no recording has at most --longest {self.longest} frames and fits the other options"
            )

    def need_symbol(self, options: Mapping[str, Any]) -> None:
        """Refuse options of a stream if the model runs in steps."""
        if self.time is None:
            refuse(options, "needs --symbol NAME, the dimension that is time")

    @property
    def time(self) -> str | None:
        """The dimension of the stream that is time; None if the model runs in steps."""
        return "samples" if self.sound else self.symbol

    @property
    def option(self) -> str:
        """The option that asks for a stream."""
        return "--stft" if self.sound else "--symbol"

    def load(self, file: ModelFile) -> Model:
        """Load a model, or with ``--stft`` the function of waveforms."""
        return self.sound.load(file, self.symbol)

    def stream(self, model: Model, dims: Mapping[str, int]) -> Streamed:
        """Return the stream of a model, with sizes of open dimensions other than time."""
        assert self.time is not None
        bounds: dict[str, Any] = {"past": self.past, "future": self.future, "block": self.block}
        return model.stream(self.time, self.pulse, dims=dims, **bounds, **self.lengths)

    @property
    def lengths(self) -> dict[str, Any]:
        """The options of a stream about the lengths of recordings."""
        multiple, shortest = self.multiple or 1, self.shortest or 1
        constraints = [f"S >= {-(-shortest // multiple)}"] if shortest > multiple else []
        constraints += [] if self.longest is None else [f"S <= {self.longest // multiple}"]
        return {"multiple": multiple, "constraints": constraints}

    def offline(self, stepper: Stepper, model: Model, params: Any) -> Callable[..., Any]:
        """Return the function of whole recordings that the stream of a model equals."""
        is_changed = self.past is not None or self.future is not None
        if not is_changed and not self.sound:
            from jaxrnn.verification.arbiter import Whole

            return Whole(model, params)
        if not is_changed:
            return functools.partial(model.apply, params)
        streamed: Any = stepper
        return functools.partial(streamed.offline, params)


@dataclass(frozen=True)
class TimedPulses(PulseOptions):
    """The options of a stream in commands where ``--hop`` also gives the duration of a step."""

    sound: Annotated[SoundOrHop, _SOUND]

    def hop(self, rate: float | None) -> float | None:
        """Return the samples from one frame to the next by ``--hop``, or None; with ``--stft``, frames are samples."""
        hop = None if self.sound else self.sound.hop
        if hop is not None and rate is None:
            raise click.UsageError("--hop goes with --rate: a frame lasts hop / rate seconds")
        return hop


def _futures(text: str) -> tuple[int | str, ...]:
    """Return the frames of ``0,5,all``."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part == ALL or part.isdecimal() for part in parts):
        raise click.BadParameter(
            f"{text!r} is no number of frames from 0 on, and with --against not several or {ALL}, such as 0,5,10,{ALL}."
        )
    return tuple(dict.fromkeys(part if part == ALL else int(part) for part in parts))


@dataclass(frozen=True)
class ComparedPulses(TimedPulses):
    """The options of a stream in a command that compares several futures."""

    future: Annotated[
        Any,
        Option(
            metavar="FRAMES",
            type=click.STRING,
            parse=_futures,
            text="With --against, several numbers with commas, or all for the offline limit.",
        ),
    ] = None

    @property
    def single(self) -> TimedPulses:
        """The options with one future."""
        if self.future is not None and (len(self.future) != 1 or self.future[0] == ALL):
            raise click.UsageError(
                f"--future {','.join(map(str, self.future))} is for --against offline; give one number"
            )
        names = [each.name for each in dataclasses.fields(self)]
        options = {name: getattr(self, name) for name in names}
        return TimedPulses(**{**options, "future": None if self.future is None else self.future[0]})


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
