"""Options of `fit`: sequences, validation and checkpoints, each checked when created, and checks of other arguments."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax

from jaxrnn._files.messages import check_word, short_repr
from jaxrnn._files.stores import Url, location
from jaxrnn.cells.forms import Remat, recomputing
from jaxrnn.errors import InputError, check_count
from jaxrnn.training.examples import make_source

#: The time axis of an example's arrays: one axis for all arrays that have it, or a dict by name.
TimeAxis = int | Mapping[str, int] | None

MODES = ("apply", "step", "scan")


@short_repr
@dataclasses.dataclass(frozen=True)
class Sequences:
    """The way in which a model runs over the sequences of examples.

    Attributes:
        mode: ``"apply"`` runs whole sequences without state. ``"scan"`` runs `Model.scan` over frames. ``"step"`` runs
            `Model.step` on sequences along the time dimension of the file, or on one step per example. The default is
            apply for a model without state; scan if the first example has one axis more than a step; step if a step
            takes several frames along an open dimension, or if the example is one step; otherwise scan.
        time_axis: The time axis of the arrays in an example: one axis for all arrays that have it, or a dict from
            names to axes, in which missing arrays are constant. With a time axis, lengths and frame rates may differ.
            For ``scan``, the dict may name an output to place frames on an axis other than the first.
        chunk: Frames per chunk of truncated back-propagation through time, or None to use whole sequences. Each chunk
            is an update. State crosses chunks of a batch, gradients do not. Ended examples do not count.
        bucket: Lengths are padded to multiples of this number, so that fewer lengths are compiled. With ``chunk``,
            lengths are padded to whole chunks instead.
        batch_frames: The most frames in a batch, padded frames included: seconds times frames per second. Examples of
            similar lengths share a batch, and ``batch_size`` is the most examples in a batch. An epoch has each example
            once; the lengths of all examples are read first. By default, a batch has ``batch_size`` examples.
        remat: Recomputation in the backward pass of recurrences to save memory: None, ``"sqrt"``, or a number of
            frames.

    Raises:
        InputError: The mode is unknown, a number is out of range, or ``chunk`` or ``batch_frames`` come without
            ``time_axis``.
    """

    mode: Literal["apply", "step", "scan"] | None = None
    time_axis: TimeAxis = None
    chunk: int | None = None
    bucket: int = 1
    batch_frames: int | None = None
    remat: Remat = None

    def __post_init__(self):
        if self.mode is not None:
            check_word("the mode", self.mode, MODES)
        if not isinstance(self.time_axis, int | Mapping | None):
            raise InputError(f"time_axis must be a number, or a dict of numbers by name, not {self.time_axis!r}")
        check_count("bucket", self.bucket)
        if self.batch_frames is not None:
            check_count("batch_frames", self.batch_frames)
            if self.time_axis is None or self.chunk is not None:
                raise InputError("batch_frames= needs time_axis=, and whole sequences: chunk= already bounds memory")
        if self.chunk is not None:
            check_count("chunk", self.chunk)
            if self.time_axis is None:
                raise InputError("chunk= needs time_axis=, which says which axis of each array is cut into chunks")
        with recomputing(self.remat):
            pass

    @property
    def whole(self) -> Sequences:
        """Return the options without chunks and recomputation, which serve gradients only."""
        return dataclasses.replace(self, chunk=None, remat=None)


#: Whole sequences, with the time axis of the file.
SEQUENCES = Sequences()


@short_repr
@dataclasses.dataclass(frozen=True)
class Validation:
    """Examples for validation.

    Attributes:
        data: A sequence of examples, as in `fit`.
        every: Updates between validations. A validation also follows the last update.

    Raises:
        InputError: ``data`` is empty or not a sequence, or a number is out of range.
    """

    data: Sequence[Mapping[str, Any]]
    every: int = 100

    def __post_init__(self):
        make_source(self.data, None, what="validation")
        check_count("every", self.every)


@short_repr
@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """The folder of checkpoints, and the number of checkpoints to keep.

    Attributes:
        folder: The folder, which is created if missing. All processes of a training must see it.
        every: Updates between checkpoints. A checkpoint also follows the last update.
        keep: Number of newest checkpoints to keep, besides the best.
        resume: True to continue from the newest checkpoint; False to refuse a folder with checkpoints.

    Raises:
        InputError: A number is out of range, or the folder is a URL.
    """

    folder: str | os.PathLike[str]
    every: int = 100
    keep: int = 3
    resume: bool = True

    def __post_init__(self):
        if isinstance(location(self.folder), Url):
            raise InputError(
                f"checkpoints: {self.folder} is a URL, but Orbax writes to folders: give a folder on this machine, "
                "which may be a mounted bucket"
            )
        check_count("every", self.every)
        check_count("keep", self.keep)


#: A loss or metric ``(outputs, example, mask) -> scalar`` of one example: arrays by name, and ``bool[frames]``.
Function = Callable[[dict[str, Any], dict[str, Any], jax.Array], Any]


def check_functions(loss: Any, metrics: Any) -> dict[str, Function]:
    """Check that loss and metrics are functions, and return the metrics as a dict."""
    if not callable(loss):
        raise InputError(f"loss must be a function of outputs, example and mask, not a {type(loss).__name__}")
    if not isinstance(metrics, Mapping | None):
        raise InputError(f"metrics must be a dict of functions by name, not a {type(metrics).__name__}")
    taken = {"loss", "step", "grad_norm", "param_norm", "learning_rate", "seconds", "validation_loss"}
    for name, metric in (metrics or {}).items():
        if not callable(metric):
            raise InputError(f"metric {name!r} must be a function of outputs, example and mask, not {metric!r}")
        if name in taken:
            raise InputError(f"a metric cannot be called {name!r}: the history has another number of that name")
    return dict(metrics or {})


def check_end(steps: int | None, epochs: int | None, size: int | None) -> None:
    """Check that exactly one of ``steps`` and ``epochs`` is given, and that epochs come with a number of examples."""
    if (steps is None) == (epochs is None):
        raise InputError("give either steps=, the number of updates, or epochs=, passes over the data; not both")
    if steps is not None:
        check_count("steps", steps)
    if epochs is not None:
        check_count("epochs", epochs)
        if size is None:
            raise InputError("epochs= needs a sequence of examples; for a function that draws them give steps=")
