"""What may stand in a file of settings for `jaxrnn finetune`: the arguments of `jaxrnn.training.fit`."""

from __future__ import annotations

from typing import Any, Literal, Self

from jaxrnn.settings.models import (
    AnyPath,
    FunctionName,
    FunctionSettings,
    LocalPath,
    ModelSettings,
    PositiveFloat,
    PositiveInt,
    Settings,
)

# isort: split
from pydantic import ConfigDict, Field, model_validator


class ExamplesSettings(Settings):
    """Examples: either files, or a function that makes them."""

    npz: AnyPath | None = None
    """A folder, or a pattern such as `data/*.npz`, here or by URL: one example in each file, its arrays by name."""
    function: FunctionName | None = None
    """In place of `npz`: a `file.py:function` or `module:function` that returns examples, or a function drawing one."""
    arguments: dict[str, Any] = {}
    """The arguments of the function."""

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        if (self.npz is None) == (self.function is None):
            raise ValueError("expected either npz or function")
        if self.npz is not None and self.arguments:
            raise ValueError("arguments are for a function; npz has none")
        return self


class LossSettings(FunctionSettings):
    """A loss or metric by name, with its options beside the name."""

    name: FunctionName
    """One of jaxrnn, or your `file.py:function` or `module:function`; its options stand beside it."""


class ValidationSettings(ExamplesSettings):
    """Examples that are not trained on, and what they decide."""

    every: PositiveInt = 100
    """Updates between validations."""
    patience: PositiveInt | None = None
    """Validations without a better loss before the training stops early."""


class ScheduleSettings(Settings):
    """A schedule of optax by name, with its arguments beside the name."""

    model_config = ConfigDict(extra="allow")

    schedule: str
    """The schedule's name, such as `cosine_decay_schedule`; its arguments stand beside it."""

    @property
    def options(self) -> dict[str, Any]:
        """What stands beside the name."""
        return dict(self.model_extra or {})


class OptimizerSettings(FunctionSettings):
    """An optimizer of optax by name, with its arguments beside the name, and what it trains."""

    name: str = "adam"
    """An optimizer of optax; its arguments stand beside it."""
    learning_rate: PositiveFloat | ScheduleSettings = 1e-3
    """A number, or a schedule of optax."""
    clip_norm: PositiveFloat | None = None
    """The largest global norm of the gradients."""
    train: str | list[str] = "*"
    """Name patterns, as of files, of the parameters that are trained."""
    freeze: str | list[str] = []
    """Name patterns of those among them that are not."""


class SequencesSettings(Settings):
    """How sequences go through the model."""

    mode: Literal["apply", "step", "scan"] | None = None
    """`apply` runs whole sequences without state, `step` and `scan` carry it; by default what suits the model."""
    time_axis: int | dict[str, int] | None = None
    """The axis of the examples' arrays that is time: one for all, also of losses that take it, or one by name."""
    chunk: PositiveInt | None = None
    """Frames in each chunk of truncated back-propagation through time; by default whole sequences."""
    bucket: PositiveInt = 1
    """Lengths are padded to multiples of it, so that fewer lengths are compiled."""
    remat: Literal["sqrt"] | PositiveInt | None = None
    """What the backward pass of recurrences computes again to need less memory: `sqrt`, or a number of frames."""


class CheckpointsSettings(Settings):
    """Where a training is kept, to go on from; or the folder alone."""

    short = "folder"

    folder: LocalPath
    """The folder of checkpoints."""
    every: PositiveInt = 100
    """Updates between checkpoints."""
    keep: PositiveInt = 3
    """How many of the newest stay, besides the best."""
    resume: bool = True
    """Whether to go on from checkpoints that are there, rather than refuse to."""


class TrainingSettings(Settings):
    """A training: the keys of a file for `jaxrnn finetune`."""

    model: ModelSettings
    """The network: its ONNX file, or the keys below."""
    data: ExamplesSettings
    """The examples to train on."""
    loss: LossSettings
    """What an update makes smaller: a name, or the keys below."""
    steps: PositiveInt | None = None
    """How many updates; or"""
    epochs: PositiveInt | None = None
    """how many passes over the examples."""
    metrics: dict[str, LossSettings] = {}
    """What else is measured, by the names for it: on the validation examples, or on the batches if there are none."""
    batch_size: PositiveInt = 16
    """Examples in an update, on all devices together."""
    optimizer: OptimizerSettings = OptimizerSettings()
    """How the parameters are changed: an optimizer's name, or the keys below."""
    sequences: SequencesSettings = SequencesSettings()
    """How sequences go through the model."""
    validation: ValidationSettings | None = None
    """Examples that are not trained on; the parameters that do best on them are the result."""
    checkpoints: CheckpointsSettings | None = None
    """Where a run that was cut short goes on from: a folder, or the keys below."""
    params: LocalPath | None = None
    """A folder of checkpoints to begin with, in place of the file's own parameters."""
    devices: PositiveInt | None = None
    """How many to spread a batch over; by default all."""
    dtype: Literal["bfloat16", "float16"] | None = None
    """The type of the operands of products; by default that of the parameters."""
    seed: int = Field(0, ge=0)
    """The seed of everything that is drawn."""
    export: LocalPath | None = None
    """The ONNX file to write the result to."""
    plot: LocalPath | None = None
    """The PNG file to draw the loss to."""

    @model_validator(mode="after")
    def _has_one_length(self) -> Self:
        if self.steps is None and self.epochs is None:
            raise ValueError("expected either steps or epochs")
        if self.steps is not None and self.epochs is not None:
            raise ValueError("expected either steps or epochs, not both; null takes one out")
        return self
