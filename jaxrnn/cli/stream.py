"""``jaxrnn stream``: a model with state, step by step over recordings, and how long the steps took."""

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
from jaxrnn.cli.output import busy, console, counting, number, print_json, print_table

if TYPE_CHECKING:
    from jaxrnn.cli.stepping import Ready, Run, Steps
    from jaxrnn.verification.sampling import Sample

#: Steps over random inputs, if nobody asks for another number.
STEPS = 500
PERCENTILES = (50, 95, 99)


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
@click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="HZ", help="Samples a second, with --hop.")
@click.option("--hop", type=click.FloatRange(0, min_open=True), metavar="SAMPLES", help="New samples a step.")
@click.option(
    "--step-seconds", type=click.FloatRange(0, min_open=True), metavar="S", help="What a step lasts, without --rate."
)
@click.option(
    "--output",
    "-o",
    metavar="OUT.npz",
    type=click.Path(path_type=Path),
    help="Write the outputs, stacked along the first axis, and the last state as state/NAME.",
)
@json_option
def stream(
    file: Path,
    input_files: tuple[str, ...],
    inputs_file: Path | None,
    static: tuple[str, ...],
    dims: tuple[str, ...],
    seed: int,
    pairs: tuple[str, ...],
    use_random: bool,
    limit: int | None,
    rate: float | None,
    hop: float | None,
    step_seconds: float | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Run a model step by step with its state carried on, and time every step.

    FILE is an ONNX file whose state is among its inputs and outputs, or what 'jaxrnn compile' made of one. Inputs are
    recordings with their frames stacked along a first axis: [frames, *shape of the input]. A step's time is that from
    NumPy arrays to NumPy arrays, in one process with the step compiled and its parameters packed.

    \b
    Examples:
      jaxrnn stream dtln_1.onnx --input input_2=magnitudes.npy --rate 16000 --hop 128 --output masks.npz
      jaxrnn stream vad.onnx --static sr=16000 --random --dim sequence=576 --rate 16000 --hop 512
      jaxrnn stream model.jaxrnn --random --steps 2000 --json
    """  # noqa: D301
    import jax

    from jaxrnn.cli import stepping

    duration = _duration(rate, hop, step_seconds)
    if output is not None:
        check_folder(output)
    given, sizes = load_inputs(input_files, inputs_file), single_dims(dims)
    if sizes and not use_random:
        raise click.UsageError("--dim sets the sizes of random inputs: it needs --random")
    # A step is shorter than handing it to another thread.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
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


def _open(file: Path, static: tuple[str, ...], pairs: tuple[str, ...]) -> Steps:
    from jaxrnn.cli.stepping import Steps, is_compiled

    fixed, state = parse_static(static), split_pairs("--state", pairs)
    if is_compiled(file):
        from jaxrnn.ahead import load_compiled

        if fixed or state:
            raise click.UsageError(f"{file} is compiled: --static and --state have been decided by 'jaxrnn compile'")
        return Steps.of_compiled(load_compiled(file), str(file))
    from jaxrnn.model import load

    return Steps.of_model(load(file, static=fixed, state=state))


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
    microseconds = 1e6 * run.seconds
    figures = {f"p{level}": float(np.percentile(microseconds, level)) for level in PERCENTILES}
    return {
        "model": str(file),
        "steps": len(microseconds),
        "dims": sample.dims,
        "random": sample.random,
        "state": steps.state,
        "compile_seconds": ready.seconds,
        "microseconds": {**figures, "max": float(microseconds.max())},
        "step_seconds": duration,
        "times_real_time": None if duration is None else duration * len(microseconds) / float(run.seconds.sum()),
        "not_finite": [name for name, array in run.state.items() if _has_no_number(array)],
    }


def _has_no_number(array: np.ndarray) -> bool:
    import jax.numpy as jnp

    return bool(jnp.issubdtype(array.dtype, jnp.inexact)) and not np.isfinite(array.astype(np.complex128)).all()


def _print(result: dict[str, Any], seed: int) -> None:
    out = console()
    if result["random"]:
        dims = "".join(f", {name}={size}" for name, size in result["dims"].items())
        out.print(f"random: {', '.join(result['random'])} (seed {seed}{dims})")
    out.print(f"state: {', '.join(result['state']) or 'none'}")
    microseconds = result["microseconds"]
    rows = [
        ("steps", result["steps"]),
        ("packing and compiling", f"{result['compile_seconds']:.2f} s"),
        ("a step, median", f"{microseconds['p50']:.1f} µs"),
        ("a step, 95th percentile", f"{microseconds['p95']:.1f} µs"),
        ("a step, 99th percentile", f"{microseconds['p99']:.1f} µs"),
        ("a step, longest", f"{microseconds['max']:.1f} µs"),
    ]
    if result["times_real_time"] is not None:
        rows.append(("a step lasts", f"{number(1e3 * result['step_seconds'])} ms"))
        rows.append(("speed", f"{number(result['times_real_time'])} times real time"))
    print_table(out, f"Steps of {result['model']}", ("figure", "value"), rows, right=("value",))
    if result["not_finite"]:
        out.print(f"not finite behind the last step: state {', '.join(result['not_finite'])}", style="yellow")
    if result["output"] is not None:
        out.print(f"written to {result['output']}")
