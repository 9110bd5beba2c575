"""A model of whole recordings, streamed: chunk after chunk with its state, exact from the first frame to the last."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxrnn.errors import InputError
from jaxrnn.evaluation.identity import model_identity
from jaxrnn.evaluation.limits import MAX_FRAMES, check_rate
from jaxrnn.evaluation.recordings import SAMPLES
from jaxrnn.evaluation.systems import Piece

if TYPE_CHECKING:
    from jaxrnn.model import Model


class Offline:
    """An offline model over recordings of any length, in chunks.

    What comes out is what the model gives on the whole recording. A recording's arrays have time in front, and else the
    shape of the model's inputs without time and batch.

    Attributes:
        rate: samples a second, where a recording is sound.
        before: no frames of the past: the state holds them.
    """

    before = 0

    def __init__(
        self, model: Model, *, symbol: str = "S", pulse: int | None = None, rate: int = 16_000, params: Any = None
    ):
        check_rate(rate, "rate")
        if pulse is not None and pulse > MAX_FRAMES:
            raise InputError(f"a pulse has at most {MAX_FRAMES:,} frames, not {pulse:,}")
        self._model, self.rate, self._symbol = model, rate, symbol
        self._streamed = model.stream(symbol=symbol, pulse=pulse)
        ended = [name for name, axis in self._streamed.axes.items() if axis is None]
        if len(ended) == len(self._streamed.axes):
            raise InputError(f"{model.label}: no output has a frame for every frame of time")
        self._params = model.params if params is None else params
        self._steps: dict[int, Any] = {}

    @property
    def identity(self) -> dict[str, Any]:
        """The model, and how it is streamed."""
        return {"symbol": self._symbol, "rate": self.rate, **model_identity(self._model, self._params)}

    @property
    def multiple(self) -> int:
        """A chunk holds whole pulses."""
        return self._streamed.pulse

    @property
    def _outputs(self) -> list[str]:
        return [name for name, axis in self._streamed.axes.items() if axis is not None]

    @property
    def delay(self) -> dict[str, int]:
        """What the stream itself says."""
        return {name: self._streamed.delay[name] for name in self._outputs}

    @property
    def per_frame(self) -> dict[str, Fraction]:
        """What the stream itself says."""
        return {name: self._streamed.rate[name] for name in self._outputs}

    def padded(self, frames: int) -> int:
        """Nothing is put after a recording: the stream is flushed."""
        return frames

    def expected(self, output: str, frames: int) -> int | None:
        """All that comes is the recording's."""
        return None

    def start(self, batch: int) -> Any:
        """The state before the first frame, with the batch in front."""
        return self._streamed.init(batch, params=self._params)

    def run(
        self, carry: Any, parts: Mapping[str, jax.Array], frames: jax.Array, *, ending: bool
    ) -> tuple[dict[str, Piece], Any]:
        """One chunk; the streams that end in it are flushed."""
        size = next(iter(parts.values())).shape[1]
        if size not in self._steps:
            self._steps[size] = self._compile(size)
        step, flush = self._steps[size]
        return (flush if ending else step)(self._params, carry, dict(parts), frames)

    def _compile(self, size: int) -> tuple[Any, Any]:
        streamed = self._streamed.with_pulse(size)

        def step(params: Any, state: Any, parts: Any, frames: jax.Array) -> tuple[dict[str, Piece], Any]:
            outputs, state = streamed.step(params, state, self._arranged(parts))
            rates = self.per_frame
            counts = {name: frames * rate.numerator // rate.denominator for name, rate in rates.items()}
            return {name: Piece(self._in_front(name, outputs[name]), counts[name]) for name in rates}, state

        def flush(params: Any, state: Any, parts: Any, frames: jax.Array) -> tuple[dict[str, Piece], Any]:
            """All streams are flushed and stepped; each keeps the one that is its own."""
            whole, after = step(params, state, parts, frames)
            ended = frames < size
            last = streamed.flush(params, state, self._arranged(parts), frames)
            pieces = {}
            for name in self._outputs:
                rest = self._in_front(name, last.outputs[name])
                values, counts = whole[name]
                longest = max(rest.shape[1], values.shape[1])
                rest, values = (_longer(array, longest) for array in (rest, values))
                chosen = jnp.where(ended.reshape(-1, *(1,) * (rest.ndim - 1)), rest, values)
                pieces[name] = Piece(chosen, jnp.where(ended, last.counts[name], counts))
            return pieces, after

        return jax.jit(step), jax.jit(flush)

    def _arranged(self, parts: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """The recording's arrays ``[batch, time, ...]`` as the model's inputs with the batch in front."""
        inputs = {}
        for info in self._model.inputs:
            name = SAMPLES if set(parts) == {SAMPLES} and len(self._model.inputs) == 1 else info.name
            if name not in parts:
                raise InputError(f"{self._model.label}: the recordings hold {', '.join(parts)}, but no {info.name!r}")
            shape, array = list(info.shape or ()), parts[name]
            axis = shape.index(self._symbol)
            rest = [1 if isinstance(size, str) else size for place, size in enumerate(shape) if place != axis]
            if array[0, 0].size != math.prod(rest):
                raise InputError(f"{self._model.label}: a frame of {name}, {array.shape[2:]}, does not fit {info}")
            array = array.reshape(*array.shape[:2], *rest)
            inputs[info.name] = jnp.moveaxis(array, 1, axis + 1).astype(info.dtype)
        return inputs

    def _in_front(self, name: str, value: jax.Array) -> jax.Array:
        """An output ``[batch, ...]`` with time after the batch, and without the model's own batch of one."""
        moved = jnp.moveaxis(value, self._streamed.axes[name] + 1, 1)
        return moved[:, :, 0] if moved.ndim > 2 and moved.shape[2] == 1 else moved


def _longer(array: jax.Array, size: int) -> jax.Array:
    return jnp.pad(array, [(0, 0), (0, size - array.shape[1]), *[(0, 0)] * (array.ndim - 2)])
