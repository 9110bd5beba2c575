"""`Stepper`: the protocol of a pure step, which models, streamed functions, compiled files and user objects share.

A stepper has four parts: ``spec`` describes the arrays, ``init`` returns the state before the first frame, ``step``
processes one pulse of input frames, and ``flush`` returns the frames that are left at the end of a recording. All
functions are pure. A model of a single step has pulse 1, delay 0 and an empty flush.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxrnn._files.messages import short_repr
from jaxrnn.errors import InputError
from jaxrnn.steps.specs import ArraySpec, bind, check_names, converted
from jaxrnn.steps.stepspec import StepSpec, batch_note

Arrays = Mapping[str, Any]
State = dict[str, Any]
"""The state that a step passes to the next step: a dict of arrays, as in `StepSpec.carried`."""


@short_repr
class Flushed(NamedTuple):
    """The result of a flush.

    Attributes:
        outputs: the same structure as the outputs of a step: the remaining frames of each stream, existing frames
            first, and results for the whole recording, such as a sum over time. Empty if a step keeps no frames back.
        counts: the same tree with the number of existing frames (``int32``), or None if an output has no time axis.
    """

    outputs: Any
    counts: Any


jax.export.register_namedtuple_serialization(Flushed, serialized_name="jaxrnn.Flushed")


class Stepper(Protocol):
    """A pure step, as `jaxrnn.Runner`, `jaxrnn.StreamPool`, `jaxrnn.save_compiled` and the profiler accept it.

    A stepper can have more members: ``params``, the default parameters; ``scan(params, state, inputs)``, many steps in
    one call; ``pack(params)``, the parameters for `step` and `scan` after the work that depends only on parameters;
    ``with_pulse(frames)``, the same function on the same state with a different pulse; and ``fingerprint``, a string
    that identifies the computation without the values of the parameters.

    Example::

        class Smoother:
            \"\"\"An exponential mean of float32[channels].\"\"\"

            spec = StepSpec(
                "smoother",
                inputs=(ArraySpec("x", np.dtype("float32"), (2,)),),
                outputs=(OutputSpec("y", np.dtype("float32"), (2,)),),
                state=(StateSpec("mean", np.dtype("float32"), (2,)),),
            )

            def init(self, batch=None, *, params=None, constants=None):
                return in_batch(self.spec, {"mean": jnp.zeros(2)}, batch)

            def step(self, params, state, inputs):
                mean = params * state["mean"] + (1 - params) * inputs["x"]
                return {"y": mean}, {"mean": mean}

            def flush(self, params, state, tail=None, valid=None):
                return nothing_left(self.spec, tail, valid)
    """

    @property
    def spec(self) -> StepSpec:
        """The arrays and the timing of a step."""
        ...

    def init(self, batch: int | None = None, *, params: Any = None, constants: Any = None) -> State:
        """Return the state before the first frame.

        Args:
            batch: the number of streams, or None for one stream. A number, also 1, adds a leading axis to each array,
                or sizes the batch dimension of the spec.
            params: the parameters, which are checked against the parameters of the step if given.
            constants: the inputs in `StepSpec.constants`.

        Raises:
            InputError: parameters or constants do not fit, or are needed and missing.
        """
        ...

    def step(self, params: Any, state: State, inputs: Any) -> tuple[Any, State]:
        """Return the outputs of one step as a dict, with None in place of outputs of the flush, and the new state.

        Raises:
            InputError: an input does not fit.
            StateError: the state does not fit.
        """
        ...

    def flush(self, params: Any, state: State, tail: Any = None, valid: Any = None) -> Flushed:
        """Return the frames that are left at the end of a recording.

        Args:
            params: as in `step`.
            state: the state after the last step.
            tail: input frames that do not fill a pulse, with any padding, and the inputs without a time axis.
            valid: the number of existing frames in the tail, ``int32``; can be traced. By default, all frames.
        """
        ...


@dataclasses.dataclass(frozen=True)
class ExportForm:
    """A stepper as `jaxrnn.export_onnx` traces it.

    Attributes:
        stepper: the stepper to trace, with arithmetic in plain forms.
        step_file: the facts of the file that a model was loaded from (`jaxrnn.onnx.stepfile.StepFile`), or None.
        state_names: by entry, the names of the state's input and output in that file, or None.
        operators: the ONNX operators by scope, for messages, or None.
        keeps_types: True if the functions keep 64-bit types under any configuration of JAX.
        has_layers: True if the cells of recurrences are layers already.
    """

    stepper: Any
    step_file: Any = None
    state_names: Mapping[str, tuple[str, str]] | None = None
    operators: Mapping[str, str] | None = None
    keeps_types: bool = False
    has_layers: bool = False


def missing_parts(value: Any) -> list[str]:
    """Return the names of the parts that an object lacks to be a `Stepper`."""
    return [name for name in ("spec", "init", "step", "flush") if not hasattr(value, name)]


def check_valid(valid: Any, room: int, multiple: int) -> None:
    """Check the number of existing frames of a tail, unless the number is traced; otherwise raise InputError."""
    if isinstance(valid, Tracer):
        return
    known = np.asarray(valid)
    if known.dtype.kind not in "iu" or np.any((known < 0) | (known > room) | (known % multiple != 0)):
        also = "" if multiple == 1 else f" and a multiple of {multiple}"
        raise InputError(f"valid must be from 0 to the {room} frame(s) of the tail{also}, not {valid}")


def nothing_left(spec: StepSpec, tail: Any = None, valid: Any = None) -> Flushed:
    """Return the empty flush of a step that keeps no frames back.

    Raises:
        InputError: the tail has frames, which would be lost.
    """
    _, existing = whole_pulse(spec, tail, valid)
    if not isinstance(existing, Tracer) and np.any(np.asarray(existing) != 0):
        raise InputError(f"{spec.label} keeps nothing back, so that a tail would be lost: pass whole pulses to step")
    return Flushed({}, {})


def whole_pulse(
    spec: StepSpec,
    tail: Any,
    valid: Any = None,
    lead: tuple[Any, ...] = (),
    convert: Callable[[ArraySpec, Any], Any] = converted,
    fill: float = 0.0,
) -> tuple[dict[str, Any] | None, Any]:
    """Pad a tail to a whole pulse, so that a single compiled flush serves all tails.

    Args:
        spec: the spec of the stream.
        tail: a dict of frames that do not fill a pulse, with any padding up to a pulse, or None if no frames are left.
        valid: the number of existing frames; by default, all frames of the tail.
        lead: the batch of the state.
        convert: converts a value to the declared dtype.
        fill: the value of the padding in arrays of floats; other arrays are padded with 0.

    Returns:
        The arrays, or None if the step has no time axis and thus no tail; and the number of existing frames.

    Raises:
        InputError: an array does not fit, or the tail cannot have ``valid`` frames.
    """
    if not spec.streams:
        if tail is not None or isinstance(valid, Tracer) or np.any(np.asarray(0 if valid is None else valid) != 0):
            raise InputError(f"{spec.label} has no tail: a step takes a whole frame, and keeps nothing back")
        return None, 0
    parts = {} if tail is None else tail
    if not isinstance(parts, Mapping):
        raise InputError(f"the tail must be a dict of arrays by name, not {type(parts).__name__}")
    check_names(spec.inputs, parts)
    arrays = {}
    for each in spec.inputs:
        value = parts.get(each.name)
        if value is None and each.time_axis is None:
            raise InputError(f"input {each.name!r} is constant in time: the tail must contain this input")
        if value is None:
            value = np.zeros(each.with_frames(0).batched(lead).sizes, each.dtype)
        arrays[each.name] = value if hasattr(value, "dtype") else converted(each, value)
    count = spec.count_frames(arrays, lead) or 0
    filled = {each.name: _filled(each, arrays[each.name], len(lead), fill) for each in spec.inputs}
    bound = bind([each.batched(lead) for each in spec.inputs], filled, convert=convert, note=batch_note(lead))
    existing = count if valid is None else valid
    check_valid(existing, count, spec.multiple)
    return bound, existing


def _filled(each: ArraySpec, array: Any, lead: int, fill: float) -> Any:
    """Pad the frames of a tail to a pulse; return an array of a wrong rank unchanged."""
    if each.time_axis is None or len(array.shape) != len(each.sizes) + lead:
        return array
    axis = each.time_axis + lead
    missing = each.sizes[each.time_axis] - array.shape[axis]
    if missing < 0:
        raise InputError(f"{each.as_input} got {array.shape[axis]} frames: a tail has at most the frames of a pulse")
    widths = [(0, missing if place == axis else 0) for place in range(len(array.shape))]
    value = fill if jnp.issubdtype(array.dtype, jnp.floating) else 0
    # With NumPy if possible, because JAX would compile a function for each length of a tail.
    return (np if isinstance(array, np.ndarray) else jnp).pad(array, widths, constant_values=value)
