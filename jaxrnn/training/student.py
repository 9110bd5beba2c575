"""A student: an offline model with bounded futures, which may learn the outputs of a teacher."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from jaxrnn._files.messages import short_repr
from jaxrnn._jax.context import compute_type
from jaxrnn.audio.waveforms import Waveform
from jaxrnn.cells.forms import matrix_products_in
from jaxrnn.errors import InputError, check_kind
from jaxrnn.jaxprs.numbering import fingerprint
from jaxrnn.model import Model
from jaxrnn.steps.specs import Arrays, ArraySpec
from jaxrnn.streaming import Streamed


@short_repr
@dataclass(frozen=True, eq=False)
class Student:
    """An offline model with bounded futures, for `fit`, with a teacher that gives the targets.

    A student computes whole recordings, as its stream does, with the parameters of the model. The outputs of the
    teacher stand in each example under their own names, for losses and metrics, as the target of
    ``losses.mse("mask", "mask")``. `fit` starts from the parameters of the model.

    Example::

        from jaxrnn.training import Student, fit, losses

        student, loss = Student(model, future=20, teacher=model), losses.mse("mask", "mask", time_axis=1)
        fitted = fit(student, [{"magnitude": frame, "h": h}], loss, steps=1, batch_size=1)
        jaxrnn.export_onnx(model, fitted.params, "tuned.onnx")  # the offline network
        state = student.streamed.init(constants={"magnitude": None, "h": h})  # of the stream

    Attributes:
        model: the model, or a `jaxrnn.audio.Waveform` of a single model.
        future: as in `Model.stream`.
        past: as in `Model.stream`.
        block: as in `Model.stream`.
        symbol: the time dimension of the model; by default as in `Model.stream`.
        teacher: a model of whole recordings with the inputs and outputs of the student, such as the model itself; None
            to learn from the examples only.

    Raises:
        InputError: an argument does not fit, or the inputs or outputs of the teacher differ.
        StreamError: the model cannot be bounded.
    """

    model: Model | Waveform
    _: KW_ONLY
    future: int | Mapping[str, int]
    past: int | None = None
    block: int | None = None
    symbol: str | None = None
    teacher: Model | Waveform | None = None

    #: The state between calls: none, because a student computes whole recordings.
    state = ()

    def __post_init__(self) -> None:
        check_kind("model", self.model, (Model, Waveform), "a Model, or a jaxrnn.audio.Waveform")
        check_kind("teacher", self.teacher, Model | Waveform | None, "a Model, or a jaxrnn.audio.Waveform")
        check_kind("future", self.future, int | Mapping, "frames, or a dict of frames by the start of a name")
        if self.teacher is not None:
            for what in ("inputs", "outputs"):
                _check_same(self.teacher.label, what, getattr(self.teacher, what), getattr(self, what))
        _ = self.streamed  # so that mistakes come before any work

    @functools.cached_property
    def streamed(self) -> Streamed:
        """The stream of the student."""
        symbol: dict[str, Any] = {} if self.symbol is None else {"symbol": self.symbol}
        return self.model.stream(**symbol, future=self.future, past=self.past, block=self.block)

    @property
    def label(self) -> str:
        """The name of the model."""
        return self.model.label

    @property
    def inputs(self) -> tuple[ArraySpec, ...]:
        """The inputs of the model."""
        return self.model.inputs

    @property
    def outputs(self) -> tuple[ArraySpec, ...]:
        """The outputs of the model."""
        return self.model.outputs

    @property
    def params(self) -> Any:
        """The parameters of the model."""
        return self.model.params

    @property
    def program(self) -> Any:
        """The program of the model."""
        return self.model.program

    @property
    def facts(self) -> dict[str, Any]:
        """The bounds and a digest of the teacher, which must be the same when a training resumes."""
        future = dict(self.future) if isinstance(self.future, Mapping) else self.future
        teacher = None if self.teacher is None else fingerprint(sorted(self.teacher.params.items()))
        bounds = {"symbol": self.symbol, "future": future, "past": self.past, "block": self.block}
        return {**bounds, "teacher": teacher}

    def apply(self, params: Arrays, inputs: Arrays, *, remat: None = None, dtype: Any = None) -> dict[str, Any]:
        """Return the outputs of a whole recording, the function that the stream equals.

        Args:
            params: as in `Model.apply`.
            inputs: as in `Model.apply`.
            remat: None, because bounded recurrences are not computed again.
            dtype: as in `Model.apply`.

        Raises:
            InputError: an input does not fit.
        """
        if remat is not None:
            raise InputError(f"remat={remat!r}: a student with bounded futures takes no `remat`")
        with matrix_products_in(compute_type(dtype)):
            return self.streamed.offline(params, dict(inputs))

    def taught(self, example: Arrays) -> Arrays:
        """Return an example with the outputs of the teacher."""
        if self.teacher is None:
            return example
        outputs = self.teacher.apply(self.teacher.params, {each.name: example[each.name] for each in self.inputs})
        if given := [name for name in outputs if name in example]:
            raise InputError(
                f"{given[0]!r} is an output of the teacher {self.teacher.label} and an array of the examples: rename "
                "the array"
            )
        return {**example, **outputs}


def _check_same(label: str, what: str, teacher: tuple[ArraySpec, ...], student: tuple[ArraySpec, ...]) -> None:
    """Check that the arrays of a teacher have the names, types and sizes of those of the student."""
    own = {each.name: each for each in student}
    if own.keys() != {each.name for each in teacher}:
        names = (", ".join(each.name for each in some) for some in (teacher, student))
        raise InputError(f"the teacher {label} has the {what} {next(names)}, and the student {next(names)}")
    for each in teacher:
        here = own[each.name]
        if each.dtype != here.dtype or _sizes(each) != _sizes(here):
            raise InputError(f"the teacher {label} has {each} among the {what}, and the student {here}")


def _sizes(spec: ArraySpec) -> list[int | None] | None:
    """Return the sizes of an array, with None for open dimensions, which may have other names."""
    return None if spec.shape is None else [size if isinstance(size, int) else None for size in spec.shape]
