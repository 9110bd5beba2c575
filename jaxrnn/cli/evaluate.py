"""``jaxrnn evaluate``: run a model over a corpus, with a file of settings."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import click

from jaxrnn.cli.commands import Count, Option
from jaxrnn.cli.errors import INTERRUPTED, on_signal
from jaxrnn.cli.options import Overrides, SettingsPath, settings_command
from jaxrnn.cli.output import Block, Table, busy, fields, show, text_of
from jaxrnn.cli.stream_options import Sound

INTERVAL = "95 % interval"


@settings_command("jaxrnn.evaluation.settings:EvaluationSettings")
def evaluate(
    *,
    path: SettingsPath,
    overrides: Overrides,
    workers: Annotated[Count, Option(metavar="N")] | None = None,
    ray: Annotated[str, Option(metavar="ADDRESS")] | None = None,
    against: Annotated[str, Option(metavar="FOLDER")] | None = None,
    trust_names: bool = False,
    sound: Sound,
) -> None:
    """Run a model over a corpus with the settings in SETTINGS.yaml; write a table, a summary and a report.

      corpus: {folder: noisy, reference: clean}         # or {manifest: corpus.csv}
      system:
        frames: {size: 512, hop: 128}
        stages:
          - {model: dtln_1.onnx, takes: magnitude, gives: mask}
          - {model: dtln_2.onnx, takes: samples, gives: samples}
      metrics: [si_sdr, si_sdr_improvement, {name: stoi}]
      slices: [snr]                                     # columns of the manifest
      out: runs/dtln

    In place of recordings and a system, corpus: {table: asr.csv} judges texts or scores that another program wrote,
    with metrics such as wer, cer and eer.

    --keys explains each key. Paths are relative to the file. Texts may contain ${VARIABLE} or ${VARIABLE:-default}. All
    mistakes in a file are reported together, before anything runs. Finished work is kept: after an interruption, the
    same command continues, and the table is bit-identical on any number of workers. A recording that cannot be read
    becomes a row with its error. The results are OUT/results.parquet, OUT/results.json and OUT/report.html, which needs
    no network.

    Examples:
      jaxrnn evaluate dtln.yaml
      jaxrnn evaluate dtln.yaml --set system.stages.1.model=other.onnx --print-config
      jaxrnn evaluate dtln.yaml --workers 2 --set corpus.limit=100 --json
      jaxrnn evaluate better.yaml --against runs/dtln
      jaxrnn evaluate network.yaml --set system.stream.future=20 --set out=runs/future_20 --against runs/offline
      jaxrnn evaluate network.yaml --stft 512 --hop 256 --window sqrt_hann --gives mask
      jaxrnn evaluate dtln.yaml --ray auto --set resources.gpus=1

    Args:
        overrides: Replace a value of the file, written in YAML; may be given several times. Example: --set
            corpus.limit=100.
        workers: Compute in N processes of this machine, or with --ray on a cluster.
        ray: Compute on a Ray cluster: 'auto' for the cluster of this machine, or ray://HOST:10001. Without --workers,
            the cluster is filled. Needs Ray.
        against: Folder with the results of another system on the same corpus, for comparison in the report.
        trust_names: Continue with recordings of a store that gives neither versions nor ETags, if names and sizes are
            equal.
        hop: Samples from one frame to the next. Options of --stft set the keys of system.stream.stft.
    """
    from jaxrnn.evaluation.cluster import Workers
    from jaxrnn.evaluation.evaluation import Evaluation, run
    from jaxrnn.evaluation.results import read_results
    from jaxrnn.evaluation.settings import prepare_evaluation

    overrides = (*overrides, *(f"system.stream.stft.{key}={value}" for key, value in sound.items() if sound))
    if trust_names:
        overrides = (*overrides, "corpus.trust_names=true")
    several = None if workers is None and ray is None else Workers(workers, ray)
    with busy(f"reading {path.name}"):
        baseline = None if against is None else read_results(against)
        evaluation = prepare_evaluation(path, overrides, several)
    folder = evaluation.parts.folder
    try:
        # A KeyboardInterrupt releases the resources of the command.
        with on_signal(signal.SIGTERM, signal.default_int_handler):
            times = run(evaluation) if isinstance(evaluation, Evaluation) else evaluation.run()
    except KeyboardInterrupt:
        click.echo(f"interrupted; run the same command again to continue in {folder}", err=True)
        click.get_current_context().exit(INTERRUPTED)
    with busy("writing the report"):
        document = evaluation.conclude(times, baseline).document
    show({"out": str(folder), "times": times, **{key: document[key] for key in document if key != "rows"}}, _report)


def _report(result: Mapping[str, Any]) -> Iterator[Block]:
    from jaxrnn._files.stores import location

    counts, times, folder = result["recordings"], result["times"], location(result["out"])
    sound, took, speed = (times[key] for key in ("seconds_of_recordings", "seconds", "times_real_time"))
    failed = f", {counts['failed']} of them not readable" if counts["failed"] else ""
    work = f"{sound:.0f} s in {took:.1f} s: {speed:.0f} times real time" if speed else "all of them finished before"
    yield f"{counts['all']} recordings{failed}, {work}" if counts["seconds"] else f"{counts['all']} rows of a table"
    improved = any("improvement" in each for each in result["summary"].values())
    left_out = [key for key in ("missing", "infinite") if any(each[key] for each in result["summary"].values())]
    over = Table(
        "Over recordings",
        {
            **fields("metric"),
            "recordings": "n",
            **fields(*left_out),
            **fields("mean"),
            INTERVAL: _interval,
            **fields("median"),
            "standard deviation": "deviation",
            **({"improvement": lambda each: each.get("improvement", {}).get("mean")} if improved else {}),
        },
        [{"metric": name, **each} for name, each in result["summary"].items()],
        right=(INTERVAL,),
    )
    if result["summary"]:
        yield over
    for metric, pooled in result["corpus"].items():
        rows = [{"name": name, **each} for name, each in pooled["values"].items()]
        columns = {"": "name", **fields("value"), INTERVAL: _interval}
        yield Table(f"{metric}, all recordings together", columns, rows, right=(INTERVAL,))
    yield ""
    yield f"table: {folder / 'results.parquet'}, summary: {folder / 'results.json'}, page: {folder / 'report.html'}"


def _interval(ends: Mapping[str, Any]) -> str:
    from jaxrnn.evaluation.summary import LEAST

    if ends["low"] is None and 0 < ends.get("n", LEAST) < LEAST:
        return "too few"
    return f"{text_of(ends['low'])} to {text_of(ends['high'])}"
