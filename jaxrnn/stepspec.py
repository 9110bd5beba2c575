"""`StepSpec`: the facts about a pure step, its arrays by name and its place in time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Self

import numpy as np

from jaxrnn.briefs import brief, shortened, without_folders
from jaxrnn.errors import InputError
from jaxrnn.layout import Layout
from jaxrnn.messages import bytes_of, describe
from jaxrnn.specs import ArraySpec, bind, converted
from jaxrnn.states import lead_of

Arrays = Mapping[str, Any]


@brief
@dataclasses.dataclass(frozen=True)
class OutputSpec(ArraySpec):
    """An output of a step.

    Attributes:
        delay: frames that come before its frame 0; None where it has no frames of time.
        rate: its frames for each input frame; None where it has none.
        at_end: whether only a flush gives it, such as a sum over all of time.
    """

    delay: int | None = None
    rate: Fraction | None = None
    at_end: bool = False

    def to_json(self) -> dict[str, Any]:
        """Its fields in JSON's types; the rate as ``"1/4"``."""
        return super().to_json() | {"rate": None if self.rate is None else str(self.rate)}

    @classmethod
    def from_json(cls, fields: Arrays) -> Self:
        """The output that `to_json` described."""
        return super().from_json({**fields, "rate": None if fields["rate"] is None else Fraction(fields["rate"])})


@brief
@dataclasses.dataclass(frozen=True)
class StateSpec(ArraySpec):
    """An entry of a state.

    Attributes:
        kind: what it is for. Of a stream, ``history`` and ``delay`` are past frames, ``carry`` is that of a recurrence,
            ``total`` a running sum, ``first`` and ``last`` are frames to be handed out at the end, ``counter`` counts
            units (smallest pulses). Of a model in steps, the state of its file is ``external``.
    """

    kind: str = "carry"

    def __str__(self) -> str:
        return f"{self.name}: {self.kind}, {super().__str__().partition(': ')[2]}, {self.nbytes} bytes"


def milliseconds(frames: int, frame_rate: float, rate: Fraction | int = 1) -> float:
    """How long frames last, of which ``rate`` go with each of the ``frame_rate`` input frames a second."""
    return round(1000 * frames / (float(rate) * frame_rate), 6)


@brief
@dataclasses.dataclass(frozen=True)
class StepSpec:
    """The facts about a step: its arrays by name, and its place in time.

    Attributes:
        label: what messages call it.
        inputs: what a step takes besides the state. In a stream, those without a time axis are constant in time; in a
            step that has no time axis at all, each array is one frame.
        outputs: what it gives.
        state: every entry of the state of one stream.
        pulse: input frames in each step.
        multiple: what every number of input frames is a multiple of.
        smallest_pulse: the smallest pulse that fits the strides; its multiples fit too.
        look_ahead: input frames after its own place that an output frame depends on, at most.
        receptive_field: input frames that an output frame depends on, at most; None for all of the past.
        batch_symbol: the name of the batch dimension of inputs and state, which is 1 for one stream; None where a batch
            is an axis in front.
        joined: whether the state is carried as one vector for each element type, with the entries one after another.
        constants: the inputs that the state before the first frame is computed from.
        needs_params: whether a step takes parameters and has none of its own.
    """

    label: str
    inputs: tuple[ArraySpec, ...]
    outputs: tuple[OutputSpec, ...]
    state: tuple[StateSpec, ...]
    pulse: int = 1
    multiple: int = 1
    smallest_pulse: int = 1
    look_ahead: int = 0
    receptive_field: int | None = None
    batch_symbol: str | None = None
    joined: bool = False
    constants: tuple[str, ...] = ()
    needs_params: bool = False

    @property
    def delay(self) -> dict[str, int | None]:
        """By output, the frames that come before its frame 0; None where it has no frames of time."""
        return {output.name: output.delay for output in self.outputs}

    @property
    def rate(self) -> dict[str, Fraction | None]:
        """By output, its frames for each input frame; None where it has none."""
        return {output.name: output.rate for output in self.outputs}

    @property
    def summary(self) -> str:
        """What a stepper of these facts is, on a line."""
        size = sum(each.nbytes for each in self.state)
        state = f"state of {len(self.state)} array(s), {bytes_of(size)}" if self.state else "no state"
        return f"{shortened(without_folders(self.label))}: pulse {self.pulse}, {state}"

    @property
    def streams(self) -> bool:
        """Whether an input has a time axis; without one, a step takes one whole frame."""
        return any(spec.time_axis is not None for spec in self.inputs)

    @property
    def carried(self) -> tuple[ArraySpec, ...]:
        """The arrays that a state consists of: its entries, or the vectors that hold them."""
        if not self.joined:
            return self.state
        vectors = Layout({entry.name: entry.struct() for entry in self.state}).vectors
        return tuple(ArraySpec(name, np.dtype(vector.dtype), vector.shape) for name, vector in vectors.items())

    def sized(self, sizes: Mapping[str, int]) -> StepSpec:
        """The same with sizes for open dimensions by name."""
        fields = ("inputs", "outputs", "state")
        arrays = {field: tuple(spec.sized(sizes) for spec in getattr(self, field)) for field in fields}
        return dataclasses.replace(self, **arrays)

    def lead(self, state: Any) -> tuple[Any, ...]:
        """The batch that a state has in front, or nothing.

        Raises:
            StateError: it is not a state of this step.
        """
        return lead_of(self.carried, state)

    def batch(self, state: Arrays) -> int | None:
        """How many streams a state is of: the axis in front, or the batch dimension; None where it has neither."""
        lead = self.lead(state)
        named = (
            size
            for spec in self.state
            if self.batch_symbol is not None
            for name, size in zip(spec.shape or (), state[spec.name].shape[len(lead) :], strict=True)
            if name == self.batch_symbol
        )
        return lead[0] if lead else next(named, None)

    def entries(self, state: Arrays) -> dict[str, Any]:
        """The entries of a state by name."""
        if not self.joined:
            return dict(state)
        return Layout({entry.name: entry.struct() for entry in self.state}).unpack(dict(state))

    def count_frames(self, arrays: Arrays, lead: tuple[Any, ...] = ()) -> int | None:
        """The number of input frames that the arrays of a recording agree on; None where none has frames.

        Args:
            arrays: inputs by name with any number of frames along the time axis; of a step without a time axis, stacked
                along a first axis.
            lead: the batch in front of the arrays of a stream.

        Raises:
            InputError: they have different numbers of frames.
        """
        counts, said = set(), []
        for each in self.inputs:
            axis = each.time_axis if self.streams else 0
            if axis is None or each.name not in arrays or np.ndim(arrays[each.name]) <= axis + len(lead):
                continue
            size = arrays[each.name].shape[axis + len(lead)]
            count = Fraction(size * self.pulse, each.sizes[axis]) if self.streams else Fraction(size)
            counts.add(count)
            said.append(f"{each.name}: {size}" + ("" if count == size else f" (of {count} input frames)"))
        if len(counts) > 1 or any(count.denominator != 1 for count in counts):
            raise InputError(f"{self.label}: the inputs have different numbers of frames: {', '.join(said)}")
        return int(counts.pop()) if counts else None

    def bind(
        self, inputs: Arrays, lead: tuple[Any, ...] = (), convert: Callable[[ArraySpec, Any], Any] = converted
    ) -> dict[str, Any]:
        """The inputs of a step as arrays of the declared types, after the batch of the state.

        Args:
            inputs: arrays by name.
            lead: the batch.
            convert: makes a value an array of the declared type.

        Raises:
            InputError: a name, a type or a shape does not fit.
        """
        bound = bind([spec.batched(lead) for spec in self.inputs], inputs, convert=convert, note=batch_note(lead))
        for spec in self.inputs:
            value = bound[spec.name]
            if spec.shape is None and value.shape[: len(lead)] != lead:
                raise InputError(f"{spec.as_input} got {describe(value)}{batch_note(lead)}")
        return bound

    def to_json(self) -> dict[str, Any]:
        """Its fields in JSON's types."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        arrays = {key: [spec.to_json() for spec in fields[key]] for key in ("inputs", "outputs", "state")}
        return fields | arrays | {"constants": list(self.constants)}

    @classmethod
    def from_json(cls, fields: Arrays) -> StepSpec:
        """The facts that `to_json` described."""
        kinds = {"inputs": ArraySpec, "outputs": OutputSpec, "state": StateSpec}
        arrays = {key: tuple(kind.from_json(each) for each in fields[key]) for key, kind in kinds.items()}
        return cls(**{**fields, **arrays, "constants": tuple(fields["constants"])})


def batch_note(lead: tuple[Any, ...]) -> str:
    """What an error about inputs says of the batch of the state."""
    return f"; the state is of a batch of {lead[0]}, so every input needs a leading axis of {lead[0]}" if lead else ""
