"""Settings files of ``jaxrnn evaluate``: their keys, and the evaluation that a file describes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from jaxrnn._files.stores import Location
from jaxrnn.audio.checking import Examine, examine_recording
from jaxrnn.audio.corpus import PATTERNS, Item, from_folder, from_manifest
from jaxrnn.audio.frames import Frames
from jaxrnn.audio.networks import Network
from jaxrnn.audio.sounds import MAX_RATE
from jaxrnn.audio.waveforms import STFT, Waveform, waveform_of
from jaxrnn.errors import InputError
from jaxrnn.evaluation.cluster import WorkerPool, Workers
from jaxrnn.evaluation.evaluation import (
    Evaluation,
    check_main,
    check_packages,
    check_slices_of,
    make_evaluator,
    recordings_of,
)
from jaxrnn.evaluation.framed import Framed
from jaxrnn.evaluation.metrics import Metric, build_metric, with_unprocessed
from jaxrnn.evaluation.systems import Offline, System, chunk_frames
from jaxrnn.evaluation.tables import TableEvaluation
from jaxrnn.model import Model
from jaxrnn.model.loading import load
from jaxrnn.settings.files import Overrides, SettingsFile
from jaxrnn.settings.functions import Options
from jaxrnn.settings.models import (
    AnyPath,
    FunctionName,
    FunctionSettings,
    ModelSettings,
    Settings,
)

# isort: split
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt


class CorpusSettings(Settings):
    """The recordings: a folder, or a table of recordings; or only the folder. Or a table of texts or scores."""

    short = "folder"

    folder: AnyPath | None = None
    """The folder of the recordings, here or by URL, unless a manifest lists them."""
    manifest: AnyPath | None = None
    """A CSV or Parquet table of the recordings, here or by URL, with a column `path`, and optionally `id` and
    `reference`."""
    table: AnyPath | None = None
    """In place of recordings and a system: a CSV or Parquet table of texts or scores that another program wrote."""
    reference: AnyPath | None = None
    """The folder of references for a `folder`, with the same names."""
    patterns: list[str] = list(PATTERNS)
    """The files of a folder that are recordings."""
    limit: PositiveInt | None = None
    """The number of recordings to take, from the first on."""
    trust_names: bool = False
    """True to continue with recordings of a store that gives neither versions nor ETags, if names and sizes are
    equal."""
    check: bool = False
    """True to read all samples first, and to list every fault: files that cannot be read, are empty or cut, NaN."""
    skip: Annotated[float, Field(ge=0, le=1)] | None = None
    """The largest share of recordings with an error, such as 0.01; by default any number is left out and counted."""

    def check_rules(self) -> None:
        """Check that there is one kind of corpus."""
        if [self.folder, self.manifest, self.table].count(None) != 2:
            raise ValueError("expected either folder or manifest or table")
        if self.folder is None and self.reference is not None:
            raise ValueError("a manifest or table has references in its column 'reference'")


#: The keys of the corpus that change no result.
_KEPT = {"trust_names", "check", "skip"}


def _frames(size: int, hop: int, window: str | None = None) -> Frames:
    """Return the frames of `stages`.

    Args:
        size: samples of a frame.
        hop: samples from one frame to the next.
        window: the name of a window of ``scipy.signal.get_window``, or ``"sqrt_hann"``, for analysis and synthesis;
            None to use no window.
    """
    return Frames(size, hop, "boxcar", synthesis="sum") if window is None else Frames(size, hop, window)


class StageSettings(Settings):
    """One network over frames, as in `jaxrnn.audio.Network`."""

    model: ModelSettings
    """A network that takes one frame a step: its file, or the keys below."""
    takes: str = "samples"
    """`samples` of the frame, the `magnitude` of its spectrum, or the `spectrum`."""
    gives: str = "result"
    """`samples`, a `spectrum`, a `magnitude`, a `mask` for the spectrum, or a `result` for each frame, such as a
    probability."""
    exponent: PositiveFloat = 1.0
    """The network sees magnitudes to this power, such as 0.3."""
    input: str | None = None
    """The model's input, where it has several."""
    output: str | None = None
    """The model's output, where it has several."""


#: The arguments of `Workers` other than the number and the place.
_RESOURCES = ("cpus", "gpus", "tries")


class StreamSettings(Settings):
    """A streamed offline model, as in `jaxrnn.evaluation.Offline`."""

    model: ModelSettings
    """A network of whole recordings: its file, or the keys below."""
    symbol: str | None = None
    """The dimension that is time, `S` by default; with `stft`, by default the network takes a frame a step."""
    stft: Annotated[dict[str, Any], Options(waveform_of, names=STFT)] | None = None
    """For a network over spectra: the transforms around it, which make it a function of waveforms."""
    pulse: PositiveInt | None = None
    """Frames in a step; by default the fewest that fit."""
    past: PositiveInt | None = None
    """For causal attention without a bound: the most earlier frames that a frame sees; this changes the network."""
    future: NonNegativeInt | dict[str, int] | None = None
    """For an offline network: the frames after a block that backward recurrences, statistics and attention see, or
    frames by the start of the name of a node; this changes the network. As long as the longest recording, the network
    is the offline one."""
    block: PositiveInt | None = None
    """With `future`: the frames that share their end; by default 1, and for recurrences the future."""


class SystemSettings(Settings):
    """The system: frames and stages, a stream, or a function that returns a `jaxrnn.evaluation.System`."""

    frames: Annotated[dict[str, Any], Options(_frames)] | None = None
    """Frames of sound for `stages`."""
    stages: list[StageSettings] = []
    """Networks that take one frame a step, in order."""
    stream: StreamSettings | None = None
    """In place of `frames` and `stages`: an offline model, to be streamed."""
    function: FunctionName | None = None
    """In place of these: a `file.py:function` or `module:function` that returns a `jaxrnn.evaluation.System`."""
    arguments: dict[str, Any] = {}
    """The arguments of the function."""
    rate: PositiveInt = Field(16_000, le=MAX_RATE)
    """Samples a second that the system takes; recordings of other rates are resampled."""

    def check_rules(self) -> None:
        """Check that there is one kind of system."""
        kinds = [self.frames is not None and bool(self.stages), self.stream is not None, self.function is not None]
        if sum(kinds) != 1 or (self.frames is None) != (not self.stages):
            raise ValueError("expected either frames with stages, or stream, or function")


class EvaluationSettings(Settings):
    """A model over a corpus: the keys of a file for `jaxrnn evaluate`."""

    corpus: CorpusSettings
    """The recordings: their folder, or the keys below."""
    system: SystemSettings | None = None
    """The system that runs on the recordings: `frames` with `stages`, or `stream`, or `function`."""
    metrics: list[FunctionSettings] = []
    """The metrics: a list of names, or of the keys below."""
    slices: list[str] = []
    """Columns of the manifest to group results by; a column with many numbers is cut into quartiles."""
    main: str | None = None
    """The metric that ranks recordings; by default the first."""
    examples: NonNegativeInt = 5
    """The number of recordings that the report plays, of the best and of the worst each."""
    keep: bool = False
    """True to write the outputs as files to `outputs` in the folder of results."""
    unprocessed: bool = False
    """True to judge also the recordings themselves: the report then has the improvement of each metric."""
    batch: PositiveInt = 16
    """Recordings in a batch."""
    chunk: PositiveFloat = 4.0
    """Seconds of each recording in a chunk, the part that is on the device at once."""
    resources: Annotated[dict[str, Any], Options(Workers, names=_RESOURCES)] = Field({}, validate_default=True)
    """The resources of each worker, with `--workers` or `--ray`."""
    title: str | None = None
    """The title of the report."""
    out: AnyPath
    """The folder of results, here or by URL."""

    def check_rules(self) -> None:
        """Check that recordings have a system, and a table has none."""
        if (self.system is None) != (self.corpus.table is not None):
            raise ValueError("recordings need a system, and a table of texts or scores takes no system")


File = SettingsFile[EvaluationSettings]


def prepare_evaluation(
    path: Path, overrides: Overrides = (), workers: Workers | None = None
) -> Evaluation | TableEvaluation:
    """Read a settings file, and load the models and metrics.

    ``overrides`` replace values of the file. ``workers`` sets the number and the place of workers, and the file sets
    the resources; by default, this process computes.
    """
    check_packages()
    file = SettingsFile(EvaluationSettings, path, overrides)
    parts = file.together(
        {
            "metrics": lambda: _metrics(file),
            "corpus": lambda: file.settings.corpus.table or _corpus(file),
            "system": lambda: None if file.settings.system is None else _chunked(file),
            "workers": lambda: _workers(file, workers or Workers(1)),
        }
    )
    settings, (metrics, corpus, system, resources) = file.settings, parts.values()
    if (table := settings.corpus.table) is not None:
        with file.at():
            page = settings.model_dump(include={"slices", "title", "main", "examples"})
            return TableEvaluation(table, metrics, settings.out, **page)
    with file.at("slices"):
        check_slices_of(corpus, metrics, settings.slices)
    # A user's own functions are identified by their entries in the file.
    written = settings.model_dump(mode="json", include={"metrics": True, "system": {"function", "arguments"}})
    # Workers read the file too, because functions of a user's file cannot be pickled.
    made = functools.partial(_system, file), functools.partial(_metrics, file)
    options = {"batch": settings.batch, "chunk": settings.chunk, "out": settings.out if settings.keep else None}
    pool = None if workers is None else WorkerPool(resources, functools.partial(make_evaluator, *made, **options))
    same = settings.model_dump(include={"batch", "chunk", "keep", "slices", "title", "main", "examples"})
    same |= settings.corpus.model_dump(include=_KEPT)
    with file.at():
        return Evaluation(system, corpus, metrics, settings.out, facts={"settings": written}, computing=pool, **same)


def recordings_in(path: Path, overrides: Overrides = ()) -> list[tuple[Sequence[Location], Examine]]:
    """Return the recordings and references of a settings file, with the function that examines them."""
    file = SettingsFile(EvaluationSettings, path, overrides)
    system = file.settings.system
    if system is None:
        raise InputError(f"{path} is about a table of texts or scores, which has no recordings to check")
    examine = functools.partial(examine_recording, rate=None if system.function is not None else system.rate)
    return [(recordings_of(_corpus(file)), examine)]


def _workers(file: File, workers: Workers) -> Workers:
    """Return workers with the resources of the file."""
    with file.at("resources"):
        return dataclasses.replace(workers, **file.settings.resources)


def _metrics(file: File) -> tuple[Metric, ...]:
    def make(place: int, metric: FunctionSettings) -> Metric:
        with file.at("metrics", place):
            return build_metric(metric.name, metric.options, folder=file.folder)

    parts = {str(place): functools.partial(make, place, each) for place, each in enumerate(file.settings.metrics)}
    metrics = tuple(file.together(parts).values())
    metrics = with_unprocessed(metrics) if file.settings.unprocessed else metrics
    with file.at("main"):
        check_main(metrics, file.settings.main)
    return metrics


def _corpus(file: File) -> Sequence[Item]:
    recordings = file.settings.corpus
    with file.at("corpus"):
        if recordings.manifest is not None:
            return from_manifest(recordings.manifest, limit=recordings.limit)
        return from_folder(**recordings.model_dump(exclude={"manifest", "table", *_KEPT}))


def _chunked(file: File) -> System:
    """Return the system, after a check that it takes the chunks of the file."""
    system = _system(file)
    with file.at("chunk"):
        chunk_frames(system, file.settings.chunk, file.settings.batch)
    return system


def _system(file: File) -> System:
    settings = file.settings.system
    assert settings is not None, "recordings have a system"
    if settings.function is not None:
        system = file.call(settings.function, settings.arguments, "system")
        if isinstance(system, Waveform):
            return Framed(system, rate=settings.rate)
        missing = [name for name in ("start", "run", "rate", "delay", "padded") if not hasattr(system, name)]
        if missing:
            with file.at("system", "function"):
                raise InputError(
                    f"{settings.function} returned a {type(system).__name__} without {', '.join(missing)}: return a "
                    "jaxrnn.evaluation.System or a jaxrnn.audio.Waveform"
                )
        return system
    if (stream := settings.stream) is not None:
        with file.at("system", "stream"):
            model, bounds = _load(stream.model), stream.model_dump(include={"past", "future", "block"})
            if stream.stft is not None:
                waveform = waveform_of(model, stream.symbol, **stream.stft)
                streamed = waveform.stream(pulse=stream.pulse, **bounds)
                return Offline(streamed, waveform.params, rate=settings.rate)
            streamed = model.stream(stream.symbol or "S", stream.pulse, **bounds)
            return Offline(streamed, model.params, rate=settings.rate)
    networks = []
    for place, stage in enumerate(settings.stages):
        with file.at("system", "stages", place):
            options = stage.model_dump(exclude={"model"})
            networks.append(Network(_load(stage.model), **options))
    frames = settings.frames
    assert frames is not None, "it has one of the three"
    with file.at("system"):
        return Framed(Waveform(networks, _frames(**frames)), rate=settings.rate)


def _load(settings: ModelSettings) -> Model:
    return load(settings.file, static=settings.static, state=settings.state, dims=settings.dims)
