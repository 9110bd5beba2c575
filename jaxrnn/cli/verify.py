"""``jaxrnn verify``: compare the outputs of a model with the outputs of a second engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import click

from jaxrnn._files.messages import pairs_of
from jaxrnn.cli.commands import Given, NumberRange, Option, Taken, command
from jaxrnn.cli.errors import MISMATCH
from jaxrnn.cli.options import ManyInputs, StatelessFile
from jaxrnn.cli.output import (
    COMPARED,
    Block,
    Table,
    TextLine,
    busy,
    difference,
    fields,
    show,
    text_of,
    verdict,
    wrapped,
)

_TOLERANCE = Option(type=NumberRange(min=0))


@command
def verify(
    *,
    file: StatelessFile,
    given: ManyInputs,
    options: Annotated[
        Given, Taken("jaxrnn.verification:verify", atol=_TOLERANCE, rtol=_TOLERANCE, engine=Option(), nodes=Option())
    ],
    outputs: Annotated[Path, Option(metavar="X.npz")] | None = None,
) -> None:
    """Compare a model's outputs with those of another engine, and with recorded outputs, on the same inputs.

    Each element must satisfy |here - peer| <= atol + rtol * |peer|. Dtypes, shapes and the positions of NaNs must
    agree. Inputs that are not given are random: floats are standard normal, or positive or between bounds if only that
    gives finite outputs. With several sizes of a dimension, each size is a separate case. The relative errors shown
    leave out elements with a magnitude below atol. With --nodes, atol grows with the largest magnitude of each value
    inside the graph. If the engines differ, the same graph in float64 shows which engine is nearer, and accepts mere
    rounding. Exit status 1 if anything differs, and if no element of an output is finite.

    With --outputs, the report says whether the file, jaxrnn or the other engine differs from the recording. If both
    engines agree with each other, the exporter wrote another function. The first recorded value inside the graph that
    differs names the node.

    Examples:
      jaxrnn verify model.onnx
      jaxrnn verify model.onnx --dim S=20,50,64 --nodes
      jaxrnn verify model.onnx --inputs inputs.npz --outputs outputs.npz
      jaxrnn verify vad.onnx --static sr=16000 --inputs frame.npz --engine reference

    Args:
        outputs: Also compare with outputs that the framework of the model recorded, by name, and say whether the file
            or an engine differs. The file may also hold values inside the graph, and the inputs.
    """
    from jaxrnn.cli.arrays import load_archive
    from jaxrnn.verification import verify as verify_model

    with busy(f"verifying {file.path.name}"):
        recorded = None if outputs is None else load_archive(outputs)
        arrays = given.of(file.load().inputs) if given.has_sound else given.arrays
        sizes: Any = {"static": file.static, "dims": given.dims, "seed": given.seed}
        report = verify_model(file.source, arrays, outputs=recorded, **sizes, **options)
    show(report.to_json(), lambda result: _report(result, options.get("nodes", False)))
    if not report.ok:
        click.get_current_context().exit(MISMATCH)


def _report(result: Mapping[str, Any], nodes: bool) -> Iterator[Block]:
    yield f"{result['label']} against {result['engine']}"
    yield from (TextLine(f"note: {note}", "yellow") for note in result["notes"])
    columns = {"output": "name", **fields("dtype", "shape"), **COMPARED}
    for case in result["cases"]:
        unusual = [f"{name} {way}" for name, way in case["drawn"].items() if way not in ("standard normal", "0 to 1")]
        drawn = f" (random: {', '.join(unusual)})" if unusual else ""
        yield Table(f"{pairs_of(case['dims']) or 'Outputs'}{drawn}", columns, case["outputs"])
        if case["recorded"]:
            yield Table("Recorded arrays", _recorded(result["engine"]), case["recorded"])
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
    if result["conclusion"] is not None:
        yield TextLine(wrapped(result["conclusion"]), "red")
    inside = [case["first"]["comparison"] for case in result["cases"] if case["first"] is not None]
    inside += [each["here"] for case in result["cases"] for each in case["recorded"]]
    yield verdict(result["ok"], [*result["cases"], {"outputs": inside}])


def _recorded(engine: str) -> dict[str, Any]:
    def column(side: str) -> Callable[[Mapping[str, Any]], str]:
        def text(each: Mapping[str, Any]) -> str:
            found, largest = difference(each[side]), each[side]["max_abs"]
            return found if not each[side]["differs"] or largest is None else f"{found}, by {text_of(largest)}"

        return text

    return {"array": "name", "node": "node", "jaxrnn": column("here"), engine: column("peer")}
