"""An evaluation from a configuration file to tables and a page."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

import jaxrnn
from jaxrnn.errors import InputError
from jaxrnn.evaluation.evaluate import OUTPUTS, Evaluation
from jaxrnn.evaluation.metrics import Metric, build_metric, latency
from jaxrnn.evaluation.report import Limits, Results, write_report
from jaxrnn.evaluation.settings import EvaluationConfig, corpus_of, facts_of, read_config, system_of
from jaxrnn.evaluation.tables import DOCUMENT, read_results, write_results
from jaxrnn.settings.problems import at
from jaxrnn.settings.source import Overrides, Source
from jaxrnn.writing import in_place_of

#: What a run took, beside the results: it differs from run to run, as they must not.
TIMES = "times.json"
REPORT = "report.html"


@dataclass(frozen=True)
class Session:
    """An evaluation that is ready to run.

    Attributes:
        config: what stands in the file.
        evaluation: what it says.
        facts: what decides on results besides the corpus.
    """

    config: EvaluationConfig
    evaluation: Evaluation
    facts: Mapping[str, Any]

    def conclude(self, times: Mapping[str, Any], against: Path | None = None) -> dict[str, Any]:
        """Write the tables and the page of what is done.

        Args:
            times: what the run took.
            against: the folder of results of another system on the same corpus.

        Returns:
            What ``results.json`` says.

        Raises:
            InputError: the disk is full, or ``against`` is of another corpus.
        """
        out = self.evaluation.journal.folder
        rows = self.evaluation.rows()
        facts = dict(self.facts) | {"latency": latency(self.evaluation.system)}
        said = write_results(out, rows, self.evaluation.metrics, slices=self.config.slices, facts=facts)
        with in_place_of(out / TIMES) as written:
            written.write_text(json.dumps(dict(times), indent=1))
        write_report(
            out / REPORT,
            Results(out.name, rows, said, out / OUTPUTS if self.config.keep else None),
            baseline=None if against is None else _results(against),
            corpus=self.evaluation.corpus,
            title=self.config.title,
            main=self.config.main,
            times=times,
            rate=self.evaluation.system.rate,
            limits=Limits(examples=self.config.examples),
        )
        return said


def _results(folder: Path) -> Results:
    rows, _, _ = read_results(folder)
    outputs = folder / OUTPUTS
    return Results(
        folder.name, rows, json.loads((folder / DOCUMENT).read_text()), outputs if outputs.is_dir() else None
    )


def read_session(path: Path, overrides: Overrides = ()) -> Session:
    """Read a configuration file, and make ready what it names.

    Raises:
        InputError: something in the file does not fit; names the file and line, and the key.
        JaxrnnError: a model cannot be loaded.
        MissingPackageError: a metric or the reading of recordings needs a package that is not installed.
    """
    config, source = read_config(path, overrides)
    metrics = _metrics(config, source)
    known = [metric.name for metric in metrics]
    if config.main is not None and config.main not in known:
        with at(source, ("main",)):
            raise InputError(f"there is no metric {config.main!r}; there are: {', '.join(known) or 'none'}")
    corpus = corpus_of(config, source)
    system = system_of(config, source)
    facts = facts_of(config, source) | _surroundings()
    with at(source, ()):
        evaluation = Evaluation(
            system,
            corpus,
            metrics,
            config.out,
            facts=facts,
            batch=config.batch,
            chunk=config.chunk,
            keep=config.keep,
        )
    return Session(config, evaluation, facts)


def _metrics(config: EvaluationConfig, source: Source) -> tuple[Metric, ...]:
    made = []
    for place, called in enumerate(config.metrics):
        with at(source, ("metrics", place)):
            made.append(build_metric(called.name, called.options, source.folder))
    names = [metric.name for metric in made]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        with at(source, ("metrics",)):
            raise InputError(f"two metrics are called {twice!r}: give one of them another name with 'called'")
    return tuple(made)


def _surroundings() -> dict[str, Any]:
    """What results may depend on besides: another version or kind of device is another evaluation."""
    return {
        "jaxrnn": jaxrnn.__version__,
        "jax": jax.__version__,
        "device": jax.devices()[0].platform,
        "devices": jax.local_device_count(),
        "machine": platform.machine(),
    }
