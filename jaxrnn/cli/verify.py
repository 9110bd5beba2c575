"""``jaxrnn verify``: compare the outputs of a model with those of another engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from jaxrnn._files.messages import as_json, pairs_of
from jaxrnn.cli.errors import MISMATCH
from jaxrnn.cli.options import Inputs, ModelFile, NumberRange, input_options, json_option, stateless_file
from jaxrnn.cli.output import COMPARED, Block, Table, TextLine, busy, fields, show, text_of, verdict


@click.command()
@stateless_file
@input_options(several=True)
@click.option(
    "--atol",
    type=NumberRange(min=0),
    help="Absolute tolerance. [default: 1e-5, more for float16 and narrower types, 0 for integers]",
)
@click.option(
    "--rtol",
    type=NumberRange(min=0),
    help="Relative tolerance. [default: 1e-4, more for float16 and narrower types, 0 for integers]",
)
@click.option(
    "--engine",
    type=click.Choice(["auto", "ort", "reference"]),
    default="auto",
    show_default=True,
    help="Engine to compare with: ONNX Runtime (ort), ONNX's reference evaluator, or the first that accepts the model "
    "(auto).",
)
@click.option(
    "--nodes", is_flag=True, help="Also compare all values inside the graph, and name the first node that differs."
)
@json_option
@click.pass_context
def verify(ctx: click.Context, file: ModelFile, given: Inputs, nodes: bool, **options: Any) -> None:
    """Compare a model's outputs with those of another engine on the same inputs.

    Each element must satisfy |here - peer| <= atol + rtol * |peer|. Dtypes, shapes and the positions of NaNs must
    agree. Inputs that are not given are random. With several sizes of a dimension, each size is a separate case. The
    relative errors shown leave out elements with a magnitude below atol. With --nodes, atol grows with the largest
    magnitude of each value inside the graph. Exit status 1 if anything differs.

    \b
    Examples:
      jaxrnn verify model.onnx
      jaxrnn verify model.onnx --dim S=20,50,64 --nodes
      jaxrnn verify vad.onnx --static sr=16000 --inputs frame.npz --engine reference
    """  # noqa: D301
    from jaxrnn.verification import verify as verify_model

    with busy(f"verifying {file.path.name}"):
        report = verify_model(
            file.path, given.arrays, static=file.static, dims=given.dims, seed=given.seed, nodes=nodes, **options
        )
    cases = [{"ok": case.ok, **as_json(case)} for case in report.cases]
    show({"ok": report.ok, **as_json(report), "cases": cases}, lambda result: _report(result, nodes))
    if not report.ok:
        ctx.exit(MISMATCH)


def _report(result: Mapping[str, Any], nodes: bool) -> Iterator[Block]:
    yield f"{result['label']} against {result['engine']}"
    yield from (TextLine(f"note: {note}", "yellow") for note in result["notes"])
    columns = {"output": "name", **fields("dtype", "shape"), **COMPARED, "result": difference}
    for case in result["cases"]:
        yield Table(pairs_of(case["dims"]) or "Outputs", columns, case["outputs"])
        if (first := case["first"]) is not None:
            value = first["comparison"]
            yield TextLine(
                f"first mismatch: node {first['node']!r} ({first['operator']}), value {value['name']!r}", "red"
            )
            largest = f"largest absolute {text_of(value['max_abs'])}, relative {text_of(value['max_rel'])}"
            yield f"  {value['dtype']}{text_of(value['shape'])}: {difference(value)}; {largest}"
        elif nodes:
            yield f"{case['values']} values inside the graph agree"
    yield ""
    yield verdict(result["ok"])


def difference(comparison: Mapping[str, Any]) -> str:
    """Return ``agrees``, or the reason why values differ and the place of the largest difference."""
    if comparison["ok"]:
        return f"agrees {comparison['reason']}" if comparison["reason"] else "agrees"
    first = comparison["first_frame"]
    since = "" if first is None else f", first in frame {first:,}"
    return comparison["reason"] + since + (f", most at {comparison['worst']}" if comparison["worst"] else "")
