"""What ``jaxrnn export`` says of a step or a stream that it wrote, for programs and for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from jaxrnn._files.messages import bytes_of, plain
from jaxrnn.cli.output import Block, Table, TextLine, fields, text_of, verdict
from jaxrnn.cli.verify import difference
from jaxrnn.export import Exported, ExportedGraph
from jaxrnn.export.verification import ExportReport
from jaxrnn.steps.stepspec import StepSpec


def facts_of(
    model: Path, exported: Exported, checked: ExportReport | None, files: Sequence[Path] = ()
) -> dict[str, Any]:
    """The facts by name.

    Args:
        model: what was exported.
        exported: its files, which are there.
        checked: how they compare, where they were verified.
        files: those that stay; none where they differ.
    """
    step = exported.step.facts
    spec = step.spec
    outputs = [each for each in spec.outputs if each.name in step.outputs]
    graphs = [each for each in (exported.step, exported.flush) if each is not None]
    return {
        "model": str(model),
        "files": [{"file": str(path), "bytes": path.stat().st_size} for path in reversed(files)],
        "streams": spec.streams,
        "pulse": spec.pulse,
        "look_ahead": spec.look_ahead,
        "look_ahead_ms": step.look_ahead_ms,
        "batch": step.batch,
        "inputs": [{**each.to_json(), "name": step.inputs[each.name]} for each in spec.inputs],
        "outputs": [
            {**each.to_json(), "name": step.outputs[each.name], "delay_ms": step.delay_ms(each)} for each in outputs
        ],
        "state": [
            {
                **{key: value for key, value in each.to_json().items() if key != "time_axis"},
                "input": step.state[each.name].input,
                "output": step.state[each.name].output,
            }
            for each in spec.state
        ],
        "state_bytes": sum(each.nbytes for each in spec.state),
        "lost": _lost(spec) if exported.flush is None else [],
        "graphs": [_graph(each) for each in graphs],
        "verified": None if checked is None else checked.ok,
        "engine": None if checked is None else checked.engine,
        "notes": [] if checked is None else checked.notes,
        "checks": [] if checked is None else [{"ok": check.ok, **plain(check)} for check in checked.checks],
    }


def _lost(spec: StepSpec) -> list[str]:
    """The outputs that a recording has more of than its steps give."""
    tail = spec.pulse > spec.multiple
    return [each.name for each in spec.outputs if each.at_end or (each.time_axis is not None and (each.delay or tail))]


def _graph(graph: ExportedGraph) -> dict[str, Any]:
    """What a graph consists of."""
    model = ir.load(graph.path)
    operators = Counter(node.op_type for node in model.graph.all_nodes())
    return {
        "kind": graph.facts.kind,
        "opset": model.opset_imports[""],
        "nodes": graph.nodes,
        "operators": dict(operators.most_common()),
    }


def report(result: Mapping[str, Any]) -> Iterator[Block]:
    """The same for people."""
    yield from (f"{each['file']}: {bytes_of(each['bytes'])}" for each in result["files"])
    for graph in result["graphs"]:
        operators = ", ".join(f"{count} {name}" for name, count in graph["operators"].items())
        yield f"{graph['kind']}: {graph['nodes']:,} nodes of opset {graph['opset']} ({operators})"
    if result["batch"] is not None:
        yield f"batch: {result['batch']} stream(s) a call"
    if result["streams"]:
        known = result["look_ahead_ms"] is not None
        lasts = f" ({text_of(result['look_ahead_ms'])} ms)" if known else ""
        yield f"pulse: {result['pulse']:,} input frame(s); look-ahead: {result['look_ahead']:,}{lasts}"
        if result["lost"]:
            yield TextLine(
                f"of {', '.join(result['lost'])}, the last of a recording does not come out: --flush FLUSH.onnx writes "
                "the graph that gives it",
                "yellow",
            )
    yield Table("Inputs", fields("name", "dtype", "shape"), result["inputs"])
    timed = fields("rate", "delay") if result["streams"] else {}
    if result["look_ahead_ms"] is not None:
        timed["delay, ms"] = "delay_ms"
    yield Table("Outputs", {**fields("name", "dtype", "shape"), **timed}, result["outputs"], right=tuple(timed))
    title = f"State: {len(result['state'])} entries, {bytes_of(result['state_bytes'])}"
    yield Table(title, {"in": "input", "out": "output", **fields("kind", "dtype", "shape")}, result["state"])
    if result["verified"] is None:
        return
    yield from (TextLine(f"note: {note}", "yellow") for note in result["notes"])
    yield from _checks(result)
    yield ""
    yield verdict(result["verified"])
    if not result["verified"]:
        yield "nothing was written"


def _checks(result: Mapping[str, Any]) -> Iterator[Block]:
    """Of each output, the recording where it differs most."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for check in result["checks"]:
        for each in check["outputs"]:
            key, row = (
                (each["name"], check["against"]),
                {**each, "frames": check["frames"], "against": check["against"]},
            )
            rows[key] = max(rows.get(key, row), row, key=lambda row: (not row["ok"], row["max_abs"] or 0.0))
    unit = "frames" if result["streams"] else "steps"
    lengths = sorted({check["frames"] for check in result["checks"] if check["outputs"]})
    columns = {
        "output": "name",
        "against": "against",
        "largest difference": "max_abs",
        "of the largest value": _of_largest,
        f"with {unit}": "frames",
        "result": difference,
    }
    title = f"Verified in {result['engine']}: recordings of {', '.join(map(str, lengths))} {unit}"
    yield Table(title, columns, [rows[key] for key in sorted(rows)])
    missing = sorted({check["frames"] for check in result["checks"] if check["problem"] is not None})
    if missing:
        yield f"the model does not run on recordings of {', '.join(map(str, missing))} {unit}"


def _of_largest(comparison: Mapping[str, Any]) -> float | None:
    largest, scale = comparison["max_abs"], comparison["scale"]
    return largest / scale if largest and scale else None if scale is None else largest
