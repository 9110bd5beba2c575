"""Many live streams through one stepper, with joint arrays of states and a single call for all waiting streams."""

from __future__ import annotations

import copy
import functools
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn._files.messages import describe
from jaxrnn._jax.context import exact_types, on_device, on_host, placed
from jaxrnn.errors import InputError, StateError, check_count
from jaxrnn.runtime.runner import host_arrays
from jaxrnn.steps.specs import ArraySpec
from jaxrnn.steps.stepper import Bound, Stepper

Frame = dict[str, np.ndarray]
Step = Callable[[Any, Any], tuple[Any, Any]]
Arrays = Mapping[str, Any]
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _in_turn(method: Callable[Concatenate[Any, Arguments], Result]) -> Callable[Concatenate[Any, Arguments], Result]:
    """Wrap a method of a pool, so that each call holds the lock of the pool."""

    @functools.wraps(method)
    def alone(self: Any, *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        with self._turn:
            return method(self, *arguments, **named)

    return alone


@dataclass
class _Open:
    """An open stream: the slot in the pool, the first state and the waiting frames."""

    slot: int
    start: dict[str, Any]
    queue: deque[Frame] = field(default_factory=deque)


class StreamPool:
    """A pool of concurrent streams. A pool owns the states of the streams and is not a pure function.

    The outputs of a stream never depend on other streams: on the same device, the outputs are bit-identical to the
    outputs of a pool without other streams. An error leaves the pool unchanged, with one exception: if a step fails
    while it runs, as a Python callback can, all streams are closed, because a run overwrites the states.

    Threads can share a pool: calls run in sequence. A copy is a second pool with the same streams, which continue from
    the same states. A pickle contains the stepper, the parameters, the states and the waiting frames.

    Example::

        pool = jaxrnn.StreamPool(offline.stream(pulse=4), offline.params, capacity=64)
        caller = pool.open()
        pool.push(caller, {"input": pulse})
        outputs = pool.run()[caller]
        rest = pool.flush(caller, {"input": last}, valid=3)

    Args:
        stepper: a model with external state, a streamed function, a compiled file, or a custom `Stepper`.
        params: the parameters, plain or packed; packed parameters are faster for a model in steps. The parameters are
            constants of the compiled functions. None means the parameters of the stepper.
        capacity: the largest number of open streams. Each run computes all of these streams.

    Raises:
        StateError: the model forgets its state, so it has no steps; stream the model with `Model.stream`.
        InputError: the capacity is not a positive integer, the parameters do not fit, or the object is not a stepper
            with named arrays.
    """

    def __init__(self, stepper: Stepper, params: Any, capacity: int):
        self.capacity = capacity = check_count("capacity, the largest number of open streams,", capacity)
        self._turn = threading.RLock()
        self._arguments = {"stepper": stepper, "params": params, "capacity": capacity}
        self._stream = Bound(stepper, params)
        self._frames = Frames(self._stream.spec.inputs, capacity)
        #: The state before the first step, if the state does not depend on inputs.
        first = self._stream.start(self._stream.example_constants())
        self._fresh = None if self._stream.spec.constants else first
        self._state: Any = None
        self._free = list(reversed(range(capacity)))
        self._open: dict[int, _Open] = {}
        self._next = 0

        self._functions = {
            name: self._stream.ready(f"pool_{name}_{capacity}")
            or jax.jit(function, donate_argnums=0 if name in DONATING else ())
            for name, function in slot_functions(self._stream.step).items()
        }

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
        """Return the number of open streams."""
        return len(self._open)

    @_in_turn
    def open(self, constants: Arrays | None = None) -> int:
        """Begin a stream with a new state, and return the id. A pool never uses an id twice.

        Args:
            constants: the inputs without a time axis on which the state before the first frame depends, as in
                `Stepper.init`.

        Raises:
            StateError: the pool is full.
            InputError: constants are needed and missing, or do not fit.
        """
        if not self._free:
            raise StateError(f"all {self.capacity} streams are open; close one, or make the pool larger")
        with exact_types():
            start = self._fresh if constants is None and self._fresh is not None else self._stream.start(constants)
            if self._state is None:
                # The states have a leading axis, even with a capacity of 1.
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
        """Queue the inputs of a step of a stream, a dict without a batch: a frame, or a pulse (`StepSpec.pulse`).

        Raises:
            StateError: the stream is not open.
            InputError: the frame does not fit the stepper, or differs in shape from earlier frames in the pool.
        """
        self._find(stream).queue.append(self._frames.checked(frame))

    @_in_turn
    def run(self) -> dict[int, dict[str, np.ndarray]]:
        """Run one step of each stream with a waiting frame, in a single call; other streams do not change.

        Returns:
            For each stream a dict of outputs, as NumPy arrays with the shapes of a single stream. Results for the whole
            recording come from `flush`.

        Raises:
            StateError: the step failed while it ran, and all streams are closed.
        """
        waiting = {stream: entry for stream, entry in self._open.items() if entry.queue}
        if not waiting:
            return {}
        active = np.zeros(self.capacity, bool)
        for entry in waiting.values():
            active[entry.slot] = True
            self._frames.put(entry.slot, entry.queue[0])
        with exact_types():
            try:
                outputs, after = self._functions["run"](self._state, self._frames.arrays(), active)
                host = {name: np.asarray(value) for name, value in outputs.items()}
            except Exception as error:
                if not any(array.is_deleted() for array in jax.tree.leaves(self._state)):
                    raise
                closed, self._open, self._state = len(self._open), {}, None
                self._free = list(reversed(range(self.capacity)))
                reason = (str(error).strip() or type(error).__name__).splitlines()[-1]  # XLA ends with the callback's
                raise StateError(
                    f"a step failed while it ran ({reason}), and a run overwrites the states: all {closed} "
                    "streams are closed; open new ones"
                ) from error
            self._state = after
        for entry in waiting.values():
            entry.queue.popleft()
        return {
            stream: {name: value[entry.slot].copy() for name, value in host.items()}
            for stream, entry in waiting.items()
        }

    @_in_turn
    def flush(self, stream: int, tail: Arrays | None = None, valid: int | None = None) -> dict[str, np.ndarray]:
        """Return the rest of a recording that has ended, and give the stream a new state; other streams do not change.

        The outputs of all runs, followed by the rest and without the first `StepSpec.delay` frames, equal the output
        for the whole recording. A model in steps has no rest.

        Args:
            stream: the id of a stream without waiting frames.
            tail: a dict of input frames that do not fill a pulse, with any padding up to a pulse.
            valid: the number of existing frames in the tail; by default all.

        Returns:
            A dict of outputs: the remaining frames along the time axis, and results for the whole recording.

        Raises:
            StateError: the stream is not open, or has frames that wait for `run`.
            InputError: the tail does not fit the stepper, or the constraints of the stream do not allow a recording of
                this length; the stream then stays as it was.
        """
        entry = self._find(stream)
        if entry.queue:
            raise StateError(f"{len(entry.queue)} frame(s) of stream {stream} wait: call run until no frame waits")
        with exact_types():
            rest = self._stream.rest(self._functions["take"](self._state, np.int32(entry.slot)), tail, valid)
        self._reset_slot(entry)
        return rest

    @_in_turn
    def reset(self, stream: int) -> None:
        """Give a stream a new state, and drop the waiting frames of the stream."""
        entry = self._find(stream)
        entry.queue.clear()
        self._reset_slot(entry)

    @_in_turn
    def close(self, stream: int) -> None:
        """End a stream, and free the slot."""
        self._free.append(self._find(stream).slot)
        del self._open[stream]

    @_in_turn
    def state(self, stream: int) -> dict[str, np.ndarray]:
        """Return a copy of the state of a stream: a dict of the entries in `StepSpec.state`."""
        slot = self._find(stream).slot
        with exact_types():
            entries = self._stream.spec.entries(self._functions["take"](self._state, np.int32(slot)))
            return {name: np.asarray(value) for name, value in entries.items()}

    def _find(self, stream: int) -> _Open:
        is_id = isinstance(stream, int | np.integer) and not isinstance(stream, bool)  # True and 1.0 are equal to 1
        if not is_id or stream not in self._open:
            raise StateError(
                f"stream {stream!r} is not open; open streams: {', '.join(map(str, self._open)) or 'none'}"
            )
        return self._open[stream]

    def _reset_slot(self, entry: _Open) -> None:
        with exact_types():
            self._state = self._functions["clear"](self._state, entry.start, np.int32(entry.slot))


class Frames:
    """Buffers for the next frame of each stream: an array per input, with a leading axis of slots.

    The first frame fixes the open dimensions of the inputs.
    """

    def __init__(self, specs: Sequence[ArraySpec], capacity: int):
        self._specs, self._capacity = specs, capacity
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._buffers: dict[str, np.ndarray] = {}

    def put(self, slot: int, frame: Mapping[str, np.ndarray]) -> None:
        """Write a checked frame into a slot."""
        for name, array in frame.items():
            self._buffers[name][slot] = array

    def arrays(self) -> dict[str, np.ndarray]:
        """Return a dict of inputs with the frames of all slots."""
        # A copy, because on CPU JAX can read a NumPy array after the call has returned.
        return {name: buffer.copy() for name, buffer in self._buffers.items()}

    def checked(self, frame: Mapping[str, Any]) -> Frame:
        """Return a copy of a frame with the declared dtypes; raise InputError for a frame that does not fit."""
        if not self._shapes or not self._fits(frame):
            frame = host_arrays(self._specs, frame)
            shapes = {name: array.shape for name, array in frame.items()}
            if not self._shapes:
                self._shapes = shapes
                self._buffers = {
                    name: np.zeros((self._capacity, *array.shape), array.dtype) for name, array in frame.items()
                }
            elif shapes != self._shapes:
                name = next(name for name in shapes if shapes[name] != self._shapes[name])
                raise InputError(
                    f"input {name!r} got {describe(frame[name])}, but every frame of this pool has shape "
                    f"{list(self._shapes[name])}"
                )
        return {name: np.array(frame[name]) for name in self._shapes}

    def _fits(self, frame: Mapping[str, Any]) -> bool:
        return (
            isinstance(frame, Mapping)
            and frame.keys() == self._shapes.keys()
            and all(
                isinstance(array, np.ndarray)
                and array.shape == self._shapes[name]
                and array.dtype == self._buffers[name].dtype
                for name, array in frame.items()
            )
        )


#: The functions of `slot_functions` that may overwrite the first argument.
DONATING = ("run", "clear")


def slot_functions(step: Step) -> dict[str, Callable[..., Any]]:
    """Return functions of the states of all streams in a pool, from a step of a single stream.

    - ``run(states, frames, active) -> (outputs, states)`` runs a step of each active stream.
    - ``take(states, slot) -> state`` returns the state in a slot.
    - ``clear(states, state, slot) -> states`` replaces the state in a slot.
    """

    def run(states: Any, frames: Arrays, active: jax.Array) -> tuple[Any, Any]:
        outputs, new = jax.vmap(step)(states, frames)

        def choose(after: jax.Array, before: jax.Array) -> jax.Array:
            return jnp.where(active.reshape((-1,) + (1,) * (after.ndim - 1)), after, before)

        return outputs, jax.tree.map(choose, new, states)

    def take(states: Any, slot: jax.Array) -> Any:
        return jax.tree.map(lambda x: x[slot], states)

    def clear(states: Any, state: Any, slot: jax.Array) -> Any:
        return jax.tree.map(lambda x, fresh: x.at[slot].set(fresh), states, state)

    return {"run": run, "take": take, "clear": clear}
