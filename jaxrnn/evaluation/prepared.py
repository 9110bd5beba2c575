"""An evaluation from a configuration file, ready to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxrnn.errors import InputError
from jaxrnn.evaluation.conclusion import check_main, check_slices_of, conclude
from jaxrnn.evaluation.evaluation import Evaluation
from jaxrnn.evaluation.limits import chunk_frames
from jaxrnn.evaluation.metrics import Metric, build_metric
from jaxrnn.evaluation.report import PageLimits, Results
from jaxrnn.evaluation.settings import EvaluationConfig, corpus_of, read_config, system_of
from jaxrnn.settings.problems import at
from jaxrnn.settings.source import Overrides, Source


@dataclass(frozen=True)
class Prepared:
    """An evaluation that is ready to run.

    Attributes:
        config: the content of the file.
        evaluation: the evaluation that it describes.
    """

    config: EvaluationConfig
    evaluation: Evaluation

    def conclude(self, times: Mapping[str, Any], against: Path | None = None) -> Results:
        """Write the tables and the report page, as `jaxrnn.evaluation.conclusion.conclude` does."""
        return conclude(
            self.evaluation,
            slices=self.config.slices,
            times=times,
            against=against,
            title=self.config.title,
            main=self.config.main,
            limits=PageLimits(examples=self.config.examples),
        )


def prepare(path: Path, overrides: Overrides = ()) -> Prepared:
    """Read a configuration file and build what it describes.

    Raises:
        InputError: something in the file does not fit; the message names the file, the line and the key.
        JaxrnnError: a model cannot be loaded.
        MissingPackageError: a metric or the reading of recordings needs a package that is not installed.
    """
    config, source = read_config(path, overrides)
    metrics = _metrics(config, source)
    with at(source, ("main",)):
        check_main(metrics, config.main)
    corpus = corpus_of(config, source)
    with at(source, ("slices",)):
        check_slices_of(corpus, metrics, config.slices)
    system = system_of(config, source)
    with at(source, ("chunk",)):
        chunk_frames(config.chunk, system.rate, system.multiple, config.batch)
    # A user's own functions are identified by their entries in the file.
    configured = {key: source.values.get(key) for key in ("system", "metrics")}
    with at(source, ()):
        evaluation = Evaluation(
            system,
            corpus,
            metrics,
            config.out,
            facts={"configuration": configured},
            batch=config.batch,
            chunk=config.chunk,
            keep=config.keep,
        )
    return Prepared(config, evaluation)


def _metrics(config: EvaluationConfig, source: Source) -> tuple[Metric, ...]:
    metrics = []
    for place, entry in enumerate(config.metrics):
        with at(source, ("metrics", place)):
            metrics.append(build_metric(entry.name, entry.options, source.folder))
    names = [metric.name for metric in metrics]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        with at(source, ("metrics",)):
            raise InputError(f"two metrics are called {twice!r}: give one of them another name with 'called'")
    return tuple(metrics)
