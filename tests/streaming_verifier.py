"""The one verifier of streaming: steps and then a flush, against the function on whole recordings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from verifier import assert_something

from jaxrnn.streaming import Streamed, stream, transform
from jaxrnn.streaming.histories import Placeholder

#: NaN in every frame that does not exist, a number like no other in integers, and nothing that would launder them.
POISON = Placeholder(value=float("nan"), integer=77, harmless=None)


class Streaming:
    """Runs a streamed function over recordings, with everything compiled once for each pulse."""

    def __init__(self, streamed: Streamed, axes: Sequence[int | None], params: Any = None):
        self.streamed, self.axes, self.params = streamed, axes, params
        self.structure = streamed._plan.output_structure
        self.kinds = streamed._plan.facts.outputs
        self.times = [leaf.times for leaf in streamed._plan.leaves]
        self.start = streamed.init(params=params)
        self._flush = jax.jit(streamed.flush)

    @functools.cache  # noqa: B019 - as long-lived as the test
    def _step(self, pulse: int) -> Callable[..., Any]:
        return jax.jit(self.streamed.with_pulse(pulse).step)

    def _frames(self, leaves: Sequence[Any], begin: int, end: int) -> list[Any]:
        unit = self.streamed.multiple
        return [
            leaf if axis is None else np.take(leaf, range(begin // unit * times, end // unit * times), axis)
            for leaf, axis, times in zip(leaves, self.axes, self.times, strict=True)
        ]

    def run(self, x: Any, total: int, pulses: Iterable[int], room: int = 0) -> Any:
        """What comes out of pulses of the given sizes, the last size again and again, and of the flush.

        The tail is padded to a pulse, or to ``room`` frames where that is more: tails of one size share a program. With
        ``room``, a tail without frames is passed too; otherwise `flush` is called without a tail.
        """
        leaves, structure = jax.tree.flatten(x)
        state, position, outputs = self.start, 0, []
        sizes = iter(pulses)
        pulse = next(sizes)
        while position + pulse <= total:
            chunk = jax.tree.unflatten(structure, self._frames(leaves, position, position + pulse))
            given, state = self._step(pulse)(self.params, state, chunk)
            outputs.append(self.structure.flatten_up_to(given))
            position += pulse
            pulse = next(sizes, pulse)
        rest = total - position
        tail = None
        if rest or room or None in self.axes:
            room = max(pulse, rest, room)
            frames = self._frames(leaves, position, total)
            tail = jax.tree.unflatten(structure, [self._filled(*each, room - rest) for each in enumerate(frames)])
        flushed = self._flush(self.params, state, tail, rest)
        lasts, counts = (self.structure.flatten_up_to(tree) for tree in flushed)
        joined = [
            last if count is None else self._joined(kind, [given[index] for given in outputs], last, int(count))
            for index, (kind, last, count) in enumerate(zip(self.kinds, lasts, counts, strict=True))
        ]
        return jax.tree.unflatten(self.structure, joined)

    def _filled(self, index: int, frames: Any, missing: int) -> Any:
        axis = self.axes[index]
        if axis is None:
            return frames
        shape = list(frames.shape)
        shape[axis] = missing // self.streamed.multiple * self.times[index]
        filler = np.nan if np.issubdtype(frames.dtype, np.floating) else 0
        return np.concatenate([frames, np.full(shape, filler, frames.dtype)], axis)

    @staticmethod
    def _joined(kind: Any, pieces: list[Any], last: Any, count: int) -> Any:
        kept = np.take(np.asarray(last), range(max(count, 0)), kind.axis)
        whole = np.concatenate([*map(np.asarray, pieces), kept], kind.axis)
        end = whole.shape[kind.axis] + min(count, 0)
        return np.take(whole, range(kind.delay, end), kind.axis)


def recording(shape: Sequence[int], dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    """Random frames."""
    rng = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.integer):
        return rng.integers(0, 5, shape).astype(dtype)
    return rng.normal(size=shape).astype(dtype)


def assert_same(streamed: Any, offline: Any, tolerance: float, where: str) -> None:
    """Outputs have the same lengths and values."""
    for found, expected in zip(jax.tree.leaves(streamed), jax.tree.leaves(offline), strict=True):
        expected = np.asarray(expected)
        assert found.shape == expected.shape, f"{where}: {found.shape} frames, but {expected.shape} offline"
        scale = max(1.0, float(np.max(np.abs(expected), initial=0, where=np.isfinite(expected))))
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * scale, err_msg=where)


def check_values(
    function: Callable[..., Any],
    shape: Sequence[int],
    axis: int = 0,
    *,
    lengths: Iterable[int] = (1, 6, 11),
    chunkings: Sequence[Sequence[int]] = ((1,), (3,), (1, 3, 1)),
    multiple: int = 1,
    constraints: Sequence[str] = (),
    past: int | None = None,
    reference: Callable[..., Any] | None = None,
    dtype: Any = np.float32,
    tolerance: float = 1e-5,
    tailless: bool = False,
    something: bool = True,
) -> Streamed:
    """Streamed equals offline, with NaN in every frame that does not exist.

    Args:
        function: of one array.
        shape: of the array; the size of the time axis does not matter.
        axis: the time axis.
        lengths: recordings to try, in multiples of ``multiple``.
        chunkings: pulses one after the other, in multiples of the smallest; the last is repeated.
        multiple: as in ``stream``.
        constraints: as in ``stream``.
        past: as in ``stream``.
        reference: the function of whole recordings, if ``past`` changes it.
        dtype: of the array.
        tolerance: relative to the largest value, or to 1.
        tailless: whether `flush` is called without a tail if no frame is left, which takes a program more.
        something: False if the outputs may be empty, or without a finite number, which is then what is compared.
    """
    example = jax.ShapeDtypeStruct(tuple(shape), dtype)
    with mock.patch.object(transform, "PLACEHOLDER", POISON):
        options = {"multiple": multiple, "constraints": constraints, "past": past}
        streamed = stream(function, example, axes=axis, **options)
    streaming = Streaming(streamed, [axis])
    totals = [length * multiple for length in lengths]
    recordings = [
        recording([total if d == axis else size for d, size in enumerate(shape)], dtype, total) for total in totals
    ]
    # One program for all lengths.
    offline = jax.jit(lambda recordings: list(map(reference or function, recordings)))(recordings)
    if something:
        assert_something(offline)
    assert chunkings, "nothing is compared"
    chunkings = [[size * streamed.smallest_pulse for size in chunking] for chunking in chunkings]
    room = max(map(max, chunkings))
    for total, x, expected in zip(totals, recordings, offline, strict=True):
        for pulses in chunkings:
            found = streaming.run(x, total, pulses, room * (not tailless or total % pulses[-1] > 0))
            assert_same(found, expected, tolerance, f"{total} frames, pulses {pulses}")
    return streamed


def check_gradients(
    function: Callable[..., Any],
    shape: Sequence[int],
    axis: int = 0,
    *,
    length: int = 7,
    multiple: int = 1,
    constraints: Sequence[str] = (),
    past: int | None = None,
    reference: Callable[..., Any] | None = None,
    tolerance: float = 1e-9,
) -> None:
    """Gradients through steps and flush equal offline ones, in float64: of the input, and of a parameter.

    The parameter scales the input, which brings a gradient into every product behind it.
    """
    with jax.enable_x64(True):
        example = jax.ShapeDtypeStruct(tuple(shape), np.float64)

        def scaled(function: Callable[..., Any]) -> Callable[..., Any]:
            return lambda weight, x: function(jnp.tanh(x * weight))

        weight = jnp.array(0.7)
        options = {"multiple": multiple, "constraints": constraints, "past": past}
        streamed = stream(scaled(function), example, axes=axis, params=weight, **options)
        total = length * multiple
        x = jnp.array(recording([total if d == axis else size for d, size in enumerate(shape)], np.float64))

        def loss(run: Callable[..., Any]) -> Callable[..., Any]:
            def of(weight: Any, x: Any) -> Any:
                leaves = [leaf for leaf in jax.tree.leaves(run(weight, x)) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
                return sum(
                    jnp.sum(leaf**2 * (1 + jnp.sin(jnp.arange(leaf.size, dtype=leaf.dtype)).reshape(leaf.shape)))
                    for leaf in leaves
                )

            return of

        expected = jax.jit(jax.grad(loss(scaled(reference or function)), (0, 1)))(weight, x)
        runs = [streamed.run] if past is None else [streamed.run, streamed.offline]
        found = [each for run in runs for each in jax.jit(jax.grad(loss(run), (0, 1)))(weight, x)]
        for one, other in zip(found, expected * len(runs), strict=True):
            scale = max(1.0, float(np.max(np.abs(other))))
            np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * scale)
