"""An evaluation from a file of settings, ready to run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxrnn.errors import InputError
from jaxrnn.evaluation.chain import Chain
from jaxrnn.evaluation.cluster import WorkerPool
from jaxrnn.evaluation.conclusion import check_main, check_slices_of, conclude
from jaxrnn.evaluation.corpus import Item, from_folder, from_manifest
from jaxrnn.evaluation.evaluation import Evaluation
from jaxrnn.evaluation.evaluator import Evaluator
from jaxrnn.evaluation.joining import Workers
from jaxrnn.evaluation.limits import chunk_frames
from jaxrnn.evaluation.metrics import Metric, build_metric
from jaxrnn.evaluation.offline import Offline
from jaxrnn.evaluation.results import OUTPUTS, Results
from jaxrnn.evaluation.settings import CorpusSettings, EvaluationSettings
from jaxrnn.evaluation.stage import Stage
from jaxrnn.evaluation.systems import System
from jaxrnn.model import Model
from jaxrnn.model.loading import load
from jaxrnn.settings.files import Overrides, SettingsFile
from jaxrnn.settings.models import ModelSettings

File = SettingsFile[EvaluationSettings]


@dataclass(frozen=True)
class PreparedEvaluation:
    """An evaluation that is ready to run.

    Attributes:
        settings: the content of the file.
        evaluation: the evaluation that it describes.
    """

    settings: EvaluationSettings
    evaluation: Evaluation

    def conclude(self, times: Mapping[str, Any], baseline: Results | None = None) -> Results:
        """Write the tables and the report page, as `jaxrnn.evaluation.conclusion.conclude` does."""
        page = self.settings.model_dump(include={"slices", "title", "main", "examples"})
        return conclude(self.evaluation, times, baseline=baseline, **page)


def prepare_evaluation(path: Path, overrides: Overrides = (), workers: Workers | None = None) -> PreparedEvaluation:
    """Read a file of settings, and load the models and metrics that it names.

    Args:
        path: the file.
        overrides: values that replace those of the file.
        workers: how many workers compute, and where, with the resources of the file; by default, this process computes.

    Raises:
        InputError: something in the file does not fit; the message names the file and the key.
        JaxrnnError: a model cannot be loaded.
        MissingPackageError: a metric, the reading of recordings or workers need a package that is not installed.
    """
    file = SettingsFile(EvaluationSettings, path, overrides)
    settings = file.settings
    metrics = _metrics(file)
    with file.at("main"):
        check_main(metrics, settings.main)
    with file.at("corpus"):
        corpus = _corpus(settings.corpus)
    with file.at("slices"):
        check_slices_of(corpus, metrics, settings.slices)
    system = _system(file)
    with file.at("chunk"):
        chunk_frames(settings.chunk, system.rate, system.multiple, settings.batch)
    # A user's own functions are identified by their entries in the file.
    written = settings.model_dump(mode="json", include={"metrics": True, "system": {"function", "arguments"}})
    pool = None
    if workers is not None:
        workers = dataclasses.replace(workers, **settings.resources.model_dump())
        pool = WorkerPool(workers, functools.partial(_evaluator, file))
    with file.at():
        evaluation = Evaluation(
            system,
            corpus,
            metrics,
            settings.out,
            facts={"settings": written},
            batch=settings.batch,
            chunk=settings.chunk,
            keep=settings.keep,
            computing=pool,
        )
    return PreparedEvaluation(settings, evaluation)


def _evaluator(file: File) -> Evaluator:
    """The evaluator of a worker, from the content of the file."""
    settings = file.settings
    return Evaluator(
        _system(file),
        _metrics(file),
        batch=settings.batch,
        chunk=settings.chunk,
        outputs=settings.out / OUTPUTS if settings.keep else None,
    )


def _metrics(file: File) -> tuple[Metric, ...]:
    metrics = []
    for place, metric in enumerate(file.settings.metrics):
        with file.at("metrics", place):
            metrics.append(build_metric(metric.name, metric.options, file.folder))
    return tuple(metrics)


def _corpus(settings: CorpusSettings) -> Sequence[Item]:
    if settings.manifest is not None:
        return from_manifest(settings.manifest, limit=settings.limit)
    assert settings.folder is not None, "it has one of the two"
    return from_folder(settings.folder, reference=settings.reference, patterns=settings.patterns, limit=settings.limit)


def _system(file: File) -> System:
    settings = file.settings.system
    if settings.function is not None:
        return _own_system(file, settings.function)
    if (stream := settings.stream) is not None:
        with file.at("system", "stream"):
            model = _load(stream.model)
            return Offline(model.stream(stream.symbol, stream.pulse), model.params, rate=settings.rate)
    stages = []
    for place, stage in enumerate(settings.stages):
        with file.at("system", "stages", place):
            options = stage.model_dump(exclude={"model"})
            stages.append(Stage(_load(stage.model), **options))
    frames = settings.frames
    assert frames is not None, "it has one of the three"
    with file.at("system"):
        return Chain(tuple(stages), frames.size, frames.hop, frames.window, settings.rate)


def _load(settings: ModelSettings) -> Model:
    return load(settings.file, static=settings.static, state=settings.state)


def _own_system(file: File, function: str) -> System:
    system = file.call(function, file.settings.system.arguments, "system")
    missing = [name for name in ("start", "run", "rate", "delay", "padded") if not hasattr(system, name)]
    if missing:
        with file.at("system", "function"):
            raise InputError(
                f"{function} returned a {type(system).__name__}, which is no jaxrnn.evaluation.System: it has no "
                f"{', '.join(missing)}"
            )
    return system
