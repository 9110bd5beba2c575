"""A check of a stream: the values against the function, and the facts against measured facts.

Frames that do not exist are NaN, so a result that depends on such a frame differs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.cells.forms import Types
from jaxrnn.comparison import Comparison, compare
from jaxrnn.errors import InputError, StreamError
from jaxrnn.streaming.histories import Placeholder
from jaxrnn.streaming.measuring import Leaves, WholeFunction, measured
from jaxrnn.streaming.streamed import Streamed
from jaxrnn.streaming.transform import stream_in_types

#: NaN in frames that do not exist, an unusual number in integers, and no harmless numbers in their place.
POISON = Placeholder(value=float("nan"), integer=77, harmless=None)
#: The tolerance in rounding steps of the type of an output.
_STEPS = 100


def check(
    function: Callable[..., Any],
    example: Any,
    *,
    axes: Any,
    params: Any = None,
    multiple: int = 1,
    constraints: Sequence[str] = (),
    past: int | None = None,
    lengths: Sequence[int] = (1, 6, 11),
    pulses: Sequence[Sequence[int]] = ((1,), (3,), (1, 3, 1)),
    tolerance: float | None = None,
    facts: bool = True,
) -> None:
    """Check that the stream of a function equals the function, and that no fact is too small.

    Use this function in the tests of a streaming rule (`register`). Recordings are random: normal numbers, and
    integers from 0 to 4. Frames that do not exist are NaN. With `facts`, one frame of a recording after the other
    changes, and the outputs that change must lie within `Streamed.look_ahead` and `Streamed.receptive_field`: a rule
    that forgets to widen the ``reach`` of a result fails.

    Example::

        def smooth(x):  # float32[time]
            return (jnp.pad(x, (1, 0))[:-1] + x) / 2

        jaxrnn.streaming.check(smooth, jnp.zeros(6), axes=0)

    Args:
        function: as in `stream`.
        example: as in `stream`; only shapes and types matter.
        axes: as in `stream`.
        params: the parameters, as arrays.
        multiple: as in `stream`.
        constraints: as in `stream`.
        past: as in `stream`; outputs are compared with `Streamed.offline`.
        lengths: lengths of recordings, in multiples of `multiple`.
        pulses: sequences of pulses, in multiples of the smallest pulse. The last pulse of a sequence repeats.
        tolerance: the largest difference, relative to the largest value of an output or to 1; by default 100 rounding
            steps of the type of the output. Integers must be equal.
        facts: True to measure look-ahead and receptive field.

    Raises:
        StreamError: the function cannot be streamed, an output differs, a fact is too small, or nothing was compared.
        InputError: `params` are shapes, and not arrays.
    """
    if any(isinstance(each, jax.ShapeDtypeStruct) for each in jax.tree.leaves(params)):
        raise InputError("params must be arrays, because the check evaluates the function")
    options = {"axes": axes, "params": params, "multiple": multiple, "constraints": constraints, "past": past}
    streamed = stream_in_types(function, example, **options, types=Types.here(), pulse=None, placeholder=POISON)
    if past is not None:
        function = functools.partial(streamed.offline, params)
    elif params is not None:
        function = functools.partial(function, params)
    offline, in_pulses = WholeFunction(function, streamed), InPulses(streamed, params)
    recordings = [offline.recording(length * multiple, seed) for seed, length in enumerate(lengths)]
    compared = 0
    for length, leaves, expected in zip(lengths, recordings, offline.of_each(recordings), strict=True):
        for sizes in pulses:
            total, own = length * multiple, [size * streamed.smallest_pulse for size in sizes]
            found = jax.tree.leaves(in_pulses.run(jax.tree.unflatten(streamed._structure, leaves), total, own))
            for place, pair in enumerate(zip(found, expected, strict=True)):
                result = _difference(f"output {place}", *pair, tolerance)
                if result.differs:
                    raise StreamError(_said_of(result, total, own))
                compared += result.compared
    if not compared:
        raise StreamError("nothing was compared: no output has a finite number; give other lengths or another example")
    if facts:
        _check_facts(streamed, offline)


def _difference(name: str, found: Any, expected: np.ndarray, tolerance: float | None) -> Comparison:
    is_float = jnp.issubdtype(expected.dtype, jnp.inexact)
    if tolerance is None or not is_float:
        tolerance = _STEPS * float(jnp.finfo(expected.dtype).eps) if is_float else 0.0
    return compare(name, found, expected, atol=tolerance, rtol=0.0, scaled=True)


def _said_of(result: Comparison, total: int, pulses: Sequence[int]) -> str:
    is_finite = result.max_abs is not None and np.isfinite(result.max_abs)
    size = f", by up to {result.max_abs:.3g}" if is_finite else ""
    return (
        f"the stream differs from the function: {result.name} for a recording of {total} frames in pulses of "
        f"{', '.join(map(str, pulses))}: {result.reason}{size}. NaNs in a stream come from frames that do not exist: "
        "fill such frames with `Pass.fill`"
    )


def _check_facts(streamed: Streamed, offline: WholeFunction) -> None:
    found = measured(offline, nan=False)
    ahead, field = max(each.look_ahead for each in found), max(each.receptive_field for each in found)
    for name, said, seen in (
        ("look_ahead", streamed.look_ahead, ahead),
        ("receptive_field", streamed.receptive_field, field),
    ):
        if said is not None and said < seen:
            raise StreamError(
                f"the stream has `{name}` {said}, and an output changes with {seen} frames of the input: widen the "
                "`reach` that a rule passes to `Pass.make`, for example with `Reach.under` or `Reach.unbounded`"
            )


class InPulses:
    """Runs a stream over recordings. Each size of pulse is compiled once, if JAX can compile the function."""

    def __init__(self, streamed: Streamed, params: Any = None):
        self.streamed, self.params = streamed, params
        self.leaves, self.structure = streamed._plan.leaves, streamed._plan.output_structure
        self.kinds = streamed._plan.facts.outputs
        self.start = streamed.init(params=params)
        self._steps: dict[int, Callable[..., Any]] = {}
        self._flush = _compiled(streamed.flush)

    def run(self, x: Any, total: int, pulses: Iterable[int], room: int = 0) -> Any:
        """Return the outputs of steps and flush, without the frames of delay.

        Args:
            x: the recording.
            total: the number of input frames.
            pulses: the pulses; the last pulse repeats.
            room: the least size of the tail of the flush, so that tails share a program. With `room`, a tail without
                frames is passed too; otherwise the flush gets no tail.
        """
        leaves, structure = jax.tree.flatten(x)
        state, position, outputs = self.start, 0, []
        sizes = iter(pulses)
        pulse = next(sizes)
        while position + pulse <= total:
            chunk = jax.tree.unflatten(structure, self._frames(leaves, position, position + pulse))
            if pulse not in self._steps:
                self._steps[pulse] = _compiled(self.streamed.with_pulse(pulse).step)
            given, state = self._steps[pulse](self.params, state, chunk)
            outputs.append(self.structure.flatten_up_to(given))
            position += pulse
            pulse = next(sizes, pulse)
        rest, tail = total - position, None
        if rest or room or any(leaf.axis is None for leaf in self.leaves):
            room = max(pulse, rest, room)
            frames = self._frames(leaves, position, total)
            tail = jax.tree.unflatten(structure, [self._filled(*each, room - rest) for each in enumerate(frames)])
        flushed = self._flush(self.params, state, tail, rest)
        lasts, counts = (self.structure.flatten_up_to(tree) for tree in flushed)
        joined = [
            last if count is None else _joined(kind, [given[index] for given in outputs], last, int(count))
            for index, (kind, last, count) in enumerate(zip(self.kinds, lasts, counts, strict=True))
        ]
        return jax.tree.unflatten(self.structure, joined)

    def _frames(self, leaves: Sequence[Any], begin: int, end: int) -> Leaves:
        unit = self.streamed.multiple
        return [
            each
            if leaf.axis is None
            else np.take(each, range(begin // unit * leaf.times, end // unit * leaf.times), leaf.axis)
            for each, leaf in zip(leaves, self.leaves, strict=True)
        ]

    def _filled(self, index: int, frames: Any, missing: int) -> Any:
        """Append frames that do not exist."""
        leaf = self.leaves[index]
        if leaf.axis is None:
            return frames
        shape = list(frames.shape)
        shape[leaf.axis] = missing // self.streamed.multiple * leaf.times
        filler = np.nan if jnp.issubdtype(frames.dtype, jnp.inexact) else 0
        return np.concatenate([frames, np.full(shape, filler, frames.dtype)], leaf.axis)


def _joined(kind: Any, pieces: Sequence[Any], last: Any, count: int) -> np.ndarray:
    """Concatenate the outputs of steps and flush, and drop the frames of delay."""
    kept = np.take(np.asarray(last), range(max(count, 0)), kind.axis)
    whole = np.concatenate([*map(np.asarray, pieces), kept], kind.axis)
    return np.take(whole, range(kind.delay, whole.shape[kind.axis] + min(count, 0)), kind.axis)


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled function, or the function itself if JAX cannot compile a primitive."""
    compiled, works = jax.jit(function), True

    def call(*arguments: Any) -> Any:
        nonlocal works
        if works:
            try:
                return compiled(*arguments)
            except NotImplementedError:  # a primitive without a lowering
                works = False
        return function(*arguments)

    return call
