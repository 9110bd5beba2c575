"""``jaxrnn stream``: a model in steps or pulses over recordings, and how long they took."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from jaxrnn.cli.options import (
    check_folder,
    input_options,
    json_option,
    load_inputs,
    model_argument,
    parse_static,
    save_archive,
    single_dims,
    split_pairs,
    state_option,
)
from jaxrnn.cli.output import busy, console, counting, number, print_json, print_table, time_rows

if TYPE_CHECKING:
    from jaxrnn.cli.stepping import Ready, Run, Steps
    from jaxrnn.model import Model
    from jaxrnn.verification.sampling import Sample

#: Steps over random inputs, if nobody asks for another number.
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
@click.option(
    "--symbol",
    metavar="NAME",
    help="The open dimension of the inputs that is time: stream over it in pulses. 'jaxrnn inspect' shows which can be.",
)
@click.option(
    "--pulse",
    type=click.IntRange(min=1),
    metavar="FRAMES",
    help="New input frames a step, with --symbol. [default: the fewest that fit the model's strides]",
)
@click.option(
    "--frames",
    type=click.IntRange(min=1),
    help=f"How many frames, with --symbol. [default: the whole recording; {STEPS} pulses if all is random]",
)
@click.option(
    "--multiple",
    type=click.IntRange(min=1),
    metavar="FRAMES",
    help="With --symbol: every recording has a multiple of so many frames, where the model works on no others.",
)
@click.option(
    "--shortest",
    type=click.IntRange(min=1),
    metavar="FRAMES",
    help="With --symbol: no recording has fewer frames, where an error asks for such a constraint.",
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
    help="Write the outputs, stacked along the first axis, and the last state as state/NAME. With --symbol, write them "
    "as the model gives them for the whole recording.",
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

    Without --symbol, a call of the model is a step: FILE is an ONNX file whose state is among its inputs and outputs,
    or what 'jaxrnn compile' made of one. Inputs are recordings with their frames stacked along a first axis:
    [frames, *shape of the input].

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
        check_folder(output)
    given, sizes = load_inputs(input_files, inputs_file), single_dims(dims)
    if sizes and not use_random:
        raise click.UsageError("--dim sets the sizes of random inputs: it needs --random")
    # A step is shorter than handing it to another thread.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if symbol is not None:
        from jaxrnn.cli.stepping import is_compiled
        from jaxrnn.cli.streaming import Wish, stream_pulses

        if is_compiled(file):
            raise click.UsageError(f"{file} is compiled: --symbol needs the ONNX file")
        model = _load(file, static, pairs)
        wish = Wish(symbol, pulse, multiple or 1, shortest or 1, frames, use_random, seed, verify, duration, output)
        if not stream_pulses(file, model, given, sizes, wish, as_json=as_json):
            ctx.exit(MISMATCH)
        return
    steps = _open(file, static, pairs)
    sample, count = _recordings(steps, given, sizes, seed, use_random, limit)
    with busy(f"compiling {file.name}"), sample.blamed():
        ready = stepping.make_ready(steps, stepping.frame_of(sample.inputs, 0), sample.dims)
    with counting("streaming", count) as indices:
        run = stepping.run_steps(ready, sample.inputs, indices, keep=output is not None)
    if output is not None:
        save_archive(output, {**run.outputs, **{f"state/{name}": array for name, array in run.state.items()}})
    result = _report(file, steps, sample, ready, run, duration)
    result["output"] = None if output is None else str(output)
    print_json(result) if as_json else _print(result, seed)


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
    given = next((option for option, value in (of_pulses if symbol is None else of_steps).items() if value), None)
    if given is not None and symbol is None:
        raise click.UsageError(f"{given} is about pulses: it needs --symbol NAME, the dimension that is time")
    if given is not None:
        raise click.UsageError(f"{given} is about steps; with --symbol, give --frames, and --rate with --hop")


def _open(file: Path, static: tuple[str, ...], pairs: tuple[str, ...]) -> Steps:
    from jaxrnn.cli.stepping import Steps, is_compiled
    from jaxrnn.errors import StateError

    if is_compiled(file):
        from jaxrnn.ahead import load_compiled

        if static or pairs:
            raise click.UsageError(f"{file} is compiled: --static and --state have been decided by 'jaxrnn compile'")
        return Steps.of_compiled(load_compiled(file), str(file))
    model = _load(file, static, pairs)
    try:
        return Steps.of_model(model)
    except StateError as error:
        raise StateError(f"{error}. {_about_pulses(model)}") from error


def _load(file: Path, static: tuple[str, ...], pairs: tuple[str, ...]) -> Model:
    from jaxrnn.model import load

    return load(file, static=parse_static(static), state=split_pairs("--state", pairs))


def _about_pulses(model: Model) -> str:
    """How to stream a model that has no steps of its own."""
    from jaxrnn.inspection import time_symbols

    symbols = time_symbols(model)
    if not symbols:
        return "For pulses (--symbol NAME), export it with a symbolic dimension for time"
    others = f" (or {', '.join(symbols[1:])}, whichever is time)" if symbols[1:] else ""
    return f"Here, in pulses of the recording: --symbol {symbols[0]}{others}, with --pulse FRAMES for a size of pulse"


def _recordings(
    steps: Steps, given: dict[str, np.ndarray], sizes: dict[str, int], seed: int, use_random: bool, limit: int | None
) -> tuple[Sample, int]:
    """Recordings of every input, and the number of steps to take over them."""
    from jaxrnn.cli.stepping import count_frames, missing_inputs
    from jaxrnn.errors import InputError
    from jaxrnn.verification.sampling import random_arrays, restore_types, symbols_of

    given = restore_types(steps.inputs, given)
    frames = count_frames(steps, given)
    missing = missing_inputs(steps, given)
    if missing and not use_random:
        raise InputError(f"{steps.label}: no recording of input(s) {missing}; give --input NAME=X.npy or --random")
    if frames is None:
        frames = limit or STEPS
    if limit is not None and limit > frames:
        raise InputError(f"--steps {limit}: the recordings have {frames} frames")
    count = limit or frames
    given = {name: array[:count] for name, array in given.items()}
    if not given and steps.batch_symbol in symbols_of(steps.inputs):
        sizes = {steps.batch_symbol: 1, **sizes}
    return random_arrays(steps.inputs, given, dims=sizes, seed=seed, limits=steps.limits, frames=count), count


def _report(file: Path, steps: Steps, sample: Sample, ready: Ready, run: Run, duration: float | None) -> dict[str, Any]:
    """The figures by name, ready for JSON."""
    from jaxrnn.cli.stepping import has_no_number, times_of

    return {
        "model": str(file),
        "steps": len(run.seconds),
        "dims": sample.dims,
        "random": sample.random,
        "state": steps.state,
        "compile_seconds": ready.seconds,
        "microseconds": times_of(run.seconds),
        "step_seconds": duration,
        "times_real_time": None if duration is None else duration * len(run.seconds) / float(run.seconds.sum()),
        "not_finite": [name for name, array in run.state.items() if has_no_number(array)],
    }


def _print(result: dict[str, Any], seed: int) -> None:
    out = console()
    if result["random"]:
        dims = "".join(f", {name}={size}" for name, size in result["dims"].items())
        out.print(f"random: {', '.join(result['random'])} (seed {seed}{dims})")
    out.print(f"state: {', '.join(result['state']) or 'none'}")
    rows = [
        ("steps", result["steps"]),
        ("packing and compiling", f"{result['compile_seconds']:.2f} s"),
        *time_rows("a step", result["microseconds"]),
    ]
    if result["times_real_time"] is not None:
        rows.append(("a step lasts", f"{number(1e3 * result['step_seconds'])} ms"))
        rows.append(("speed", f"{number(result['times_real_time'])} times real time"))
    print_table(out, f"Steps of {result['model']}", ("figure", "value"), rows, right=("value",))
    if result["not_finite"]:
        out.print(f"not finite behind the last step: state {', '.join(result['not_finite'])}", style="yellow")
    if result["output"] is not None:
        out.print(f"written to {result['output']}")
