"""The configuration of a fine-tuning as a file: what may stand in it, and errors that say what is wrong and where."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal, Self

from jaxrnn.settings.problems import validated
from jaxrnn.settings.sections import Called, ConfigPath, ModelFile, PositiveFloat, PositiveInt, Section
from jaxrnn.settings.source import Overrides, Source, read_source

# isort: split
from pydantic import ConfigDict, Discriminator, Field, Tag
from pydantic import model_validator as validator

Patterns = str | list[str]


class Schedule(Section):
    """A schedule of optax by name, such as ``cosine_decay_schedule``, and its arguments beside it."""

    model_config = ConfigDict(extra="allow")

    schedule: str

    @property
    def options(self) -> dict[str, Any]:
        """What stands beside the name."""
        return dict(self.model_extra or {})


class Examples(Section):
    """Examples: either files, or a function that makes them.

    ``npz`` is a folder, or a pattern such as ``data/*.npz``: one example in each file, its arrays by name.
    ``function`` is ``package.module:make`` or ``file.py:make``; it is called with ``arguments`` and returns a sequence
    of examples, or a function of a NumPy generator that draws one.
    """

    npz: ConfigPath | None = None
    function: str | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)

    @validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.npz is None) == (self.function is None):
            raise ValueError("expected either npz or function")
        if self.npz is not None and self.arguments:
            raise ValueError("arguments are for a function; npz has none")
        return self


def _kind_of_rate(value: Any) -> str:
    return "schedule" if isinstance(value, dict) else "number"


LearningRate = Annotated[
    Annotated[PositiveFloat, Tag("number")] | Annotated[Schedule, Tag("schedule")], Discriminator(_kind_of_rate)
]


class Config(Section):
    """A fine-tuning: the keys of a configuration file. Those without a comment are `jaxrnn.training.fit`'s own.

    Attributes:
        model: the ONNX file.
        data: the examples to train on.
        validation: the examples to judge by.
        loss: its name in `jaxrnn.training.losses`, or of a function of one's own, and its options. Where ``time_axis``
            is one number, losses and metrics that take it get it too, unless they have one of their own.
        metrics: the same by the names under which they are reported.
        optimizer: its name in optax, and its arguments.
        learning_rate: a number, or a schedule of optax with its arguments.
        params: a folder of checkpoints to start from, in place of the file's own parameters.
        devices: how many to spread a batch over; all of them by default.
        export: the ONNX file to write the result to.
        plot: the PNG file to draw the loss to.
    """

    model: ModelFile
    data: Examples
    loss: Called
    validation: Examples | None = None
    metrics: dict[str, Called] = Field(default_factory=dict)
    steps: PositiveInt | None = None
    epochs: PositiveInt | None = None
    batch_size: PositiveInt = 16
    optimizer: Called = Called(name="adam")
    learning_rate: LearningRate = 1e-3
    clip_norm: PositiveFloat | None = None
    train: Patterns = "*"
    freeze: Patterns = Field(default_factory=list)
    params: ConfigPath | None = None
    mode: Literal["apply", "step", "scan"] | None = None
    time_axis: int | dict[str, int] | None = None
    chunk: PositiveInt | None = None
    bucket: PositiveInt = 1
    remat: Literal["sqrt"] | PositiveInt | None = None
    compute_dtype: Literal["bfloat16", "float16", "float32"] | None = None
    devices: PositiveInt | None = None
    every: PositiveInt = 100
    patience: PositiveInt | None = None
    checkpoints: ConfigPath | None = None
    keep: PositiveInt = 3
    resume: bool = True
    seed: Annotated[int, Field(ge=0)] = 0
    export: ConfigPath | None = None
    plot: ConfigPath | None = None

    @validator(mode="after")
    def _one_length(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("expected either steps or epochs")
        return self


def read_config(path: str | os.PathLike[str], overrides: Overrides = ()) -> tuple[Config, Source]:
    """Read a configuration file.

    Args:
        path: a YAML file with the keys of `Config`. Paths in it are relative to it, and may hold ``${VARIABLE}`` and
            ``${VARIABLE:-default}``.
        overrides: what stands in place of values of the file: texts ``key.sub=value``, the value being YAML, or values
            by such keys.

    Returns:
        What stands in it, and where, which later errors refer to.

    Raises:
        InputError: names the file and line, the key, what was expected and what came, or the nearest key.
    """
    source = read_source(path, overrides)
    return validated(Config, source.values, source), source
