"""An evaluation from recordings to tables and a report page."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from jaxrnn._files.messages import near
from jaxrnn._files.progress import progress_bar
from jaxrnn._files.stores import Location, location
from jaxrnn.audio.checking import check_recordings, check_share, examine_recording, refuse_faults
from jaxrnn.audio.contents import identity_of
from jaxrnn.audio.corpus import COLUMNS, PLACE, Item, checked, columns_of, probe
from jaxrnn.audio.waveforms import Waveform
from jaxrnn.errors import InputError, optional_package
from jaxrnn.evaluation.cluster import WorkerPool, Workers
from jaxrnn.evaluation.evaluator import Evaluator, Unit, Units
from jaxrnn.evaluation.framed import system_of
from jaxrnn.evaluation.judging import discard_partial
from jaxrnn.evaluation.metrics import Metric, built, check_metrics, latencies, with_unprocessed
from jaxrnn.evaluation.parts import Parts, Row, collected, frame_of, row_of, write_whole
from jaxrnn.evaluation.report import EXAMPLES, load_page, write_report, write_summary
from jaxrnn.evaluation.results import OUTPUTS, Results, read_results, read_table, results_of, write_results
from jaxrnn.evaluation.summary import check_slices
from jaxrnn.evaluation.systems import System, chunk_frames

#: Recordings in a batch, and seconds of each recording in a chunk.
BATCH, CHUNK = 16, 4.0

#: The times of a run are in a separate file, because results do not differ between runs.
TIMES = "times.json"
REPORT = "report.html"


class Evaluation:
    """The evaluation of a system on a corpus.

    Args:
        system: the system, as in `evaluate`.
        corpus: the recordings, with different ids.
        metrics: metrics, or names for `build_metric`.
        out: the results folder; units that are finished there are not computed again.
        trust_names: True to continue with recordings of a store that gives neither versions nor ETags, if names and
            sizes are equal.
        check: True to read all samples of all recordings and references first.
        skip: the largest share of recordings with an error, as in `evaluate`.
        facts: other facts that determine the results, such as files or settings of a system of your own, so that
            different evaluations are not mixed. `Framed` and `Offline` need no facts. A `Stepper` of your own is
            identified by a `fingerprint`, or else by the spec.
        batch: recordings in a batch.
        chunk: seconds of each recording in a chunk; for arrays, frames divided by the rate of the system.
        keep: write the outputs.
        computing: the executor of units; by default this process.
        slices: columns to group results by.
        title: the title of the report.
        main: the metric that ranks recordings in the report; by default the first.
        examples: the number of worst and of best recordings in the report to listen to.

    Attributes:
        units: batches of recordings, the units of work.
        parts: the finished units, in the results folder.
        outputs: the folder of outputs; None without outputs.
        computing: the executor of units.

    Raises:
        InputError: an argument does not fit, or the folder has results of a different evaluation.
    """

    def __init__(
        self,
        system: System | Waveform | Callable[[], System | Waveform],
        corpus: Sequence[Item],
        metrics: Sequence[Metric | str],
        out: Location,
        *,
        trust_names: bool = False,
        check: bool = False,
        skip: float | None = None,
        facts: Mapping[str, Any] | None = None,
        batch: int = BATCH,
        chunk: float = CHUNK,
        keep: bool = False,
        computing: Evaluator | WorkerPool | None = None,
        slices: Sequence[str] = (),
        title: str | None = None,
        main: str | None = None,
        examples: int = EXAMPLES,
    ):
        self._slices, self._page = slices, {"title": title, "main": main, "examples": examples}
        self.system = system = system_of(system)
        self.corpus, self.metrics = checked(corpus), built(metrics)
        frames = chunk_frames(system, chunk, batch)
        check_metrics(self.metrics, system, self.corpus)
        self.outputs = out / OUTPUTS if keep else None
        self.computing = computing or Evaluator(system, self.metrics, batch=batch, chunk=chunk, outputs=self.outputs)
        if check:
            found = check_recordings(recordings_of(self.corpus), functools.partial(examine_recording, rate=system.rate))
            faulty = [[found.faults[x] for x in recordings_of([item]) if x in found.faults] for item in self.corpus]
            refuse_faults(map("; ".join, filter(None, faulty)), len(self.corpus), skip or 0.0)
        check_share(skip)
        self._skip = skip
        self._facts = dict(facts or {})
        if hasattr(system, "identity"):
            self._facts["system"] = system.identity  # pyright: ignore[reportAttributeAccessIssue]
        identity, unknown = _fingerprint(self.corpus)
        lengths, self._unreadable = probe(self.corpus, system.rate)
        self.units = Units(self.corpus, lengths, system.rate, batch)
        self.parts = Parts(
            out,
            {
                "corpus": identity,
                # Lengths determine the units, so a recording of another length makes another corpus.
                "lengths of recordings": hashlib.sha256(np.asarray(lengths, "<i8").tobytes()).hexdigest(),
                "metrics": [metric.facts for metric in self.metrics],
                "batch": batch,
                "chunk": frames,
                "keep": keep,
                **self._facts,
            },
        )
        if unknown and not trust_names and self.parts.finished():
            raise InputError(
                f"{out} has finished work on recordings that may have changed since: the store gives neither a version "
                f"nor an ETag of {unknown:,} recordings. Choose another folder, or trust their names and sizes with "
                "`trust_names=True` (--trust-names)"
            )

    def run(
        self, units: Iterable[Unit] | None = None, *, watch: Callable[[Unit, list[Row]], Any] | None = None
    ) -> None:
        """Compute the unfinished units.

        Args:
            units: the units in order; by default all units.
            watch: a function that is called with each finished unit and the rows of the unit.

        Raises:
            InputError: a different process uses this folder, the folder has results of other versions or devices, more
                recordings than `skip` allows have an error, or the disk is full. Finished units are kept.
        """
        counts = [metric.pool.key for metric in self.metrics if metric.pool is not None]
        with self.parts.writing():
            finished = self.parts.finished()
            faults = self._faults()
            self._refuse(faults)
            if len(finished) == len(self.units) and self.parts.environment is not None:
                return
            try:
                with self.computing:
                    self.parts.begin(self.computing.environment)
                    chosen = self.units if units is None else units
                    unfinished = (unit for unit in chosen if unit.index not in finished)
                    for unit, rows in self.computing.compute(unfinished):
                        self.parts.finish(unit.index, frame_of(rows, unit.places, counts))
                        faults += [row["error"] for row in rows if row["error"] is not None]
                        self._refuse(faults)
                        if watch is not None:
                            watch(unit, rows)
            finally:
                if self.outputs is not None:
                    discard_partial(self.outputs)

    def _faults(self) -> list[str]:
        """Return the errors of recordings so far."""
        return collected(self._scan.select("error").filter(pl.col("error").is_not_null()))["error"].to_list()

    def _refuse(self, faults: list[str]) -> None:
        """Raise an InputError if too many recordings have an error."""
        if self._skip is not None:
            refuse_faults(faults, len(self.corpus), self._skip)

    def rows(self) -> list[Row]:
        """Return all rows in the order of ids, with rows for unreadable recordings."""
        return collected(self._scan.drop(PLACE)).to_dicts()

    @property
    def _scan(self) -> pl.LazyFrame:
        unreadable = [row_of(self.corpus[place], None, error) for place, error in self._unreadable.items()]
        return self.parts.scan(frame_of(unreadable, list(self._unreadable)))

    def write_results(self, slices: Sequence[str] | None = None) -> Results:
        """Write ``results.parquet`` and ``results.json`` of the finished units.

        Args:
            slices: columns to group results by; by default the slices of the evaluation.

        Raises:
            InputError: a column of ``slices`` does not exist, or the folder cannot be written.
        """
        folder = self.parts.folder
        results = results_of(
            folder.name,
            self._scan,
            self.corpus,
            self.metrics,
            slices=self._slices if slices is None else slices,
            facts={**(self.parts.environment or {}), **self._facts, "latency": latencies(self.system)},
            outputs=self.outputs,
        )
        write_results(results, folder)
        return dataclasses.replace(results, scan=read_table(folder))

    def conclude(self, times: Mapping[str, Any], baseline: Results | None = None) -> Results:
        """Write the tables, the report and the summaries of the finished units.

        Args:
            times: facts about the run, such as seconds, for the report and for ``times.json``.
            baseline: the results of another system on the same corpus, for a comparison in the report.

        Raises:
            InputError: the baseline is of another corpus, or the folder cannot be written.
            MissingPackageError: the report needs a package that is not installed.
        """
        out, results = self.parts.folder, self.write_results()
        write_summary(results, out)
        write_whole(out / TIMES, lambda file: file.write_text(json.dumps(dict(times), indent=1)))
        page = {"corpus": self.corpus, "times": times, "rate": self.system.rate, **self._page}
        write_report(results, out / REPORT, baseline=baseline, **page)
        return results

    @property
    def is_complete(self) -> bool:
        """True if all units are finished."""
        return len(self.parts.finished()) == len(self.units)


def recordings_of(corpus: Iterable[Item]) -> list[Location]:
    """Return the recordings and references of a corpus, without tables of segments."""
    places = [place for each in corpus for place in (each.path, each.reference) if place is not None]
    return [place for place in places if place.suffix.lower() != ".csv"]


def _fingerprint(corpus: Sequence[Item]) -> tuple[dict[str, Any], int]:
    """Return the identity of a corpus, and the number of recordings of unknown content."""
    digest, paths = hashlib.sha256(), []
    for item in corpus:
        line = [item.id, str(item.path), str(item.reference), dict(item.columns)]
        digest.update(json.dumps(line, sort_keys=True, default=str).encode() + b"\n")
        paths += [path for path in (item.path, item.reference) if path is not None]
    known = identity_of(paths)
    digest.update(known.digest.encode())
    return {"recordings": len(corpus), "sha256": digest.hexdigest()}, known.unknown


def make_evaluator(
    system: System | Waveform | Callable[[], System | Waveform],
    metrics: Sequence[Metric] | Callable[[], Sequence[Metric]],
    *,
    batch: int,
    chunk: float,
    out: Location | None,
) -> Evaluator:
    """Make the evaluator of a worker, which writes the outputs to a folder of results unless ``out`` is None."""
    made = system_of(system)
    judges = metrics() if callable(metrics) else metrics
    return Evaluator(made, judges, batch=batch, chunk=chunk, outputs=None if out is None else out / OUTPUTS)


def evaluate(
    system: System | Waveform | Callable[[], System | Waveform],
    corpus: Sequence[Item],
    metrics: Sequence[Metric | str],
    out: Location | str,
    *,
    slices: Sequence[str] = (),
    batch: int = BATCH,
    chunk: float = CHUNK,
    keep: bool = False,
    unprocessed: bool = False,
    trust_names: bool = False,
    check: bool = False,
    skip: float | None = None,
    facts: Mapping[str, Any] | None = None,
    workers: Workers | int | None = None,
    against: Location | str | None = None,
    title: str | None = None,
    main: str | None = None,
    progress: bool | None = None,
) -> Results:
    """Run a system over a corpus, and write ``results.parquet``, ``results.json``, ``report.html`` and summaries.

    Finished units are kept: after an interruption, the same call continues and writes the same tables.

    Args:
        system: a `jaxrnn.audio.Waveform`, a system such as `Offline`, or a function that makes one of these. A waveform
            takes 16,000 samples per second; `Framed` has other rates.
        corpus: the recordings, from `from_folder` or `from_manifest`.
        metrics: metrics, or names for `build_metric`.
        out: the results folder, here or by URL.
        slices: columns of the manifest to group results by.
        batch: recordings in a batch.
        chunk: seconds of each recording in a chunk.
        keep: True to write the outputs to ``out/outputs``.
        unprocessed: True to judge also the recordings themselves, in columns ``unprocessed_NAME``; the report then has
            the improvement of each metric.
        trust_names: True to continue with recordings of a store that gives neither versions nor ETags, if names and
            sizes are equal. By default, finished work on such recordings is refused, because they may have changed.
        check: True to read all samples of all recordings and references first, and to raise an error that lists every
            fault, if more than a share of ``skip`` have one.
        skip: the largest share of recordings with an error, such as 0.01. More end the evaluation. By default, any
            number is left out; each is a row with an error, and the summary counts them.
        facts: other facts that determine the results, for systems and metrics of your own.
        workers: processes that compute; a number means processes on this machine. If ``system`` is a function, each
            worker calls the function. By default, this process computes.
        against: the results folder of another system on the same corpus, for a comparison in the report.
        title: the title of the report.
        main: the metric that ranks recordings; by default the first.
        progress: True to show a progress bar on standard error; by default if standard error is a terminal.

    Returns:
        The results: ``rows``, a row per recording, and ``document``, the summary.

    Raises:
        InputError: an argument does not fit, the folder belongs to another evaluation, or the disk is full. Finished
            units are kept.
        MissingPackageError: a metric, tables, the report or workers need a package that is not installed.
    """
    check_packages()
    judges = built(metrics)
    judges = with_unprocessed(judges) if unprocessed else judges
    check_main(judges, main)
    check_slices_of(corpus, judges, slices)
    out = location(out)
    baseline = None if against is None else read_results(against)
    pool = None
    if workers is not None:
        workers = Workers(workers) if isinstance(workers, int) else workers
        make = functools.partial(make_evaluator, system, judges, batch=batch, chunk=chunk, out=out if keep else None)
        pool = WorkerPool(workers, make)
    options: Any = {
        "check": check,
        "skip": skip,
        "facts": facts,
        "batch": batch,
        "chunk": chunk,
        "keep": keep,
        "computing": pool,
    }
    options |= {"trust_names": trust_names, "slices": slices, "title": title, "main": main}
    evaluation = Evaluation(system, corpus, judges, out, **options)
    return evaluation.conclude(run(evaluation, progress), baseline)


def run(evaluation: Evaluation, progress: bool | None = None) -> dict[str, Any]:
    """Compute the unfinished units with a progress bar, by default if standard error is a terminal.

    The returned times leave out units that were finished before.
    """
    units, computing = evaluation.units, evaluation.computing
    finished = evaluation.parts.finished()
    count, before, total = len(finished), sum(units[index].seconds for index in finished), units.seconds
    began, sound, workers = time.monotonic(), 0.0, 0
    text = (
        "{task.fields[workers]} workers, {task.fields[units]} units, {task.fields[hours]} h of sound, "
        "{task.fields[speed]} times real time, left:"
    )

    def fields() -> dict[str, Any]:
        return {
            "workers": str(computing.workers),
            "units": f"{count:,} of {len(units):,}",
            "hours": f"{(before + sound) / 3600:,.2f} of {total / 3600:,.2f}",
            "speed": f"{sound / (time.monotonic() - began):,.0f}",
        }

    with progress_bar("evaluating", total, text, shown=progress, completed=before, **fields()) as show:

        def watch(unit: Unit, rows: list[Row]) -> None:
            nonlocal count, sound, workers
            count, sound, workers = count + 1, sound + unit.seconds, max(workers, computing.workers)
            show(before + sound, **fields())

        evaluation.run(watch=watch)
    took = time.monotonic() - began
    return {
        "seconds": took,
        "seconds_of_recordings": sound,
        "times_real_time": sound / took if sound else None,
        "workers": workers,
    }


def check_packages() -> None:
    """Import the packages for the evaluation, the tables and the report before the computation begins."""
    for package in ("grain", "jinja2", "polars"):
        with optional_package(package, "an evaluation", "evaluate"):
            importlib.import_module(package)
    load_page()


def check_slices_of(corpus: Iterable[Item], metrics: Iterable[Metric], slices: Iterable[str]) -> None:
    """Check before the run that columns exist to group results by."""
    check_slices(
        slices, [*columns_of(corpus), *COLUMNS, *(column.name for metric in metrics for column in metric.columns)]
    )


def check_main(metrics: Sequence[Metric], main: str | None) -> None:
    """Check before the run that a metric exists to rank recordings by."""
    names = (name for metric in metrics for name in (metric.name, *(column.name for column in metric.columns)))
    known = [*dict.fromkeys(names)]
    # A function with several values has unknown columns before the run, but a known prefix.
    prefixes = tuple(f"{metric.name}_" for metric in metrics if metric.by_key)
    if main is not None and main not in known and not main.startswith(prefixes):
        raise InputError(f"there is no metric {main!r}{near(main, known)}; there are: {', '.join(known) or 'none'}")
