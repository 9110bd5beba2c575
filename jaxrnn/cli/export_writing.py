"""The work of ``jaxrnn export``: write and verify a step, a stream, or a graph with other parameters, and report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx_ir as ir

from jaxrnn._files.messages import bytes_of
from jaxrnn._files.writing import scratch
from jaxrnn.cli.errors import MISMATCH, MismatchError
from jaxrnn.cli.options import InputFiles, ModelFile, ParamsOptions, read_recordings
from jaxrnn.cli.output import COMPARED, Block, Table, TextLine, busy, fields, past_line, show, text_of, verdict
from jaxrnn.cli.stream_options import PulseOptions, check_steps, described
from jaxrnn.comparison import Verdict
from jaxrnn.errors import InputError, ModelError
from jaxrnn.export import Exported, ExportedGraph, Quantization, export_litert, export_onnx, write_example
from jaxrnn.export.examples import check_example
from jaxrnn.export.verification import ExportReport, compare_converted, verify_export
from jaxrnn.model import Model
from jaxrnn.model.loading import load, stored_params, write_graph
from jaxrnn.model.streaming import time_symbols
from jaxrnn.onnx.stepfile import LITERT, StepFile
from jaxrnn.runtime.compiled import is_compiled
from jaxrnn.steps.recordings import recording_specs
from jaxrnn.steps.stepper import Stepper
from jaxrnn.steps.stepspec import milliseconds
from jaxrnn.verification import Report
from jaxrnn.verification import verify as verify_model
from jaxrnn.verification.litert import Signature, operations
from jaxrnn.verification.sampling import integer_ranges


def write_step(
    file: ModelFile,
    output: Path,
    pulses: PulseOptions,
    flush: Path | None,
    params: ParamsOptions,
    dims: Mapping[str, int],
    given: InputFiles,
    seed: int | None,
    example: Path | None,
    calibrate: Path | None,
    exclude: Sequence[str],
    **options: Any,
) -> None:
    """Write the step of a model, or with a symbol the stream, and print a report. ``seed`` None skips verification."""
    if is_compiled(file.path):
        raise ModelError(f"{file.path} is compiled: export the ONNX file")
    if flush is not None and pulses.time is None:
        raise click.UsageError("--flush is for a stream, as a step has no delay. Give --symbol NAME")
    name = file.path.name
    with busy(f"tracing {name}"):
        model = pulses.load(file)
        arrays = params.of(model)
        if pulses.time is None:
            check_steps(model)
            opened = [symbol for symbol in time_symbols(model) if symbol not in dims]
            if opened and not model.state:
                raise InputError(
                    f"{model.label} has no state, and leaves {opened[0]} open: give --symbol {opened[0]} for a stream, "
                    f"or --dim {opened[0]}=SIZE for a graph of one size"
                )
            stepper: Stepper = model
            options |= {"step": True, "dims": dims or None}
        else:
            stepper = pulses.stream(model, dims)
    if example is not None:
        batch = options.get("batch")
        check_example(example, output, flush, dims.get(stepper.spec.batch_symbol or "") if batch is None else batch)

    specs, calibration = recording_specs(stepper.spec, "frames"), None
    if calibrate is not None:
        calibration = read_recordings(calibrate, specs, given.resample)
    if (kind := options.get("quantize")) is not None:
        options["quantize"] = Quantization(kind, exclude, calibration)

    def write(path: Path, flush: Path | None) -> Exported:
        if options.get("target") == LITERT:
            taken = {key: value for key, value in options.items() if key not in ("step", "target", "dtype")}
            return export_litert(stepper, arrays, path, label=name, **taken)
        exported = export_onnx(stepper, arrays, path, flush=flush, label=name, **options)
        assert exported is not None  # None only for a whole graph
        return exported

    checked = None
    with scratch(output, alone=True) as folder:
        if seed is not None:
            with busy(f"writing {output.name}"):
                trial = write(folder / output.name, flush and folder / f"flush.{flush.name}")
            offline = None if pulses.time is None else pulses.offline(stepper, model, arrays)
            checking = {"offline": offline, "limits": integer_ranges(model, dims), "seed": seed}
            recordings = given.of(specs) if given or not calibration else next(iter(calibration.values()))
            with busy(f"verifying {output.name}"):
                checked = verify_export(stepper, arrays, trial.step.path, inputs=recordings, **checking)
            if not checked.ok:
                show({**facts_of(file.path, trial, checked), "sound": described(model)}, report)
                click.get_current_context().exit(MISMATCH)
        with busy(f"writing {output.name}"):
            written = write(output, flush)
            files = (*written.files, *(() if example is None else write_example(written, example)))
    show({**facts_of(file.path, written, checked, files), "sound": described(model)}, report)


def facts_of(
    model: Path, exported: Exported, checked: ExportReport | None, files: Sequence[Path] = ()
) -> dict[str, Any]:
    """Return the facts of exported files. ``files`` is empty if the verification failed."""
    step = exported.step.facts
    spec = step.spec
    tail = spec.pulse > spec.multiple
    lost = [each.name for each in spec.outputs if each.at_end or (each.time_axis is not None and (each.delay or tail))]
    outputs = [each for each in spec.outputs if each.name in step.outputs]
    graphs = [each for each in (exported.step, exported.flush) if each is not None]
    return {
        "model": str(model),
        "files": [{"file": str(path), "bytes": path.stat().st_size} for path in reversed(files)],
        "streams": spec.streams,
        "pulse": spec.pulse,
        "look_ahead": spec.look_ahead,
        "look_ahead_ms": step.look_ahead_ms,
        "latency_ms": _latency(step),
        "past": spec.past,
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
        "first_not_zero": [step.state[name].input for name, array in step.first.items() if np.any(array)],
        "first_state": step.files.get("first_state"),
        # Without a flush, these outputs end before the recording.
        "lost": lost if exported.flush is None else [],
        "graphs": [_graph(each) for each in graphs],
        "error_db": dict(exported.errors),
        "verified": None if checked is None else checked.ok,
        "compared": None if checked is None else checked.compared,
        "engine": None if checked is None else checked.engine,
        "step_ms": None if checked is None or checked.seconds is None else 1000 * checked.seconds,
        "notes": [] if checked is None else checked.notes,
        "checks": [] if checked is None else checked.to_json()["cases"],
    }


def _latency(step: StepFile) -> float | None:
    """Return the milliseconds from the first sound of a frame to its output, or None without a frame rate."""
    if step.frame_rate is None:
        return None
    delays = [step.delay_ms(each) or 0.0 for each in step.spec.outputs if each.time_axis is not None]
    return max(delays, default=0.0) + milliseconds(step.spec.pulse, step.frame_rate)


def _graph(graph: ExportedGraph) -> dict[str, Any]:
    if graph.facts.target == LITERT:
        found = operations(Signature(graph.path, graph.facts.kind))
        return {"kind": graph.facts.kind, "opset": None, "nodes": found.total(), "operators": dict(found.most_common())}
    model = ir.load(graph.path)
    operators = Counter(node.op_type for node in model.graph.all_nodes())
    return {
        "kind": graph.facts.kind,
        "opset": model.opset_imports[""],
        "nodes": graph.nodes,
        "operators": dict(operators.most_common()),
    }


def report(result: Mapping[str, Any]) -> Iterator[Block]:
    """Return the report for people."""
    yield from (f"{each['file']}: {bytes_of(each['bytes'])}" for each in result["files"])
    yield from result["sound"]
    for graph in result["graphs"]:
        operators = ", ".join(f"{count} {name}" for name, count in graph["operators"].items())
        of = "operations of LiteRT" if graph["opset"] is None else f"nodes of opset {graph['opset']}"
        yield f"{graph['kind']}: {graph['nodes']:,} {of} ({operators})"
    if result["batch"] is not None:
        yield f"batch: {result['batch']} stream(s) a call"
    if result["streams"]:
        known = result["look_ahead_ms"] is not None
        lasts = f" ({text_of(result['look_ahead_ms'])} ms)" if known else ""
        yield f"pulse: {result['pulse']:,} input frame(s); look-ahead: {result['look_ahead']:,}{lasts}"
        if result["latency_ms"] is not None:
            yield f"latency: {text_of(result['latency_ms'])} ms, of the pulse and the longest delay"
        yield from past_line(result["past"])
        if result["lost"]:
            yield TextLine(
                f"the last frames of {', '.join(result['lost'])} stay inside: --flush FLUSH.onnx writes the graph that "
                "returns them",
                "yellow",
            )
    yield Table("Inputs", fields("name", "dtype", "shape"), result["inputs"])
    timed = fields("rate", "delay") if result["streams"] else {}
    if result["look_ahead_ms"] is not None:
        timed["delay, ms"] = "delay_ms"
    yield Table("Outputs", {**fields("name", "dtype", "shape"), **timed}, result["outputs"], right=tuple(timed))
    title = f"State: {len(result['state'])} entries, {bytes_of(result['state_bytes'])}"
    yield Table(title, {"in": "input", "out": "output", **fields("kind", "dtype", "shape")}, result["state"])
    if result["state"]:
        kept = result["first_not_zero"]
        some = f"not zero in {len(kept)} entries, such as {kept[0]}" if kept else "zero"
        where = result["first_state"] or "in the metadata"
        yield f"first state: {some} ({where}); to reset a stream, pass the first state again"
    if result["error_db"]:
        below = ", ".join(f"{name} {error:.0f} dB" for name, error in result["error_db"].items())
        yield f"error of static quantisation over the recordings, below each output: {below}"
    if result["verified"] is None:
        return
    yield from (TextLine(f"note: {note}", "yellow") for note in result["notes"])
    yield from _checks(result)
    yield ""
    yield verdict(result["verified"], result["checks"])
    if not result["verified"]:
        yield "nothing was written"


def _checks(result: Mapping[str, Any]) -> Iterator[Block]:
    """Return a table with the recording of the largest difference for each output."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for check in result["checks"]:
        for each in check["outputs"]:
            key = each["name"], check["against"]
            row = {**each, "frames": check["frames"], "against": check["against"]}
            before = rows.get(key, {**row, "compared": 0})
            worst = max(before, row, key=lambda row: (row["differs"], row["ok"], row["max_abs"] or 0.0))
            rows[key] = {**worst, "compared": before["compared"] + row["compared"]}
    unit = "frames" if result["streams"] else "steps"
    lengths = sorted({check["frames"] for check in result["checks"] if check["outputs"]})
    columns = {
        "output": "name",
        "against": "against",
        "compared": "compared",
        "largest difference": "max_abs",
        "of the largest value": _of_largest,
        f"with {unit}": "frames",
        "result": COMPARED["result"],
    }
    title = f"Verified in {result['engine']}: recordings of {', '.join(map(str, lengths))} {unit}"
    yield Table(title, columns, [rows[key] for key in sorted(rows)])
    if result["step_ms"] is not None:
        yield f"a step takes {text_of(result['step_ms'])} ms in {result['engine']}, the median of the verified steps"
    missing = sorted({check["frames"] for check in result["checks"] if check["problem"] is not None})
    if missing:
        yield f"the model does not run on recordings of {', '.join(map(str, missing))} {unit}"


def _of_largest(comparison: Mapping[str, Any]) -> float | None:
    largest, scale = comparison["max_abs"], comparison["scale"]
    return largest / scale if largest and scale else None if scale is None else largest


def write_graph_again(
    file: ModelFile,
    output: Path,
    params: ParamsOptions,
    verify: bool,
    given: InputFiles,
    dims: dict[str, tuple[int, ...]],
    seed: int,
    types: dict[str, Any],
    exclude: Sequence[str],
) -> None:
    """Write a file with other parameters or types, and print the changes; with ``verify``, compare engines first.

    Types are compared with the file in the types of the model.
    """
    if dims and not verify:
        raise click.UsageError("--dim sets the sizes of the inputs to verify with: it needs --verify")
    if (kind := types.get("quantize")) is not None:
        types = {**types, "quantize": Quantization(kind, exclude)}
    model = file.load()
    arrays = stored_params(model, params.of(model))
    verified = None
    if verify:
        with busy(f"verifying {output.name}"), scratch(output) as folder:
            trial = folder / output.name
            write_graph(model, arrays, trial)
            inputs = given.of(model.inputs)
            report = _verified(trial, model, arrays, inputs, static=file.static, dims=dims, seed=seed)
            if any(types.values()):
                converted = folder / "converted.onnx"
                export_onnx(model, arrays, converted, **types)
                sizes = {name: size for name, (size, *_) in dims.items()}
                options = {"dims": sizes, "static": file.static, "seed": seed}
                report = compare_converted(model, trial, converted, inputs, **options)
                _refuse_mismatch(report)
            verified = {"engine": report.engine, "cases": report.to_json()["cases"]}
    export_onnx(model, arrays, output, **types)
    changes = _changes(model, arrays)
    result = {
        "model": str(file.path),
        "output": str(output),
        "bytes": output.stat().st_size,
        "changed": sum(change["changed"] for change in changes),
        "parameters": changes,
        "verified": verified,
    }
    show(result, _report)


def _verified(
    path: Path, model: Model, arrays: Mapping[str, np.ndarray], inputs: Mapping[str, Any], **options: Any
) -> Report:
    """Read a file back and compare it; a MismatchError lists the problems."""
    reread = load(path, state=model.declared_state).program.parameters
    lost = [name for name, array in arrays.items() if reread[name].tobytes() != array.tobytes()]
    report = verify_model(path, inputs, **options)
    _refuse_mismatch(report, [f"the parameter {name!r} reads back with other values" for name in lost])
    return report


def _refuse_mismatch(report: Verdict, problems: Sequence[str] = ()) -> None:
    """Raise a MismatchError with the outputs that do not agree, and other problems."""
    said = list(problems)
    for case in () if report.ok else report.cases:
        against = f" differs from {case.against}'s"
        wrong = (each for each in case.outputs if not each.ok)
        said += [f"the output {each.name!r}{against if each.differs else ''}: {each.reason}" for each in wrong]
    if said or not report.ok:
        raise MismatchError(f"nothing was written: {'; '.join(said)}")


def _changes(model: Model, arrays: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return name, shape, dtype and the largest change of each parameter."""
    changes = []
    for name, old in model.program.parameters.items():
        with np.errstate(all="ignore"):
            distance = np.abs(arrays[name].astype(np.float64) - old.astype(np.float64))
        largest = float(distance.max(initial=0.0, where=np.isfinite(distance)))
        same = arrays[name].tobytes() == old.tobytes()
        facts = {"name": name, "shape": list(old.shape), "dtype": old.dtype.name}
        changes.append({**facts, "changed": not same, "largest_change": largest})
    return changes


def _report(result: Mapping[str, Any]) -> Iterator[Block]:
    yield f"{result['output']}: {bytes_of(result['bytes'])}"
    changed = [change for change in result["parameters"] if change["changed"]]
    title = f"Parameters: {len(changed)} changed, {len(result['parameters']) - len(changed)} as they were"
    yield Table(title, fields("name", "shape", "dtype", "largest change"), changed)
    if (verified := result["verified"]) is not None:
        rows = [{**each, "dims": case["dims"]} for case in verified["cases"] for each in case["outputs"]]
        columns = {"output": "name", "inputs": "dims", **COMPARED}
        yield Table(f"Verified against {verified['engine']}", columns, rows)
