"""``jaxrnn stream`` of a model that is a step: over recordings, what is said of it, and what is written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrnn.cli.options import save_archive
from jaxrnn.cli.output import busy, console, counting, number, print_json, print_table, time_rows

if TYPE_CHECKING:
    from jaxrnn.cli.stepping import Ready, Run, Steps
    from jaxrnn.verification.sampling import Sample


@dataclass(frozen=True)
class Request:
    """What the command was asked for.

    Attributes:
        limit: steps to take; None for the whole recording.
        default: steps over random inputs alone, without a limit.
        use_random: make the recordings that are missing.
        seed: of the random recordings.
        step_seconds: what a step lasts, where it is known.
        output: the file to write.
    """

    limit: int | None
    default: int
    use_random: bool
    seed: int
    step_seconds: float | None
    output: Path | None


def run(
    file: Path, steps: Steps, given: dict[str, np.ndarray], sizes: dict[str, int], asked: Request, *, as_json: bool
) -> None:
    """Run over recordings, print and write."""
    from jaxrnn.cli import stepping

    sample, count = _recordings(steps, given, sizes, asked)
    with busy(f"compiling {file.name}"), sample.blamed():
        ready = stepping.make_ready(steps, stepping.frame_of(sample.inputs, 0), sample.dims)
    with counting("streaming", count) as indices:
        run = stepping.run_steps(ready, sample.inputs, indices, keep=asked.output is not None)
    if asked.output is not None:
        save_archive(asked.output, {**run.outputs, **{f"state/{name}": array for name, array in run.state.items()}})
    result = _report(file, steps, sample, ready, run, asked.step_seconds)
    result["output"] = None if asked.output is None else str(asked.output)
    print_json(result) if as_json else _print(result, asked.seed)


def _recordings(
    steps: Steps, given: dict[str, np.ndarray], sizes: dict[str, int], asked: Request
) -> tuple[Sample, int]:
    """Recordings of every input, and the number of steps to take over them."""
    from jaxrnn.cli.stepping import count_frames, missing_inputs
    from jaxrnn.errors import InputError
    from jaxrnn.verification.sampling import random_arrays, restore_types, symbols_of

    given = restore_types(steps.inputs, given)
    frames = count_frames(steps, given)
    missing = missing_inputs(steps, given)
    if missing and not asked.use_random:
        raise InputError(f"{steps.label}: no recording of input(s) {missing}; give --input NAME=X.npy or --random")
    if frames is None:
        frames = asked.limit or asked.default
    if asked.limit is not None and asked.limit > frames:
        raise InputError(f"--steps {asked.limit}: the recordings have {frames} frames")
    count = asked.limit or frames
    given = {name: array[:count] for name, array in given.items()}
    if not given and steps.batch_symbol in symbols_of(steps.inputs):
        sizes = {steps.batch_symbol: 1, **sizes}
    return random_arrays(steps.inputs, given, dims=sizes, seed=asked.seed, limits=steps.limits, frames=count), count


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
