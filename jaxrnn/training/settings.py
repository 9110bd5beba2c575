"""The keys of a settings file for `jaxrnn finetune`: the arguments of `jaxrnn.training.fit`."""

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
    """Examples from files, or from a function."""

    npz: AnyPath | None = None
    """A folder, or a pattern such as `data/*.npz`, as a path or URL: one example per file, with arrays by name."""
    function: FunctionName | None = None
    """Instead of `npz`: `file.py:function` or `module:function` that returns examples, or a function drawing one."""
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
    """A name in jaxrnn, or your `file.py:function` or `module:function`. Options stand beside the name."""


class ValidationSettings(ExamplesSettings):
    """Examples for validation, and early stopping."""

    every: PositiveInt = 100
    """Updates between validations."""
    patience: PositiveInt | None = None
    """Validations without a better loss before the training stops early."""


class ScheduleSettings(Settings):
    """A schedule of optax by name, with its arguments beside the name."""

    model_config = ConfigDict(extra="allow")

    schedule: str
    """The name of the schedule, such as `cosine_decay_schedule`. Arguments stand beside the name."""

    @property
    def options(self) -> dict[str, Any]:
        """Return the arguments beside the name."""
        return dict(self.model_extra or {})


class OptimizerSettings(FunctionSettings):
    """An optimizer of optax by name, with its arguments beside the name, and the parameters to train."""

    name: str = "adam"
    """An optimizer of optax. Arguments stand beside the name."""
    learning_rate: PositiveFloat | ScheduleSettings = 1e-3
    """A number, or a schedule of optax."""
    clip_norm: PositiveFloat | None = None
    """The largest global norm of the gradients."""
    train: str | list[str] = "*"
    """Name patterns (with `*` and `?`) of the parameters to train."""
    freeze: str | list[str] = []
    """Name patterns of parameters to leave out of `train`."""


class SequencesSettings(Settings):
    """The way in which the model runs over sequences."""

    mode: Literal["apply", "step", "scan"] | None = None
    """`apply` runs whole sequences without state; `step` and `scan` carry state. By default inferred."""
    time_axis: int | dict[str, int] | None = None
    """The time axis of the arrays: a number for all arrays and for losses with this option, or numbers by name."""
    chunk: PositiveInt | None = None
    """Frames per chunk of truncated back-propagation through time; by default whole sequences."""
    bucket: PositiveInt = 1
    """Lengths are padded to multiples of this number, so that fewer lengths are compiled."""
    remat: Literal["sqrt"] | PositiveInt | None = None
    """Recomputation in the backward pass of recurrences to save memory: `sqrt`, or a number of frames."""


class CheckpointsSettings(Settings):
    """The folder of checkpoints, or keys and values."""

    short = "folder"

    folder: LocalPath
    """The folder of checkpoints."""
    every: PositiveInt = 100
    """Updates between checkpoints."""
    keep: PositiveInt = 3
    """Number of newest checkpoints to keep, besides the best."""
    resume: bool = True
    """True to continue from existing checkpoints, false to refuse them."""


class TrainingSettings(Settings):
    """The keys of a settings file for `jaxrnn finetune`."""

    model: ModelSettings
    """The network: its ONNX file, or the keys below."""
    data: ExamplesSettings
    """The examples to train on."""
    loss: LossSettings
    """The loss that updates minimize: a name, or the keys below."""
    steps: PositiveInt | None = None
    """Number of updates. Give either `steps` or `epochs`."""
    epochs: PositiveInt | None = None
    """Number of passes over the examples."""
    metrics: dict[str, LossSettings] = {}
    """Further functions to measure, by name: on the validation examples, or else on the batches."""
    batch_size: PositiveInt = 16
    """Examples per update, on all devices together."""
    optimizer: OptimizerSettings = OptimizerSettings()
    """The optimizer: a name, or the keys below."""
    sequences: SequencesSettings = SequencesSettings()
    """The way in which the model runs over sequences."""
    validation: ValidationSettings | None = None
    """Examples for validation. The result has the parameters with the best validation loss."""
    checkpoints: CheckpointsSettings | None = None
    """Checkpoints, from which an interrupted run continues: a folder, or the keys below."""
    params: LocalPath | None = None
    """A folder of checkpoints with initial parameters, in place of those of the file."""
    devices: PositiveInt | None = None
    """Number of devices to split a batch over; by default all."""
    dtype: Literal["bfloat16", "float16"] | None = None
    """The dtype of operands of products; by default the dtype of the parameters."""
    seed: int = Field(0, ge=0)
    """The random seed."""
    export: LocalPath | None = None
    """ONNX file for the result."""
    plot: LocalPath | None = None
    """PNG file for the loss curve."""

    @model_validator(mode="after")
    def _has_one_length(self) -> Self:
        if self.steps is None and self.epochs is None:
            raise ValueError("expected either steps or epochs")
        if self.steps is not None and self.epochs is not None:
            raise ValueError("expected either steps or epochs, not both; null takes one out")
        return self
