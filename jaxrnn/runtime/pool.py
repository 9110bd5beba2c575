"""Many live streams through one stepper: their states in one array each, one compiled call for all with input."""

from __future__ import annotations

import copy
import functools
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

import jax
import numpy as np

from jaxrnn._jax.context import exact_types, placed
from jaxrnn.errors import StateError, check_count
from jaxrnn.runtime.bound import Bound
from jaxrnn.runtime.frames import Frame, Frames
from jaxrnn.runtime.pickling import on_device, on_host
from jaxrnn.runtime.slots import DONATING, SlotFunctions, slot_functions
from jaxrnn.steps.stepper import Stepper

Arrays = Mapping[str, Any]
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _in_turn(method: Callable[Concatenate[Any, Arguments], Result]) -> Callable[Concatenate[Any, Arguments], Result]:
    """A method of a pool that waits until no other of its methods runs."""

    @functools.wraps(method)
    def alone(self: Any, *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        with self._turn:
            return method(self, *arguments, **named)

    return alone


@dataclass
class _Open:
    """An open stream: its place in the pool, the state it begins with, and the frames that wait."""

    slot: int
    start: dict[str, Any]
    queue: deque[Frame] = field(default_factory=deque)


class StreamPool:
    """A pool of concurrent streams; it holds their states and is not a pure function.

    What a stream gives never depends on its neighbours: it is the same, to the last bit on one device, as that of the
    same stream alone in the pool. An error changes nothing.

    Threads may share it: their calls take turns, and one that comes while another runs waits for it. A copy is another
    pool with the same streams, which go on from the same states; a pickle holds stepper, parameters, states and what
    waits.

    Example::

        pool = jaxrnn.StreamPool(offline.stream(pulse=4), offline.params, capacity=64)
        caller = pool.open()
        pool.push(caller, {"input": pulse})
        outputs = pool.run()[caller]
        rest = pool.flush(caller, {"input": last}, valid=3)

    Args:
        stepper: a model whose state is external, a streamed function, a compiled file, or one's own `Stepper`.
        params: its parameters, plain or packed; for a model in steps, packed ones are faster. They are compiled into
            the pool. None for the stepper's own.
        capacity: how many streams may be open at once. Every run computes for all of them.

    Raises:
        StateError: the model forgets its state, so it has no steps; `Model.stream` turns it into a streamed function.
        InputError: the capacity is no integer from 1 up, the parameters do not fit, or the object is no stepper of
            arrays by name.
    """

    def __init__(self, stepper: Stepper, params: Any, capacity: int):
        self.capacity = capacity = check_count("capacity, how many streams may be open at once,", capacity)
        self._turn = threading.RLock()
        self._arguments = {"stepper": stepper, "params": params, "capacity": capacity}
        self._stream = Bound(stepper, params)
        self._frames = Frames(self._stream.spec.inputs, capacity)
        #: The state before the first step, where it depends on no input.
        first = self._stream.start(self._stream.example_constants())
        self._fresh = None if self._stream.spec.constants else first
        self._state: Any = None
        self._free = list(reversed(range(capacity)))
        self._open: dict[int, _Open] = {}
        self._next = 0

        functions = slot_functions(self._stream.step)._asdict()
        compiled = {name: self._stream.ready(f"pool_{name}_{capacity}") for name in functions}
        self._functions = SlotFunctions(
            **{
                name: compiled[name] or jax.jit(function, donate_argnums=0 if name in DONATING else ())
                for name, function in functions.items()
            }
        )

    def __repr__(self) -> str:
        return f"StreamPool({self._stream.spec.summary}, {len(self._open)} of {self.capacity} streams open)"

    @_in_turn
    def __getstate__(self) -> dict[str, Any]:
        streams = {
            name: _Open(entry.slot, on_host(entry.start), deque(entry.queue)) for name, entry in self._open.items()
        }
        return {
            "arguments": on_host(self._arguments),
            "streams": streams,
            "free": list(self._free),
            "next": self._next,
            "frames": copy.deepcopy(self._frames),
            "state": on_host(self._state),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**on_device(state["arguments"]))
        self._open, self._free, self._next = state["streams"], state["free"], state["next"]
        self._frames = state["frames"]
        for entry in self._open.values():
            entry.start = on_device(entry.start)
        self._state = on_device(state["state"])

    def __len__(self) -> int:
        """How many streams are open."""
        return len(self._open)

    @_in_turn
    def open(self, constants: Arrays | None = None) -> int:
        """Begin a stream with a fresh state; its id, which is never used again.

        Args:
            constants: inputs without a time axis, only needed where the state before the first frame is computed from
                them, as in `Stepper.init`.

        Raises:
            StateError: the pool is full.
            InputError: constants are needed and were not given, or do not fit.
        """
        if not self._free:
            raise StateError(f"all {self.capacity} streams are open; close one, or make the pool larger")
        with exact_types():
            start = self._fresh if constants is None and self._fresh is not None else self._stream.start(constants)
            if self._state is None:
                # A pool of one keeps the leading axis too.
                self._state = jax.tree.map(
                    lambda x: placed(np.broadcast_to(np.asarray(x), (self.capacity, *x.shape))), start
                )
        stream, slot = self._next, self._free.pop()
        self._next += 1
        self._open[stream] = _Open(slot, start)
        self._reset_slot(self._open[stream])
        return stream

    @_in_turn
    def push(self, stream: int, frame: Arrays) -> None:
        """Queue the inputs of one step of a stream, by name, without a batch: a frame, or a pulse (`StepSpec.pulse`).

        Raises:
            StateError: there is no such stream.
            InputError: the frame does not fit the stepper, or has another shape than the pool's other frames.
        """
        self._find(stream).queue.append(self._frames.checked(frame))

    @_in_turn
    def run(self) -> dict[int, dict[str, np.ndarray]]:
        """One step for every stream that has a frame waiting, in one call; the others are untouched.

        Returns:
            Outputs by stream and name, as NumPy arrays of a single stream's shapes. Those that are known only at the
            end are in what `flush` gives.
        """
        waiting = {stream: entry for stream, entry in self._open.items() if entry.queue}
        if not waiting:
            return {}
        active = np.zeros(self.capacity, bool)
        for entry in waiting.values():
            active[entry.slot] = True
            self._frames.put(entry.slot, entry.queue[0])
        with exact_types():
            outputs, self._state = self._functions.run(self._state, self._frames.arrays(), active)
            host = {name: np.asarray(value) for name, value in outputs.items()}
        for entry in waiting.values():
            entry.queue.popleft()
        return {
            stream: {name: value[entry.slot].copy() for name, value in host.items()}
            for stream, entry in waiting.items()
        }

    @_in_turn
    def flush(self, stream: int, tail: Arrays | None = None, valid: int = 0) -> dict[str, np.ndarray]:
        """The rest of a recording that has ended; the stream has a fresh state then, and other streams are untouched.

        What `run` gave of an output and the rest, concatenated and less its first `StepSpec.delay` frames, are that
        output for the whole recording. A model in steps keeps nothing back, so there is no rest.

        Args:
            stream: its id. None of its frames may still wait.
            tail: input frames that do not fill a pulse, by name, padded with anything to no more than one.
            valid: how many frames of the tail exist.

        Returns:
            Outputs by name: the remaining frames along the time axis, and what is known at the end.

        Raises:
            StateError: there is no such stream, or frames of it wait for `run`.
            InputError: the tail does not fit the stepper.
        """
        entry = self._find(stream)
        if entry.queue:
            raise StateError(f"{len(entry.queue)} frame(s) of stream {stream} wait: call run until it gives none of it")
        with exact_types():
            rest = self._stream.flush(self._functions.take(self._state, np.int32(entry.slot)), tail, valid)
        self._reset_slot(entry)
        return rest

    @_in_turn
    def reset(self, stream: int) -> None:
        """Give a stream a fresh state and forget its waiting frames."""
        entry = self._find(stream)
        entry.queue.clear()
        self._reset_slot(entry)

    @_in_turn
    def close(self, stream: int) -> None:
        """End a stream; its place is free again."""
        self._free.append(self._find(stream).slot)
        del self._open[stream]

    @_in_turn
    def state(self, stream: int) -> dict[str, np.ndarray]:
        """A copy of a stream's state, by name, as `StepSpec.state` describes it."""
        slot = self._find(stream).slot
        with exact_types():
            entries = self._stream.spec.entries(self._functions.take(self._state, np.int32(slot)))
            return {name: np.asarray(value) for name, value in entries.items()}

    def _find(self, stream: int) -> _Open:
        if stream not in self._open:
            raise StateError(
                f"there is no open stream {stream!r}; open ones: {', '.join(map(str, self._open)) or 'none'}"
            )
        return self._open[stream]

    def _reset_slot(self, entry: _Open) -> None:
        with exact_types():
            self._state = self._functions.clear(self._state, entry.start, np.int32(entry.slot))
