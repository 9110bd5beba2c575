"""The frames that wait in a pool: blocks of any size, cut into pulses, in a queue for each slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxrnn._files.messages import describe
from jaxrnn.errors import InputError, StateError
from jaxrnn.runtime.runner import host_array, host_arrays
from jaxrnn.steps.specs import Arrays, ArraySpec, check_names, from_python, taken
from jaxrnn.steps.stepper import whole_pulse
from jaxrnn.steps.stepspec import StepSpec

Frame = dict[str, np.ndarray]

#: Parts of a layer that `Waiting.join` leaves as they are: a layer of all slots is larger than a few parts.
_FEW = 8


class _Pushed(NamedTuple):
    """Frames of some slots that follow each other in a pulse, and the parts of the pulse that were pushed before."""

    slots: np.ndarray | slice
    start: int  # the first frame in the pulse
    end: int
    rows: Frame  # with a leading axis of slots
    before: _Pushed | None

    def row_of(self, slot: int) -> int | None:
        """Return the row of a slot, or None."""
        if isinstance(self.slots, slice):
            return slot - self.slots.start if self.slots.start <= slot < self.slots.stop else None
        return next(iter(np.flatnonzero(self.slots == slot).tolist()), None)


class Waiting(NamedTuple):
    """The frames that wait in the slots of a pool.

    A layer has a pulse of each slot, as parts: the first layer has the pulses of the next run, so a run takes a whole
    layer. The last part of a slot is valid, and parts behind the frames that wait belong to streams that were closed or
    reset. Methods return a new value and change no frame in place: a call can fail or be interrupted anywhere.
    """

    spec: StepSpec
    frames: np.ndarray  # int64[capacity]: frames of each slot that wait
    layers: list[_Pushed | None]
    zeros: Frame | None  # a pulse, which has the sizes of open dimensions; None before the first frame

    @classmethod
    def of(cls, spec: StepSpec, capacity: int, first: Arrays | None = None) -> Waiting:
        """Return empty queues for inputs with the open dimensions of a first block."""
        empty = cls(spec, np.zeros(capacity, np.int64), [], None)
        return empty if first is None else empty._sized(first)

    @property
    def capacity(self) -> int:
        """The number of slots."""
        return len(self.frames)

    def count(self, slot: int) -> int:
        """Return the number of whole pulses that wait in a slot."""
        return int(self.frames[slot]) // self.spec.pulse

    def kept(self, slot: int) -> tuple[Frame, Frame]:
        """Return the pulses that wait in a slot, stacked, and the frames that do not fill a pulse."""
        count, held = divmod(int(self.frames[slot]), self.spec.pulse)
        pulses = [self._row(layer, slot) for layer in self.layers[: count + 1]]
        waiting = {
            each.name: np.stack([pulse[each.name] for pulse in pulses[:count]]) for each in self.spec.inputs if count
        }
        return waiting, self._part(pulses[count], 0, held) if held else {}

    def join(self) -> None:
        """Join the parts of layers with many parts, in which a slot is found slowly: the frames stay the same."""
        for number, layer in enumerate(self.layers):
            if len(_in_order(layer)) > _FEW:
                slots, arrays = np.flatnonzero(self.frames > number * self.spec.pulse), self.pulses(layer)
                rows = {name: array[slots] for name, array in arrays.items()}
                self.layers[number] = _Pushed(slots, 0, self.spec.pulse, rows, None)

    def grown(self, capacity: int) -> Waiting:
        """Return queues for more slots."""
        return self._replace(frames=np.pad(self.frames, (0, capacity - self.capacity)))

    def without(self, slot: int) -> Waiting:
        """Return the queues without the frames of a slot."""
        frames = self.frames.copy()
        frames[slot] = 0
        return self._replace(frames=frames, layers=self.layers[: -(-int(frames.max()) // self.spec.pulse)])

    @property
    def active(self) -> np.ndarray:
        """The slots in which a pulse waits, ``bool[capacity]``."""
        return self.frames >= self.spec.pulse

    def pulses(self, layer: _Pushed | None = None) -> Frame:
        """Return new arrays with the pulses of all slots in a layer."""
        arrays = {name: np.zeros((self.capacity, *zero.shape), zero.dtype) for name, zero in (self.zeros or {}).items()}
        views = dict[tuple[int, int], Frame]()
        for part in _in_order(layer):
            within = part.start, part.end
            if within not in views:
                views[within] = self._part(arrays, *within, lead=1)
            for name, array in views[within].items():
                array[part.slots] = part.rows[name]
        return arrays

    def run(self, active: np.ndarray) -> tuple[Frame, Waiting]:
        """Return the next pulses of the active slots, with zeros in other slots, and the queues after the run."""
        arrays, layers = self.pulses(self.layers[0]), self.layers[1:]
        if not active.all():
            held = np.flatnonzero(~active & (self.frames > 0))
            if len(held):
                rows = {name: array[held] for name, array in arrays.items()}
                part = _Pushed(held, 0, self.spec.pulse, rows, layers[0] if layers else None)
                layers = [part, *layers[1:]]
            for array in arrays.values():
                array[~active] = 0
        return arrays, self._replace(frames=self.frames - self.spec.pulse * active, layers=layers)

    def pushed_to(self, slot: int, block: Arrays) -> Waiting:
        """Return the queues with more frames of a slot."""
        if self.zeros is None:
            return self._sized(block).pushed_to(slot, block)
        count = self._count(block)
        if count is None:
            block, count = self._checked(block)
        return self._pushed(slice(slot, slot + 1), {name: np.array(block[name])[None] for name in self.zeros}, count)

    def pushed_to_many(self, slots: Sequence[int], blocks: Arrays) -> Waiting:
        """Return the queues with more frames of many slots, a row each."""
        if len({*slots}) < len(slots):
            raise StateError("a stream is named twice: push the frames that follow in another call")
        arrays = {name: host_array(array) for name, array in self._shaped(blocks, "blocks").items()}
        for name, array in arrays.items():
            if array.shape[:1] != (len(slots),):
                raise InputError(
                    f"input {name!r} got {describe(array)}, but there are {len(slots)} streams: give a row each"
                )
        if not slots:
            return self
        first = {name: array[0, ...] for name, array in arrays.items()}  # an array also without axes
        if self.zeros is None:
            return self._sized(first).pushed_to_many(slots, blocks)
        count = self._count(first)
        if count is None:
            checked = [self._checked({name: array[row] for name, array in arrays.items()}) for row in range(len(slots))]
            rows, count = {name: np.stack([row[name] for row, _ in checked]) for name in self.zeros}, checked[0][1]
        else:
            rows = {name: np.array(arrays[name]) for name in self.zeros}
        places, after = np.array(slots), self
        waits = self.frames[places]
        groups = {*waits.tolist()}
        for wait in groups if len(groups) > 1 else ():
            which = np.flatnonzero(waits == wait)
            after = after._pushed(places[which], {name: array[which] for name, array in rows.items()}, count)
        return after if len(groups) > 1 else self._pushed(places, rows, count)

    def ended(self, slot: int, tail: Arrays | None, valid: int | None) -> tuple[Arrays | None, int | None]:
        """Return the frames of a slot that did not fill a pulse, followed by a tail, and their number."""
        _, part = self.kept(slot)
        held = int(self.frames[slot]) % self.spec.pulse
        if not held or (tail is None and not valid):
            return part or tail, held or valid
        given, existing = whole_pulse(self.spec, tail, valid, convert=taken)
        if held + existing > self.spec.pulse:
            raise InputError(
                f"{held} frame(s) wait and the tail has {existing}, which is more than the pulse of {self.spec.pulse}: "
                "push the tail, call run, and then flush"
            )
        assert given is not None  # a step without frames in time holds none
        rest = self._part(given, 0, existing)
        self._check_constants(slice(slot, slot + 1), {name: np.asarray(rest[name])[None] for name in rest}, held)
        timed = {each.name: each.time_axis for each in self.spec.inputs if each.time_axis is not None}
        joined = {name: np.concatenate([part[name], rest[name]], axis) for name, axis in timed.items()}
        return {**rest, **joined}, held + existing

    def _pushed(self, slots: np.ndarray | slice, rows: Frame, count: int) -> Waiting:
        """Return the queues with more frames of slots in which equally many frames wait."""
        pulse, frames, layers = self.spec.pulse, self.frames.copy(), [*self.layers]
        if isinstance(slots, slice):
            wait = int(frames[slots.start])
        else:
            first, wait = int(slots[0]), int(frames[slots[0]])
            if np.array_equal(slots, np.arange(first, first + len(slots))):
                slots = slice(first, first + len(slots))
        if wait % pulse:
            self._check_constants(slots, rows, wait)
        frames[slots] = wait + count  # an addition in place takes a microsecond
        at = 0
        while at < count:
            number, start = divmod(wait + at, pulse)
            end = min(pulse, start + count - at)
            part = rows if end - start == count else self._part(rows, at, at + end - start, lead=1)
            while number >= len(layers):
                layers.append(None)
            layers[number] = _Pushed(slots, start, end, part, layers[number])
            at += end - start
        return Waiting(self.spec, frames, layers, self.zeros)

    def _check_constants(self, slots: np.ndarray | slice, rows: Frame, wait: int) -> None:
        """Check that an input that is constant in a pulse is that of the frames that wait."""
        number, held = divmod(wait, self.spec.pulse)
        constant = [each.name for each in self.spec.inputs if each.time_axis is None]
        for row, slot in enumerate(np.arange(self.capacity)[slots].tolist() if constant else ()):
            before = self._row(self.layers[number], slot)
            for name in constant:
                if not np.array_equal(before[name], rows[name][row], equal_nan=rows[name].dtype.kind in "fc"):
                    raise InputError(
                        f"input {name!r} is constant in a pulse, and {held} frame(s) wait with another value"
                    )

    def _row(self, layer: _Pushed | None, slot: int) -> Frame:
        """Return a new pulse of a slot in a layer."""
        pulse = {name: zero.copy() for name, zero in (self.zeros or {}).items()}
        for part in _in_order(layer):
            if (row := part.row_of(slot)) is not None:
                for name, array in self._part(pulse, part.start, part.end).items():
                    array[...] = part.rows[name][row]
        return pulse

    def _part(self, arrays: Arrays, start: int, end: int, lead: int = 0) -> Frame:
        """Return views of frames of a stream; inputs that are constant in time are returned whole."""
        zeros, pulse, parts = self.zeros or {}, self.spec.pulse, {}
        for each in self.spec.inputs:
            array, axis = arrays[each.name], each.time_axis
            if axis is not None:
                size = zeros[each.name].shape[axis]
                array = array[(slice(None),) * (lead + axis) + (slice(start * size // pulse, end * size // pulse),)]
            parts[each.name] = array
        return parts

    def _sized(self, first: Arrays) -> Waiting:
        """Return the queues for inputs with the open dimensions of a first block."""
        arrays, _ = self._checked(first)
        zeros = Frame()
        for each in self.spec.inputs:
            array = arrays[each.name]
            shape = list(array.shape)
            if each.time_axis is not None:
                shape[each.time_axis] = each.sizes[each.time_axis]
            zeros[each.name] = np.zeros(shape, array.dtype)
        return self._replace(zeros=zeros)

    def _count(self, block: Arrays) -> int | None:
        """Return the number of frames of arrays that need no further check; None for other arrays."""
        spec, zeros, count = self.spec, self.zeros or {}, None
        if not isinstance(block, Mapping) or block.keys() != zeros.keys():
            return None
        for each in spec.inputs:
            array, zero, axis, found, rest = block[each.name], zeros[each.name], each.time_axis, spec.pulse, 0
            if not isinstance(array, np.ndarray) or array.dtype != zero.dtype:
                return None
            if array.shape != zero.shape:
                if axis is None or array.ndim != zero.ndim:
                    return None
                size = array.shape[axis]
                if array.shape != (*zero.shape[:axis], size, *zero.shape[axis + 1 :]):
                    return None
                found, rest = divmod(size * spec.pulse, zero.shape[axis])
            if axis is not None:
                if rest or found % spec.multiple or count not in (None, found):
                    return None
                count = found
        return spec.pulse if count is None else count

    def _shaped(self, block: Arrays, what: str = "inputs") -> Arrays:
        """Return arrays; lists of numbers become arrays of the declared dtypes."""
        check_names(self.spec.inputs, block, what)
        dtypes = {each.name: np.dtype(each.dtype) for each in self.spec.inputs}
        return {
            name: array if hasattr(array, "shape") else from_python(f"input {name}", dtypes[name], array)
            for name, array in block.items()
        }

    def _checked(self, block: Arrays) -> tuple[Frame, int]:
        """Return a copy of frames with the declared dtypes and their number; raise InputError for other frames."""
        spec, count = self.spec, self.spec.pulse
        specs: Sequence[ArraySpec] = spec.inputs
        if spec.streams:
            count = spec.count_frames(self._shaped(block)) or 0
            if count % spec.multiple:
                names = ", ".join(each.name for each in specs if each.time_axis is not None)
                raise InputError(f"{spec.label}: {names} got {count} frames, but needs a multiple of {spec.multiple}")
            specs = [
                each if each.time_axis is None else each.with_frames(count * each.sizes[each.time_axis] // spec.pulse)
                for each in specs
            ]
        arrays = host_arrays(specs, block)
        for each in spec.inputs:
            array, known = arrays[each.name], (self.zeros or arrays)[each.name]
            shapes = [list(array.shape), list(known.shape)]
            if each.time_axis is not None:
                for shape in shapes:
                    del shape[each.time_axis]
            if shapes[0] != shapes[1]:
                raise InputError(
                    f"input {each.name!r} got {describe(array)}, but every frame of this pool has shape "
                    f"{list(known.shape)}"
                )
        return {name: np.array(array) for name, array in arrays.items()}, count


def _in_order(layer: _Pushed | None) -> list[_Pushed]:
    """Return the parts of a layer, the oldest first."""
    parts = []
    while layer is not None:
        parts.append(layer)
        layer = layer.before
    return parts[::-1]
