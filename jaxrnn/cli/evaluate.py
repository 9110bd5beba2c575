"""``jaxrnn evaluate``: a model over a corpus, as a file of settings says."""

from __future__ import annotations

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
    mistakes in a file are reported together, before anything runs. Finished work is kept: after an interruption, the
    same command continues, and its table is the same. A recording that cannot be read is a row with its error. The
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
        raise InputError("--processes are of this machine alone: give either --processes, or --host or --cluster")
    if coordinator is not None and host is None:
        raise InputError("--coordinator needs --host I/N")
    others = share_cores(processes)
    place = _place(processes, host, cluster, coordinator)
    from jaxrnn.evaluation.evaluate import run
    from jaxrnn.evaluation.prepared import prepare_evaluation
    from jaxrnn.evaluation.results import read_results
    from jaxrnn.evaluation.workers import workers

    with busy(f"reading {path.name}"):
        baseline = None if against is None else read_results(against)
        prepared = prepare_evaluation(path, overrides)
    folder = prepared.evaluation.journal.folder
    arguments = [str(path), *(part for override in overrides for part in ("--set", override))]
    try:
        with workers(arguments, others) as failures:
            times = run(prepared.evaluation, place)
            for line in failures():
                click.echo(line, err=True)
    except KeyboardInterrupt:
        click.echo(f"interrupted; the same command continues in {folder}", err=True)
        ctx.exit(INTERRUPTED)
    if not prepared.evaluation.is_complete:
        raise InputError("not all recordings are finished; run the same command again")
    if place.index != 0:
        return
    with busy("writing the report"):
        document = prepared.conclude(times, baseline).document
    show({"out": str(folder), "times": times, **{key: document[key] for key in document if key != "rows"}}, _report)


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


def _report(result: Mapping[str, Any]) -> Iterator[Block]:
    counts, times, folder = result["recordings"], result["times"], Path(result["out"])
    sound, took, speed = (times[key] for key in ("seconds_of_recordings", "seconds", "times_real_time"))
    failed = f", {counts['failed']} of them not readable" if counts["failed"] else ""
    work = f"{sound:.0f} s in {took:.1f} s: {speed:.0f} times real time" if speed else "all of them finished before"
    yield f"{counts['all']} recordings{failed}, {work}"
    yield Table(
        "Over recordings",
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
        yield Table(f"{metric}, all recordings together", columns, rows, right=(INTERVAL,))
    yield ""
    yield f"table: {folder / 'results.parquet'}, summary: {folder / 'results.json'}, page: {folder / 'report.html'}"


def _interval(ends: Mapping[str, Any]) -> str:
    return f"{text_of(ends['low'])} to {text_of(ends['high'])}"
