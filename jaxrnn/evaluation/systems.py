"""Systems under evaluation: their protocol, and steppers over batches of whole recordings."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Mapping
from fractions import Fraction
from pathlib import PurePath
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn._files.messages import VALUE, short_repr
from jaxrnn._jax.context import exact_types
from jaxrnn.audio.networks import in_front
from jaxrnn.audio.recordings import SAMPLES
from jaxrnn.audio.sounds import check_rate
from jaxrnn.errors import InputError
from jaxrnn.jaxprs.numbering import fingerprint
from jaxrnn.steps.recordings import scan_steps, time_axis
from jaxrnn.steps.specs import Arrays, ArraySpec
from jaxrnn.steps.stepper import Bound, Stepper

#: The largest number of frames in a chunk of all recordings of a batch: a gibibyte of sound.
MAX_FRAMES = 2**28


@short_repr
class Piece(NamedTuple):
    """An output of a system for one chunk.

    Attributes:
        values: ``[batch, frames, ...]``.
        counts: ``int32[batch]``, the number of valid frames of each stream; valid frames come first.
    """

    values: jax.Array
    counts: jax.Array


class System(Protocol):
    """The protocol of systems, which map batches of recordings to outputs, chunk by chunk.

    Each call of `run` takes the frames that follow the previous call. The frames of a stream that has ended are zeros,
    and do not influence other streams.

    A system may have an ``identity``, plain values of everything that determines the outputs, parameters included.
    Results of different identities are never mixed.
    """

    @property
    def rate(self) -> int:
        """Samples per second of the sound that the system takes."""
        ...

    @property
    def multiple(self) -> int:
        """The number of frames in a chunk is a multiple of this number."""
        ...

    @property
    def before(self) -> int:
        """Frames of the past at the beginning of each chunk; zeros before frame 0."""
        ...

    @property
    def delay(self) -> Mapping[str, int]:
        """By output, the number of frames before frame 0 of the output."""
        ...

    @property
    def per_frame(self) -> Mapping[str, Any]:
        """By output, frames per input frame, as a fraction or a number."""
        ...

    def start(self, batch: int) -> Any:
        """Return the carry before the first chunk."""
        ...

    def padded(self, frames: int) -> int:
        """Return the number of frames that a recording takes with the zeros that flush the outputs."""
        ...

    def expected(self, output: str, frames: int) -> int | None:
        """Return the number of output frames of a recording after the delay; None to keep all frames."""
        ...

    def run(
        self, carry: Any, parts: Mapping[str, jax.Array], frames: jax.Array, *, ending: bool
    ) -> tuple[dict[str, Piece], Any]:
        """Process a chunk.

        Args:
            carry: the carry of `start` or of the last call.
            parts: by array of the recording, ``[batch, before + chunk, ...]``.
            frames: ``int32[batch]``, the number of frames of the chunk that belong to each stream.
            ending: True if a stream ends inside this chunk.
        """
        ...


def chunk_frames(system: System, seconds: float, batch: int) -> int:
    """Return the number of frames in a chunk of some seconds, rounded to a positive multiple of the system's."""
    rate, multiple = system.rate, system.multiple
    if batch < 1 or not seconds > 0:
        raise InputError(f"batch must be at least 1 and chunk above 0 seconds, not {batch} and {seconds}")
    check_rate(rate, "the system's rate")
    allowed = MAX_FRAMES // batch
    frames = seconds * rate
    if frames <= allowed:
        frames = max(1, round(frames / multiple)) * multiple
    if not frames <= allowed:
        raise InputError(
            f"a chunk of {seconds:g} seconds at {rate:,} frames a second, in multiples of {multiple:,}, for a batch of "
            f"{batch:,} holds {frames * batch:.3g} frames, and no more than {MAX_FRAMES:,} are allowed; give a smaller "
            "chunk or batch"
        )
    return int(frames)


class Offline:
    """A stepper over recordings of any length, in chunks.

    Outputs equal the outputs of the stepper on the whole recording. For an offline model, pass
    ``Offline(model.stream(), model.params)``. Arrays of a recording have time first, then the shape of the input
    without time and batch.

    Args:
        stepper: a streamed function, a compiled file, a model in steps, or a `Stepper` of your own.
        params: the parameters; None to use the parameters of the stepper.
        rate: samples per second, for recordings of sound.

    Raises:
        StateError: the model forgets its state, so it has no steps; `Model.stream` turns it into a streamed function.
        InputError: the object is not a stepper, parameters are missing, an input has no time axis, or all outputs lack
            a time axis.
    """

    before = 0

    def __init__(self, stepper: Stepper, params: Any = None, *, rate: int = 16_000):
        check_rate(rate, "rate")
        self.rate = rate
        self._bound = Bound(stepper, params)
        spec = self._bound.spec
        if spec.pulse > MAX_FRAMES:
            raise InputError(f"a pulse has at most {MAX_FRAMES:,} frames, not {spec.pulse:,}")
        for each in spec.inputs:
            if time_axis(spec, each) is None:
                raise InputError(
                    f"{spec.label}: {each.as_input} has no time axis, and recordings have no such array; bind it, with "
                    f"`jaxrnn.load(path, static={ {each.name: VALUE} })`, or in a function of your own"
                )
        timed = [each for each in spec.outputs if not each.at_end and time_axis(spec, each) is not None]
        if not timed:
            raise InputError(f"{spec.label}: no output has a frame for every frame of time")
        self.multiple = spec.pulse
        self.delay = {each.name: each.delay or 0 for each in timed}
        self.per_frame = {each.name: Fraction(1) if each.rate is None else each.rate for each in timed}

    @property
    def identity(self) -> dict[str, Any]:
        """The stepper, the parameters and the rate."""
        return {"rate": self.rate, **identity_of(self._bound)}

    def padded(self, frames: int) -> int:
        """Return ``frames``: the stepper is flushed without padding."""
        return frames

    def expected(self, output: str, frames: int) -> int | None:
        """Return None: all output frames belong to the recording."""
        return None

    def start(self, batch: int) -> Any:
        """Return the initial state, with the batch axis first."""
        return start_of(self._bound, batch)

    def run(
        self, carry: Any, parts: Mapping[str, jax.Array], frames: jax.Array, *, ending: bool
    ) -> tuple[dict[str, Piece], Any]:
        """Process a chunk, and flush the streams that end in the chunk."""
        spec, arrays = self._bound.spec, {}
        for each in spec.inputs:
            name = SAMPLES if set(parts) == {SAMPLES} and len(spec.inputs) == 1 else each.name
            if name not in parts:
                raise InputError(f"{spec.label}: the recordings hold {', '.join(parts)}, but no {each.name!r}")
            arrays[each.name] = parts[name]
        is_wide = any(each.is_wide for each in spec.inputs)  # of 64 bits, which JAX would narrow
        with exact_types() if is_wide else contextlib.nullcontext():
            return self._advance(self._params, carry, arrays, frames, ending=ending)

    @functools.cached_property
    def _params(self) -> Any:
        return packed_for(self._bound)

    @functools.cached_property
    def _advance(self) -> Any:
        spec = self._bound.spec
        axes = {each.name: each.time_axis or 0 for each in spec.outputs}

        def advance(params: Any, state: Any, parts: Arrays, counts: jax.Array, *, ending: bool) -> Any:
            def one(state: Any, parts: Arrays, count: jax.Array) -> tuple[dict[str, Piece], Any]:
                inputs = {each.name: self._input(each, parts[each.name]) for each in spec.inputs}
                bound = self._bound.with_params(params)
                arrays, counts, after = advance_one(bound, state, inputs, count, ending=ending)
                pieces = {name: Piece(in_front(array, axes[name]), counts[name]) for name, array in arrays.items()}
                return pieces, after

            return jax.vmap(one)(state, parts, counts)

        return jax.jit(advance, static_argnames="ending")

    def _input(self, each: ArraySpec, frames: jax.Array) -> jax.Array:
        """Return frames ``[time, ...]`` as an input of a recording. Floats may round, but do not become integers."""
        spec, elements = self._bound.spec, math.prod(frames.shape[1:])
        one = each.with_frames(each.sizes[each.time_axis] // spec.pulse) if each.time_axis is not None else each
        known = math.prod(size for size in one.shape or () if isinstance(size, int))
        if one.shape is None or len(one.symbols) > 1 or (elements % known if one.symbols else elements != known):
            raise InputError(f"{spec.label}: a frame of {elements} numbers does not fit {one}")
        one = one.sized(dict.fromkeys(one.symbols, elements // known))
        assert each.dtype is not None, "it has a shape"
        kinds = (jnp.complexfloating, jnp.inexact)
        if any(jnp.issubdtype(frames.dtype, kind) and not jnp.issubdtype(each.dtype, kind) for kind in kinds):
            raise InputError(f"{spec.label}: {each.as_input} takes no {frames.dtype} of a recording")
        frames = frames.astype(each.dtype)
        axis = one.time_axis
        if axis is None:
            return frames.reshape(frames.shape[0], *one.sizes)
        rest = [size for place, size in enumerate(one.sizes) if place != axis]
        return jnp.moveaxis(frames.reshape(frames.shape[0] * one.sizes[axis], *rest), 0, axis)


def identity_of(bound: Bound) -> dict[str, Any]:
    """Return plain values that identify the program of a stepper, bound values and weights.

    A stepper without a ``fingerprint`` is identified by the spec.
    """
    program = getattr(bound.stepper, "fingerprint", None)
    params = jax.tree_util.tree_leaves_with_path(bound.params)
    return {
        "model": PurePath(bound.stepper.spec.label).name,
        "program": bound.stepper.spec.to_json() if program is None else program,
        "params": fingerprint([(jax.tree_util.keystr(place), array) for place, array in params]),
    }


def packed_for(bound: Bound, dims: Mapping[str, int] | None = None) -> Any:
    """Return the parameters of a stepper, packed for inputs of these sizes."""
    with jax.ensure_compile_time_eval():  # the first call can come inside a trace
        return Bound(bound.stepper, bound.given, dims=dims).packed().params


def start_of(bound: Bound, batch: int) -> Any:
    """Return the state of a batch before the first frame, with a leading batch axis."""
    return jax.tree.map(lambda array: jnp.broadcast_to(array, (batch, *array.shape)), bound.start())


def advance_one(
    bound: Bound, state: Any, inputs: Arrays, frames: Any, *, ending: bool
) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Process the next frames of a recording. Only the first ``frames`` (``int32``) frames of ``inputs`` exist.

    If fewer frames exist than the arrays have, the recording ends with the last existing frame. ``ending`` allows such
    an end: the stepper is then flushed, and the returned state is meaningless.

    Returns the outputs with frames, the number of existing frames in each output, and the state.
    """
    room = bound.spec.count_frames(inputs) or 0
    bound = bound.with_pulse(room)
    spec = bound.spec
    timed = [each for each in spec.outputs if not each.at_end and time_axis(spec, each) is not None]
    if not spec.streams or not ending:
        outputs, state = bound.scan(state, inputs)
        counts = {
            each.name: frames if each.time_axis is None else jnp.int32(outputs[each.name].shape[each.time_axis])
            for each in timed
        }
        return {each.name: outputs[each.name] for each in timed}, counts, state
    steps = frames // np.int32(spec.pulse)
    outputs, after = scan_steps(spec, bound.step, state, inputs, steps)
    last = jnp.minimum(steps, np.int32(room // spec.pulse - 1))
    tail = dict(inputs)  # the last pulse
    for each in spec.inputs:
        if (axis := each.time_axis) is not None:
            size = each.sizes[axis]
            tail[each.name] = lax.dynamic_slice_in_dim(inputs[each.name], last * np.int32(size), size, axis)
    rest = bound.flush(after, tail, frames - steps * np.int32(spec.pulse))
    arrays, counts = {}, {}
    for each in timed:
        body, axis = outputs[each.name], each.time_axis or 0
        certain = steps * np.int32(each.sizes[axis])
        if each.name in rest.outputs:
            tail_frames = rest.outputs[each.name]
            longer = jnp.concatenate([body, jnp.zeros_like(tail_frames)], axis)
            written = tail_frames.astype(longer.dtype)
            arrays[each.name] = lax.dynamic_update_slice_in_dim(longer, written, certain, axis)
            counts[each.name] = certain + jnp.where(frames < room, rest.counts[each.name], np.int32(0))
        elif spec.pulse > spec.multiple or each.delay:
            raise InputError(f"{spec.label}: its flush gives nothing of {each.name!r}, of which frames may be left")
        else:
            arrays[each.name], counts[each.name] = body, certain
    return arrays, counts, after
