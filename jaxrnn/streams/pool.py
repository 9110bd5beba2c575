"""Many live streams through one function: their states in one array each, one compiled call for all with input."""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.errors import InputError, StateError
from jaxrnn.onnx.interface import bind_inputs
from jaxrnn.onnx.values import describe, exact_types
from jaxrnn.streams.single import single

if TYPE_CHECKING:
    from jaxrnn.model import Model
    from jaxrnn.transforms import Streamed

Arrays = Mapping[str, Any]


@dataclass
class _Open:
    """An open stream: its place in the pool, the state it begins with, and the frames that wait."""

    slot: int
    start: dict[str, Any]
    queue: deque[dict[str, np.ndarray]] = field(default_factory=deque)


class Streams:
    """A pool of concurrent streams; it holds their states and is not a pure function.

    What a stream gives never depends on its neighbours: it is the same, to the last bit on one device, as that of the
    same stream alone in the pool. An error changes nothing.

    Example::

        pool = jaxrnn.Streams(model.stream(pulse=4), model.params, capacity=64)
        caller = pool.open()
        pool.push(caller, {"input": pulse})
        outputs = pool.run()[caller]
        rest = pool.flush(caller, {"input": last}, valid=3)

    Args:
        function: a model whose state is external, or a streamed function whose input and result are dicts by name.
        params: its parameters, plain or packed; for a model in steps, packed ones are faster. They are compiled into
            the pool.
        capacity: how many streams may be open at once. Every run computes for all of them.

    Raises:
        StateError: the model forgets its state, so it has no steps; `Model.stream` turns it into a streamed function.
        InputError: the capacity is below 1, the parameters do not fit, or a streamed function has other trees.
    """

    def __init__(self, function: Model | Streamed, params: Any, capacity: int):
        if capacity < 1:
            raise InputError(f"capacity must be at least 1, not {capacity}")
        self.capacity = capacity
        self._single = single(function, params)
        self._infos, self._batch_symbol = self._single.inputs, self._single.batch_symbol
        self._state: Any = None
        self._free = list(reversed(range(capacity)))
        self._open: dict[int, _Open] = {}
        self._names = itertools.count()
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._buffers: dict[str, np.ndarray] = {}

        def run(state: Any, frames: Any, active: jax.Array) -> tuple[Any, Any]:
            outputs, new = jax.vmap(self._single.step)(state, frames)

            def choose(after: jax.Array, before: jax.Array) -> jax.Array:
                return jnp.where(active.reshape((-1,) + (1,) * (after.ndim - 1)), after, before)

            return outputs, jax.tree.map(choose, new, state)

        self._run = jax.jit(run, donate_argnums=0)
        self._take = jax.jit(lambda state, slot: jax.tree.map(lambda x: x[slot], state))
        self._clear = jax.jit(
            lambda state, start, slot: jax.tree.map(lambda x, fresh: x.at[slot].set(fresh), state, start),
            donate_argnums=0,
        )

    @functools.cached_property
    def _fresh(self) -> dict[str, Any]:
        """The state before the first step, where it depends on no input."""
        return self._single.start(None)

    def __len__(self) -> int:
        """How many streams are open."""
        return len(self._open)

    def open(self, held: Arrays | None = None) -> int:
        """Begin a stream with a fresh state; its id, which is never used again.

        Args:
            held: inputs without a time axis, only needed where the state before the first frame is computed from them,
                as in `Streamed.init`.

        Raises:
            StateError: the pool is full.
            InputError: held inputs are needed and were not given, or do not fit.
        """
        if not self._free:
            raise StateError(f"all {self.capacity} streams are open; close one, or make the pool larger")
        with exact_types():
            start = self._fresh if held is None else self._single.start(held)
            if self._state is None:
                # A pool of one keeps the leading axis too.
                self._state = jax.tree.map(lambda x: jnp.array(jnp.broadcast_to(x, (self.capacity, *x.shape))), start)
        stream, slot = next(self._names), self._free.pop()
        self._open[stream] = _Open(slot, start)
        self._reset_slot(self._open[stream])
        return stream

    def push(self, stream: int, frame: Arrays) -> None:
        """Queue one frame of a stream, or one whole pulse: inputs by name, as one step of a single stream takes them.

        Raises:
            StateError: there is no such stream.
            InputError: the frame does not fit the function, or has another shape than the pool's other frames.
        """
        self._find(stream).queue.append(self._checked(frame))

    def run(self) -> dict[int, dict[str, np.ndarray]]:
        """One step for every stream that has a frame waiting, in one call; the others are untouched.

        Returns:
            Outputs by stream and name, as NumPy arrays of a single stream's shapes. Those that are known only at the
            end are in what `flush` gives.
        """
        waiting = {stream: found for stream, found in self._open.items() if found.queue}
        if not waiting:
            return {}
        active = np.zeros(self.capacity, bool)
        for found in waiting.values():
            active[found.slot] = True
            for name, array in found.queue[0].items():
                self._buffers[name][found.slot] = array
        with exact_types():
            # A copy: on the CPU, JAX may read a NumPy array after the call has returned.
            frames = {name: jnp.array(buffer) for name, buffer in self._buffers.items()}
            outputs, self._state = self._run(self._state, frames, active)
        host = {name: np.asarray(value) for name, value in outputs.items()}
        for found in waiting.values():
            found.queue.popleft()
        return {
            stream: {name: value[found.slot].copy() for name, value in host.items()}
            for stream, found in waiting.items()
        }

    def flush(self, stream: int, tail: Arrays | None = None, valid: int = 0) -> dict[str, np.ndarray]:
        """The rest of a recording that has ended; the stream has a fresh state then, and other streams are untouched.

        What `run` gave of an output and the rest, one behind the other and less the first `Streamed.delay` frames, are
        that output for the whole recording. A model in steps keeps nothing back, so there is no rest.

        Args:
            stream: its id. None of its frames may still wait.
            tail: input frames that do not fill a pulse, by name, padded with anything to no more than one.
            valid: how many frames of the tail exist.

        Returns:
            Outputs by name: the remaining frames along the time axis, and what is known at the end.

        Raises:
            StateError: there is no such stream, or frames of it wait for `run`.
            InputError: the tail does not fit the function.
        """
        found = self._find(stream)
        if found.queue:
            raise StateError(f"{len(found.queue)} frame(s) of stream {stream} wait: call run until it gives none of it")
        with exact_types():
            rest = self._single.flush(self._take(self._state, np.int32(found.slot)), tail, valid)
        self._reset_slot(found)
        return rest

    def reset(self, stream: int) -> None:
        """Give a stream a fresh state and forget its waiting frames."""
        found = self._find(stream)
        found.queue.clear()
        self._reset_slot(found)

    def close(self, stream: int) -> None:
        """End a stream; its place is free again."""
        self._free.append(self._find(stream).slot)
        del self._open[stream]

    def state(self, stream: int) -> dict[str, np.ndarray]:
        """A copy of a stream's state, by name, as `Model.init_state` or `Streamed.entries` gives it."""
        slot = self._find(stream).slot
        with exact_types():
            entries = self._single.entries(self._take(self._state, np.int32(slot)))
        return {name: np.asarray(value) for name, value in entries.items()}

    def _find(self, stream: int) -> _Open:
        if stream not in self._open:
            raise StateError(
                f"there is no open stream {stream!r}; open ones: {', '.join(map(str, self._open)) or 'none'}"
            )
        return self._open[stream]

    def _reset_slot(self, found: _Open) -> None:
        with exact_types():
            self._state = self._clear(self._state, found.start, np.int32(found.slot))

    def _checked(self, frame: Arrays) -> dict[str, np.ndarray]:
        if not self._shapes or not self._fits(frame):
            with exact_types():
                bound = bind_inputs(self._infos, frame)
            frame = {info.name: np.asarray(value) for info, value in zip(self._infos, bound, strict=True)}
            shapes = {name: array.shape for name, array in frame.items()}
            if not self._shapes:
                self._fix_shapes(frame)
            elif shapes != self._shapes:
                name = next(name for name in shapes if shapes[name] != self._shapes[name])
                raise InputError(
                    f"input {name!r} got {describe(frame[name])}, but every frame of this pool has shape "
                    f"{list(self._shapes[name])}"
                )
        return {name: np.array(frame[name]) for name in self._shapes}

    def _fits(self, frame: Arrays) -> bool:
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

    def _fix_shapes(self, frame: Mapping[str, np.ndarray]) -> None:
        """The first frame decides the lengths that the file leaves open; a stream's batch is 1."""
        for info in self._infos:
            for name, size in zip(info.shape or (), frame[info.name].shape, strict=False):
                if name == self._batch_symbol and size != 1:
                    raise InputError(
                        f"input {info} got {describe(frame[info.name])}: a stream's frame has a batch of 1"
                    )
        self._shapes = {name: array.shape for name, array in frame.items()}
        self._buffers = {name: np.zeros((self.capacity, *array.shape), array.dtype) for name, array in frame.items()}
