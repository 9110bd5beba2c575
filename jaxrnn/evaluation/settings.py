"""The settings in a file for `jaxrnn evaluate`."""

from __future__ import annotations

from typing import Any, Self

from jaxrnn.evaluation.corpus import PATTERNS
from jaxrnn.evaluation.limits import MAX_RATE
from jaxrnn.settings.models import (
    AnyPath,
    FunctionName,
    FunctionSettings,
    ModelSettings,
    PositiveFloat,
    PositiveInt,
    Settings,
)

# isort: split
from pydantic import Field, model_validator


class CorpusSettings(Settings):
    """The recordings: a folder, or a table that lists them; or the folder alone."""

    short = "folder"

    folder: AnyPath | None = None
    """The folder of the recordings, here or by URL, unless a manifest lists them."""
    manifest: AnyPath | None = None
    """A CSV or Parquet table of the recordings, here or by URL, with a column `path`, and optionally `id` and
    `reference`."""
    reference: AnyPath | None = None
    """The folder of references for a `folder`, with the same names."""
    patterns: list[str] = list(PATTERNS)
    """The files of a folder that are recordings."""
    limit: PositiveInt | None = None
    """The number of recordings to take, from the first on."""

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        if (self.folder is None) == (self.manifest is None):
            raise ValueError("expected either folder or manifest")
        if self.manifest is not None and self.reference is not None:
            raise ValueError("a manifest has references in its column 'reference'")
        return self


class StageSettings(Settings):
    """One network of a chain, as `jaxrnn.evaluation.Stage` has it."""

    model: ModelSettings
    """A network that takes one frame a step: its file, or the keys below."""
    takes: str = "samples"
    """`samples` of the frame, the `magnitude` of its spectrum, or the `spectrum`."""
    gives: str = "result"
    """`samples`, a `spectrum`, a `mask` for the spectrum, or a `result` for each frame, such as a probability."""
    input: str | None = None
    """The model's input, where it has several."""
    output: str | None = None
    """The model's output, where it has several."""


class FramesSettings(Settings):
    """How sound is cut into frames, as `jaxrnn.evaluation.Chain` has it."""

    size: PositiveInt
    """Samples of a frame."""
    hop: PositiveInt
    """Samples from one frame to the next."""
    window: str | None = None
    """A window of `scipy.signal.get_window`, or `sqrt_hann`."""


class StreamSettings(Settings):
    """An offline model that is streamed, as `jaxrnn.evaluation.Offline` has it."""

    model: ModelSettings
    """A network of whole recordings: its file, or the keys below."""
    symbol: str = "S"
    """The dimension that is time."""
    pulse: PositiveInt | None = None
    """Frames in a step; by default the fewest that fit."""


class SystemSettings(Settings):
    """The system: frames and stages, a stream, or a function that returns a `jaxrnn.evaluation.System`."""

    frames: FramesSettings | None = None
    """How sound is cut into frames for `stages`."""
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

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        kinds = [self.frames is not None and bool(self.stages), self.stream is not None, self.function is not None]
        if sum(kinds) != 1 or (self.frames is None) != (not self.stages):
            raise ValueError("expected either frames with stages, or stream, or function")
        return self


class MetricSettings(FunctionSettings):
    """A metric by name, with its options beside the name."""

    name: FunctionName
    """A metric of jaxrnn, or your `file.py:function` or `module:function`; its options stand beside it."""


class ResourcesSettings(Settings):
    """What each worker of a run with several of them has, as `jaxrnn.evaluation.Workers` has it."""

    cpus: PositiveFloat = 1.0
    """CPUs of a worker."""
    gpus: float = Field(default=0.0, ge=0)
    """GPUs of a worker, or the share of one."""
    tries: PositiveInt = 3
    """Workers that a unit may bring down before its recordings are rows with errors."""


class EvaluationSettings(Settings):
    """A model over a corpus: the keys of a file for `jaxrnn evaluate`."""

    corpus: CorpusSettings
    """The recordings: their folder, or the keys below."""
    system: SystemSettings
    """The system that runs on them: `frames` with `stages`, or `stream`, or `function`."""
    metrics: list[MetricSettings] = []
    """The metrics: a list of names, or of the keys below."""
    slices: list[str] = []
    """Columns of the manifest to group results by; a column with many numbers is cut into quartiles."""
    main: str | None = None
    """The metric that ranks recordings; by default the first."""
    examples: int = Field(5, ge=0)
    """The number of recordings that the report plays, of the best and of the worst each."""
    keep: bool = False
    """Whether to write the outputs as files, to `outputs` in the folder of results."""
    batch: PositiveInt = 16
    """Recordings in a batch."""
    chunk: PositiveFloat = 4.0
    """Seconds of each recording in a chunk: what is on the device at once."""
    resources: ResourcesSettings = Field(default_factory=ResourcesSettings)
    """With `--workers` or `--ray`: what each worker has."""
    title: str | None = None
    """The title of the report."""
    out: AnyPath
    """The folder of results, here or by URL."""
