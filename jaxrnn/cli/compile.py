"""``jaxrnn compile``: a model's steps or pulses, ahead of time, in one file that has been seen to work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jaxrnn._files.messages import bytes_of
from jaxrnn._files.stores import in_place_of
from jaxrnn.cli.errors import MismatchError
from jaxrnn.cli.inputs import dim_option
from jaxrnn.cli.options import ModelFile, json_option, model_file, output_option
from jaxrnn.cli.output import Block, Table, TextLine, busy, fields, show, text_of
from jaxrnn.cli.pulses import PulseOptions, pulse_options

if TYPE_CHECKING:
    from jaxrnn.model import Model
    from jaxrnn.steps.stepper import Stepper
    from jaxrnn.verification import Comparison


@click.command("compile")
@model_file
@output_option("OUT.jaxrnn", "The file to write. It appears when it has been loaded again and compared.", required=True)
@dim_option("Size of an open dimension of the inputs, other than the batch and time. 'jaxrnn inspect' shows the names.")
@pulse_options
@click.option(
    "--platform",
    "platforms",
    multiple=True,
    type=click.Choice(["cpu", "cuda", "rocm", "tpu"]),
    help="What to compile for; may be given several times. [default: what JAX uses here]",
)
@click.option(
    "--native",
    is_flag=True,
    help="Keep machine code, too, for this processor and installation: where it is asked for, nothing is compiled.",
)
@click.option(
    "--streams",
    "batches",
    multiple=True,
    type=click.IntRange(min=1),
    help="With --native, how many streams besides a single one it is for; may be given several times.",
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
    """Write a model's parameters and its step to a file that needs no ONNX to run.

    Without --symbol, a call of the model is a step: the file has a scan, too, with the number of frames left open.
    With --symbol, the model works on whole recordings, and is turned into one that takes --pulse frames a step. The
    number of streams stays open in both.

    jaxrnn.load_compiled reads the file. Before it appears it is loaded again, and what it gives on random inputs is
    compared with what the model gives: some steps, and the flush. Exit status 1 if they differ.

    \b
    Examples:
      jaxrnn compile dtln_1.onnx -o dtln_1.jaxrnn
      jaxrnn compile vad.onnx -o vad.jaxrnn --static sr=16000 --dim sequence=576 --platform cpu --platform cuda
      jaxrnn compile keywords.onnx -o keywords.jaxrnn --symbol S --pulse 4
      jaxrnn compile keywords.onnx -o keywords.jaxrnn --symbol S --native --streams 64
    """  # noqa: D301
    from jaxrnn.cli.compile_checks import compare_steppers
    from jaxrnn.errors import ModelError
    from jaxrnn.runtime.compiled import is_compiled, load_compiled, save_compiled

    if batches and not native:
        raise click.UsageError("--streams is for machine code, which --native asks for: the rest serves any number")
    if is_compiled(file.path):
        raise ModelError(f"{file.path} is compiled already")
    with in_place_of(output) as written, busy(f"compiling {file.path.name}"):
        model = file.load()
        stepper: Stepper
        if pulses.symbol is None:
            _check_steps(model)
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
        checks = compare_steppers(model, stepper, compiled) if not platforms or _runs_here(platforms) else None
        _refuse([check for check in checks or () if not check.ok])
    spec = compiled.spec
    result = {
        "model": str(file.path),
        "output": str(output),
        "bytes": output.stat().st_size,
        "platforms": list(platforms) or [_default_platform()],
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


def _check_steps(model: Model) -> None:
    """Point a model that has no steps to pulses."""
    from jaxrnn.errors import StateError

    forgets = any(variable.kind == "internal" for variable in model.state)
    try:
        _ = model.spec
    except StateError as error:
        if not forgets:
            raise
        raise StateError(
            f"{error}. Here: --symbol NAME, the open dimension that is time; 'jaxrnn inspect' shows which can"
        ) from error


def _runs_here(platforms: tuple[str, ...]) -> bool:
    here = _default_platform()
    # JAX calls both kinds of graphics processor "gpu".
    return here in platforms or (here == "gpu" and bool({"cuda", "rocm"} & set(platforms)))


def _default_platform() -> str:
    import jax

    return jax.default_backend()


def _refuse(wrong: list[Comparison]) -> None:
    if wrong:
        said = (f"{check.name}: {check.reason} (largest difference {text_of(check.max_abs)})" for check in wrong)
        raise MismatchError(
            "nothing was written: a step or the flush of the compiled file differs from the model's: " + "; ".join(said)
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
        yield f"delay: {', '.join(delays)}"
    for title in ("inputs", "state"):
        yield Table(f"{title.capitalize()} of a step", fields("name", "dtype", "shape"), result[title])
    yield ""
    yield f"outputs: {', '.join(result['outputs']) or 'none'}"
    if result["verified"]:
        difference = text_of(result["largest_difference"])
        yield f"loaded again: a step or the flush differs from the model's by at most {difference}"
    else:
        yield TextLine("not verified: JAX has none of these platforms here", "yellow")
