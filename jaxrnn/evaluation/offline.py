"""Steppers over whole recordings, chunk by chunk, exact from the first frame to the last."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import jax

from jaxrnn._files.arguments import VALUE, argument
from jaxrnn.errors import InputError
from jaxrnn.evaluation.networks import Network
from jaxrnn.evaluation.recordings import SAMPLES
from jaxrnn.evaluation.systems import MAX_FRAMES, Piece, check_rate
from jaxrnn.steps.recordings import time_axis
from jaxrnn.steps.stepper import Stepper
from jaxrnn.steps.stepspec import OutputSpec


class Offline:
    """A stepper over recordings of any length, in chunks.

    Outputs equal those of the stepper on the whole recording. For an offline model, pass ``Offline(model.stream(),
    model.params)``. Arrays of a recording have time first, then the shape of the input without time and batch.

    Args:
        stepper: a streamed function, a compiled file, a model in steps, or a `Stepper` of your own.
        params: the parameters; None for those of the stepper.
        rate: samples per second, for recordings of sound.

    Attributes:
        rate: as above.
        before: zero, because the state holds past frames.

    Raises:
        StateError: the model forgets its state, so it has no steps; `Model.stream` turns it into a streamed function.
        InputError: the object is not a stepper, parameters are missing, an input has no time axis, or no output has
            one.
    """

    before = 0

    def __init__(self, stepper: Stepper, params: Any = None, *, rate: int = 16_000):
        check_rate(rate, "rate")
        self.rate = rate
        self._network = network = Network(stepper, params)
        spec = network.spec
        if spec.pulse > MAX_FRAMES:
            raise InputError(f"a pulse has at most {MAX_FRAMES:,} frames, not {spec.pulse:,}")
        for each in spec.inputs:
            if time_axis(spec, each) is None:
                raise InputError(
                    f"{spec.label}: {each.as_input} has no time axis, and recordings have no such array; bind it, with "
                    f"{argument('static', {each.name: VALUE}, 'jaxrnn.load(path)')}, or in a function of your own"
                )
        if not self._outputs:
            raise InputError(f"{spec.label}: no output has a frame for every frame of time")

    @property
    def identity(self) -> dict[str, Any]:
        """The stepper, the parameters and the rate."""
        return {"rate": self.rate, **self._network.identity}

    @property
    def multiple(self) -> int:
        """The pulse: frames of a chunk are a multiple of it."""
        return self._network.spec.pulse

    @property
    def _outputs(self) -> list[OutputSpec]:
        spec = self._network.spec
        return [each for each in spec.outputs if not each.at_end and time_axis(spec, each) is not None]

    @property
    def delay(self) -> dict[str, int]:
        """Delays of the stepper's spec."""
        return {each.name: each.delay or 0 for each in self._outputs}

    @property
    def per_frame(self) -> dict[str, Fraction]:
        """Rates of the stepper's spec; 1 for a model in steps."""
        return {each.name: Fraction(1) if each.rate is None else each.rate for each in self._outputs}

    def padded(self, frames: int) -> int:
        """Return ``frames``: the stepper is flushed without padding."""
        return frames

    def expected(self, output: str, frames: int) -> int | None:
        """Return None: every output frame belongs to the recording."""
        return None

    def start(self, batch: int) -> Any:
        """Return the initial state, with the batch axis first."""
        return self._network.start(batch)

    def run(
        self, carry: Any, parts: Mapping[str, jax.Array], frames: jax.Array, *, ending: bool
    ) -> tuple[dict[str, Piece], Any]:
        """Process one chunk, and flush the streams that end in it."""
        spec, arrays = self._network.spec, {}
        for each in spec.inputs:
            name = SAMPLES if set(parts) == {SAMPLES} and len(spec.inputs) == 1 else each.name
            if name not in parts:
                raise InputError(f"{spec.label}: the recordings hold {', '.join(parts)}, but no {each.name!r}")
            arrays[each.name] = parts[name]
        with self._network.types():
            return self._advance(self._params, carry, arrays, frames, ending=ending)

    @functools.cached_property
    def _params(self) -> Any:
        return self._network.packed({})

    @functools.cached_property
    def _advance(self) -> Any:
        return jax.jit(self._network.advance, static_argnames="ending")
