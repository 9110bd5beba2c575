"""``jaxrnn compile``: write steps or pulses of a model, compiled ahead of time and verified, to one file."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from jaxrnn._files.messages import bytes_of
from jaxrnn.cli.commands import Choice, Given, Option, Taken, command
from jaxrnn.cli.errors import MismatchError
from jaxrnn.cli.options import OUTPUT, Dims, InputFiles, ModelFile, new_file
from jaxrnn.cli.output import Block, Table, TextLine, busy, fields, past_line, show, text_of
from jaxrnn.cli.stream_options import PulseOptions, check_steps

if TYPE_CHECKING:
    from jaxrnn.model import Model
    from jaxrnn.runtime.compiled import CompiledStepper
    from jaxrnn.steps.stepper import Stepper
    from jaxrnn.verification import Comparison


@command
def compile_(
    *,
    file: ModelFile,
    output: Annotated[Path, new_file("OUT.jaxrnn", *OUTPUT)],
    dims: Dims,
    pulses: PulseOptions,
    options: Annotated[
        Given,
        Taken(
            "jaxrnn.runtime.compiled:save_compiled",
            platforms=Option(("--platform",), type=Choice(["cpu", "cuda", "rocm", "tpu"])),
            native=Option(),
            batches=Option(("--streams",), type=click.IntRange(1)),
        ),
    ],
    given: InputFiles,
) -> None:
    """Write the parameters and the step of a model to a file that runs without ONNX.

    Without --symbol, a call of the model is a step, and the file also has a scan with an open number of frames. With
    --symbol, an offline model becomes a stream that takes --pulse frames per step. The number of streams stays open.

    jaxrnn.load_compiled reads the file. Before the file appears, it is loaded again, and some steps and the flush are
    compared with those of the model, on random inputs or on the recordings of --input and --inputs, in the layout of
    'jaxrnn stream'. Exit status 1 if they differ, and if an output has no finite element to compare.

    Examples:
      jaxrnn compile dtln_1.onnx -o dtln_1.jaxrnn
      jaxrnn compile vad.onnx -o vad.jaxrnn --static sr=16000 --dim sequence=576 --platform cpu --platform cuda
      jaxrnn compile keywords.onnx -o keywords.jaxrnn --symbol S --pulse 4
      jaxrnn compile keywords.onnx -o keywords.jaxrnn --symbol S --native --streams 64

    Args:
        output: File to write. The file appears once it has been loaded and compared.
        dims: Size of an open dimension of the inputs, other than the batch and time. 'jaxrnn inspect' shows the names.
        platforms: Platform to compile for; may be given several times. [default: the platform of JAX here]
        native: Also keep machine code for this processor and installation, which runs without compiling.
        batches: With --native: number of streams, besides a single stream; may be given several times.
    """
    import jax

    from jaxrnn._files.writing import in_place_of
    from jaxrnn.comparison import value_agrees
    from jaxrnn.errors import ModelError
    from jaxrnn.runtime.compiled import is_compiled, load_compiled, save_compiled

    platforms, native = options.get("platforms"), options.get("native", False)
    if "batches" in options and not native:
        raise click.UsageError("--streams needs --native: only machine code has a fixed number of streams")
    if is_compiled(file.path):
        raise ModelError(f"{file.path} is already compiled")
    with in_place_of(output) as written, busy(f"compiling {file.path.name}"):
        model = pulses.load(file)
        stepper: Stepper
        if pulses.time is None:
            check_steps(model)
            stepper = model
        else:
            stepper, dims = pulses.stream(model, dims), {}
        save_compiled(stepper, written, params=model.params, dims=dims, label=file.path.name, **options)
        compiled = load_compiled(written, native=native)
        here = jax.default_backend()
        # JAX calls both kinds of graphics processor "gpu".
        runs_here = not platforms or here in platforms or (here == "gpu" and {"cuda", "rocm"} & set(platforms))
        groups = compare_steppers(model, stepper, compiled, dims, given) if runs_here else None
        checks = None if groups is None else [check for group in groups.values() for check in group]
        if groups is not None and checks is not None and not all(map(value_agrees, groups.values())):
            raise MismatchError(_complaint(checks))
    spec = compiled.spec
    result = {
        "model": str(file.path),
        "output": str(output),
        "bytes": output.stat().st_size,
        "platforms": list(platforms or [here]),
        "functions": ["init", "step", "flush", *([] if spec.streams else ["scan"])],
        "native": list(compiled.native),
        "batch": spec.batch_symbol or "a leading axis",
        **spec.to_json(),
        "outputs": [info.name for info in model.outputs if info.name in spec.delay],
        "delay": spec.delay,
        "rate": {name: None if rate is None else str(rate) for name, rate in spec.rate.items()},
        "verified": checks is not None,
        "compared": None if checks is None else sum(check.compared for check in checks),
        "largest_difference": max(check.max_abs or 0.0 for check in checks) if checks else None,
    }
    show(result, _report)


def _complaint(checks: Sequence[Comparison]) -> str:
    """Describe the differences of a compiled file, or the values without a compared element."""
    if wrong := [check for check in checks if check.differs]:
        said = (f"{check.name}: {check.reason} (largest difference {text_of(check.max_abs)})" for check in wrong)
        return "nothing was written: a step or the flush of the compiled file differs from the model's: " + "; ".join(
            said
        )
    unknown = "; ".join(f"{check.name}: {check.reason}" for check in checks if not check.ok)
    return (
        f"nothing was written: the compiled file could not be compared with the model: {unknown}; give other --inputs"
    )


def _report(result: Mapping[str, Any]) -> Iterator[Block]:
    yield f"{result['output']}: {bytes_of(result['bytes'])}"
    yield f"functions: {', '.join(result['functions'])}, for {', '.join(result['platforms'])}"
    if result["native"]:
        yield f"machine code, for this processor and installation: {', '.join(result['native'])}"
    yield f"batch: {result['batch']}"
    if any(each["time_axis"] is not None for each in result["inputs"]):
        delays = (
            f"{name} comes at the end" if delay is None else f"{name} by {delay} of its frames"
            for name, delay in result["delay"].items()
        )
        yield f"pulse: {result['pulse']} input frame(s); look-ahead: {result['look_ahead']}"
        yield from past_line(result.get("past"))
        yield f"delay: {', '.join(delays)}"
    for title in ("inputs", "state"):
        yield Table(f"{title.capitalize()} of a step", fields("name", "dtype", "shape"), result[title])
    yield ""
    yield f"outputs: {', '.join(result['outputs']) or 'none'}"
    if result["verified"]:
        difference = text_of(result["largest_difference"])
        yield f"loaded again: a step or the flush differs from the model's by at most {difference}, in " + (
            f"{result['compared']:,} compared elements"
        )
    else:
        yield TextLine("not verified: JAX does not have these platforms here", "yellow")


#: Number of steps to compare: after the first step, the state differs from the initial state.
STEPS = 3


def compare_steppers(
    model: Model, stepper: Stepper, compiled: CompiledStepper, dims: Mapping[str, int], given: InputFiles
) -> dict[str, list[Comparison]]:
    """Compare a compiled file with the source over short recordings: some steps, and the flush of a stream.

    Returns the comparisons of each output, and of the floats and integers of the state.
    """
    import numpy as np

    from jaxrnn.comparison import compare
    from jaxrnn.errors import InputError
    from jaxrnn.steps.numpy_step import run
    from jaxrnn.steps.recordings import recording_specs
    from jaxrnn.verification import running
    from jaxrnn.verification.sampling import Sample, inside_domain, integer_ranges, random_arrays, symbols_of

    # Only the batch of a compiled file is open.
    sizes = {} if compiled.spec.batch_symbol is None else {compiled.spec.batch_symbol: 1}
    spec = compiled.spec.sized(sizes)
    specs, least = recording_specs(spec, "frames"), (STEPS + 1) * spec.pulse
    recorded = running.given_recordings(spec, given.of(specs))
    frames = spec.count_frames(recorded) or least
    if frames < least:
        raise InputError(f"the recordings to compare with have {frames:,} frames; {STEPS + 1} steps need {least:,}")
    opened = {"frames": frames} if "frames" in symbols_of(specs) else {}
    ranges = integer_ranges(model, {})
    totals = dict.fromkeys((least - spec.multiple, least)) if spec.streams else (STEPS,)

    def results(source: Stepper, params: Any, dims: Mapping[str, int], sample: Sample) -> dict[tuple[str, str], Any]:
        """Return the outputs and the last state of each recording, by output and place."""
        step, found = running.numpy_step(source, params, sample.inputs, dims), {}
        for total in totals:
            ran = run(step, sample.inputs, total)
            found |= {(name, f"{name} of {total} frame(s)"): value for name, value in ran.outputs.items()}
            for name, value in ran.state.items():
                kind = "floats" if np.issubdtype(value.dtype, np.inexact) else "integers"
                found[f"state, {kind}", f"state {name} after {total} frame(s)"] = value
        return {place: value for place, value in found.items() if value is not None}

    source = functools.partial(results, stepper, model.params, {**dims, **sizes})
    draw = functools.partial(random_arrays, specs, recorded, dims=opened, ranges=ranges)
    sample = inside_domain(draw, source)
    here, peers = results(compiled, None, sizes, sample), source(sample)
    groups: dict[str, list[Comparison]] = {}
    for place in {**here, **peers}:
        output, name = place
        groups.setdefault(output, []).append(compare(name, here.get(place), peers.get(place), scaled=True))
    return groups
