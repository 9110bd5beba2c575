"""``jaxrnn finetune``: a model trained on examples, as a file of settings says."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from jaxrnn.cli.errors import INTERRUPTED, wants_json
from jaxrnn.cli.hosts import Hosts, Member, among_hosts, hosts_options
from jaxrnn.cli.options import json_option
from jaxrnn.cli.output import Block, Table, busy, show, text_of
from jaxrnn.cli.settings import settings_options

if TYPE_CHECKING:
    from jaxrnn.training import Fitted
    from jaxrnn.training.prepared import PreparedTraining


@click.command()
@settings_options("jaxrnn.training.settings:TrainingSettings", "loss.power=0.5")
@click.option(
    "--resume/--fresh",
    default=None,
    help="Continue from existing checkpoints, or refuse if there are any. [default: as the file says, else resume]",
)
@hosts_options
@json_option
@click.pass_context
def finetune(ctx: click.Context, path: Path, overrides: tuple[str, ...], resume: bool | None, hosts: Hosts) -> None:
    """Fine-tune a model as SETTINGS.yaml says, and write it as an ONNX file again.

    A file needs a model, examples, a loss, and how long to train:

    \b
      model: denoiser.onnx
      data: {npz: training/*.npz}             # or {function: file.py:make, arguments: {...}}
      loss: {name: mse, output: y, target: clean}
      epochs: 10
      export: run/denoiser.onnx

    and may change the defaults of all else; --keys explains every key:

    \b
      optimizer: {name: adamw, weight_decay: 0.01, learning_rate: 1e-4, freeze: "*running_*"}
      sequences: {time_axis: 1}               # examples may differ in length
      validation: {npz: validation/*.npz, patience: 5}
      checkpoints: run/checkpoints

    Paths are relative to the file. Values may hold ${VARIABLE} or ${VARIABLE:-default}. All mistakes in a file are
    reported at once, before anything runs. A run that was cut short continues from its last checkpoint when it is
    started again.

    Several processes, on one host or many, train as one: started by Slurm or Open MPI, they find each other; anywhere
    else, --coordinator says where process 0 is. Where one is lost, all end with exit status 75, and the same command
    continues.

    \b
    Examples:
      jaxrnn finetune denoiser.yaml
      jaxrnn finetune denoiser.yaml --set steps=100 --set optimizer.learning_rate=1e-4 --json
      jaxrnn finetune denoiser.yaml --set 'optimizer={name: sgd, momentum: 0.9}' --print-config
      jaxrnn finetune denoiser.yaml --fresh --set checkpoints=another/folder
      srun --ntasks=8 jaxrnn finetune denoiser.yaml
      jaxrnn finetune denoiser.yaml --coordinator node1:1234 --processes 2 --process 0
    """  # noqa: D301
    with among_hosts(hosts) as member:
        _finetune(ctx, path, overrides, resume, member)


def _finetune(ctx: click.Context, path: Path, overrides: tuple[str, ...], resume: bool | None, member: Member) -> None:
    from jaxrnn.training.prepared import prepare_training

    with busy(f"reading {path.name}"):
        training = prepare_training(path, overrides)
    checkpoints = training.settings.checkpoints
    member.tell(checkpoints=None if checkpoints is None else str(checkpoints.folder))
    training.check_alike()
    before = _measured(training, training.arguments["params"], "measuring the model as it is")
    began = time.monotonic()
    try:
        with _plain_warnings(member.writes):
            fitted = training.run(resume=resume, progress=False if wants_json() else None)
    except KeyboardInterrupt:
        if checkpoints is None:
            raise
        if member.writes:
            click.echo(f"interrupted; run the same command again to continue from {checkpoints.folder}", err=True)
        ctx.exit(INTERRUPTED)
    seconds = time.monotonic() - began
    after = _measured(training, fitted.params, "measuring the trained model")
    if member.writes:
        show(_result(path, training, fitted, before, after, seconds), _report)


@contextlib.contextmanager
def _plain_warnings(shown: bool) -> Iterator[None]:
    """Inside, a warning is a line on standard error, without the line of Python that it comes from; or nothing."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: click.echo(f"warning: {message}", err=True) if shown else None
        yield


def _measured(training: PreparedTraining, params: Mapping[str, Any], what: str) -> dict[str, float] | None:
    with busy(what):
        return training.evaluate(params)


def _result(
    path: Path,
    training: PreparedTraining,
    fitted: Fitted,
    before: dict[str, float] | None,
    after: dict[str, float] | None,
    seconds: float,
) -> dict[str, Any]:
    """The figures by name, ready for JSON."""
    losses = [record["loss"] for record in fitted.history]
    tenth = max(1, len(losses) // 10)
    settings = training.settings
    folder = None if settings.checkpoints is None else settings.checkpoints.folder
    paths = {"export": settings.export, "plot": settings.plot, "checkpoints": folder}
    return {
        "config": str(path),
        "model": str(settings.model.file),
        "steps": fitted.step,
        "best_step": fitted.best_step,
        "stopped": fitted.stopped,
        "seconds": seconds,
        "loss_first_tenth": float(np.mean(losses[:tenth])) if losses else None,
        "loss_last_tenth": float(np.mean(losses[-tenth:])) if losses else None,
        "validation_before": before,
        "validation_after": after,
        **{key: None if place is None else str(place) for key, place in paths.items()},
    }


def _report(result: Mapping[str, Any]) -> Iterator[Block]:
    why = " (early: no better validation loss)" if result["stopped"] == "patience" else ""
    yield f"{result['model']}: {result['steps']} updates in {result['seconds']:.1f} s{why}"
    first, last = text_of(result["loss_first_tenth"]), text_of(result["loss_last_tenth"])
    yield f"loss: {first} in the first tenth of them, {last} in the last"
    before, after = result["validation_before"], result["validation_after"]
    if before is not None and after is not None:
        rows = [(key, before[key], value, _change(before[key], value)) for key, value in after.items()]
        title = f"On the validation examples (parameters of update {result['best_step']})"
        yield Table(title, ("", "before", "after", "change"), rows, right=("change",))
        yield ""
    for key, what in (("export", "model"), ("plot", "loss curve"), ("checkpoints", "checkpoints")):
        if result[key] is not None:
            yield f"{what}: {result[key]}"


def _change(before: float | None, after: float | None) -> str | None:
    return None if before is None or after is None else f"{after - before:+.4g}"
