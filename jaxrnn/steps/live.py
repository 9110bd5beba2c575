"""Live streams between processes: the state of a stream as arrays that move, and outputs without the delay."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxrnn._files.messages import describe, near
from jaxrnn.errors import InputError, StateError
from jaxrnn.steps.finite import lost
from jaxrnn.steps.specs import Arrays, from_python
from jaxrnn.steps.stepspec import State, StepSpec, milliseconds

#: The entry of a moving state that identifies the network, ``uint8[16]``.
NETWORK = "jaxrnn.network"
#: The prefix of the entries with the frames that wait in a pool, stacked along a first axis.
WAITING = "jaxrnn.waiting/"
#: The prefix of the entries with the frames in a pool that do not fill a pulse.
PART = "jaxrnn.part/"


def _network(spec: StepSpec) -> np.ndarray:
    """Return a digest of the names, the types and the timing of a step, which do not depend on pulse or parameters."""
    arrays = [(each.name, str(each.dtype), each.time_axis) for each in (*spec.inputs, *spec.outputs)]
    times = [(each.delay, str(each.rate)) for each in spec.outputs]
    state = [(each.name, each.kind) for each in spec.state]
    facts = [arrays, times, state, spec.multiple, spec.look_ahead, spec.receptive_field, spec.past]
    return np.frombuffer(hashlib.sha256(json.dumps(facts).encode()).digest()[:16], np.uint8)


def moving_state(
    spec: StepSpec, entries: Arrays, waiting: Arrays | None = None, part: Arrays | None = None
) -> dict[str, np.ndarray]:
    """Return copies of the entries of a state, the identity of the network, and the frames that wait."""
    named = {**entries, NETWORK: _network(spec)}
    for prefix, arrays in ((WAITING, waiting), (PART, part)):
        named |= {prefix + name: array for name, array in (arrays or {}).items()}
    return {name: np.array(array) for name, array in named.items()}


def moved_state(
    spec: StepSpec, start: State, state: Any, *, allow_nan: bool = False
) -> tuple[State, list[dict[str, np.ndarray]]]:
    """Return the state of a step and the blocks of frames that wait, from a moving state.

    ``start`` is the state before the first frame. Without the entry `NETWORK`, as in the result of a step, only names,
    shapes and dtypes are checked. Lists, as from JSON, get the dtypes of the state. A state that does not fit raises
    StateError, and so does NaN where the first state has none, unless ``allow_nan``.
    """
    if not isinstance(state, Mapping):
        raise StateError(f"the state must be a dict of arrays by name, not {type(state).__name__}")
    expected = spec.entries(start)
    arrays = dict(state.items())
    network = arrays.pop(NETWORK, None)
    dtypes = {each.name: each.dtype for each in spec.inputs if each.dtype is not None}

    def frames_of(prefix: str) -> dict[str, np.ndarray]:
        found = {name.removeprefix(prefix): arrays.pop(name) for name in [*arrays] if name.startswith(prefix)}
        return {
            name: _stored(f"{spec.label}: the frames of {name!r} that wait", array, dtypes.get(name))
            for name, array in found.items()
        }

    waiting, part = frames_of(WAITING), frames_of(PART)
    if len({np.atleast_1d(array).shape[0] for array in waiting.values()}) > 1:
        raise StateError(f"the frames of {', '.join(waiting)} that wait in the state differ in number")
    listed = ", ".join(expected) or "nothing"
    for name in arrays:
        if name not in expected:
            raise StateError(f"{spec.label} has no state {name!r}{near(name, expected)}; the state is: {listed}")
    for name, want in expected.items():
        if name not in arrays:
            raise StateError(f"{spec.label}: state {name!r} is missing; the state is: {listed}")
        label = f"{spec.label}: the state {name!r}"
        array = arrays[name] = _stored(label, arrays[name], np.dtype(want.dtype))
        if describe(array) != describe(want):
            raise StateError(f"{label} must be {describe(want)}, not {describe(array)}")
        count = 0 if allow_nan else lost(array, want, infinities=False)
        if count:
            raise StateError(
                f"{label} has NaN in {count} of {array.size} elements, which a recurrence never loses: begin a new "
                "stream, or accept such states with `allow_nan=True` of the runner or the pool"
            )
    if network is not None and not np.array_equal(network, _network(spec)):
        raise StateError(
            f"the state comes from a network other than {spec.label}: the names, the types or the delays of inputs, "
            "outputs or state differ. Continue the stream with the network that it comes from"
        )
    blocks = [dict(zip(waiting, pulse, strict=True)) for pulse in zip(*waiting.values(), strict=True)]
    return spec.carry({name: np.array(array) for name, array in arrays.items()}), [*blocks, *([part] if part else [])]


def _stored(label: str, value: Any, dtype: np.dtype | None) -> np.ndarray:
    """Return an entry that was stored as an array, or as lists, which do not keep the type."""
    if dtype is None or hasattr(value, "dtype"):
        return np.asarray(value) if dtype is None else restored(np.asarray(value), dtype)
    try:
        return from_python(label, dtype, value)
    except InputError as error:
        raise StateError(str(error)) from error


def restored(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Restore a type such as bfloat16, which NPY files store as raw bytes."""
    raw = array.dtype.type is np.void and array.dtype.names is None
    return array.view(dtype) if raw and dtype.itemsize == array.dtype.itemsize else array


class DropDelay:
    """A function that drops the frames before frame 0 from the outputs of a live stream.

    Call the object with the outputs of each step, and of the flush, in order. The first results have fewer frames, or
    none. Each stream needs a separate object.

    Example::

        streamed = offline.stream(pulse=4)
        run, drop = jaxrnn.Runner(streamed, offline.params), jaxrnn.steps.DropDelay(streamed.spec)
        pieces = [drop(run({"input": pulse})) for pulse in microphone]
        pieces.append(drop(run.flush()))

    Args:
        spec: the spec of the stream.
        frame_rate: input frames per second, or None if the rate is unknown.

    Attributes:
        left: for each output with a time axis, the number of frames that are still to drop.
        delay_ms: for each output with a time axis, the delay in milliseconds; None without a frame rate.
    """

    def __init__(self, spec: StepSpec, frame_rate: float | None = None):
        timed = [each for each in spec.outputs if each.time_axis is not None]
        self._axes = {each.name: each.time_axis for each in timed if each.time_axis is not None}
        self.left = {each.name: each.delay or 0 for each in timed}
        self.delay_ms: dict[str, float | None] = {
            each.name: None
            if frame_rate is None or each.rate is None
            else milliseconds(each.delay or 0, frame_rate, each.rate)
            for each in timed
        }

    def __call__(self, outputs: Arrays) -> dict[str, Any]:
        """Return the outputs without the frames before frame 0."""
        results = dict(outputs)
        for name, left in self.left.items():
            if left and results.get(name) is not None:
                axis, array = self._axes[name], results[name]
                results[name] = array[(slice(None),) * axis + (slice(left, None),)]
                self.left[name] = left - min(left, array.shape[axis])
        return results
