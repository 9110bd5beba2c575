"""The graph of a file with other parameters: ``jaxrnn export --params`` and ``--checkpoint`` alone."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

from jaxrnn._files.messages import bytes_of, plain
from jaxrnn.cli.errors import MismatchError
from jaxrnn.cli.export_params import ParamsOptions
from jaxrnn.cli.options import ModelFile
from jaxrnn.cli.output import COMPARED, Block, Table, busy, fields, show
from jaxrnn.model import Model
from jaxrnn.model.loading import load, stored_params, write_graph
from jaxrnn.verification import Report
from jaxrnn.verification import verify as verify_model


def write_graph_again(
    file: ModelFile, output: Path, params: ParamsOptions, verify: bool, dims: dict[str, tuple[int, ...]], seed: int
) -> None:
    """Write the file with other parameters, and show which have changed.

    Args:
        file: the model.
        output: the file to write.
        params: where the parameters are.
        verify: whether it is compared with another engine first.
        dims: sizes of the inputs to verify with.
        seed: of those inputs.
    """
    if dims and not verify:
        raise click.UsageError("--dim sets the sizes of the inputs to verify with: it needs --verify")
    model = file.load()
    arrays = stored_params(model, params.of(model))
    report = None
    if verify:
        with busy(f"verifying {output.name}"), tempfile.TemporaryDirectory(dir=output.parent) as folder:
            trial = Path(folder, output.name)
            write_graph(model, arrays, trial)
            report = _verified(trial, model, arrays, static=file.static, dims=dims, seed=seed)
    write_graph(model, arrays, output)
    changes = _changes(model, arrays)
    result = {
        "model": str(file.path),
        "output": str(output),
        "bytes": output.stat().st_size,
        "changed": sum(change["changed"] for change in changes),
        "parameters": changes,
        "verified": None if report is None else {"engine": report.engine, "cases": plain(report.cases)},
    }
    show(result, _report)


def _verified(path: Path, model: Model, arrays: Mapping[str, np.ndarray], **options: Any) -> Report:
    """Read a file back and compare it.

    Raises:
        MismatchError: says what is wrong.
    """
    reread = load(path, state=model.declared_state).program.parameters
    lost = [name for name, array in arrays.items() if reread[name].tobytes() != array.tobytes()]
    report = verify_model(path, **options)
    different = [output for case in report.cases for output in case.outputs if not output.ok]
    problems = [f"the parameter {name!r} reads back with other values" for name in lost]
    problems += [f"the output {output.name!r} differs from {report.engine}'s: {output.reason}" for output in different]
    if problems:
        raise MismatchError(f"nothing was written: {'; '.join(problems)}")
    return report


def _changes(model: Model, arrays: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Name, shape, dtype, and the largest change of an element, for every parameter."""
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
