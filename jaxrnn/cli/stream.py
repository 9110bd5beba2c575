"""``jaxrnn stream``: a model in steps or pulses over recordings, and how long they took."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jaxrnn.checks import check_writable
from jaxrnn.cli.files import save_archive
from jaxrnn.cli.output import busy, counting, print_json
from jaxrnn.cli.stream_options import (
    check_pulse_options,
    input_options,
    json_option,
    load_inputs,
    model_argument,
    parse_state,
    parse_static,
    pulse_options,
    single_dims,
    state_option,
)
from jaxrnn.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from jaxrnn.model import Model
    from jaxrnn.stepper import Stepper
    from jaxrnn.verification.sampling import Sample

#: Steps or pulses over random inputs, if nobody asks for another number.
STEPS = 500
MISMATCH = 1


@click.command()
@model_argument
@input_options
@state_option
@click.option("--random", "use_random", is_flag=True, help="Make the recordings that are not given at random.")
@click.option(
    "--steps",
    "limit",
    type=click.IntRange(min=1),
    help=f"How many steps. [default: the whole recording; {STEPS} if all is random]",
)
@pulse_options
@click.option(
    "--frames",
    type=click.IntRange(min=1),
    help=f"How many frames, with --symbol. [default: the whole recording; {STEPS} pulses if all is random]",
)
@click.option(
    "--verify",
    is_flag=True,
    help="With --symbol: compare the outputs with those of the model on the whole recording, and on short parts of it "
    "whose lengths do not fit the pulse. Exit status 1 where they differ by more than 'jaxrnn verify' allows.",
)
@click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="HZ", help="Samples a second, with --hop.")
@click.option(
    "--hop",
    type=click.FloatRange(0, min_open=True),
    metavar="SAMPLES",
    help="New samples a step; with --symbol, samples a frame.",
)
@click.option(
    "--step-seconds",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="What a step lasts, without --rate.",
)
@click.option(
    "--output",
    "-o",
    metavar="OUT.npz",
    type=click.Path(path_type=Path),
    help="Write the outputs: of steps stacked along the first axis, with the last state as state/NAME; of pulses as "
    "the model gives them for the whole recording.",
)
@json_option
@click.pass_context
def stream(
    ctx: click.Context,
    file: Path,
    input_files: tuple[str, ...],
    inputs_file: Path | None,
    static: tuple[str, ...],
    dims: tuple[str, ...],
    seed: int,
    pairs: tuple[str, ...],
    use_random: bool,
    limit: int | None,
    symbol: str | None,
    pulse: int | None,
    frames: int | None,
    multiple: int | None,
    shortest: int | None,
    verify: bool,
    rate: float | None,
    hop: float | None,
    step_seconds: float | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Run a model over recordings in steps or pulses, its state carried on, and time each of them.

    A step's time is that from NumPy arrays to NumPy arrays, in one process with the step compiled.

    FILE is an ONNX file, or what 'jaxrnn compile' made of one, in steps or in pulses.

    Without --symbol, a call of an ONNX model is a step: its state is among its inputs and outputs. Inputs are
    recordings with their frames stacked along a first axis: [frames, *shape of the input].

    With --symbol, FILE is an ONNX file of a model over whole recordings, with a dimension for time that is left open,
    such as S in [1, 40, S]. The model is turned into one that takes --pulse frames a step; everything that it has to
    remember becomes its state, and what it needs to see in advance becomes delay. Inputs are whole recordings in the
    shape that the file declares; those without the dimension are held constant. Outputs come without the delay, to
    the last frame, equal to the model's on the whole recording: --verify shows it. What cannot be streamed, such as a
    bidirectional recurrence, is refused, with the node and what to do.

    \b
    Examples of steps:
      jaxrnn stream dtln_1.onnx --input input_2=magnitudes.npy --rate 16000 --hop 128 --output masks.npz
      jaxrnn stream vad.onnx --static sr=16000 --random --dim sequence=576 --rate 16000 --hop 512
      jaxrnn stream model.jaxrnn --random --steps 2000 --json

    \b
    Examples of pulses:
      jaxrnn stream keywords.onnx --symbol S --random --verify
      jaxrnn stream keywords.onnx --symbol S --pulse 4 --input feats=features.npy --rate 16000 --hop 160 -o logits.npz
      jaxrnn stream waves.onnx --symbol S --pulse 256 --random --frames 48000 --rate 48000 --hop 1 --json
    """  # noqa: D301
    import jax

    from jaxrnn.cli import stepping
    from jaxrnn.cli.stream_checks import check_lengths
    from jaxrnn.cli.stream_report import print_report, report_of

    duration = _duration(rate, hop, step_seconds)
    of_steps = {"--steps": limit, "--step-seconds": step_seconds}
    of_pulses = {
        "--pulse": pulse,
        "--frames": frames,
        "--multiple": multiple,
        "--shortest": shortest,
        "--verify": verify or None,
    }
    _check_mode(symbol, of_steps, of_pulses)
    if output is not None:
        check_writable(output)
    given, sizes = load_inputs(input_files, inputs_file), single_dims(dims)
    if sizes and not use_random:
        raise click.UsageError("--dim sets the sizes of random inputs: it needs --random")
    # A step is shorter than handing it to another thread.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    source = _open(file, static, pairs, symbol)
    asked = Asked(given, sizes, use_random, seed, symbol, limit, frames, multiple or 1, shortest or 1)
    # Where results are compared, both sides compute at full precision, as in 'jaxrnn verify'.
    precision = jax.default_matmul_precision("highest") if verify else contextlib.nullcontext()
    with precision:
        with busy(f"tracing {file.name}"):
            stepper, sample, total = _recordings(source, pulse, asked)
        with busy(f"compiling {file.name}"), sample.blamed():
            ready = stepping.make_ready(stepper, source.params, sample.inputs, sample.dims)
        with counting("streaming", total // stepper.spec.pulse) as indices:
            ran = stepping.run(ready, sample.inputs, total, indices)
        if source.model is not None:  # the file has an order of its own
            names = [info.name for info in source.model.outputs if info.name in ran.outputs]
            ran = dataclasses.replace(ran, outputs={name: ran.outputs[name] for name in names})
        checks = None
        if verify and source.model is not None:
            with busy("verifying"), sample.blamed():
                checks = check_lengths(source.model, ready, sample.inputs, total, ran.outputs, asked.shortest)
    streams = stepper.spec.streams
    if output is not None:
        state = {} if streams else {f"state/{name}": array for name, array in ran.state.items()}
        save_archive(output, {**ran.outputs, **state})
    result = report_of(file, symbol, ready, sample, total, ran, checks, duration, output)
    print_json(result) if as_json else print_report(result, seed, streams=streams)
    if result["verified"] is False:
        ctx.exit(MISMATCH)


@dataclass(frozen=True)
class Source:
    """What is in the file.

    Attributes:
        model: of an ONNX file; None for a compiled one.
        stepper: what runs, where the file says it; None for a model that is to be streamed.
        params: of what runs.
    """

    model: Model | None
    stepper: Stepper | None
    params: Any


@dataclass(frozen=True)
class Asked:
    """What the command was asked for: recordings, sizes, and how much of them; as the options of those names."""

    given: dict[str, np.ndarray]
    sizes: dict[str, int]
    use_random: bool
    seed: int
    symbol: str | None
    limit: int | None
    frames: int | None
    multiple: int
    shortest: int


def _recordings(source: Source, pulse: int | None, asked: Asked) -> tuple[Stepper, Sample, int]:
    """What runs, recordings of every input, and the number of frames to take of them."""
    from jaxrnn.cli import stepping
    from jaxrnn.guards import exact_types
    from jaxrnn.specs import bind, check_names
    from jaxrnn.verification.sampling import index_limits, random_arrays, restore_types, symbols_of

    stepper, sizes = source.stepper, asked.sizes
    if stepper is None:
        assert source.model is not None
        stepper, sizes = _streamed(source.model, pulse, asked)
    spec, symbol = stepper.spec, asked.symbol or "frames"
    whole = stepping.recordings_of(spec, symbol)
    given = restore_types(spec.inputs, asked.given)
    for name in given:
        if any(entry.name == name for entry in spec.state):
            raise InputError(f"{name!r} is state, which is carried from step to step: it takes no recording")
    check_names(spec.inputs, given)
    recorded, limit = stepping.count_frames(spec, given), asked.limit or asked.frames
    declared = spec.inputs if source.model is None or source.stepper is not None else source.model.inputs
    missing = ", ".join(str(each) for each in declared if each.name not in given)
    if missing and not asked.use_random:
        raise InputError(f"{spec.label}: no recording of input(s) {missing}; give --input NAME=X.npy or --random")
    if recorded is not None and limit is not None and limit > recorded:
        option = "--steps" if asked.limit else "--frames"
        raise InputError(f"{option} {limit}: the recordings have {recorded} frames")
    total = limit or recorded or STEPS * spec.pulse
    if total % spec.multiple:
        raise InputError(f"{total} frames are no multiple of {spec.multiple}, as --multiple says of every recording")
    if total < asked.shortest:
        raise InputError(f"{total} frames are fewer than --shortest {asked.shortest}")
    with exact_types():
        bind([each for each in whole if each.name in given], given)
    if not given and spec.batch_symbol in symbols_of(spec.inputs):
        sizes = {str(spec.batch_symbol): 1, **sizes}
    limits = {} if source.model is None else index_limits(source.model)
    # The sizes of a streamed model have been fixed; recordings that are given say how many frames all of them have.
    known = {**(sizes if source.stepper is not None else {}), **({} if recorded is not None else {symbol: total})}
    sample = random_arrays(whole, given, dims=known, seed=asked.seed, limits=limits)
    kept = {name: size for name, size in {**sizes, **sample.dims}.items() if spec.streams or name != symbol}
    stepping.check_size(spec)
    return stepper, dataclasses.replace(sample, dims=kept), total


def _streamed(model: Model, pulse: int | None, asked: Asked) -> tuple[Stepper, dict[str, int]]:
    """The model in pulses, and the sizes of its other open dimensions, as recordings or --dim give them."""
    from jaxrnn.cli.stepping import stream_model
    from jaxrnn.verification.sampling import random_inputs, restore_types, symbols_of

    symbol = asked.symbol or ""
    if symbol not in symbols_of(model.inputs):
        names = ", ".join(symbols_of(model.inputs)) or "none"
        raise InputError(f"{model.label}: no input has a dimension {symbol!r}; --symbol takes one of: {names}")
    if symbol in asked.sizes:
        raise InputError(f"--dim {symbol}: give the number of frames with --frames")
    given = restore_types(model.inputs, asked.given)
    # What does not fit is refused when all is known; the sizes come with what does.
    known = [info for info in model.inputs if info.name in given and len(info.shape or ()) == given[info.name].ndim]
    dims = asked.sizes if symbol in symbols_of(known) else {**asked.sizes, symbol: asked.multiple}
    first = random_inputs(model, {info.name: given[info.name] for info in known}, dims=dims, seed=asked.seed)
    sizes = {name: size for name, size in first.dims.items() if name != symbol}
    return stream_model(model, symbol, pulse, sizes, asked.multiple, asked.shortest), sizes


def _duration(rate: float | None, hop: float | None, step_seconds: float | None) -> float | None:
    """The seconds that a step lasts in the recording, where they are known."""
    if (rate is None) != (hop is None):
        raise click.UsageError("--rate and --hop go together: a step lasts hop / rate seconds")
    if rate is None or hop is None:
        return step_seconds
    if step_seconds is not None:
        raise click.UsageError("give --rate and --hop, or --step-seconds, but not both")
    return hop / rate


def _check_mode(symbol: str | None, of_steps: dict[str, Any], of_pulses: dict[str, Any]) -> None:
    """Refuse the options of one way of running in the other."""
    check_pulse_options(symbol, of_pulses)
    given = next((option for option, value in of_steps.items() if value), None)
    if symbol is not None and given is not None:
        raise click.UsageError(f"{given} is about steps; with --symbol, give --frames, and --rate with --hop")


def _open(file: Path, static: tuple[str, ...], pairs: tuple[str, ...], symbol: str | None) -> Source:
    from jaxrnn.errors import StateError
    from jaxrnn.model.loading import load
    from jaxrnn.runtime.compiled import is_compiled, load_compiled

    if is_compiled(file):
        if static or pairs:
            raise click.UsageError(f"{file} is compiled: --static and --state have been decided by 'jaxrnn compile'")
        if symbol is not None:
            raise click.UsageError(f"{file} is compiled: --symbol needs the ONNX file")
        return Source(None, load_compiled(file), None)
    model = load(file, static=parse_static(static), state=parse_state(pairs))
    if symbol is not None:
        return Source(model, None, model.params)
    try:
        _ = model.spec
    except StateError as error:
        raise StateError(f"{error}. {_about_pulses(model)}") from error
    return Source(model, model, model.params)


def _about_pulses(model: Model) -> str:
    """How to stream a model that has no steps of its own."""
    from jaxrnn.model.inspection import time_symbols

    symbols = time_symbols(model)
    if not symbols:
        return "For pulses (--symbol NAME), export it with a symbolic dimension for time"
    others = f" (or {', '.join(symbols[1:])}, whichever is time)" if symbols[1:] else ""
    return f"Here, in pulses of the recording: --symbol {symbols[0]}{others}, with --pulse FRAMES for a size of pulse"
