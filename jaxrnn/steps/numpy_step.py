"""`NumpyStep`: a bound step from NumPy arrays to NumPy arrays, compiled for a device; and `run` over recordings."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np

from jaxrnn._jax.context import default_device, exact_types, in_calling_thread, unmapped, without_collector
from jaxrnn.steps.finite import Watch, mark_of
from jaxrnn.steps.recordings import concatenated, joined_output, one_step, part
from jaxrnn.steps.stepper import Arrays, Bound, State
from jaxrnn.steps.stepspec import LARGE, StepSpec, joined_layout

#: The alignment in bytes of host memory that XLA uses in place.
_ALIGNMENT = 64


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Places:
    """The place of each output: name, number of the vector, first and last element, and shape.

    The elements are None if the output is not joined. ``mark`` is the output with the mark of a `Watch`, if the step
    has a watch. The places are a static part of the result of a trace.
    """

    entries: tuple[tuple[str, int, tuple[int, int] | None, tuple[int, ...]], ...]
    mark: str | None


class Feed:
    """Host memory that the input arrays of a step share, so that JAX neither allocates nor copies in a call.

    A call overwrites the inputs of the previous call after the outputs of that call are ready. A feed belongs to a live
    stream, and is called in the turn of this stream. Without a device, or on a device with other memory, JAX copies the
    inputs.

    Args:
        arrays: inputs of a step, checked; later inputs have these dtypes, and these shapes if memory is shared.
        device: the device of the step.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], device: Any):
        self._buffers = {name: _aligned(array) for name, array in arrays.items()}
        self._arrays: dict[str, Any] | None = None
        if device is not None and device.platform == "cpu":
            shared = {name: jax.device_put(buffer, device) for name, buffer in self._buffers.items()}
            pairs = zip(shared.values(), self._buffers.values(), strict=True)
            if all(array.unsafe_buffer_pointer() == buffer.ctypes.data for array, buffer in pairs):
                self._arrays = shared

    def __call__(self, inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return inputs for the step; None if the inputs must be checked and need a new feed."""
        buffers, shared = self._buffers, self._arrays
        if len(inputs) != len(buffers):
            return None
        for name, array in inputs.items():
            buffer = buffers.get(name)
            if buffer is None or type(array) is not np.ndarray or array.dtype != buffer.dtype:
                return None
            if shared is not None:
                if array.shape != buffer.shape:
                    return None
                np.copyto(buffer, array)
        return inputs if shared is None else shared


def _aligned(array: np.ndarray) -> np.ndarray:
    """Return an array like another at an address that JAX can share."""
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)


class NumpyStep:
    """A bound step compiled for the device of the calling thread, and the state before the first frame.

    Calls take and return a packed state. Passing many small arrays to JAX takes longer than a step of a small network,
    and JAX accepts tuples fastest: the packed state and the outputs have one vector for each dtype. Large arrays are
    not joined. The only output of a dtype keeps its shape, because NumPy takes half a microsecond for a view.

    If the stepper has the step as machine code for the device, the machine code runs, and the packed state is a dict.

    With ``watched``, a step whose outputs or state are not finite raises NonFiniteError (`Watch`).
    """

    def __init__(self, bound: Bound, constants: Arrays | None = None, *, watched: bool = False):
        self.bound, self.spec = bound, bound.spec
        self.start: State = bound.start(constants)
        self._device = in_calling_thread(default_device())
        self._ready = bound.ready("step", self._device)
        self._layout = joined_layout(self.start, LARGE)
        self._watch = Watch(self.spec, self.start) if watched else None
        # A step without a state would run on JAX's default device.
        place = jax.sharding.SingleDeviceSharding(self._device)
        self._step = None
        if self._ready is None:
            judged = self._watch and (self._watch.infinite, self._watch.free)
            name = ("step", *self._layout.places.items(), judged)
            make = functools.partial(functools.partial, self._joined)
            self._step = bound.jitted(name, make, self._device, packed=True, out_shardings=place)

    def _joined(
        self, bound: Bound, vectors: tuple[Any, ...], inputs: Arrays
    ) -> tuple[tuple[Any, ...], _Places, tuple[Any, ...]]:
        with unmapped(), without_collector():
            outputs, new = bound.step(self._entries(vectors), inputs)
        after = tuple(self._layout.pack(new).values())
        if self._watch is not None:
            outputs = self._watch.marked(outputs, new, after)
        layout = joined_layout(outputs, LARGE)
        results, places = layout.pack(outputs), []
        entries = Counter(place.vector for place in layout.places.values())
        for name, place in layout.places.items():
            part: tuple[int, int] | None = (place.start, place.start + place.size)
            if entries[place.vector] == 1:
                results[place.vector], part = outputs[name], None
            places.append((name, list(results).index(place.vector), part, place.shape))
        mark = None if self._watch is None else mark_of(outputs)
        return tuple(results.values()), _Places(tuple(places), mark), after

    def feed(self, arrays: Mapping[str, np.ndarray]) -> Feed:
        """Return a feed for inputs like these; machine code takes NumPy arrays."""
        with exact_types():
            return Feed(arrays, None if self._step is None else self._device)

    def __call__(self, packed: Any, inputs: Arrays) -> tuple[dict[str, np.ndarray], Any]:
        """Return the outputs as read-only host arrays, and the packed state after the step."""
        if self._step is None:
            return self._call_ready(packed, inputs)
        vectors, places, after = self._step(packed, inputs)
        arrays = [np.asarray(vector) for vector in vectors]
        outputs = {
            name: arrays[number] if part is None else arrays[number][part[0] : part[1]].reshape(shape)
            for name, number, part, shape in places.entries
        }
        if places.mark is not None:
            mark = outputs[places.mark].item(0)
            outputs.pop("", None)
            if mark != mark:
                self._check(outputs, after)
        return outputs, after

    def _check(self, outputs: dict[str, np.ndarray], packed: Any) -> None:
        assert self._watch is not None
        error = self._watch.error(outputs, self.unpack(packed))
        if error is not None:
            raise error

    def _call_ready(self, packed: Any, inputs: Arrays) -> tuple[dict[str, np.ndarray], Any]:
        assert self._ready is not None
        try:
            outputs, after = self._ready(packed, inputs)
        except (TypeError, ValueError):
            self.spec.bind(inputs)  # raises an InputError for inputs that do not fit the step
            raise
        host = {name: np.asarray(value) for name, value in outputs.items()}
        if self._watch is not None:
            self._check(host, after)
        return host, after

    def begin(self) -> Any:
        """Return the packed state before the first frame."""
        return self.pack(self.start)

    def pack(self, state: Arrays) -> Any:
        """Return the packed form of a state."""
        # On the host, because JAX would compile a program for each shape. Copied, because JAX uses the memory of NumPy.
        arrays = {name: np.asarray(array) for name, array in state.items()}
        joined = arrays if self._step is None else self._layout.pack(arrays)
        packed = {name: jax.device_put(np.array(array), self._device) for name, array in joined.items()}
        return packed if self._step is None else tuple(packed.values())

    def unpack(self, packed: Any) -> dict[str, Any]:
        """Return a packed state as host arrays."""
        host = jax.tree.map(np.asarray, packed)
        return host if self._step is None else self._entries(host)

    def _entries(self, vectors: tuple[Any, ...]) -> dict[str, Any]:
        return self._layout.unpack(dict(zip(self._layout.vectors, vectors, strict=True)))

    def entries(self, packed: Any) -> dict[str, Any]:
        """Return the entries of a packed state, as in ``spec.state``."""
        return self.spec.entries(self.unpack(packed))

    def rest(self, packed: Any, tail: Arrays | None, valid: int | None) -> dict[str, np.ndarray]:
        """Return the rest of a recording, as `Bound.rest`."""
        return self.bound.rest(self.unpack(packed), tail, valid)

    def warm_up(self) -> NumpyStep:
        """Compile and call the step and the flush on zeros, and return the step."""
        zeros = {each.name: np.zeros(each.sizes, each.dtype) for each in self.spec.inputs}
        with exact_types():
            self(self.begin(), zeros)
            self.bound.warm_up_flush(self.start, zeros)
        return self


class Steps(Protocol):
    """The steps of a recording from NumPy arrays to NumPy arrays: a `NumpyStep`, or a file in a different engine."""

    spec: StepSpec

    def begin(self) -> Any:
        """Return the state before the first frame."""
        ...

    def __call__(self, state: Any, inputs: Arrays, /) -> tuple[Mapping[str, np.ndarray], Any]:
        """Return the outputs of a step, and the state after the step."""
        ...

    def rest(self, state: Any, tail: Arrays | None, valid: int | None, /) -> Mapping[str, np.ndarray]:
        """Return the existing frames of the flush."""
        ...

    def entries(self, state: Any, /) -> Mapping[str, Any]:
        """Return a dict of the entries of a state."""
        ...


@dataclass(frozen=True)
class Run:
    """The result of a run over recordings."""

    #: Steps are stacked along a first axis; outputs of a stream have all frames of the recording, without the delay.
    outputs: dict[str, np.ndarray]
    #: The state after the last step.
    state: dict[str, np.ndarray]
    #: ``float64[steps]``, from NumPy inputs to NumPy outputs of each step.
    seconds: np.ndarray
    #: None if no flush ran.
    flush_seconds: float | None


def run(
    step: Steps,
    recordings: Arrays,
    total: int,
    indices: Iterable[int] | None = None,
    *,
    spec: StepSpec | None = None,
    flushed: bool = True,
) -> Run:
    """Run over the first `total` frames of recordings, carry the state, and time each step.

    Frames that do not fill a pulse go through the flush, or are dropped without a flush. `indices` replaces the range
    of the step numbers, for example by a progress bar over the range. `spec` describes the recordings if their layout
    is not that of the step.
    """
    spec = spec or step.spec
    count, rest = divmod(total, spec.pulse)
    seconds, pieces, last, flush_seconds = [], [], {}, None
    with exact_types():
        state = step.begin()
        for index in range(count) if indices is None else indices:
            inputs = _contiguous(one_step(spec, recordings, index))
            seconds.append(-time.perf_counter())
            outputs, state = step(state, inputs)
            seconds[-1] += time.perf_counter()
            pieces.append(outputs)
        if spec.streams and flushed:
            tail = _contiguous(part(spec, recordings, total - rest, total))
            began = time.perf_counter()
            last = step.rest(state, tail, rest)
            flush_seconds = time.perf_counter() - began
        entries = {name: np.asarray(value) for name, value in step.entries(state).items()}
    joined = {}
    for output in spec.outputs:
        # Frames of a stream without the delay, or the stacked outputs of steps.
        of_output = [piece[output.name] for piece in pieces if output.name in piece]
        body = concatenated(spec, output, np.stack(of_output)) if of_output else None
        joined[output.name] = joined_output(output, body, last.get(output.name))
    return Run(joined, entries, np.array(seconds), flush_seconds)


def _contiguous(arrays: Arrays) -> dict[str, np.ndarray]:
    return {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}
