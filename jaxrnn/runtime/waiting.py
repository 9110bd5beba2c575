"""The frames that wait in a pool: blocks of any size, cut into pulses, in a queue for each slot."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrnn._files.messages import describe
from jaxrnn.errors import InputError, StateError
from jaxrnn.runtime.runner import host_arrays
from jaxrnn.steps.specs import Arrays, ArraySpec, check_names, taken
from jaxrnn.steps.stepper import whole_pulse
from jaxrnn.steps.stepspec import StepSpec

Frame = dict[str, np.ndarray]


class Waiting(NamedTuple):
    """The frames that wait in the slots of a pool.

    The pulses `taken` to `pushed` of a slot wait, and the next pulse has `held` frames; all other pulses and frames
    belong to calls that have ended or failed. Methods return a new value, and overwrite only frames that do not wait.
    """

    spec: StepSpec
    taken: np.ndarray  # int64[capacity]: pulses of each slot that have run
    pushed: np.ndarray
    held: np.ndarray  # frames of each slot that do not fill a pulse
    queues: tuple[dict[int, Frame], ...]  # pulses of each slot by number
    zeros: Frame | None  # a pulse, which has the sizes of open dimensions; None before the first frame

    @classmethod
    def of(cls, spec: StepSpec, capacity: int, first: Arrays | None = None) -> Waiting:
        """Return empty queues for inputs with the open dimensions of a first block."""
        none, queues = np.zeros(capacity, np.int64), tuple({} for _ in range(capacity))
        empty = cls(spec, none, none, none, queues, None)
        return empty if first is None else empty._sized(first)

    @property
    def capacity(self) -> int:
        """The number of slots."""
        return len(self.queues)

    @property
    def active(self) -> np.ndarray:
        """The slots in which a pulse waits, ``bool[capacity]``."""
        return self.pushed > self.taken

    def count(self, slot: int) -> int:
        """Return the number of pulses that wait in a slot."""
        return int(self.pushed[slot] - self.taken[slot])

    def kept(self, slot: int) -> tuple[Frame, Frame]:
        """Return the pulses that wait in a slot, stacked, and the frames that do not fill a pulse."""
        queue, held, pushed = self.queues[slot], int(self.held[slot]), int(self.pushed[slot])
        frames = [queue[number] for number in range(int(self.taken[slot]), pushed)]
        waiting = {each.name: np.stack([frame[each.name] for frame in frames]) for each in self.spec.inputs if frames}
        part = {each.name: self._within(each, queue[pushed], 0, held) for each in self.spec.inputs if held}
        return waiting, part

    def copied(self) -> Waiting:
        """Return a copy that shares no frames, because frames that do not fill a pulse are written in place."""
        return self._replace(queues=copy.deepcopy(self.queues))

    def grown(self, capacity: int) -> Waiting:
        """Return queues for more slots."""
        more = capacity - self.capacity
        counts = {name: np.pad(getattr(self, name), (0, more)) for name in ("taken", "pushed", "held")}
        return self._replace(**counts, queues=(*self.queues, *({} for _ in range(more))))

    def without(self, slot: int) -> Waiting:
        """Return the queues without the frames of a slot."""
        counts = {name: getattr(self, name).copy() for name in ("taken", "pushed", "held")}
        for count in counts.values():
            count[slot] = 0
        return self._replace(**counts, queues=(*self.queues[:slot], {}, *self.queues[slot + 1 :]))

    def pulses(self, slots: Iterable[int]) -> dict[str, np.ndarray]:
        """Return new arrays with the next pulse of these slots, and zeros in other slots."""
        arrays = {name: np.zeros((self.capacity, *zero.shape), zero.dtype) for name, zero in (self.zeros or {}).items()}
        numbers = self.taken.tolist()
        for slot in slots:
            for name, array in self.queues[slot][numbers[slot]].items():
                arrays[name][slot] = array
        return arrays

    def after(self, active: np.ndarray) -> Waiting:
        """Return the queues after a run of the next pulse of these slots."""
        for slot in np.flatnonzero(active):
            # Not the pulse before, because an interrupt may undo the last run.
            self.queues[slot].pop(int(self.taken[slot]) - 2, None)
        return self._replace(taken=self.taken + active)

    def pushed_to(self, slot: int, block: Arrays) -> Waiting:
        """Return the queues with more frames of a slot, cut into pulses."""
        if self.zeros is None:
            return self._sized(block).pushed_to(slot, block)
        spec, queue = self.spec, self.queues[slot]
        number, held, pushed = int(self.pushed[slot]), int(self.held[slot]), self.pushed.copy()
        if not held and self._fits(block):
            queue[number] = {name: np.array(block[name]) for name in self.zeros}
            pushed[slot] += 1
            return self._replace(pushed=pushed)
        arrays, count = self._checked(block)
        if not spec.streams:
            queue[number] = arrays
            pushed[slot] += 1
            return self._replace(pushed=pushed)
        for each in spec.inputs if held else ():
            before, given = queue[number][each.name], arrays[each.name]
            if each.time_axis is None and not np.array_equal(before, given, equal_nan=given.dtype.kind in "fc"):
                raise InputError(
                    f"input {each.name!r} is constant in a pulse, and {held} frame(s) wait with another value"
                )
        at = 0
        while at < count:
            # Only frames behind those that exist are overwritten, so that a call that fails has changed nothing.
            pulse = queue[number] if held else {name: zero.copy() for name, zero in self.zeros.items()}
            size = min(spec.pulse - held, count - at)
            self._write(pulse, held, arrays, at, size)
            queue[number] = pulse
            number, held = divmod(number * spec.pulse + held + size, spec.pulse)
            at += size
        holds = self.held.copy()
        pushed[slot], holds[slot] = number, held
        return self._replace(pushed=pushed, held=holds)

    def pushed_to_many(self, slots: Sequence[int], blocks: Arrays) -> Waiting:
        """Return the queues with more frames of many slots, a row each."""
        if len({*slots}) < len(slots):
            raise StateError("a stream is named twice: push the frames that follow in another call")
        if not isinstance(blocks, Mapping):
            raise InputError(f"blocks must be a dict of arrays by name, not {describe(blocks)}")
        arrays = {name: np.asarray(array) for name, array in blocks.items()}
        for name, array in arrays.items():
            if array.shape[:1] != (len(slots),):
                raise InputError(
                    f"input {name!r} got {describe(array)}, but there are {len(slots)} streams: give a row each"
                )
        if not slots:
            return self
        first = {name: array[0] for name, array in arrays.items()}
        if self.zeros is None:
            return self._sized(first).pushed_to_many(slots, blocks)
        if not self.held[slots].any() and self._fits(first):
            kept, pushed = {name: np.array(arrays[name]) for name in self.zeros}, self.pushed.copy()
            rows = zip(*(list(array) for array in kept.values()), strict=True)
            for slot, number, row in zip(slots, pushed[slots].tolist(), rows, strict=True):
                self.queues[slot][number] = dict(zip(kept, row, strict=True))
            pushed[slots] += 1
            return self._replace(pushed=pushed)
        after = self
        for row, slot in enumerate(slots):
            after = after.pushed_to(slot, {name: array[row] for name, array in arrays.items()})
        return after

    def ended(self, slot: int, tail: Arrays | None, valid: int | None) -> tuple[Arrays | None, int | None]:
        """Return the frames of a slot that did not fill a pulse, followed by a tail, and their number."""
        held = int(self.held[slot])
        if not held:
            return tail, valid
        pulse = {name: array.copy() for name, array in self.queues[slot][int(self.pushed[slot])].items()}
        if tail is None and not valid:
            return pulse, held
        given, existing = whole_pulse(self.spec, tail, valid, convert=taken)
        if held + existing > self.spec.pulse:
            raise InputError(
                f"{held} frame(s) wait and the tail has {existing}, which is more than the pulse of {self.spec.pulse}: "
                "push the tail, call run, and then flush"
            )
        assert given is not None  # a step without frames in time holds none
        self._write(pulse, held, given, 0, existing)
        return pulse, held + existing

    def _write(self, pulse: Frame, held: int, arrays: Arrays, at: int, size: int) -> None:
        """Write frames behind those that a pulse holds."""
        for each in self.spec.inputs:
            self._within(each, pulse, held, held + size)[...] = self._within(each, arrays, at, at + size)

    def _within(self, each: ArraySpec, arrays: Arrays, start: int, end: int) -> Any:
        """Return the part of an input for frames of a stream; an input that is constant in time is returned whole."""
        array = arrays[each.name]
        if each.time_axis is None:
            return array
        size, pulse = each.sizes[each.time_axis], self.spec.pulse
        return array[(slice(None),) * each.time_axis + (slice(start * size // pulse, end * size // pulse),)]

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

    def _fits(self, frame: Arrays) -> bool:
        """Return True for a pulse of the declared dtypes, which needs no further check."""
        zeros = self.zeros or {}
        return (
            isinstance(frame, Mapping)
            and frame.keys() == zeros.keys()
            and all(
                isinstance(array, np.ndarray) and array.shape == zeros[name].shape and array.dtype == zeros[name].dtype
                for name, array in frame.items()
            )
        )

    def _checked(self, block: Arrays) -> tuple[Frame, int]:
        """Return a copy of frames with the declared dtypes and their number; raise InputError for other frames."""
        spec, count = self.spec, 1
        specs: Sequence[ArraySpec] = spec.inputs
        if spec.streams:
            check_names(specs, block)
            arrays = {name: array if hasattr(array, "shape") else np.asarray(array) for name, array in block.items()}
            count = spec.count_frames(arrays) or 0
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
