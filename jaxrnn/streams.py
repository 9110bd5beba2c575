"""Many live streams through one model: their states in one array each, one compiled call for all that have input."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.errors import InputError, StateError
from jaxrnn.onnx.interface import bind_inputs
from jaxrnn.onnx.values import describe, exact_types

if TYPE_CHECKING:
    from jaxrnn.model import Model


class Streams:
    """A pool of concurrent streams; it holds their states and is not a pure function.

    What a stream gives never depends on its neighbours: it is the same, to the last bit on one device, as that of the
    same stream alone in the pool. An error changes nothing.

    Example::

        pool = jaxrnn.Streams(model, model.params, capacity=64)
        caller = pool.open()
        pool.push(caller, {"input": frame})
        outputs = pool.run()[caller]

    Args:
        model: a model whose state is external.
        params: its parameters, plain or packed; packed ones are faster.
        capacity: how many streams may be open at once. Every run computes for all of them.
    """

    def __init__(self, model: Model, params: Any, capacity: int):
        if capacity < 1:
            raise InputError(f"capacity must be at least 1, not {capacity}")
        self.capacity = capacity
        self._infos = model.step_inputs
        self._batch_symbol = model.batch_symbol
        self._params = params
        # A pool of one keeps the leading axis too.
        self._start = model.init_state(1)
        self._state = jax.tree.map(lambda x: jnp.array(jnp.broadcast_to(x, (capacity, *x.shape))), self._start)
        self._free = list(reversed(range(capacity)))
        self._slots: dict[int, int] = {}
        self._queues: dict[int, deque[dict[str, np.ndarray]]] = {}
        self._names = itertools.count()
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._buffers: dict[str, np.ndarray] = {}

        def run(params: Any, state: Any, frames: Any, active: jax.Array) -> tuple[Any, Any]:
            outputs, new = jax.vmap(model.step, in_axes=(None, 0, 0))(params, state, frames)

            def choose(after: jax.Array, before: jax.Array) -> jax.Array:
                return jnp.where(active.reshape((-1,) + (1,) * (after.ndim - 1)), after, before)

            return outputs, jax.tree.map(choose, new, state)

        self._run = jax.jit(run, donate_argnums=1)
        self._clear = jax.jit(
            lambda state, start, slot: jax.tree.map(lambda x, fresh: x.at[slot].set(fresh), state, start),
            donate_argnums=0,
        )

    def __len__(self) -> int:
        """How many streams are open."""
        return len(self._slots)

    def open(self) -> int:
        """Begin a stream with a fresh state; its id, which is never used again.

        Raises:
            StateError: the pool is full.
        """
        if not self._free:
            raise StateError(f"all {self.capacity} streams are open; close one, or make the pool larger")
        stream, slot = next(self._names), self._free.pop()
        self._slots[stream], self._queues[stream] = slot, deque()
        self._reset_slot(slot)
        return stream

    def push(self, stream: int, frame: Mapping[str, Any]) -> None:
        """Queue one frame of a stream: its inputs by name, as one step of a single stream takes them.

        Raises:
            StateError: there is no such stream.
            InputError: the frame does not fit the model, or has another shape than the pool's other frames.
        """
        self._slot(stream)
        self._queues[stream].append(self._checked(frame))

    def run(self) -> dict[int, dict[str, np.ndarray]]:
        """One step for every stream that has a frame waiting, in one call; the others are untouched.

        Returns:
            Outputs by stream and name, as NumPy arrays of a single stream's shapes.
        """
        waiting = [stream for stream, queue in self._queues.items() if queue]
        if not waiting:
            return {}
        active = np.zeros(self.capacity, bool)
        for stream in waiting:
            slot = self._slots[stream]
            active[slot] = True
            for name, array in self._queues[stream][0].items():
                self._buffers[name][slot] = array
        with exact_types():
            # A copy: on the CPU, JAX may read a NumPy array after the call has returned.
            frames = {name: jnp.array(buffer) for name, buffer in self._buffers.items()}
            outputs, self._state = self._run(self._params, self._state, frames, active)
        host = {name: np.asarray(value) for name, value in outputs.items()}
        for stream in waiting:
            self._queues[stream].popleft()
        return {stream: {name: value[self._slots[stream]].copy() for name, value in host.items()} for stream in waiting}

    def reset(self, stream: int) -> None:
        """Give a stream a fresh state and forget its waiting frames."""
        slot = self._slot(stream)
        self._queues[stream].clear()
        self._reset_slot(slot)

    def close(self, stream: int) -> None:
        """End a stream; its place is free again."""
        self._free.append(self._slot(stream))
        del self._slots[stream], self._queues[stream]

    def state(self, stream: int) -> dict[str, np.ndarray]:
        """A copy of a stream's state, by name, as `Model.init_state` gives it."""
        slot = self._slot(stream)
        return {name: np.asarray(value[slot]) for name, value in self._state.items()}

    def _slot(self, stream: int) -> int:
        if stream not in self._slots:
            raise StateError(
                f"there is no open stream {stream!r}; open ones: {', '.join(map(str, self._slots)) or 'none'}"
            )
        return self._slots[stream]

    def _reset_slot(self, slot: int) -> None:
        with exact_types():
            self._state = self._clear(self._state, self._start, np.int32(slot))

    def _checked(self, frame: Mapping[str, Any]) -> dict[str, np.ndarray]:
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
