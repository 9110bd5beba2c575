"""The groups of options of `fit`: sequences, validation, checkpoints. Each is checked when it is made."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrnn._files.arguments import Placeholder, argument
from jaxrnn._files.messages import brief
from jaxrnn._files.stores import Url, location
from jaxrnn.cells import recomputing
from jaxrnn.cells.chunks import Remat
from jaxrnn.errors import InputError, check_count
from jaxrnn.training.examples import make_source

#: Which axis of an example's arrays is time: one for all that have such an axis, or one by name.
TimeAxis = int | Mapping[str, int] | None

MODES = ("apply", "step", "scan")

#: What a message leaves to its reader.
OPEN = Placeholder("...")


class _Group(dict[str, Any]):
    """Options of a group: in Python, what makes it."""

    def __init__(self, kind: str, options: Mapping[str, Any]):
        super().__init__(options)
        self._kind = kind

    def __repr__(self) -> str:
        return f"{self._kind}({', '.join(f'{name}={value!r}' for name, value in self.items())})"


def sequences_argument(**options: Any) -> str:
    """How a message writes options of `Sequences`: as an argument of `fit`, or as a key of its settings."""
    return argument("sequences", _Group("Sequences", options))


def optimizer_argument(**options: Any) -> str:
    """How a message writes options of `Optimizer`: as an argument of `fit`, or as a key of its settings."""
    return argument("optimizer", _Group("Optimizer", options))


@brief
@dataclasses.dataclass(frozen=True)
class Sequences:
    """How a model runs over the sequences of its examples.

    Attributes:
        mode: ``"apply"`` runs whole sequences without state, ``"scan"`` runs `Model.scan` over frames, ``"step"`` runs
            `Model.step` on sequences along the file's own time dimension, or on one step in each example. By default:
            apply for a model without state of its own; scan where the first example has one axis more than a step; step
            where a step takes more frames than that along an open dimension, or the example is one step; else scan.
        time_axis: which axis of the example's arrays is time: one for all that have such an axis, or one by name, where
            arrays without a name are constant. Lengths may then be unequal, and rates too. An output's axis may be
            named where ``scan`` is to put its frames elsewhere than in front.
        chunk: frames in each chunk of truncated back-propagation through time. There is one update for each chunk; the
            state is carried on without its gradient, and starts anew with each batch. An example that has ended does
            not count. None for whole sequences.
        bucket: lengths are padded to multiples of it, so that fewer lengths are compiled.
        remat: what the backward pass of recurrences computes again to need less memory: None, ``"sqrt"``, or frames.

    Raises:
        InputError: there is no such mode, a number is out of range, or chunks are asked for without a time axis.
    """

    mode: str | None = None
    time_axis: TimeAxis = None
    chunk: int | None = None
    bucket: int = 1
    remat: Remat = None

    def __post_init__(self):
        if self.mode is not None and self.mode not in MODES:
            raise InputError(f"there is no mode {self.mode!r}; the modes are: {', '.join(MODES)}")
        check_count("bucket", self.bucket)
        if self.chunk is not None:
            check_count("chunk", self.chunk)
            if self.time_axis is None:
                raise InputError("chunk= needs time_axis=, which says which axis of each array is cut into chunks")
        with recomputing(self.remat):
            pass

    @property
    def whole(self) -> Sequences:
        """The same without what is for gradients alone: no chunks, and nothing computed again."""
        return dataclasses.replace(self, chunk=None, remat=None)


#: Whole sequences, with the time axis that the file has.
SEQUENCES = Sequences()


@brief
@dataclasses.dataclass(frozen=True)
class Validation:
    """Examples that are not trained on, and what they decide.

    Attributes:
        data: a sequence of examples, as `fit` takes them.
        every: updates between validations. There is one after the last update too.
        patience: validations without a better loss before the training stops early; None to go on to its end.

    Raises:
        InputError: the examples are no sequence or there are none, or a number is out of range.
    """

    data: Sequence[Mapping[str, Any]]
    every: int = 100
    patience: int | None = None

    def __post_init__(self):
        make_source(self.data, None, what="validation")
        check_count("every", self.every)
        if self.patience is not None:
            check_count("patience", self.patience)


@brief
@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """Where a training keeps its checkpoints, and how many.

    Attributes:
        folder: the folder; it is made if it is not there. In several processes all of them must see it.
        every: updates between checkpoints. There is one after the last update too.
        keep: how many of the newest checkpoints stay, besides the best.
        resume: whether to go on from the newest checkpoint that is there; False to refuse a folder that has any.

    Raises:
        InputError: a number is out of range, or the folder is a URL.
    """

    folder: str | os.PathLike[str]
    every: int = 100
    keep: int = 3
    resume: bool = True

    def __post_init__(self):
        if isinstance(location(self.folder), Url):
            raise InputError(
                f"checkpoints: {self.folder} is a URL, and Orbax writes to folders: give one on this machine, or a "
                "bucket that is mounted as one"
            )
        check_count("every", self.every)
        check_count("keep", self.keep)
