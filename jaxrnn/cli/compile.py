"""``jaxrnn compile``: a model's steps or pulses, ahead of time, in one file that has been seen to work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jaxrnn.checks import check_writable
from jaxrnn.cli.output import busy, console, number, print_json, print_table, shape_text
from jaxrnn.cli.stream_options import (
    check_pulse_options,
    json_option,
    model_argument,
    parse_state,
    parse_static,
    pulse_options,
    single_dims,
    state_option,
    static_option,
)
from jaxrnn.messages import bytes_of
from jaxrnn.writing import in_place_of

if TYPE_CHECKING:
    from jaxrnn.model import Model
    from jaxrnn.stepper import Stepper, StepSpec
    from jaxrnn.verification import Comparison

MISMATCH = 1


@click.command("compile")
@model_argument
@click.option(
    "--output",
    "-o",
    required=True,
    metavar="OUT.jaxrnn",
    type=click.Path(path_type=Path),
    help="The file to write. It appears when it has been loaded again and compared.",
)
@static_option
@click.option(
    "--dim",
    "dims",
    metavar="NAME=SIZE",
    multiple=True,
    help="Size of an open dimension of the inputs, other than the batch and time. 'jaxrnn inspect' shows the names.",
)
@state_option
@pulse_options
@click.option(
    "--platform",
    "platforms",
    multiple=True,
    type=click.Choice(["cpu", "cuda", "rocm", "tpu"]),
    help="What to compile for; may be given several times. [default: what JAX uses here]",
)
@json_option
@click.pass_context
def compile_model(
    ctx: click.Context,
    file: Path,
    output: Path,
    static: tuple[str, ...],
    dims: tuple[str, ...],
    pairs: tuple[str, ...],
    symbol: str | None,
    pulse: int | None,
    multiple: int | None,
    shortest: int | None,
    platforms: tuple[str, ...],
    as_json: bool,
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
    """  # noqa: D301
    from jaxrnn.cli.compile_checks import compare_steppers
    from jaxrnn.cli.stepping import stream_model
    from jaxrnn.errors import ModelError
    from jaxrnn.model.loading import load
    from jaxrnn.runtime.compiled import is_compiled, load_compiled, save_compiled

    check_pulse_options(symbol, {"--pulse": pulse, "--multiple": multiple, "--shortest": shortest})
    check_writable(output)
    sizes, fixed, state = single_dims(dims), parse_static(static), parse_state(pairs)
    if is_compiled(file):
        raise ModelError(f"{file} is compiled already")
    with in_place_of(output) as written:
        with busy(f"compiling {file.name}"):
            model = load(file, static=fixed, state=state)
            stepper: Stepper
            if symbol is None:
                _check_steps(model)
                stepper, kept = model, sizes
            else:
                stepper, kept = stream_model(model, symbol, pulse, sizes, multiple or 1, shortest or 1), {}
            save_compiled(
                stepper, written, params=model.params, dims=kept, platforms=platforms or None, label=file.name
            )
            compiled = load_compiled(written)
            checks = None
            if not platforms or _runs_here(platforms):
                checks = compare_steppers(model, stepper, compiled)
        if checks is not None and not all(check.ok for check in checks):
            _refuse(ctx, checks, as_json)
    spec = compiled.spec
    result = {
        "model": str(file),
        "output": str(output),
        "bytes": output.stat().st_size,
        "platforms": list(platforms) or [_default_platform()],
        "functions": ["init", "step", "flush", *([] if spec.streams else ["scan"])],
        "batch": spec.batch_symbol or "a leading axis",
        **spec.to_json(),
        "outputs": [info.name for info in model.outputs if info.name in spec.delay],
        "delay": spec.delay,
        "rate": {name: None if rate is None else str(rate) for name, rate in spec.rate.items()},
        "verified": checks is not None,
        "largest_difference": None if checks is None else max((check.max_abs or 0.0 for check in checks), default=0.0),
    }
    print_json(result) if as_json else _print(result, spec)


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


def _refuse(ctx: click.Context, checks: list[Comparison], as_json: bool) -> None:
    wrong = [check for check in checks if not check.ok]
    said = "; ".join(f"{check.name}: {check.reason} (largest difference {number(check.max_abs)})" for check in wrong)
    message = f"nothing was written: a step or the flush of the compiled file differs from the model's: {said}"
    if as_json:
        print_json({"error": message})
    click.echo(f"error: {message}", err=True)
    ctx.exit(MISMATCH)


def _print(result: dict[str, Any], spec: StepSpec) -> None:
    out = console()
    out.print(f"{result['output']}: {bytes_of(result['bytes'])}")
    out.print(f"functions: {', '.join(result['functions'])}, for {', '.join(result['platforms'])}")
    out.print(f"batch: {result['batch']}")
    if spec.streams:
        delays = [
            f"{name} comes at the end" if delay is None else f"{name} by {delay} of its frames"
            for name, delay in spec.delay.items()
        ]
        out.print(f"pulse: {spec.pulse} input frame(s); look-ahead: {spec.look_ahead}")
        out.print(f"delay: {', '.join(delays)}")
    for title in ("inputs", "state"):
        rows = [(entry["name"], entry["dtype"], shape_text(entry["shape"])) for entry in result[title]]
        print_table(out, f"{title.capitalize()} of a step", ("name", "dtype", "shape"), rows)
    out.print()
    out.print(f"outputs: {', '.join(result['outputs']) or 'none'}")
    if result["verified"]:
        difference = number(result["largest_difference"])
        out.print(f"loaded again: a step or the flush differs from the model's by at most {difference}")
    else:
        out.print("not verified: JAX has none of these platforms here", style="yellow")
