"""``jaxrnn evaluate``: a model over a corpus, as a file of settings says."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jaxrnn.cli.cores import share_cores
from jaxrnn.cli.errors import INTERRUPTED
from jaxrnn.cli.options import json_option
from jaxrnn.cli.output import Block, Table, busy, fields, show, text_of
from jaxrnn.cli.settings import settings_options
from jaxrnn.errors import InputError

if TYPE_CHECKING:
    from jaxrnn.evaluation.hosts import Host
    from jaxrnn.evaluation.prepared import PreparedEvaluation

INTERVAL = "95 % interval"


@click.command()
@settings_options("jaxrnn.evaluation.settings:EvaluationSettings", "corpus.limit=100")
@click.option(
    "--processes",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Processes on this machine, each on cores of its own.",
)
@click.option(
    "--host",
    metavar="I/N",
    default=None,
    help="This is process I of N, from 0 on, that share the folder of results: one command on each machine.",
)
@click.option("--cluster", is_flag=True, help="The same, with I and N as JAX finds them (Slurm, TPU pods).")
@click.option(
    "--coordinator",
    metavar="ADDRESS:PORT",
    default=None,
    help="With --host: join through jax.distributed, whose process 0 listens there.",
)
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FOLDER",
    help="Results of another system on the same corpus, to compare with in the report.",
)
@json_option
@click.pass_context
def evaluate(
    ctx: click.Context, path: Path, overrides: tuple[str, ...], processes: int, host: str | None, cluster: bool,
    coordinator: str | None, against: Path | None,
) -> None:  # fmt: skip
    """Run a model over a corpus as SETTINGS.yaml says; write a table, a summary and a report.

    \b
      corpus: {folder: noisy, reference: clean}         # or {manifest: corpus.csv}
      system:
        frames: {size: 512, hop: 128}
        stages:
          - {model: dtln_1.onnx, takes: magnitude, gives: mask}
          - {model: dtln_2.onnx, takes: samples, gives: samples}
      metrics: [si_sdr, si_sdr_improvement, {name: stoi}]
      slices: [snr]                                     # columns of the manifest
      out: runs/dtln

    --keys explains every key. Paths are relative to the file. Texts may hold ${VARIABLE} or ${VARIABLE:-default}. All
    mistakes in a file are told at once, before anything runs. What is finished is kept: a run that was cut short goes
    on where it was, and its table is the same. A recording that cannot be read is a row with its error. The
    results are OUT/results.parquet, OUT/results.json and OUT/report.html, which needs no network.

    \b
    Examples:
      jaxrnn evaluate dtln.yaml
      jaxrnn evaluate dtln.yaml --set system.stages.1.model=other.onnx --print-config
      jaxrnn evaluate dtln.yaml --processes 2 --set corpus.limit=100 --json
      jaxrnn evaluate better.yaml --against runs/dtln
      jaxrnn evaluate dtln.yaml --host 0/4        # and 1/4, 2/4, 3/4 on other machines that see the same folders
    """  # noqa: D301
    if processes > 1 and (host is not None or cluster):
        raise InputError("--processes are of this machine alone: give either them, or --host or --cluster")
    if coordinator is not None and host is None:
        raise InputError("--coordinator needs --host I/N")
    others = share_cores(processes)
    place = _place(processes, host, cluster, coordinator)
    from jaxrnn.evaluation.conclusion import times_of
    from jaxrnn.evaluation.prepared import prepare_evaluation

    with busy(f"reading {path.name}"):
        prepared = prepare_evaluation(path, overrides)
    folder = prepared.evaluation.journal.folder
    before, began = prepared.evaluation.journal.finished(), time.monotonic()
    try:
        for line in _work(prepared, place, _arguments(path, overrides), others):
            click.echo(line, err=True)
    except KeyboardInterrupt:
        click.echo(f"interrupted; the same command goes on in {folder}", err=True)
        ctx.exit(INTERRUPTED)
    if not prepared.evaluation.is_complete:
        raise InputError("not all recordings are done; run the same command again")
    if place.index != 0:
        return
    times = times_of(prepared.evaluation, before, time.monotonic() - began)
    with busy("writing the report"):
        said = prepared.conclude(times, against).said
    show({"out": str(folder), "times": times, **{key: said[key] for key in said if key != "rows"}}, _report)


def _place(processes: int, host: str | None, cluster: bool, coordinator: str | None) -> Host:
    from jaxrnn.evaluation.hosts import Host, join

    if cluster:
        return join()
    if host is None:
        return Host(0, processes)
    index, slash, count = host.partition("/")
    if not slash or not index.isdigit() or not count.isdigit():
        raise InputError(f"--host {host}: expected I/N, such as 0/4")
    place = Host(int(index), int(count))
    return place if coordinator is None else join(coordinator, place.count, place.index)


def _arguments(path: Path, overrides: tuple[str, ...]) -> list[str]:
    return [str(path), *(part for override in overrides for part in ("--set", override))]


def _work(prepared: PreparedEvaluation, place: Host, arguments: list[str], others: list[dict[str, str]]) -> list[str]:
    """Do all units, with other processes beside this one; what went wrong in them, in words."""
    from jaxrnn.evaluation.hosts import shared
    from jaxrnn.evaluation.progress import showing
    from jaxrnn.evaluation.workers import workers

    evaluation = prepared.evaluation
    with showing(None, evaluation) as show, workers(arguments, others) as ended:
        evaluation.run(shared(evaluation, place), lambda unit, rows: show(evaluation.journal.finished()))
        return [f"process {each.index} ended with status {each.status}: {each.log}".rstrip(": ") for each in ended()]


def _report(result: Mapping[str, Any]) -> Iterator[Block]:
    counts, times, folder = result["recordings"], result["times"], Path(result["out"])
    sound, took, speed = (times[key] for key in ("seconds_of_recordings", "seconds", "times_real_time"))
    failed = f", {counts['failed']} of them not readable" if counts["failed"] else ""
    work = f"{sound:.0f} s in {took:.1f} s: {speed:.0f} times real time" if speed else "all of them done before"
    yield f"{counts['all']} recordings{failed}, {work}"
    yield Table(
        "Of the recordings, each for itself",
        {
            **fields("metric"),
            "recordings": "n",
            **fields("mean"),
            INTERVAL: _interval,
            **fields("median"),
            "standard deviation": "deviation",
        },
        [{"metric": name, **each} for name, each in result["summary"].items()],
        right=(INTERVAL,),
    )
    for metric, pooled in result["corpus"].items():
        rows = [{"name": name, **each} for name, each in pooled["values"].items()]
        columns = {"": "name", **fields("value"), INTERVAL: _interval}
        yield Table(f"{metric}, of all recordings as one", columns, rows, right=(INTERVAL,))
    yield ""
    yield f"table: {folder / 'results.parquet'}, summary: {folder / 'results.json'}, page: {folder / 'report.html'}"


def _interval(ends: Mapping[str, Any]) -> str:
    return f"{text_of(ends['low'])} to {text_of(ends['high'])}"
