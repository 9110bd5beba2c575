"""``jaxrnn compile``: write steps or pulses of a model, compiled ahead of time and verified, to one file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from jaxrnn._files.messages import bytes_of
from jaxrnn._files.writing import in_place_of
from jaxrnn.cli.errors import MismatchError
from jaxrnn.cli.options import ModelFile, dim_option, json_option, model_file, output_option
from jaxrnn.cli.output import Block, Table, TextLine, busy, fields, past_line, show, text_of
from jaxrnn.cli.stream_options import PulseOptions, check_steps, pulse_options

if TYPE_CHECKING:
    from jaxrnn.model import Model
    from jaxrnn.runtime.compiled import CompiledStepper
    from jaxrnn.steps.stepper import Stepper
    from jaxrnn.verification import Comparison


@click.command("compile")
@model_file
@output_option("OUT.jaxrnn", "File to write. The file appears once it has been loaded and compared.", required=True)
@dim_option("Size of an open dimension of the inputs, other than the batch and time. 'jaxrnn inspect' shows the names.")
@pulse_options()
@click.option(
    "--platform",
    "platforms",
    multiple=True,
    type=click.Choice(["cpu", "cuda", "rocm", "tpu"]),
    help="Platform to compile for; may be given several times. [default: the platform of JAX here]",
)
@click.option(
    "--native",
    is_flag=True,
    help="Also keep machine code for this processor and installation, which runs without compiling.",
)
@click.option(
    "--streams",
    "batches",
    multiple=True,
    type=click.IntRange(min=1),
    help="With --native: number of streams, besides a single stream; may be given several times.",
)
@json_option
def compile_model(
    file: ModelFile,
    output: Path,
    dims: dict[str, int],
    pulses: PulseOptions,
    platforms: tuple[str, ...],
    native: bool,
    batches: tuple[int, ...],
) -> None:
    """Write the parameters and the step of a model to a file that runs without ONNX.

    Without --symbol, a call of the model is a step, and the file also has a scan with an open number of frames. With
    --symbol, an offline model becomes a stream that takes --pulse frames per step. The number of streams stays open.

    jaxrnn.load_compiled reads the file. Before the file appears, it is loaded again, and some steps and the flush on
    random inputs are compared with those of the model. Exit status 1 if they differ.

    \b
    Examples:
      jaxrnn compile dtln_1.onnx -o dtln_1.jaxrnn
      jaxrnn compile vad.onnx -o vad.jaxrnn --static sr=16000 --dim sequence=576 --platform cpu --platform cuda
      jaxrnn compile keywords.onnx -o keywords.jaxrnn --symbol S --pulse 4
      jaxrnn compile keywords.onnx -o keywords.jaxrnn --symbol S --native --streams 64
    """  # noqa: D301
    import jax

    from jaxrnn.errors import ModelError
    from jaxrnn.runtime.compiled import is_compiled, load_compiled, save_compiled

    if batches and not native:
        raise click.UsageError("--streams needs --native: only machine code has a fixed number of streams")
    if is_compiled(file.path):
        raise ModelError(f"{file.path} is already compiled")
    with in_place_of(output) as written, busy(f"compiling {file.path.name}"):
        model = pulses.load(file)
        stepper: Stepper
        if pulses.symbol is None:
            check_steps(model)
            stepper = model
        else:
            stepper, dims = pulses.stream(model, dims), {}
        save_compiled(
            stepper,
            written,
            params=model.params,
            dims=dims,
            platforms=platforms or None,
            label=file.path.name,
            native=native,
            batches=batches,
        )
        compiled = load_compiled(written, native=native)
        here = jax.default_backend()
        # JAX calls both kinds of graphics processor "gpu".
        runs_here = not platforms or here in platforms or (here == "gpu" and {"cuda", "rocm"} & set(platforms))
        checks = compare_steppers(model, stepper, compiled) if runs_here else None
        if wrong := [check for check in checks or () if not check.ok]:
            said = (f"{check.name}: {check.reason} (largest difference {text_of(check.max_abs)})" for check in wrong)
            raise MismatchError(
                "nothing was written: a step or the flush of the compiled file differs from the model's: "
                + "; ".join(said)
            )
    spec = compiled.spec
    result = {
        "model": str(file.path),
        "output": str(output),
        "bytes": output.stat().st_size,
        "platforms": list(platforms) or [here],
        "functions": ["init", "step", "flush", *([] if spec.streams else ["scan"])],
        "native": list(compiled.native),
        "batch": spec.batch_symbol or "a leading axis",
        **spec.to_json(),
        "outputs": [info.name for info in model.outputs if info.name in spec.delay],
        "delay": spec.delay,
        "rate": {name: None if rate is None else str(rate) for name, rate in spec.rate.items()},
        "verified": checks is not None,
        "largest_difference": None if checks is None else max((check.max_abs or 0.0 for check in checks), default=0.0),
    }
    show(result, _report)


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
        yield f"loaded again: a step or the flush differs from the model's by at most {difference}"
    else:
        yield TextLine("not verified: JAX does not have these platforms here", "yellow")


#: Number of steps to compare: after the first step, the state differs from the initial state.
STEPS = 3


def compare_steppers(model: Model, stepper: Stepper, compiled: CompiledStepper) -> list[Comparison]:
    """Compare a compiled file with the source: some steps from the initial state, and the flush of a stream."""
    import jax

    from jaxrnn.steps.recordings import one_step, recording_specs
    from jaxrnn.steps.stepper import Bound
    from jaxrnn.verification.comparison import compare
    from jaxrnn.verification.sampling import index_limits, random_arrays

    # Only the batch of a compiled file is open.
    spec = compiled.spec if compiled.spec.batch_symbol is None else compiled.spec.sized({compiled.spec.batch_symbol: 1})
    frames = (STEPS + 1) * spec.pulse
    recordings = random_arrays(recording_specs(spec, "frames"), {}, dims={"frames": frames}, limits=index_limits(model))
    steps = [one_step(spec, recordings.inputs, index) for index in range(STEPS + 1)]

    def results(bound: Bound, step: Callable[..., Any], flush: Callable[..., Any]) -> dict[str, Any]:
        """Return the last outputs and state of some steps, and the results of flushes."""
        state, outputs = bound.start({name: recordings.inputs[name] for name in spec.constants} or None), {}
        for inputs in steps[:-1]:
            outputs, state = step(state, inputs)
        found = {**outputs, **{f"state {name}": value for name, value in state.items()}}
        # A tail may be too short for an output frame.
        for valid in (spec.pulse - spec.multiple, spec.pulse) if spec.streams else ():
            rest = flush(state, steps[-1], np.int32(valid))
            for what, values in (("flush", rest.outputs), ("frames", rest.counts)):
                found |= {f"{what} of {name} after {valid} frame(s)": value for name, value in values.items()}
        return {name: value for name, value in found.items() if value is not None}

    ours, source = Bound(compiled), Bound(stepper, model.params)
    here = results(ours, ours.step, ours.flush)
    peers = results(source, jax.jit(source.step), jax.jit(source.flush))
    return [compare(name, here.get(name), peers.get(name), scaled=True) for name in {**here, **peers}]
