"""``jaxrnn export``: an ONNX file with the parameters of a training in it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from jaxrnn.cli.errors import MismatchError
from jaxrnn.cli.files import load_archive
from jaxrnn.cli.inputs import dim_option, seed_option
from jaxrnn.cli.options import ModelFile, json_option, model_file, output_option
from jaxrnn.cli.output import COMPARED, Block, Table, busy, fields, plain, show
from jaxrnn.messages import bytes_of

if TYPE_CHECKING:
    from jaxrnn.model import Model
    from jaxrnn.verification import Report


@click.command()
@model_file
@output_option(
    "OUT.onnx",
    "The file to write; it may be FILE itself. It appears when it is complete, and with --verify when it agrees.",
    required=True,
)
@click.option(
    "--checkpoint",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Take the parameters from this folder of checkpoints, as a training with 'checkpoints' leaves it.",
)
@click.option("--step", metavar="N", type=click.IntRange(min=0), help="With --checkpoint: those of this step.")
@click.option("--last", is_flag=True, help="With --checkpoint: those of the last step that was saved.")
@click.option("--best", is_flag=True, help="With --checkpoint: those of the best validation. [default]")
@click.option(
    "--params",
    "archive",
    metavar="FILE.npz",
    type=click.Path(path_type=Path),
    help="Take the parameters by name from a .npz file. 'jaxrnn inspect --params' shows the names.",
)
@click.option("--verify", is_flag=True, help="Compare the new file with ONNX Runtime on random inputs first.")
@dim_option("With --verify: sizes of an open dimension of the inputs, as for 'jaxrnn verify'.", several=True)
@seed_option("With --verify: seed of the inputs.")
@json_option
def export(
    file: ModelFile,
    output: Path,
    checkpoint: Path | None,
    step: int | None,
    last: bool,
    best: bool,
    archive: Path | None,
    verify: bool,
    dims: dict[str, tuple[int, ...]],
    seed: int,
) -> None:
    """Write an ONNX file again with other parameters, and show which have changed.

    The parameters go where FILE has them, in its own element types; everything else stays as it is, byte for byte.
    External data is written beside OUT.onnx, and never over a file that is there.

    With --verify the new file is read back: its parameters must be those that were given, and what it computes must be
    what ONNX Runtime computes. Exit status 1 where it is not, and then nothing is written.

    \b
    Examples:
      jaxrnn export model.onnx --checkpoint runs/first -o tuned.onnx --verify
      jaxrnn export model.onnx --checkpoint runs/first --step 400 -o tuned.onnx
      jaxrnn export vad.onnx --params tuned.npz -o tuned.onnx --verify --static sr=16000 --dim sequence=576
    """  # noqa: D301
    from jaxrnn.model.exporting import stored_params, write_graph

    _check_source(checkpoint, archive, {"--step": step is not None, "--last": last, "--best": best})
    if dims and not verify:
        raise click.UsageError("--dim sets the sizes of the inputs to verify with: it needs --verify")
    model = file.load()
    params = _params(model, checkpoint, step, not last) if archive is None else _from_archive(model, archive)
    arrays = stored_params(model, params)
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


def _check_source(checkpoint: Path | None, archive: Path | None, chosen: Mapping[str, bool]) -> None:
    options = [option for option, value in chosen.items() if value]
    if (checkpoint is None) == (archive is None):
        raise click.UsageError("give either --checkpoint DIR or --params FILE.npz, where the parameters are")
    if options and checkpoint is None:
        raise click.UsageError(f"{options[0]} chooses a checkpoint: it needs --checkpoint DIR")
    if len(options) > 1:
        raise click.UsageError(f"{' and '.join(options)} exclude each other")


def _params(model: Model, folder: Path | None, step: int | None, best: bool) -> dict[str, Any]:
    from jaxrnn.training import load_checkpoint

    assert folder is not None
    return load_checkpoint(folder, model=model, step=step, best=best)


def _from_archive(model: Model, path: Path) -> dict[str, Any]:
    from jaxrnn.specs import ArraySpec
    from jaxrnn.verification.sampling import restore_types

    infos = [ArraySpec(name, array.dtype, array.shape) for name, array in model.program.parameters.items()]
    return restore_types(infos, load_archive(path))


def _verified(path: Path, model: Model, arrays: Mapping[str, np.ndarray], **options: Any) -> Report:
    """Read a file back and compare it.

    Raises:
        MismatchError: says what is wrong.
    """
    from jaxrnn.model.loading import load
    from jaxrnn.verification import verify

    reread = load(path, state=model.declared_state).program.parameters
    lost = [name for name, array in arrays.items() if reread[name].tobytes() != array.tobytes()]
    report = verify(path, **options)
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
