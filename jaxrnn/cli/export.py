"""``jaxrnn export``: an ONNX file with the parameters of a training in it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from jaxrnn.cli.options import (
    check_folder,
    json_option,
    load_archive,
    model_argument,
    parse_dims,
    parse_state,
    parse_static,
    state_option,
    static_option,
)
from jaxrnn.cli.output import busy, console, number, plain, print_json, print_table, shape_text
from jaxrnn.messages import bytes_of

if TYPE_CHECKING:
    from jaxrnn.model import Model
    from jaxrnn.verification import Report

MISMATCH = 1


@click.command()
@model_argument
@click.option(
    "--output",
    "-o",
    required=True,
    metavar="OUT.onnx",
    type=click.Path(path_type=Path),
    help="The file to write; it may be FILE itself. It appears when it is complete, and with --verify when it agrees.",
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
@static_option
@state_option
@click.option("--verify", is_flag=True, help="Compare the new file with ONNX Runtime on random inputs first.")
@click.option(
    "--dim",
    "dims",
    metavar="NAME=SIZE",
    multiple=True,
    help="With --verify: sizes of an open dimension of the inputs, as for 'jaxrnn verify'.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="With --verify: seed of the inputs. [default: 0]")
@json_option
@click.pass_context
def export(
    ctx: click.Context,
    file: Path,
    output: Path,
    checkpoint: Path | None,
    step: int | None,
    last: bool,
    best: bool,
    archive: Path | None,
    static: tuple[str, ...],
    pairs: tuple[str, ...],
    verify: bool,
    dims: tuple[str, ...],
    seed: int,
    as_json: bool,
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
    from jaxrnn.model.exporting import export_onnx, stored_params
    from jaxrnn.model.loading import load

    _check_source(checkpoint, archive, {"--step": step is not None, "--last": last, "--best": best})
    if dims and not verify:
        raise click.UsageError("--dim sets the sizes of the inputs to verify with: it needs --verify")
    check_folder(output)
    fixed, sizes = parse_static(static), parse_dims(dims)
    model = load(file, static=fixed, state=parse_state(pairs))
    params = _params(model, checkpoint, step, not last) if archive is None else _from_archive(model, archive)
    arrays = stored_params(model, params)
    report = None
    if verify:
        with busy(f"verifying {output.name}"), tempfile.TemporaryDirectory(dir=output.parent) as folder:
            trial = Path(folder, output.name)
            export_onnx(model, arrays, trial)
            report, wrong = _verified(trial, model, arrays, static=fixed, dims=sizes, seed=seed)
        if wrong:
            _refuse(ctx, wrong, as_json)
    export_onnx(model, arrays, output)
    _show(file, output, _changes(model, arrays), report, as_json)


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


def _verified(path: Path, model: Model, arrays: Mapping[str, np.ndarray], **options: Any) -> tuple[Report, str | None]:
    """Read a file back and compare it; returns what was compared, and what is wrong or None."""
    from jaxrnn.model.loading import load
    from jaxrnn.verification import verify

    reread = load(path, state=model.declared_state).program.parameters
    lost = [name for name, array in arrays.items() if reread[name].tobytes() != array.tobytes()]
    report = verify(path, **options)
    departed = [output for case in report.cases for output in case.outputs if not output.ok]
    problems = [f"the parameter {name!r} reads back with other values" for name in lost]
    problems += [f"the output {output.name!r} departs from {report.engine}: {output.reason}" for output in departed]
    return report, "; ".join(problems) or None


def _refuse(ctx: click.Context, wrong: str, as_json: bool) -> None:
    message = f"nothing was written: {wrong}"
    if as_json:
        print_json({"error": message})
    click.echo(f"error: {message}", err=True)
    ctx.exit(MISMATCH)


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


def _show(file: Path, output: Path, changes: list[dict[str, Any]], report: Report | None, as_json: bool) -> None:
    changed = [change for change in changes if change["changed"]]
    compared = [] if report is None else [(case, each) for case in report.cases for each in case.outputs]
    if as_json:
        verified = None if report is None else {"engine": report.engine, "cases": plain(report.cases)}
        facts = {"model": str(file), "output": str(output), "bytes": output.stat().st_size, "changed": len(changed)}
        print_json({**facts, "parameters": changes, "verified": verified})
        return
    out = console()
    out.print(f"{output}: {bytes_of(output.stat().st_size)}")
    print_table(
        out,
        f"Parameters: {len(changed)} changed, {len(changes) - len(changed)} as they were",
        ("name", "shape", "dtype", "largest change"),
        [(c["name"], shape_text(c["shape"]), c["dtype"], number(c["largest_change"])) for c in changed],
        right=("largest change",),
    )
    if report is None:
        return
    print_table(
        out,
        f"Verified against {report.engine}",
        ("output", "inputs", "largest absolute", "largest relative"),
        [
            (
                each.name,
                ", ".join(f"{name}={size}" for name, size in case.dims.items()),
                number(each.max_abs),
                number(each.max_rel),
            )
            for case, each in compared
        ],
        right=("largest absolute", "largest relative"),
    )
