"""``jaxrnn stream --symbol``: a model over recordings in pulses, what is said of it, and what is written."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jaxrnn.cli.options import save_archive
from jaxrnn.cli.output import busy, counting, print_json
from jaxrnn.errors import InputError

if TYPE_CHECKING:
    from jaxrnn.cli.pulse_checks import Check
    from jaxrnn.cli.pulses import Pulses, Streaming
    from jaxrnn.model import Model
    from jaxrnn.streaming import Streamed
    from jaxrnn.verification.sampling import Sample


@dataclass(frozen=True)
class Request:
    """What the command was asked for.

    Attributes:
        symbol: the dimension that is time.
        pulse: input frames a step; None for the fewest that fit.
        multiple: what every number of frames is a multiple of.
        shortest: the fewest frames that a recording has.
        frames: frames to take; None for the whole recording.
        default: pulses over random inputs alone, where ``frames`` is None.
        use_random: make the recordings that are missing.
        seed: of the random recordings.
        verify: compare with the model on the whole recording.
        frame_seconds: what an input frame lasts, where it is known.
        output: the file to write.
    """

    symbol: str
    pulse: int | None
    multiple: int
    shortest: int
    frames: int | None
    default: int
    use_random: bool
    seed: int
    verify: bool
    frame_seconds: float | None
    output: Path | None


def run(
    file: Path, model: Model, given: dict[str, np.ndarray], sizes: dict[str, int], asked: Request, *, as_json: bool
) -> bool:
    """Stream, print and write; whether everything that was compared agrees."""
    import jax

    from jaxrnn.cli import pulses
    from jaxrnn.cli.pulse_report import print_report, report_of
    from jaxrnn.verification.sampling import restore_types

    axes = pulses.time_axes(model, asked.symbol)
    if asked.symbol in sizes:
        raise InputError(f"--dim {asked.symbol}: give the number of frames with --frames")
    given = restore_types(model.inputs, given)
    missing = ", ".join(str(info) for info in model.inputs if info.name not in given)
    if missing and not asked.use_random:
        raise InputError(f"{model.label}: no recording of input(s) {missing}; give --input NAME=X.npy or --random")
    # Where results are compared, both sides compute at full precision, as in 'jaxrnn verify'.
    precision = jax.default_matmul_precision("highest") if asked.verify else contextlib.nullcontext()
    with precision:
        with busy(f"tracing {file.name}"):
            streamed, sample, total = _streamed(model, axes, given, sizes, asked)
        with busy(f"compiling {file.name}"), sample.blamed():
            ready = pulses.make_ready(model, streamed, axes, sample.inputs)
        with counting("streaming", total // streamed.pulse) as indices:
            streaming = pulses.run_pulses(ready, sample.inputs, total, indices)
        with busy("verifying"), sample.blamed():
            checks = _check(ready, sample, total, streaming, asked) if asked.verify else None
    if asked.output is not None:
        save_archive(asked.output, streaming.outputs)
    result = report_of(file, ready, sample, total, streaming, checks, asked)
    print_json(result) if as_json else print_report(result, ready, asked)
    return checks is None or all(check.ok for check in checks)


def _streamed(
    model: Model, axes: dict[str, int | None], given: dict[str, np.ndarray], sizes: dict[str, int], asked: Request
) -> tuple[Streamed, Sample, int]:
    """The model in pulses, recordings of every input, and the number of frames to take of them."""
    from jaxrnn.cli import pulses
    from jaxrnn.guards import exact_types
    from jaxrnn.onnx.interface import bind_inputs
    from jaxrnn.verification.sampling import random_inputs

    found = pulses.count_frames(axes, given)
    if found == 0:
        raise InputError("the recordings have no frames")
    if found is not None and asked.frames is not None and asked.frames > found:
        raise InputError(f"--frames {asked.frames}: the recordings have {found} frames")

    def sampled(frames: int) -> Sample:
        """Recordings; where one is given, it says how many frames all of them have."""
        dims = sizes if found is not None else {**sizes, asked.symbol: frames}
        sample = random_inputs(model, given, dims=dims, seed=asked.seed)
        with exact_types():
            bind_inputs(model.inputs, sample.inputs)
        return sample

    # The sizes of the other dimensions come with any recording; the default number of frames needs the pulse first.
    first = sampled(asked.multiple).inputs
    sized = ((info.shape or (), np.shape(first[info.name])) for info in model.inputs)
    named = (pair for shape, sizes in sized for pair in zip(shape, sizes, strict=True))
    dims = {name: size for name, size in named if isinstance(name, str) and name != asked.symbol}
    streamed = pulses.stream_model(model, asked.symbol, asked.pulse, dims, asked.multiple, asked.shortest)
    total = asked.frames or found or asked.default * streamed.pulse
    if total % asked.multiple:
        raise InputError(f"{total} frames are no multiple of {asked.multiple}, as --multiple says of every recording")
    if total < asked.shortest:
        raise InputError(f"{total} frames are fewer than --shortest {asked.shortest}")
    return streamed, sampled(total), total


def _check(ready: Pulses, sample: Sample, total: int, streaming: Streaming, asked: Request) -> list[Check]:
    """The whole recording, then awkward lengths of it."""
    from jaxrnn.cli.pulse_checks import awkward_lengths, check_pulses

    whole = check_pulses(ready, sample.inputs, total, streaming.outputs)
    if whole.problem is not None:
        raise InputError(f"nothing to compare with: {whole.problem}")
    lengths = awkward_lengths(ready.streamed.pulse, asked.multiple, total, asked.shortest)
    return [whole, *(check_pulses(ready, sample.inputs, length) for length in lengths)]
