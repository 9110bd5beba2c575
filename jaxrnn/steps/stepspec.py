"""`StepSpec`: the arrays and the timing of a pure step, and the layout of the state."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn._files.messages import bytes_of, describe, near, short_repr, shortened, without_folders
from jaxrnn.errors import InputError, StateError, is_count
from jaxrnn.steps.specs import Arrays, ArraySpec, bind, converted

State = dict[str, Any]


@dataclass(frozen=True)
class EntryPlace:
    """The place of a state entry: the vector, the first element and the shape."""

    vector: str
    start: int
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


class Layout:
    """The layout of a state: `places` maps entries to places, and `vectors` maps stored arrays to shapes.

    ``entries`` is a dict of arrays or shapes. If ``joined``, the entries are stored in one vector for each dtype, or in
    the vectors that ``vectors`` assigns to entries. Otherwise each entry is a separate array.
    """

    def __init__(self, entries: Mapping[str, Any], *, joined: bool = True, vectors: Mapping[str, str] | None = None):
        sizes: dict[str, int] = {}
        self.places: dict[str, EntryPlace] = {}
        self.joined = joined
        for name, entry in entries.items():
            dtype = np.dtype(entry.dtype)
            vector = (dtype.name if vectors is None else vectors[name]) if joined else name
            place = EntryPlace(vector, sizes.get(vector, 0), tuple(entry.shape), dtype)
            self.places[name] = place
            sizes[vector] = place.start + place.size
        if not joined:
            self.vectors = {name: jax.ShapeDtypeStruct(place.shape, place.dtype) for name, place in self.places.items()}
            return
        dtypes = {place.vector: place.dtype for place in self.places.values()}
        self.vectors = {name: jax.ShapeDtypeStruct((size,), dtypes[name]) for name, size in sizes.items()}

    def pack(self, entries: Mapping[str, Any]) -> State:
        """Concatenate entries to vectors, with the leading batch axes; NumPy entries result in NumPy vectors."""
        if not self.joined:
            return {name: entries[name] for name in self.places}
        parts: dict[str, list[Any]] = {name: [] for name in self.vectors}
        for name, place in self.places.items():
            entry = entries[name]
            lead = entry.shape[: entry.ndim - len(place.shape)]
            parts[place.vector].append(entry.reshape((*lead, place.size)))
        known = all(isinstance(array, np.ndarray) for arrays in parts.values() for array in arrays)
        return {name: (np if known else jnp).concatenate(arrays, -1) for name, arrays in parts.items()}

    def unpack(self, state: State) -> dict[str, Any]:
        """Cut vectors into a dict of entries, with the leading batch axes of the vectors."""
        if not self.joined:
            return dict(state)
        entries = {}
        for name, place in self.places.items():
            vector = state[place.vector]
            part = vector[..., place.start : place.start + place.size]
            entries[name] = part.reshape((*vector.shape[:-1], *place.shape))
        return entries


#: Arrays with at least this number of bytes are not joined.
LARGE = 1 << 15


def joined_layout(arrays: Mapping[str, Any], large: int) -> Layout:
    """Return the layout of arrays as one vector for each dtype; arrays of ``large`` bytes or more stay separate.

    XLA writes a joined vector in a single loop that chooses the array for each element, and computes the element
    there: for the caches of GTCRN (66 KiB) the loop took a quarter of a step.
    """
    sizes = {name: math.prod(each.shape) * each.dtype.itemsize for name, each in arrays.items()}
    vectors = {name: f"{name}!" if sizes[name] >= large else str(each.dtype) for name, each in arrays.items()}
    return Layout(arrays, vectors=vectors)


def lead_of(specs: Sequence[ArraySpec], state: Any) -> tuple[Any, ...]:
    """Return the leading batch axis of a state, or ``()``; raise StateError for a state that does not fit the specs."""
    names = [spec.name for spec in specs]
    listed = ", ".join(names) or "nothing"
    if not isinstance(state, Mapping):
        raise StateError(f"the state must be a dict like the result of init, with {listed}, not {type(state).__name__}")
    for name in state:
        if name not in names:
            raise StateError(f"there is no state {name!r}{near(name, names)}; the state is: {listed}")
    missing = [name for name in names if name not in state]
    if missing:
        raise StateError(f"state {missing[0]!r} is missing; init returns: {listed}")
    leads: dict[str, tuple[Any, ...]] = {}
    sizes: dict[str, Any] = {}
    for spec in specs:
        value, shape = state[spec.name], spec.shape
        assert shape is not None
        if not hasattr(value, "dtype") or value.dtype != spec.dtype:
            raise StateError(f"state {_expected(spec)}, not {describe(value)}")
        extra = max(len(value.shape) - len(shape), 0)
        leads[spec.name], core = tuple(value.shape[:extra]), tuple(value.shape[extra:])
        fits = len(core) == len(shape) and all(
            isinstance(expected, str) or expected == size for expected, size in zip(shape, core, strict=True)
        )
        if not fits or extra > 1:
            more = "; map over further leading axes with jax.vmap" if fits else ""
            raise StateError(f"state {_expected(spec)}, not {describe(value)}{more}")
        named = ((expected, size) for expected, size in zip(shape, core, strict=True) if isinstance(expected, str))
        same = all(sizes.setdefault(expected, size) == size for expected, size in named)
        if leads[spec.name] != leads[names[0]] or not same:
            raise StateError(f"state {spec.name!r} is {describe(value)}: the batch differs from the rest of the state")
    return next(iter(leads.values()), ())


def _expected(spec: ArraySpec) -> str:
    shown = ArraySpec.__str__(spec).partition(": ")[2]
    return f"{spec.name!r} must be {shown} (in a batch, with one leading axis)"


def zeros(specs: Sequence[ArraySpec], sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Return a dict of zeros, with sizes for open dimensions; a missing size raises KeyError."""
    return {
        spec.name: np.zeros([size if isinstance(size, int) else sizes[size] for size in spec.shape or ()], spec.dtype)
        for spec in specs
    }


@short_repr
@dataclasses.dataclass(frozen=True)
class OutputSpec(ArraySpec):
    """An output of a step.

    Attributes:
        delay: the number of frames before frame 0; None without a time axis.
        rate: the number of output frames per input frame; None without a time axis.
        at_end: True if only the flush returns the output, such as a sum over time.
    """

    delay: int | None = None
    rate: Fraction | None = None
    at_end: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, the rate as ``"1/4"``."""
        return super().to_json() | {"rate": None if self.rate is None else str(self.rate)}

    @classmethod
    def from_json(cls, fields: Arrays) -> Self:
        """Return the spec from the values of `to_json`."""
        return super().from_json({**fields, "rate": None if fields["rate"] is None else Fraction(fields["rate"])})


@short_repr
@dataclasses.dataclass(frozen=True)
class StateSpec(ArraySpec):
    """An entry of a state.

    Attributes:
        kind: the purpose. In a stream, ``history`` and ``delay`` are past frames, ``carry`` is the carry of a
            recurrence, ``total`` a running sum, ``first`` and ``last`` are frames for the flush, and ``counter`` counts
            units (smallest pulses). In a model in steps, the state of the file is ``external``. In an exported file,
            an array with entries of several kinds is ``joined``.
    """

    kind: str = "carry"

    def __str__(self) -> str:
        return f"{self.name}: {self.kind}, {super().__str__().partition(': ')[2]}, {self.nbytes} bytes"


def milliseconds(frames: int, frame_rate: float, rate: Fraction | int = 1) -> float:
    """Return the duration of output frames, for ``frame_rate`` input frames a second and ``rate`` per input frame."""
    return round(1000 * frames / (float(rate) * frame_rate), 6)


@short_repr
@dataclasses.dataclass(frozen=True)
class StepSpec:
    """The arrays and the timing of a step.

    Attributes:
        label: the name of the step in messages.
        inputs: the inputs except the state. In a stream, inputs without a time axis are constant in time. If no input
            has a time axis, each array is one frame.
        outputs: the outputs.
        state: the entries of the state of a stream.
        pulse: the number of input frames in each step.
        multiple: a number that divides the number of input frames of each recording.
        smallest_pulse: the smallest pulse that fits the strides; all its multiples fit.
        look_ahead: the largest number of later input frames on which an output frame depends.
        receptive_field: the largest number of input frames on which an output frame depends; None if unbounded.
        past: the most earlier frames that an attention without a bound sees, if this bound changed the
            function; see `jaxrnn.stream`. Otherwise None.
        shortest: the fewest input frames of a recording that the constraints of a stream allow.
        longest: the most input frames; None if unlimited.
        batch_symbol: the name of the batch dimension of inputs and state, with size 1 for one stream; None if a batch
            is a leading axis.
        joined: True if the state is carried as one vector for each dtype.
        constants: the names of the inputs on which the state before the first frame depends.
        needs_params: True if a step needs parameters and has no default parameters.
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
    past: int | None = None
    shortest: int = 0
    longest: int | None = None
    batch_symbol: str | None = None
    joined: bool = False
    constants: tuple[str, ...] = ()
    needs_params: bool = False

    @property
    def delay(self) -> dict[str, int | None]:
        """For each output, the number of frames before frame 0; None without a time axis."""
        return {output.name: output.delay for output in self.outputs}

    @property
    def rate(self) -> dict[str, Fraction | None]:
        """For each output, the number of frames per input frame; None without a time axis."""
        return {output.name: output.rate for output in self.outputs}

    @property
    def summary(self) -> str:
        """A short description of the stepper on a single line."""
        size = sum(each.nbytes for each in self.state)
        state = f"state of {len(self.state)} array(s), {bytes_of(size)}" if self.state else "no state"
        return f"{shortened(without_folders(self.label))}: pulse {self.pulse}, {state}"

    @property
    def streams(self) -> bool:
        """True if an input has a time axis; otherwise a step takes one whole frame."""
        return any(spec.time_axis is not None for spec in self.inputs)

    @property
    def carried(self) -> tuple[ArraySpec, ...]:
        """The arrays of a state: the entries, or the vectors of the entries."""
        if not self.joined:
            return self.state
        vectors = Layout({entry.name: entry.struct() for entry in self.state}).vectors
        return tuple(ArraySpec(name, np.dtype(vector.dtype), vector.shape) for name, vector in vectors.items())

    def sized(self, sizes: Mapping[str, int]) -> StepSpec:
        """Return the spec with these sizes of open dimensions."""
        fields = ("inputs", "outputs", "state")
        arrays = {field: tuple(spec.sized(sizes) for spec in getattr(self, field)) for field in fields}
        return dataclasses.replace(self, **arrays)

    def lead(self, state: Any) -> tuple[Any, ...]:
        """Return the leading batch axis of a state, or ``()``.

        Raises:
            StateError: the state does not fit the step.
        """
        return lead_of(self.carried, state)

    def batch(self, state: Arrays) -> int | None:
        """Return the number of streams in a state, from the leading axis or the batch dimension; None without both."""
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
        """Return the entries of a state as a dict."""
        if not self.joined:
            return dict(state)
        return Layout({entry.name: entry.struct() for entry in self.state}).unpack(dict(state))

    def carry(self, entries: Arrays) -> State:
        """Return the state of a dict of entries; the inverse of `entries`."""
        if not self.joined:
            return dict(entries)
        return Layout({entry.name: entry.struct() for entry in self.state}).pack(entries)

    def count_frames(self, arrays: Arrays, lead: tuple[Any, ...] = ()) -> int | None:
        """Return the number of input frames of a recording; None if no array has frames.

        Args:
            arrays: a dict of inputs, with any number of frames along the time axes. If no input of the step has a time
                axis, the frames are stacked along a first axis.
            lead: the leading batch axis of the arrays of a stream.

        Raises:
            InputError: the arrays have different numbers of frames.
        """
        counts, said = set(), []
        for each in self.inputs:
            axis = each.time_axis if self.streams else 0
            if axis is None or each.name not in arrays or np.ndim(arrays[each.name]) <= axis + len(lead):
                continue
            size = arrays[each.name].shape[axis + len(lead)]
            count = Fraction(size * self.pulse, each.sizes[axis]) if self.streams else size
            counts.add(count)
            said.append(f"{each.name}: {size}" + ("" if count == size else f" (of {count} input frames)"))
        if len(counts) > 1 or any(isinstance(count, Fraction) and count.denominator != 1 for count in counts):
            raise InputError(f"{self.label}: the inputs have different numbers of frames: {', '.join(said)}")
        count = next(iter(counts), None)
        return int(count) if isinstance(count, Fraction) else count

    def block_delay(self, frames: int) -> int:
        """Return by how many input frames blocks of a size come out later than `delay`, if pulses are cut from blocks.

        With this delay, each block that goes in finds a block of results: ``pulse - gcd(pulse, frames)``.

        Args:
            frames: the input frames in each block, such as the samples that a device gives at a time.
        """
        return self.pulse - math.gcd(self.pulse, frames)

    def bind(
        self, inputs: Arrays, lead: tuple[Any, ...] = (), convert: Callable[[ArraySpec, Any], Any] = converted
    ) -> dict[str, Any]:
        """Return the inputs of a step as arrays of the declared dtypes.

        Args:
            inputs: a dict of arrays.
            lead: the leading batch axis of the state.
            convert: converts a value to the declared dtype.

        Raises:
            InputError: a name, dtype or shape does not fit.
        """
        bound = bind([spec.batched(lead) for spec in self.inputs], inputs, convert=convert, note=batch_note(lead))
        for spec in self.inputs:
            value = bound[spec.name]
            if spec.shape is None and value.shape[: len(lead)] != lead:
                raise InputError(f"{spec.as_input} got {describe(value)}{batch_note(lead)}")
        return bound

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        arrays = {key: [spec.to_json() for spec in fields[key]] for key in ("inputs", "outputs", "state")}
        for name in ("past", "shortest", "longest"):  # files of earlier versions do not have these entries
            if not fields[name]:
                del fields[name]
        return fields | arrays | {"constants": list(self.constants)}

    @classmethod
    def from_json(cls, fields: Arrays) -> StepSpec:
        """Return the spec from the values of `to_json`."""
        kinds = {"inputs": ArraySpec, "outputs": OutputSpec, "state": StateSpec}
        arrays = {key: tuple(kind.from_json(each) for each in fields[key]) for key, kind in kinds.items()}
        return cls(**{**fields, **arrays, "constants": tuple(fields["constants"])})


def check_batch(batch: Any) -> None:
    """Check that ``batch`` is a number of streams or None; otherwise raise InputError."""
    if batch is not None and not is_count(batch):
        raise InputError(f"batch must be a number of streams, or None without a batch axis, not {batch!r}")


def in_batch(spec: StepSpec, state: Arrays, batch: int | None) -> State:
    """Repeat the state of a single stream for a batch.

    Each array gets a leading axis, or fills the batch dimension of the spec.

    Args:
        spec: the spec of the step.
        state: the state of a single stream.
        batch: the number of streams, or None to return the state without a batch axis.

    Raises:
        InputError: the batch is not a number of streams.
    """
    check_batch(batch)
    if batch is None:
        return dict(state)
    if spec.batch_symbol is None:
        return {name: _broadcast(array, (batch, *array.shape)) for name, array in state.items()}
    filled = {}
    for entry in spec.state:
        array = state[entry.name]
        sizes = zip(entry.shape or (), array.shape, strict=True)
        filled[entry.name] = _broadcast(array, [batch if n == spec.batch_symbol else size for n, size in sizes])
    return filled


def _broadcast(array: Any, shape: Sequence[int]) -> Any:
    # With NumPy if possible, because JAX would compile a program.
    return (np if isinstance(array, np.ndarray) else jnp).broadcast_to(array, shape)


def said_past(past: int) -> str:
    """Say how `past` changed a function."""
    return f"changed by a past of {past}: keys more than {past:,} frame(s) older than their query are masked"


def batch_note(lead: tuple[Any, ...]) -> str:
    """Return a suffix for errors about inputs that names the batch of the state."""
    return f"; the state is of a batch of {lead[0]}, so every input needs a leading axis of {lead[0]}" if lead else ""
