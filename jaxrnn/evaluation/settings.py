"""An evaluation as a configuration file says it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Self

from jaxrnn.evaluation.chain import Chain
from jaxrnn.evaluation.corpus import PATTERNS, Item, from_folder, from_manifest
from jaxrnn.evaluation.limits import MAX_RATE
from jaxrnn.evaluation.offline import Offline
from jaxrnn.evaluation.stage import Stage
from jaxrnn.evaluation.systems import System
from jaxrnn.settings.functions import check_options, find_function
from jaxrnn.settings.problems import at, problem, validated
from jaxrnn.settings.sections import Called, ConfigPath, ModelFile, PositiveFloat, PositiveInt, Section
from jaxrnn.settings.source import Overrides, Source, read_source

# isort: split
from pydantic import Field
from pydantic import model_validator as validator

if TYPE_CHECKING:
    from jaxrnn.model import Model


class Corpus(Section):
    """The recordings: a folder, or a table that lists them; or the folder alone."""

    short = "folder"

    folder: ConfigPath | None = None
    manifest: ConfigPath | None = None
    reference: ConfigPath | None = None
    patterns: list[str] = Field(default_factory=lambda: list(PATTERNS))
    limit: PositiveInt | None = None

    @validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.folder is None) == (self.manifest is None):
            raise ValueError("expected either folder or manifest")
        if self.manifest is not None and self.reference is not None:
            raise ValueError("a manifest has references in its column 'reference'")
        return self


class StageOf(Section):
    """One network of a chain, as `jaxrnn.evaluation.Stage` has it."""

    model: ModelFile
    takes: str = "samples"
    gives: str = "result"
    input: str | None = None
    output: str | None = None


class Frames(Section):
    """How sound is cut into frames, in samples, as `jaxrnn.evaluation.Chain` has it."""

    size: PositiveInt
    hop: PositiveInt
    window: str | None = None


class StreamOf(Section):
    """An offline model that is streamed, as `jaxrnn.evaluation.Offline` has it."""

    model: ModelFile
    symbol: str = "S"
    pulse: PositiveInt | None = None


class SystemOf(Section):
    """What is evaluated: frames and stages, a stream, or a function that gives a `jaxrnn.evaluation.System`."""

    frames: Frames | None = None
    stages: list[StageOf] = Field(default_factory=list)
    stream: StreamOf | None = None
    function: str | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)
    rate: PositiveInt = Field(16_000, le=MAX_RATE)

    @validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = [self.frames is not None and bool(self.stages), self.stream is not None, self.function is not None]
        if sum(kinds) != 1 or (self.frames is None) != (not self.stages):
            raise ValueError("expected either frames with stages, or stream, or function")
        return self


class EvaluationConfig(Section):
    """An evaluation: the keys of a configuration file.

    Attributes:
        corpus: the recordings.
        system: what runs on them.
        metrics: names, with options beside them where there are any.
        out: the folder of results.
        batch: recordings at once.
        chunk: seconds of each that are on the device at once.
        keep: whether the outputs are written to ``out/outputs``.
        title: of the report.
        slices: columns of the manifest by which results are also told.
        main: the metric that decides which files are the best and worst; by default the first.
        examples: how many of those the report plays.
    """

    corpus: Corpus
    system: SystemOf
    metrics: list[Called] = Field(default_factory=list)
    out: ConfigPath
    batch: PositiveInt = 16
    chunk: PositiveFloat = 4.0
    keep: bool = False
    title: str | None = None
    slices: list[str] = Field(default_factory=list)
    main: str | None = None
    examples: int = Field(5, ge=0)


def read_config(path: str | os.PathLike[str], overrides: Overrides = ()) -> tuple[EvaluationConfig, Source]:
    """Read a configuration file.

    Raises:
        InputError: something in the file does not fit; names the file and line, and the key.
    """
    source = read_source(path, overrides)
    return validated(EvaluationConfig, source.values, source), source


def corpus_of(config: EvaluationConfig, source: Source) -> tuple[Item, ...]:
    """The recordings that a configuration names."""
    section = config.corpus
    with at(source, ("corpus",)):
        if section.manifest is not None:
            return from_manifest(section.manifest, limit=section.limit)
        assert section.folder is not None, "it has one of both"
        return from_folder(section.folder, reference=section.reference, patterns=section.patterns, limit=section.limit)


def system_of(config: EvaluationConfig, source: Source) -> System:
    """What a configuration evaluates, with its models loaded.

    Raises:
        InputError: something does not fit; names the place in the file.
        JaxrnnError: a model cannot be loaded.
    """
    section, keys = config.system, ("system",)
    if section.function is not None:
        with at(source, (*keys, "function")):
            make = find_function(section.function, source.folder)
            check_options(section.function, make, section.arguments)
        made = make(**section.arguments)
        missing = [name for name in ("start", "run", "rate", "delay", "padded") if not hasattr(made, name)]
        if missing:
            raise problem(
                source,
                (*keys, "function"),
                f"{section.function} gave a {type(made).__name__}, which is no jaxrnn.evaluation.System: it has no "
                f"{', '.join(missing)}",
            )
        return made
    if section.stream is not None:
        with at(source, (*keys, "stream")):
            stream = section.stream
            return Offline(_model(stream.model), symbol=stream.symbol, pulse=stream.pulse, rate=section.rate)
    assert section.frames is not None, "it has one of the three"
    stages = []
    for place, stage in enumerate(section.stages):
        with at(source, (*keys, "stages", place)):
            model = _model(stage.model)
            stages.append(Stage(model, stage.takes, stage.gives, stage.input, stage.output))
    frames = section.frames
    with at(source, keys):
        return Chain(tuple(stages), frames.size, frames.hop, frames.window, section.rate)


def _model(section: ModelFile) -> Model:
    from jaxrnn.model.loading import load

    return load(section.file, static=section.static, state=section.state)
