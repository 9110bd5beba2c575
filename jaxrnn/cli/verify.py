"""``jaxrnn verify``: a model's results against another engine's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jaxrnn.cli.options import input_options, json_option, load_inputs, model_argument, parse_dims, parse_static
from jaxrnn.cli.output import busy, console, number, plain, print_json, print_table, shape_text

if TYPE_CHECKING:
    from rich.console import Console

    from jaxrnn.verification import Case, Departure, Report

MISMATCH = 1


@click.command()
@model_argument
@input_options
@click.option(
    "--atol",
    type=click.FloatRange(min=0),
    help="Absolute tolerance. [default: 1e-5, more for float16 and narrower types, 0 for integers]",
)
@click.option(
    "--rtol",
    type=click.FloatRange(min=0),
    help="Relative tolerance. [default: 1e-4, more for float16 and narrower types, 0 for integers]",
)
@click.option(
    "--engine",
    type=click.Choice(["auto", "ort", "reference"]),
    default="auto",
    show_default=True,
    help="What to compare with: ONNX Runtime, ONNX's reference evaluator, or the first of them that takes the model.",
)
@click.option(
    "--nodes", is_flag=True, help="Compare every value inside the graph too, and name the first node that departs."
)
@json_option
@click.pass_context
def verify(
    ctx: click.Context,
    file: Path,
    input_files: tuple[str, ...],
    inputs_file: Path | None,
    static: tuple[str, ...],
    dims: tuple[str, ...],
    seed: int,
    atol: float | None,
    rtol: float | None,
    engine: str,
    nodes: bool,
    as_json: bool,
) -> None:
    """Compare a model's outputs with another engine's on the same inputs.

    Every element must satisfy |here - peer| <= atol + rtol * |peer|; element types, shapes and the places of NaNs must
    agree. Inputs that are not given are random. With several sizes of a dimension, each is a case of its own. The
    relative errors shown leave out elements whose magnitude is below atol. Inside the graph (--nodes), atol grows with
    the value's largest magnitude. Exit status 1 where anything departs.

    \b
    Examples:
      jaxrnn verify model.onnx
      jaxrnn verify model.onnx --dim S=20,50,64 --nodes
      jaxrnn verify vad.onnx --static sr=16000 --inputs frame.npz --engine reference
    """  # noqa: D301
    from jaxrnn.verification import verify as verify_model

    given, sizes, fixed = load_inputs(input_files, inputs_file), parse_dims(dims), parse_static(static)
    with busy(f"verifying {file.name}"):
        report = verify_model(
            file, given, static=fixed, dims=sizes, seed=seed, atol=atol, rtol=rtol, engine=engine, nodes=nodes
        )
    if as_json:
        print_json(_as_json(report))
    else:
        _print(report, nodes)
    if not report.ok:
        ctx.exit(MISMATCH)


def _as_json(report: Report) -> dict[str, Any]:
    cases = [{"ok": case.ok, **plain(case)} for case in report.cases]
    return {"ok": report.ok, **plain(report), "cases": cases}


def _print(report: Report, nodes: bool) -> None:
    out = console()
    out.print(f"{report.label} against {report.engine}")
    for note in report.notes:
        out.print(f"note: {note}", style="yellow")
    for case in report.cases:
        _print_case(out, case, nodes)
    out.print()
    if report.ok:
        out.print("agrees", style="bold green")
    else:
        out.print("departs", style="bold red")


def _print_case(out: Console, case: Case, nodes: bool) -> None:
    title = ", ".join(f"{name}={size}" for name, size in case.dims.items()) or "Outputs"
    print_table(
        out,
        title,
        ("output", "dtype", "shape", "largest absolute", "largest relative", "result"),
        [
            (
                output.name,
                output.dtype,
                shape_text(output.shape),
                number(output.max_abs),
                number(output.max_rel),
                "agrees" if output.ok else _where(output.reason, output.worst),
            )
            for output in case.outputs
        ],
        right=("largest absolute", "largest relative"),
    )
    if nodes and case.first is None:
        out.print(f"{case.values} values inside the graph agree")
    elif case.first is not None:
        _print_departure(out, case.first)


def _where(reason: str | None, worst: tuple[int, ...] | None) -> str:
    return f"{reason}, most at {list(worst)}" if worst else str(reason)


def _print_departure(out: Console, first: Departure) -> None:
    value = first.comparison
    out.print(f"first departure: node {first.node!r} ({first.operator}), value {value.name!r}", style="red")
    out.print(
        f"  {value.dtype}{shape_text(value.shape)}: {_where(value.reason, value.worst)}; "
        f"largest absolute {number(value.max_abs)}, relative {number(value.max_rel)}"
    )
