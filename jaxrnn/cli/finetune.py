"""``jaxrnn finetune``: train a model on examples with a file of settings, in one process or several."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from jaxrnn._files.messages import first_line
from jaxrnn.cli.commands import Count, Option, Seed
from jaxrnn.cli.errors import INTERRUPTED, on_signal, wants_json
from jaxrnn.cli.options import Overrides, SettingsPath, settings_command
from jaxrnn.cli.output import Block, Table, busy, plain_warnings, show, text_of
from jaxrnn.cli.stream_options import Sound
from jaxrnn.errors import JaxrnnError, TrainingError

if TYPE_CHECKING:
    from jaxrnn.training import Fitted
    from jaxrnn.training.settings import PreparedTraining


#: The variables in which launchers pass the number of processes, and a further variable that JAX needs.
_LAUNCHERS = (("SLURM_NTASKS", "SLURM_STEP_NODELIST"), ("OMPI_COMM_WORLD_SIZE",))
#: Values of --coordinator in place of a host and a port.
AUTO, NONE = "auto", "none"


@dataclass(frozen=True)
class Hosts:
    """The address of process 0, the number of processes, and the number of this process.

    Attributes:
        coordinator: Train as one of several processes; process 0 listens at this address. With 'auto', JAX finds the
            address (TPU pods, Kubernetes); with 'none', the process trains alone. [default: auto under Slurm and Open
            MPI, else none]
        processes: Number of processes.
        process: Number of this process, from 0.
        lost_after: Seconds without an answer after which a process counts as lost, and all others end.
    """

    coordinator: Annotated[str, Option(metavar="HOST:PORT")] | None = None
    processes: Annotated[Count, Option(metavar="COUNT")] | None = None
    process: Annotated[Seed, Option(metavar="NUMBER")] | None = None
    lost_after: Annotated[Count, Option(metavar="SECONDS")] = 30

    def __post_init__(self):
        if self.coordinator in (None, AUTO, NONE):
            if self.processes is not None or self.process is not None:
                raise click.UsageError("--processes and --process need --coordinator HOST:PORT.")
        elif not re.fullmatch(r".+:\d{1,5}", self.coordinator or ""):
            raise click.UsageError(
                f"--coordinator is HOST:PORT of process 0, '{AUTO}' or '{NONE}', not {self.coordinator!r}."
            )
        elif (self.processes is None) != (self.process is None):
            raise click.UsageError("Give both --processes, the number of processes, and --process, the number of this.")
        elif self.processes is not None and self.process is not None and self.process >= self.processes:
            raise click.UsageError(f"--process {self.process}: the last of {self.processes} is {self.processes - 1}.")

    @property
    def are_several(self) -> bool:
        """Return True if --coordinator or the variables of a launcher name several processes."""
        if self.coordinator is not None:
            return self.coordinator != NONE
        launched = (names for names in _LAUNCHERS if all(name in os.environ for name in names))
        return any(os.environ[count].isdecimal() and int(os.environ[count]) > 1 for count, *_ in launched)


@settings_command("jaxrnn.training.settings:TrainingSettings")
def finetune(
    *,
    path: SettingsPath,
    overrides: Overrides,
    resume: Annotated[bool, Option(("--resume/--fresh",))] | None = None,
    trust_names: bool = False,
    hosts: Hosts,
    sound: Sound,
) -> None:
    """Fine-tune a model with the settings in SETTINGS.yaml, and write it as an ONNX file.

    A file needs a model, examples, a loss, and a length of training:

      model: denoiser.onnx
      data: {npz: training/*.npz}             # or {function: file.py:make}, or {recordings: {clean: ..., noise: ...}}
      loss: {name: mse, output: y, target: clean}
      epochs: 10
      export: run/denoiser.onnx

    It may change all other defaults; --keys explains each key:

      optimizer: {name: adamw, weight_decay: 0.01, learning_rate: 1e-4, freeze: "*running_*"}
      sequences: {time_axis: 1}               # examples may differ in length
      validation: {npz: validation/*.npz, patience: 5}
      checkpoints: run/checkpoints
      log: [tensorboard, csv]

    A network over spectra is trained from waveform to waveform with --stft, or the key stft.

    With the key future, an offline network learns to stream: it is trained with bounded futures, and with teacher on
    the outputs of an offline network, under their names:

      future: 20
      teacher: denoiser.onnx
      loss: {name: mse, output: mask, target: mask}
      export: run/tuned.onnx                  # the offline network
      export_stream: run/live.onnx            # the stream

    Paths are relative to the file. Values may contain ${VARIABLE} or ${VARIABLE:-default}. All mistakes in a file are
    reported together, before anything runs. An interrupted run continues from its last checkpoint when it is started
    again.

    Several processes, on one host or many, train as one. Under Slurm and Open MPI they find each other; elsewhere give
    --coordinator, the address of process 0. If a process is lost, all others end, and the same command continues.

    Examples:
      jaxrnn finetune denoiser.yaml
      jaxrnn finetune denoiser.yaml --set steps=100 --set optimizer.learning_rate=1e-4 --json
      jaxrnn finetune denoiser.yaml --set 'optimizer={name: sgd, momentum: 0.9}' --print-config
      jaxrnn finetune denoiser.yaml --fresh --set checkpoints=another/folder
      jaxrnn finetune denoiser.yaml --set future=20 --set teacher=denoiser.onnx --set export_stream=live.onnx
      jaxrnn finetune denoiser.yaml --stft 256 --hop 128 --window sqrt_hann --gives mask
      srun --ntasks=8 jaxrnn finetune denoiser.yaml
      jaxrnn finetune denoiser.yaml --coordinator node1:1234 --processes 2 --process 0

    Args:
        overrides: Replace a value of the file, written in YAML; may be given several times. Example: --set
            loss.power=0.5.
        resume: Continue from existing checkpoints, or refuse existing checkpoints. [default: the value of the file,
            else resume]
        trust_names: Continue with `npz` or `recordings` of a store that gives neither versions nor ETags, if names and
            sizes are equal.
        hop: Samples from one frame to the next. Options of --stft set the keys of stft.
    """
    if trust_names:
        overrides = (*overrides, "data.trust_names=true")
    overrides = (*overrides, *(f"stft.{key}={value}" for key, value in sound.items() if sound))
    with _among(hosts):
        _finetune(path, overrides, resume)


@contextlib.contextmanager
def _among(hosts: Hosts) -> Iterator[None]:
    """Join the other processes, if there are any, and name this process in errors."""
    if not hosts.are_several:
        yield
        return
    import jax

    from jaxrnn.training.agreement import join, wait_for_others

    _separate_output()
    number = hosts.process
    try:
        join(None if hosts.coordinator == AUTO else hosts.coordinator, hosts.processes, number, hosts.lost_after)
        number = jax.process_index()
        with _agreed_interrupts():
            yield
            wait_for_others()
    except JaxrnnError as error:
        raise error if number is None else type(error)(f"process {number}: {error}") from error
    except jax.errors.JaxRuntimeError as error:
        message = f"process {number}: JAX lost the other processes: {first_line(error).rstrip('.')}"
        raise TrainingError(message) from error


def _separate_output() -> None:
    """Have libraries such as Gloo write to standard error, so that standard output has only the result."""
    if sys.stdout is sys.__stdout__:
        sys.stdout.flush()
        sys.stdout = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)
        os.dup2(2, 1)


@contextlib.contextmanager
def _agreed_interrupts() -> Iterator[None]:
    """Turn the first Ctrl-C into SIGTERM, after which JAX has all processes end after the same update."""
    before = signal.getsignal(signal.SIGINT)

    def end_together(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, before)
        click.echo("ending after this update; Ctrl-C again ends at once", err=True)
        os.kill(os.getpid(), signal.SIGTERM)

    with on_signal(signal.SIGINT, end_together):
        yield


def _finetune(path: Path, overrides: tuple[str, ...], resume: bool | None) -> None:
    from jaxrnn.training.settings import prepare_training
    from jaxrnn.training.sharding import is_primary

    with busy(f"reading {path.name}"):
        training = prepare_training(path, overrides)
    checkpoints = training.arguments["checkpoints"]
    training.check_alike()
    before = _measured(training, training.arguments["params"], "measuring the model as it is")
    began = time.monotonic()
    try:
        with plain_warnings(is_primary()):
            fitted = training.run(resume=resume, progress=False if wants_json() else None)
    except KeyboardInterrupt:
        if checkpoints is None:
            raise
        if is_primary():
            click.echo(f"interrupted; run the same command again to continue from {checkpoints.folder}", err=True)
        click.get_current_context().exit(INTERRUPTED)
    seconds = time.monotonic() - began
    after = _measured(training, fitted.params, "measuring the trained model")
    if is_primary():
        show(_result(path, training, fitted, before, after, seconds), _report)


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
    """Return the figures of a training."""
    import numpy as np

    losses = [record["loss"] for record in fitted.history]
    tenth = max(1, len(losses) // 10)
    settings = training.settings
    folder = None if settings.checkpoints is None else settings.checkpoints["folder"]
    paths = {"export": settings.export, "export_stream": settings.export_stream}
    paths |= {"plot": settings.plot, "checkpoints": folder}
    return {
        "config": str(path),
        "model": str(settings.model.file),
        "steps": fitted.step,
        "resumed_from": fitted.resumed_from,
        "best_step": fitted.best_step,
        "stopped": fitted.stopped,
        "left_out": {str(place): fault for place, fault in getattr(training.arguments["data"], "left_out", {}).items()},
        "seconds": seconds,
        "loss_first_tenth": float(np.mean(losses[:tenth])) if losses else None,
        "loss_last_tenth": float(np.mean(losses[-tenth:])) if losses else None,
        "validation_before": before,
        "validation_after": after,
        **{key: None if place is None else str(place) for key, place in paths.items()},
        "history": fitted.history,
    }


def _report(result: Mapping[str, Any]) -> Iterator[Block]:
    why = " (early: no better validation loss)" if result["stopped"] == "patience" else ""
    yield f"{result['model']}: {result['steps']} updates in {result['seconds']:.1f} s{why}"
    yield from (f"left out: {fault}" for fault in result["left_out"].values())
    first, last = text_of(result["loss_first_tenth"]), text_of(result["loss_last_tenth"])
    yield f"loss: {first} in the first tenth of them, {last} in the last"
    before, after = result["validation_before"], result["validation_after"]
    if before is not None and after is not None:
        rows = [
            (key, before[key], value, None if value is None or before[key] is None else f"{value - before[key]:+.4g}")
            for key, value in after.items()
        ]
        title = f"On the validation examples (parameters of update {result['best_step']})"
        yield Table(title, ("", "before", "after", "change"), rows, right=("change",))
        yield ""
    written = {"export": "model", "export_stream": "stream", "plot": "loss curve", "checkpoints": "checkpoints"}
    for key, what in written.items():
        if result[key] is not None:
            yield f"{what}: {result[key]}"
