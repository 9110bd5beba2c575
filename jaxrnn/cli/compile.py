"""``jaxrnn compile``: a model's step and scan, ahead of time, in one file that has been seen to work."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from jaxrnn.cli.options import (
    check_folder,
    json_option,
    model_argument,
    parse_static,
    single_dims,
    split_pairs,
    state_option,
    static_option,
)
from jaxrnn.cli.output import busy, bytes_text, console, number, print_json, print_table, shape_text

if TYPE_CHECKING:
    from jaxrnn.ahead import Compiled
    from jaxrnn.model import Model
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
    help="Size of an open dimension of a step's inputs, other than the batch. 'jaxrnn inspect' shows the names.",
)
@state_option
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
    platforms: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write a model's packed parameters, step and scan to a file that needs no ONNX to run.

    jaxrnn.load_compiled and 'jaxrnn stream' read it. The number of frames stays open, and so does the batch. Before
    the file appears it is loaded again, and one step of it on random inputs is compared with the model's; exit status
    1 if they differ.

    \b
    Examples:
      jaxrnn compile dtln_1.onnx -o dtln_1.jaxrnn
      jaxrnn compile vad.onnx -o vad.jaxrnn --static sr=16000 --dim sequence=576 --platform cpu --platform cuda
    """  # noqa: D301
    from jaxrnn.ahead import load_compiled, save_compiled
    from jaxrnn.cli.stepping import is_compiled
    from jaxrnn.errors import ModelError
    from jaxrnn.model import load

    check_folder(output)
    sizes, fixed, state = single_dims(dims), parse_static(static), split_pairs("--state", pairs)
    if is_compiled(file):
        raise ModelError(f"{file} is compiled already")
    with _in_place_of(output) as written:
        with busy(f"compiling {file.name}"):
            model = load(file, static=fixed, state=state)
            save_compiled(model, written, dims=sizes, platforms=platforms or None)
            compiled = load_compiled(written)
            checks = _compare(model, compiled, platforms)
        if checks is not None and not all(check.ok for check in checks):
            Path(written).unlink()
            _refuse(ctx, checks, as_json)
    result = _describe(file, output, compiled, platforms, checks)
    print_json(result) if as_json else _print(result)


@contextlib.contextmanager
def _in_place_of(path: Path) -> Iterator[str]:
    """A file to write that takes the place of another in the end, and is gone if anything fails."""
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        written = os.path.join(folder, path.name)
        yield written
        os.replace(written, path)


def _compare(model: Model, compiled: Compiled, platforms: tuple[str, ...]) -> list[Comparison] | None:
    """One step of the compiled file and of the model, from a random state; None where it cannot run here."""
    import jax

    from jaxrnn.cli.stepping import Steps
    from jaxrnn.verification.comparison import compare
    from jaxrnn.verification.sampling import index_limits, random_arrays, symbols_of

    if platforms and not _runs_here(platforms):
        return None
    inputs = Steps.of_compiled(compiled, model.label).inputs
    # All that a compiled file leaves open is the batch.
    batch = dict.fromkeys(symbols_of(inputs), 1)
    frame = random_arrays(inputs, {}, dims=batch, limits=index_limits(model)).inputs
    start = {name: _disturbed(value) for name, value in model.init_state().items()}
    here = compiled.step(compiled.params, start, frame)
    peer = jax.jit(model.step)(model.params, start, frame)
    return [compare(name, here[part][name], peer[part][name], scaled=True) for part in range(2) for name in peer[part]]


def _disturbed(value: Any) -> Any:
    """A state that is not zero where it may be another, so that a state that is not read does not go unseen."""
    if value.dtype.kind != "f":
        return value
    return np.random.default_rng(0).normal(0, 0.1, value.shape).astype(value.dtype)


def _runs_here(platforms: tuple[str, ...]) -> bool:
    import jax

    here = jax.default_backend()
    # JAX calls both kinds of graphics processor "gpu".
    return here in platforms or (here == "gpu" and bool({"cuda", "rocm"} & set(platforms)))


def _refuse(ctx: click.Context, checks: list[Comparison], as_json: bool) -> None:
    wrong = [check for check in checks if not check.ok]
    said = "; ".join(f"{check.name}: {check.reason} (largest difference {number(check.max_abs)})" for check in wrong)
    message = f"nothing was written: one step of the compiled file differs from the model's: {said}"
    if as_json:
        print_json({"error": message})
    click.echo(f"error: {message}", err=True)
    ctx.exit(MISMATCH)


def _describe(
    file: Path, output: Path, compiled: Compiled, platforms: tuple[str, ...], checks: list[Comparison] | None
) -> dict[str, Any]:
    """What was written, ready for JSON."""
    return {
        "model": str(file),
        "output": str(output),
        "bytes": output.stat().st_size,
        "functions": ["step", "scan"],
        "platforms": list(platforms) or [_default_platform()],
        "batch": compiled.batch_symbol or "a leading axis",
        "inputs": compiled.inputs,
        "outputs": compiled.outputs,
        "state": compiled.state,
        "verified": checks is not None,
        "largest_difference": None if checks is None else max((check.max_abs or 0.0 for check in checks), default=0.0),
    }


def _default_platform() -> str:
    import jax

    return jax.default_backend()


def _print(result: dict[str, Any]) -> None:
    out = console()
    out.print(f"{result['output']}: {bytes_text(result['bytes'])}")
    out.print(f"functions: {', '.join(result['functions'])}, for {', '.join(result['platforms'])}")
    out.print(f"batch: {result['batch']}")
    for title in ("inputs", "state"):
        rows = [(entry["name"], entry["dtype"], shape_text(entry["shape"])) for entry in result[title]]
        print_table(out, f"{title.capitalize()} of a step", ("name", "dtype", "shape"), rows)
    out.print()
    out.print(f"outputs: {', '.join(result['outputs']) or 'none'}")
    if result["verified"]:
        out.print(f"loaded again: one step differs from the model's by at most {number(result['largest_difference'])}")
    else:
        out.print("not verified: JAX has none of these platforms here", style="yellow")
